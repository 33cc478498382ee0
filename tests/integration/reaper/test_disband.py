"""Groups that expire: they go when nobody polls them, with what they had counted."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.consumer.presence import GONE_MS
from cassq.errors import ConfigError, GroupNotFoundError
from cassq.reaper import Action
from cassq.reaper.actions import Scope
from cassq.reaper.disband import Disband
from tests.integration.fronts import client_with, front_catalog
from tests.integration.places import Place
from tests.integration.stage import drain, numbers, payloads, push, reap
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]

EXPIRES = 60.0
WATCHED = GONE_MS / 1000


@pytest.fixture
def queue(timed: cassq.Client) -> cassq.Queue:
    queue = timed.create_queue("jobs")
    queue.create_group("screen", group_expires=EXPIRES, claim_timeout=3600)
    return queue


def names(queue: cassq.Queue) -> list[str]:
    return [group.name for group in queue.groups()]


def watch(client: cassq.Client, clock: ManualClock) -> list[Action]:
    """Look at idle groups, and again when they were watched for long enough."""
    reap(client)
    clock.advance(WATCHED)
    return [action for action in reap(client) if action.verb == "disband"]


def maintain(client: cassq.Client) -> None:
    """What the client's housekeeper does every second."""
    client.runtime.online().presence.maintain()


# --- when it goes -------------------------------------------------------------------------------


def test_a_group_that_was_never_polled_is_removed_when_its_time_since_creation_is_over(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    clock.advance(EXPIRES - WATCHED - 0.001)
    assert watch(timed, clock) == []
    assert names(queue) == ["default", "screen"]
    clock.advance(0.001)
    (done,) = watch(timed, clock)
    assert (done.subject, done.queue, done.outcome) == ("screen", "jobs", "done")
    assert names(queue) == ["default"]
    assert watch(timed, clock) == []


def test_a_group_without_the_setting_stays(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    queue.create_group("archive")
    clock.advance(365 * 86400)
    watch(timed, clock)
    assert names(queue) == ["archive", "default"]


def test_a_group_with_a_live_popper_stays(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    queue.popper("screen")
    for _ in range(40):
        clock.advance(5)
        maintain(timed)
        reap(timed)
    assert names(queue) == ["default", "screen"]


def test_a_group_that_is_polled_at_intervals_below_the_limit_stays(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    for _ in range(10):
        with queue.popper("screen") as popper:
            popper.pop()
        maintain(timed)
        clock.advance(EXPIRES - WATCHED - 0.001)
        watch(timed, clock)
    assert names(queue) == ["default", "screen"]


def test_the_time_counts_from_when_the_last_popper_closed(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    popper = queue.popper("screen")
    for _ in range(9):
        clock.advance(10)
        maintain(timed)
    clock.advance(9)
    popper.close()
    maintain(timed)
    clock.advance(EXPIRES - WATCHED - 0.001)
    assert watch(timed, clock) == []
    clock.advance(0.001)
    assert len(watch(timed, clock)) == 1


def test_the_time_counts_from_when_a_killed_popper_was_last_seen(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    queue.popper("screen")
    for _ in range(3):
        clock.advance(5)
        maintain(timed)
    clock.advance(EXPIRES - WATCHED)  # and it was never heard of again
    assert watch(timed, clock) == []
    clock.advance(0.001)
    assert len(watch(timed, clock)) == 1


def test_a_popper_that_lived_for_long_is_remembered_for_a_long_limit(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    """Members are forgotten after an hour; the group is to stay for a day."""
    queue.create_group("nightly", group_expires=86400)
    queue.popper("nightly")
    for _ in range(3 * 24 * 2):
        clock.advance(1800)
        maintain(timed)
    clock.advance(86400 - 1801)
    queue._ports.catalog.records.members(queue._group("nightly").id, 2**50)  # forgets old ones
    watch(timed, clock)
    assert "nightly" in names(queue)
    clock.advance(1801)
    watch(timed, clock)
    assert "nightly" not in names(queue)


def test_after_a_pause_of_the_whole_machine_a_live_popper_keeps_its_group(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    queue.popper("screen")
    clock.advance(8 * 3600)
    reap(timed)  # before the popper is noted again
    clock.advance(5)
    maintain(timed)
    clock.advance(WATCHED)
    reap(timed)
    clock.advance(WATCHED)
    reap(timed)
    assert names(queue) == ["default", "screen"]


def test_its_time_starts_again_when_it_is_created_again_or_changed(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    for _ in range(3):
        clock.advance(EXPIRES - WATCHED - 1)
        queue.create_group("screen", group_expires=EXPIRES, claim_timeout=3600)
        watch(timed, clock)
    queue.create_group("old")
    clock.advance(86400)
    queue.create_group("screen", group_expires=EXPIRES, claim_timeout=3600)
    queue.update_group("old", group_expires=30)
    watch(timed, clock)
    assert names(queue) == ["default", "old", "screen"]
    queue.update_group("screen", group_expires=None)
    clock.advance(86400)
    watch(timed, clock)
    assert names(queue) == ["default", "screen"]


def test_a_dry_run_removes_nothing(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    clock.advance(EXPIRES)
    reap(timed)
    clock.advance(WATCHED)
    planned = timed.reap(dry_run=True)
    assert ("disband", "screen", "planned") in [(a.verb, a.subject, a.outcome) for a in planned]
    assert names(queue) == ["default", "screen"]


# --- what it had --------------------------------------------------------------------------------


def test_messages_of_an_expired_group_are_counted_logged_and_no_longer_kept(
    timed: cassq.Client,
    clock: ManualClock,
    queue: cassq.Queue,
    caplog: pytest.LogCaptureFixture,
) -> None:
    push(queue, *numbers(10))
    popper = queue.popper("screen")
    popper.commit(popper.pop(3))
    assert len(popper.pop(2)) == 2
    drain(queue.popper())
    before = queue.stats().groups["screen"]
    assert before.pending >= 2
    maintain(timed)
    clock.advance(EXPIRES + 5)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "cassq"):
        (done,) = watch(timed, clock)
    assert done.detail == "no popper for 60 s; 7 messages not committed"
    assert "group screen of queue jobs was removed" in caplog.text
    (gone,) = queue.expired_groups()
    assert (gone.name, gone.expires, gone.pushed, gone.uncommitted) == ("screen", EXPIRES, 10, 7)
    assert (gone.counts["committed"], gone.counts["pending"]) == (3, before.pending)
    assert gone.counts["waiting"] == before.waiting
    assert queue.stats().expired_groups == {"groups": 1, "uncommitted": 7}
    audit = queue.audit()
    assert (audit.findings, audit.expired_groups) == ([], [gone])
    reap(timed)
    assert queue.stats().pipes["retired"] == 1


def test_an_expired_group_s_retired_pipes_count_too(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    push(queue, *numbers(4))
    for group in ("default", "screen"):
        drain(queue.popper(group))
    reap(timed)
    push(queue, *numbers(2))
    maintain(timed)
    clock.advance(EXPIRES + 5)
    watch(timed, clock)
    (gone,) = queue.expired_groups()
    assert (gone.pushed, gone.counts["committed"], gone.counts["waiting"]) == (6, 4, 2)


def test_groups_that_expire_at_one_moment_are_each_counted(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    for number in range(5):
        queue.create_group(f"screen-{number}", group_expires=EXPIRES)
    clock.advance(EXPIRES)
    assert len(watch(timed, clock)) == 6
    assert len(queue.expired_groups()) == 6
    clock.advance(61 * 86400)
    assert queue.expired_groups() == []


def test_a_group_created_again_under_its_name_starts_from_scratch(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    push(queue, *numbers(3))
    clock.advance(EXPIRES)
    watch(timed, clock)
    queue.create_group("screen", start="now", group_expires=EXPIRES)
    push(queue, b"new")
    assert payloads(drain(queue.popper("screen"))) == [b"new"]
    assert queue.audit().findings == []


# --- who meets it -------------------------------------------------------------------------------


def test_a_popper_of_an_expired_group_learns_what_became_of_it(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    push(queue, *numbers(3))
    popper = queue.popper("screen")
    messages = popper.pop(2)
    clock.advance(EXPIRES)
    watch(timed, clock)
    queue.watched.refresh()
    with pytest.raises(GroupNotFoundError) as caught:
        popper.pop()
    assert "after 60 seconds without a popper" in caught.value.hint
    with pytest.raises((GroupNotFoundError, cassq.errors.ClaimLostError)):
        popper.commit(messages)
    popper.close()
    with pytest.raises(GroupNotFoundError, match="create it again"):
        queue.popper("screen")


def test_a_popper_that_opens_while_its_group_expires_is_refused(place: Place) -> None:
    """The group goes between the popper's look at it and the popper's note."""
    expire: list[Any] = []

    def after(verb: str) -> None:
        if verb == "queues.with_groups" and expire:
            expire.pop()()

    with client_with(place, catalog=lambda catalog: front_catalog(catalog, after)) as client:
        queue = client.create_queue("jobs")
        queue.create_group("screen", group_expires=EXPIRES)
        group, queues = queue._group("screen"), client.ports.catalog.queues
        expire.append(lambda: queues.delete_group(group.id))
        with pytest.raises(GroupNotFoundError, match="was deleted") as caught:
            queue.popper("screen")
        assert "create it again" in caught.value.hint
        queue.create_group("screen", group_expires=EXPIRES)
        assert queue.popper("screen").pop() == []


def test_a_popper_that_opens_before_its_group_is_removed_keeps_it(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    """The pass looked at the group before the popper opened, and acts after it."""
    clock.advance(EXPIRES)
    reap(timed)
    clock.advance(WATCHED)
    disband = timed.reaper._passes["disband"]
    assert isinstance(disband, Disband)
    planned = disband.plan(disband.look(Scope(timed.ports)), clock.boot_ms())
    assert [action.subject for action in planned] == ["screen"]
    queue.popper("screen")
    (action,) = disband.apply_all(planned)
    assert action.outcome == "void"
    assert names(queue) == ["default", "screen"]
    assert queue.expired_groups() == []


@pytest.mark.parametrize("limit", [0, 14.9, -1, "60", True, float("inf")])
def test_a_limit_that_cannot_be_kept_is_refused(queue: cassq.Queue, limit: Any) -> None:
    with pytest.raises(ConfigError, match="group_expires must be"):
        queue.create_group("other", group_expires=limit)
    assert names(queue) == ["default", "screen"]


def test_the_group_default_does_not_expire(queue: cassq.Queue) -> None:
    with pytest.raises(ConfigError, match="'default' cannot have group_expires"):
        queue.update_group("default", group_expires=60)
    queue.delete_group("default")
    with pytest.raises(ConfigError, match="'default' cannot have group_expires"):
        queue.create_group("default", group_expires=60)
