"""Following a queue: offsets, acks, and what others do meanwhile; without Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.errors import ConfigError, LeaseLostError, UsageError
from cassq.extents.port import ExtentMissingError
from cassq.message.frames import Place
from tests.integration.stage import drain, numbers, payloads, push, reap
from tests.integration.timed import clock, timed

pytest.importorskip("pyspark")

from cassq.spark.clients import Location
from cassq.spark.options import stream_options
from cassq.spark.streams.following import (
    FollowedPipe,
    Follower,
    Offset,
    initial_offset,
    offset_of,
    pieces_between,
)
from cassq.spark.streams.leasing import LEASE_MS, Renewals
from tests.spark.batches import payloads_of

__all__ = ["clock", "timed"]
START: Offset = {"pipes": {}}
Follow = Callable[..., Follower]


@pytest.fixture
def place(tmp_path: Any) -> Any:
    from tests.integration.places import DirectoryPlace

    return DirectoryPlace(tmp_path / "data")


@pytest.fixture
def follow(timed: cassq.Client) -> Iterator[Follow]:
    """Opens followers of the queue `jobs`; they are closed with the test."""
    opened: list[Follower] = []
    renewals = Renewals()

    def open_one(client: cassq.Client = timed, **options: str) -> Follower:
        given = stream_options({"url": client.url, "queue": "jobs", **options})
        location = Location(client.url, client.ports.catalog.records.identity(), "", "here")
        opened.append(Follower(client.ports, given, location, renewals))
        return opened[-1]

    yield open_one
    for follower in opened:
        follower.close()
    renewals.close()


def new_offset(client: cassq.Client, **options: str) -> Offset:
    """What Spark gets as the initial offset of a query with a new checkpoint."""
    given = stream_options({"url": client.url, "queue": "jobs", **options})
    return initial_offset(client.ports.catalog.records.identity(), given)


def read(client: cassq.Client, start: Offset, end: Offset) -> list[bytes]:
    """The payloads of a batch."""
    return payloads_of(client, pieces_between(start, end))


def test_batches_follow_one_another_and_become_acks(timed: cassq.Client, follow: Follow) -> None:
    queue = timed.create_queue("jobs")
    follower = follow()
    push(queue, *numbers(5))
    first = follower.latest(START, None)
    assert read(timed, START, first) == numbers(5)
    assert queue.stats().groups["default"].waiting == 5, "it is not done yet"
    assert follower.latest(first, None) == first, "there is nothing more"
    assert queue.stats().groups["default"].committed == 5
    push(queue, *numbers(3, 5))
    second = follower.latest(first, None)
    assert read(timed, first, second) == numbers(3, 5)
    assert len(second["pipes"]) == 1, "what is acked to its end is not carried on"
    follower.ack(second)
    reap(timed)
    stats = queue.stats()
    assert (stats.groups["default"].committed, stats.pipes["retired"]) == (8, 2)
    assert queue.audit().findings == []
    assert follower.latest(second, None) == second


def test_a_batch_that_is_replayed_is_the_same(timed: cassq.Client, follow: Follow) -> None:
    queue = timed.create_queue("jobs")
    follower = follow()
    pusher = queue.pusher()
    pusher.push_many(numbers(10))
    first = follower.latest(START, 4)
    pusher.push_many(numbers(5, 10))
    second = follower.latest(first, None)
    again = [read(timed, START, first), read(timed, first, second)]
    assert again == [numbers(4), numbers(11, 4)]
    assert again == [read(timed, START, first), read(timed, first, second)]


def test_a_batch_has_at_most_as_many_as_asked_for(timed: cassq.Client, follow: Follow) -> None:
    queue = timed.create_queue("jobs")
    for n in range(4):
        push(queue, *numbers(5, 5 * n))
    follower = follow()
    offset, found = START, []
    while (end := follower.latest(offset, 7)) != offset:
        batch = read(timed, offset, end)
        assert len(batch) <= 7
        found += batch
        offset = end
    assert found == numbers(20)
    assert len(found) == 20


def test_available_now_reads_what_is_there_now(timed: cassq.Client, follow: Follow) -> None:
    queue = timed.create_queue("jobs")
    pusher = queue.pusher()
    pusher.push_many(numbers(6))
    follower = follow()
    follower.stop_here()
    pusher.push_many(numbers(6, 6))
    push(queue, b"later")
    offset, found = START, []
    while (end := follower.latest(offset, 4)) != offset:
        found += read(timed, offset, end)
        offset = end
    assert found == numbers(6)


# --- where a new query begins -------------------------------------------------------------------


def test_a_new_query_at_the_latest_position_reads_what_is_pushed_later(
    timed: cassq.Client, follow: Follow
) -> None:
    queue = timed.create_queue("jobs")
    pusher = queue.pusher()
    pusher.push_many(numbers(10))
    follower = follow(startingPosition="latest")
    start = new_offset(timed, startingPosition="latest")
    first = follower.latest(start, None)
    assert read(timed, start, first) == []
    assert first != start, "the checkpoint must record that the query has begun"
    pusher.push_many(numbers(5, 10))
    assert follower.latest(start, None) != first, "Spark may ask for the first batch again"
    second = follower.latest(first, None)
    assert read(timed, first, second) == numbers(5, 10)
    follower.latest(second, None)
    stats = queue.stats().groups["default"]
    assert (stats.purged, stats.committed, stats.waiting) == (10, 5, 0)
    assert queue.audit().findings == []


def test_a_new_query_at_a_time_reads_what_was_pushed_from_then_on(
    timed: cassq.Client, follow: Follow, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    pusher = queue.pusher()
    pusher.push_many(numbers(10))
    pusher.push(b"far", delay=3600)
    clock.advance(60)
    position = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC).isoformat()
    pusher.push_many(numbers(5, 10))
    push(queue, b"elsewhere")
    follower = follow(startingPosition=position)
    start = new_offset(timed, startingPosition=position)
    first = follower.latest(start, None)
    assert sorted(read(timed, start, first)) == sorted([*numbers(5, 10), b"elsewhere"])
    clock.advance(3600)
    assert follower.latest(first, None) == first, "the delayed message was pushed before, too"
    stats = queue.stats().groups["default"]
    assert (stats.purged, stats.committed) == (11, 6)
    assert queue.audit().findings == []


def test_a_new_query_at_the_earliest_position_reads_all_that_is_stored(
    timed: cassq.Client, follow: Follow
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(10))
    start = new_offset(timed, startingPosition="earliest")
    end = follow(startingPosition="earliest").latest(start, None)
    assert read(timed, start, end) == numbers(10)
    assert queue.stats().groups["default"].purged == 0


@pytest.mark.parametrize("position", ["earliest", "2020-01-01"])
def test_a_position_that_the_group_has_passed_is_refused_and_nothing_is_purged(
    timed: cassq.Client, follow: Follow, position: str
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(10))
    with queue.popper() as popper:
        popper.commit(popper.pop(4))
    follower = follow(startingPosition=position)
    with pytest.raises(UsageError, match="is past messages 0 to 3 of pipe.*create_group"):
        follower.latest(new_offset(timed, startingPosition=position), None)
    stats = queue.stats().groups["default"]
    assert (stats.waiting, stats.purged) == (6, 0)


def test_a_position_is_refused_while_a_popper_of_the_group_has_messages(
    timed: cassq.Client, follow: Follow
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(10))
    popper = queue.popper()
    popper.pop(3)
    follower = follow(startingPosition="latest")
    with pytest.raises(UsageError, match="a popper of group 'default'"):
        follower.latest(new_offset(timed, startingPosition="latest"), None)
    assert queue.stats().groups["default"].purged == 0


def test_other_groups_keep_what_lies_before_the_start(timed: cassq.Client, follow: Follow) -> None:
    queue = timed.create_queue("jobs")
    queue.create_group("spark")
    push(queue, *numbers(10))
    options = {"group": "spark", "startingPosition": "latest"}
    follow(**options).latest(new_offset(timed, **options), None)
    groups = queue.stats().groups
    assert [groups[name].waiting for name in ("default", "spark")] == [10, 0]
    assert payloads(drain(queue.popper())) == numbers(10)


def test_a_query_that_was_killed_before_its_first_batch_begins_again(
    timed: cassq.Client, follow: Follow
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(10))
    start = new_offset(timed, startingPosition="latest")
    killed = follow(startingPosition="latest")
    killed.latest(start, None)
    killed.close()
    push(queue, *numbers(5, 10))
    assert read(timed, start, follow(startingPosition="latest").latest(start, None)) == []
    assert queue.stats().groups["default"].purged == 15


def test_an_old_checkpoint_ignores_the_position(timed: cassq.Client, follow: Follow) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(10))
    begun = offset_of(timed.ports.catalog.records.identity(), {})
    for offset in (START, begun):
        follower = follow(startingPosition="latest")
        assert read(timed, offset, follower.latest(offset, None)) == numbers(10)
        follower.close()


def test_without_a_position_the_initial_offset_is_as_it_ever_was(timed: cassq.Client) -> None:
    timed.create_queue("jobs")
    identity = timed.ports.catalog.records.identity()
    assert new_offset(timed) == {"pipes": {}, "identity": identity}
    assert new_offset(timed, startingPosition="GROUP") == new_offset(timed)


def test_a_wrong_position_is_refused(timed: cassq.Client) -> None:
    with pytest.raises(ConfigError, match="group, earliest, latest, or a time such as .*'soon'"):
        new_offset(timed, startingPosition="soon")


# --- how far a query is behind ------------------------------------------------------------------


def test_what_is_reported_is_the_end_and_how_far_it_is(
    timed: cassq.Client, follow: Follow, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    for n in range(2):
        push(queue, *numbers(5, 5 * n))
    with queue.pusher() as pusher:
        pusher.push(b"later", delay=20)
    follower = follow()
    assert follower.reported() is None
    first = follower.latest(START, 7)
    reported = follower.reported()
    assert reported is not None
    assert reported["behind"] == 3, "what is not due does not count"
    assert sorted(read(timed, START, reported)) == sorted(numbers(10))
    assert sorted(read(timed, first, reported)) == numbers(3, 7)
    second = follower.latest(first, None)
    assert (follower.reported() or {})["behind"] == 0
    clock.advance(21)
    follower.stop_here()
    push(queue, *numbers(4, 10))
    third = follower.latest(second, None)
    assert read(timed, second, third) == [b"later"]
    assert (follower.reported() or {})["behind"] == 4, "a query that ends before them is behind"


def test_a_group_that_was_popped_from_goes_on_where_it_stood(
    timed: cassq.Client, follow: Follow
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(10))
    with queue.popper() as popper:
        popper.commit(popper.pop(4))
    end = follow().latest(START, None)
    assert read(timed, START, end) == numbers(6, 4)


def test_a_query_that_was_killed_goes_on_with_its_checkpoint(
    timed: cassq.Client, follow: Follow
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(10))
    first = follow()
    offset = first.latest(START, 4)
    first.close()
    again = follow()
    end = again.latest(offset, None)
    assert read(timed, offset, end) == numbers(6, 4)
    assert queue.stats().groups["default"].committed == 4


def test_two_queries_of_one_group_refuse_each_other(
    timed: cassq.Client, follow: Follow, place: Any, clock: ManualClock
) -> None:
    timed.create_queue("jobs").create_group("more")
    follower = follow()

    class RenewingClock(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            clock.advance(seconds)
            follower.lease.keep_on()

    waiting = RenewingClock()
    other = cassq.Client(timed.url, place.open(waiting), waiting)
    with pytest.raises(UsageError, match="another query reads group 'default'.*group of its own"):
        follow(other)
    assert waiting.boot_ms() - ManualClock().boot_ms() >= LEASE_MS
    follow(other, group="more").close()
    follower.close()
    follow(other).close()
    other.close()


def test_a_query_goes_on_at_once_where_one_was_killed(
    timed: cassq.Client, follow: Follow, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    (group,) = timed.ports.catalog.queues.groups(queue.id)
    tell = (
        "from cassq.base.clock import ManualClock; from cassq.base.processes import process_name;"
        "print(process_name(ManualClock()))"
    )
    killed = subprocess.run([sys.executable, "-c", tell], capture_output=True, check=True)
    owner = f"{timed.ports.ids.version()}@{killed.stdout.decode().strip()}"
    assert timed.ports.catalog.leases.take(f"stream:{group.id}", owner, LEASE_MS)
    before_ms = clock.boot_ms()
    push(queue, *numbers(3))
    follower = follow()
    assert clock.boot_ms() == before_ms
    assert read(timed, START, follower.latest(START, None)) == numbers(3)


def test_a_query_that_stood_still_is_refused_when_another_has_begun(
    timed: cassq.Client, follow: Follow, clock: ManualClock
) -> None:
    timed.create_queue("jobs")
    old = follow()
    clock.advance(LEASE_MS / 1000 + 1)
    follow()
    old.lease.keep_on()
    with pytest.raises(LeaseLostError, match="another query began"):
        old.latest(START, None)


def test_the_lease_of_a_query_that_was_killed_lapses(
    timed: cassq.Client, follow: Follow, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    group = timed.ports.catalog.queues.groups(queue.id)[0]
    assert timed.ports.catalog.leases.take(f"stream:{group.id}", "killed", LEASE_MS)
    before = clock.boot_ms()
    follow()
    assert LEASE_MS - 1000 <= clock.boot_ms() - before <= LEASE_MS + 1000


def test_another_popper_of_the_group_is_reported(timed: cassq.Client, follow: Follow) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(10))
    follower = follow()
    popper = queue.popper()
    popper.pop(3)
    with pytest.raises(UsageError, match="a popper of group 'default'.*has claimed messages"):
        follower.latest(START, None)


@pytest.mark.parametrize("how", ["purged", "purged and retired"])
def test_messages_that_were_removed_before_being_read_are_reported_or_left_out(
    timed: cassq.Client, follow: Follow, how: str
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(10))
    follower = follow()
    offset = follower.latest(START, 4)
    follower.ack(offset)
    queue.purge()
    if "retired" in how:
        reap(timed)
        assert queue.stats().pipes["retired"] == 1
    push(queue, *numbers(2, 10))
    with pytest.raises(ExtentMissingError, match="messages 4 to 9 of pipe"):
        follower.latest(offset, None)
    follower.close()
    lax = follow(failOnDataLoss="false")
    end = lax.latest(offset, None)
    assert read(timed, offset, end) == numbers(2, 10)
    assert lax.latest(end, None) == end


def test_delayed_messages_are_read_when_they_are_due(
    timed: cassq.Client, follow: Follow, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    with queue.pusher() as pusher:
        pusher.push(b"soon", delay=10)
        pusher.push(b"later", delay=20)
    follower = follow()
    assert follower.latest(START, None) == START
    clock.advance(11)
    first = follower.latest(START, None)
    assert read(timed, START, first) == [b"soon"]
    clock.advance(10)
    second = follower.latest(first, None)
    assert read(timed, first, second) == [b"later"]
    follower.latest(second, None)
    assert payloads(drain(queue.popper())) == []
    assert queue.audit().findings == []


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_checkpoint_of_other_queues_is_refused(
    timed: cassq.Client, follow: Follow, loss: str
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(5))
    follower = follow(failOnDataLoss=loss)
    first = follower.latest(START, None)
    (identity,) = {first["identity"], timed.ports.catalog.records.identity()}
    for act in (follower.ack, lambda offset: follower.latest(offset, None)):
        with pytest.raises(ConfigError, match=f"other queues \\(others\\) .*{identity}"):
            act({**first, "identity": "others"})
    assert queue.stats().groups["default"].waiting == 5


def test_a_checkpoint_of_several_queues_is_refused(timed: cassq.Client, follow: Follow) -> None:
    timed.create_queue("jobs")
    several = initial_offset("", stream_options({"url": timed.url, "queues": "jobs"}))
    with pytest.raises(ConfigError, match="made for several queues, not for one"):
        follow().latest({**several, "identity": timed.ports.catalog.records.identity()}, None)


def test_a_checkpoint_of_before_offsets_had_an_identity_continues(
    timed: cassq.Client, follow: Follow
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(5))
    follower = follow()
    old = {"pipes": follower.latest(START, 3)["pipes"]}
    push(queue, *numbers(2, 5))
    assert read(timed, old, follower.latest(old, None)) == numbers(4, 3)


def test_a_cp_queue_is_not_followed(timed: cassq.Client, follow: Follow) -> None:
    timed.create_queue("jobs", consistency="cp")
    with pytest.raises(ConfigError, match="exclusive"):
        follow()


def test_a_group_that_expires_is_not_followed(timed: cassq.Client, follow: Follow) -> None:
    timed.create_queue("jobs").create_group("screen", group_expires=60)
    with pytest.raises(ConfigError, match="is removed when it has no popper"):
        follow(group="screen")


def test_pieces_are_what_lies_between_two_offsets() -> None:
    start = offset_of(
        "id",
        {
            "a": FollowedPipe(0, 5, 50),
            "gone": FollowedPipe(0, 9, 90),
            "same": FollowedPipe(1, 4, 10),
        },
    )
    end = offset_of(
        "id",
        {
            "a": FollowedPipe(0, 8, 80),
            "same": FollowedPipe(1, 4, 10),
            "new": FollowedPipe(2, 6, 60),
        },
    )
    found = [(p.pipe_id, p.start, p.end_seq) for p in pieces_between(start, end)]
    assert found == [("a", Place(5, 50), 8), ("new", Place(2, 0), 6)]
