"""Consumer groups: where they start, that each sees everything, and how they come and go."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.errors import (
    ConfigError,
    GroupExistsError,
    GroupNotFoundError,
    InvalidNameError,
    UsageError,
)
from cassq.extents.files.store import WORDS
from tests.faults.actors import Act
from tests.integration.deadlines import eventually, joined
from tests.integration.stage import Connect, alone, drain, numbers, payloads, push, reap


def test_every_group_sees_every_message_once(queue: cassq.Queue) -> None:
    for name in ("billing", "archive"):
        queue.create_group(name)
    push(queue, *numbers(50))
    for name in ("default", "billing", "archive"):
        assert payloads(drain(queue.popper(name))) == numbers(50)
    assert all(stats.committed == 50 for stats in queue.stats().groups.values())


def test_a_group_from_the_beginning_sees_what_is_not_retired(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    alone(client)  # what is consumed stays until it is reaped
    push(queue, *numbers(5))
    drain(queue.popper())
    queue.create_group("late")
    push(queue, *numbers(5, first=5))
    assert payloads(drain(queue.popper("late"))) == numbers(10)


def test_a_group_from_now_sees_only_what_is_pushed_later(queue: cassq.Queue) -> None:
    pusher = queue.pusher()
    pusher.push_many(numbers(5))
    push(queue, *numbers(5, first=100))
    queue.create_group("new", start="now")
    pusher.push_many(numbers(5, first=5))  # the same, open pipe
    assert payloads(drain(queue.popper("new"))) == numbers(5, first=5)
    stats = queue.audit().groups["new"]
    assert (stats.skipped, stats.committed) == (10, 5)
    assert queue.audit().findings == []


@pytest.mark.embedded_only(reason="it is about the files of a directory")
def test_a_group_from_now_skips_what_a_power_cut_left_unpublished(
    queue: cassq.Queue, url: str, directory: Path, act: Act
) -> None:
    """Of a pipe whose pusher is gone the published end is only a lower bound."""
    pusher = act("push_on_word", url)
    pusher.expect("ready")

    def pushed(some: list[bytes], total: int) -> None:
        for payload in some:
            pusher.say(payload)
        eventually("they are pushed", lambda: len(pusher.reports("pushed")) == total)

    pushed(numbers(5), 5)
    (words,) = directory.rglob(f"*{WORDS}")
    earlier = words.read_bytes()
    pushed(numbers(5, first=5), 10)
    pusher.kill()
    with words.open("r+b") as file:  # its last page was not written
        file.write(earlier)
    queue.create_group("new", start="now")
    push(queue, b"later")
    assert payloads(drain(queue.popper("new"))) == [b"later"]
    assert queue.audit().groups["new"].skipped == 10
    assert payloads(drain(queue.popper())) == [*numbers(10), b"later"]


def test_a_group_from_a_time_sees_what_was_pushed_since(queue: cassq.Queue) -> None:
    pusher = queue.pusher()
    pusher.push_many(numbers(5))
    (last,) = queue.peek()[4:]
    # Push times have milliseconds: go on when the clock shows the next one.
    boundary = last.pushed_at + timedelta(milliseconds=1)
    clock = queue._ports.clock
    eventually(
        "the next millisecond", lambda: clock.wall_ms() >= round(boundary.timestamp() * 1000)
    )
    pusher.push_many(numbers(5, first=5))
    queue.create_group("since", start=boundary)
    queue.create_group("before", start=last.pushed_at - timedelta(days=1))
    queue.create_group("after", start=datetime.now(UTC) + timedelta(days=1))
    assert payloads(drain(queue.popper("since"))) == numbers(5, first=5)
    assert payloads(drain(queue.popper("before"))) == numbers(10)
    assert drain(queue.popper("after")) == []
    assert queue.audit().findings == []


@pytest.mark.parametrize("start", ["yesterday", "", 7, None, datetime(2026, 1, 1)])  # noqa: DTZ001
def test_a_start_that_makes_no_sense_is_refused(queue: cassq.Queue, start: Any) -> None:
    with pytest.raises(ConfigError):
        queue.create_group("g", start=start)
    assert [group.name for group in queue.groups()] == ["default"]


@pytest.mark.parametrize("name", ["", "a b", "/a", "a/b", "a~b", ".", "..", "x" * 201, 7, None])
def test_a_wrong_group_name_is_refused(queue: cassq.Queue, name: Any) -> None:
    for verb in (queue.create_group, queue.popper, queue.delete_group):
        with pytest.raises(InvalidNameError):
            verb(name)


def test_creating_the_same_group_again_keeps_its_place(queue: cassq.Queue) -> None:
    queue.create_group("g", claim_timeout=5)
    push(queue, *numbers(5))
    popper = queue.popper("g")
    popper.commit(popper.pop(3))
    queue.create_group("g", claim_timeout=5)
    assert payloads(drain(queue.popper("g"))) == numbers(2, first=3)
    with pytest.raises(GroupExistsError, match=r"claim_timeout is 5.0, not 6.0"):
        queue.create_group("g", claim_timeout=6)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("exclusive", 1), ("claim_timeout", 0), ("max_deliveries", 0), ("width", 3)],
)
def test_a_wrong_group_setting_is_named(queue: cassq.Queue, setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=setting):
        queue.create_group("g", **{setting: value})


def test_a_groups_own_timeout_and_limit_hold_for_it_alone(queue: cassq.Queue) -> None:
    queue.create_group("hasty", claim_timeout=0.05, max_deliveries=2, sick_check=False)
    push(queue, b"x")
    popper = queue.popper("hasty", keep_alive=0)
    (held,) = queue.popper().pop()
    found: list[int] = []

    def dead() -> int:
        found.extend(message.attempts for message in popper.pop())
        return queue.stats().groups["hasty"].dead

    assert eventually("it is given up by the hasty group", dead) == 1
    assert found == [1, 2]
    held.ack()


def test_a_groups_policy_is_taken_up_by_its_running_poppers(queue: cassq.Queue) -> None:
    queue.create_group("g", max_deliveries=100, sick_check=False)
    push(queue, b"x")
    popper = queue.popper("g")
    queue.update_group("g", max_deliveries=2)

    def dead() -> int:
        for message in popper.pop():
            message.nack()
        return queue.stats().groups["g"].dead

    eventually("the new limit holds", dead)
    with pytest.raises(ConfigError, match="exclusive"):
        queue.update_group("g", exclusive=True)


def test_a_deleted_group_is_gone_and_holds_nothing_back(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    queue.create_group("g")
    push(queue, *numbers(5))
    queue.popper("g").pop(2)
    drain(queue.popper())
    reap(client)
    assert queue.stats().pipes["sealed"] == 1
    queue.delete_group("g")
    assert [group.name for group in queue.groups()] == ["default"]
    reap(client)
    assert queue.stats().pipes["sealed"] == 0
    with pytest.raises(GroupNotFoundError):
        queue.popper("g")
    with pytest.raises(GroupNotFoundError):
        queue.delete_group("g")


def test_a_popper_of_a_deleted_group_says_so(queue: cassq.Queue, connect: Connect) -> None:
    queue.create_group("g")
    push(queue, *numbers(5))
    popper = queue.popper("g")
    messages = popper.pop(2)
    connect().queue("jobs").delete_group("g")

    def refused() -> bool:
        try:
            popper.pop(5)
        except GroupNotFoundError:
            return True
        return False

    eventually("the popper notices", refused)
    with pytest.raises((UsageError, cassq.errors.ClaimLostError)):
        popper.commit(messages)
    popper.close()
    assert payloads(drain(queue.popper())) == numbers(5)


def test_a_group_made_again_under_a_deleted_name_starts_again(queue: cassq.Queue) -> None:
    queue.create_group("g")
    push(queue, *numbers(5))
    drain(queue.popper("g"))
    queue.delete_group("g")
    queue.create_group("g")
    assert payloads(drain(queue.popper("g"))) == numbers(5)


def test_a_queue_without_groups_keeps_everything(queue: cassq.Queue, client: cassq.Client) -> None:
    queue.delete_group("default")
    push(queue, *numbers(5))
    reap(client)
    assert queue.stats().pipes["sealed"] == 1
    queue.create_group("first")
    assert payloads(drain(queue.popper("first"))) == numbers(5)


def test_groups_made_while_pushes_and_retires_go_on_miss_nothing(
    client: cassq.Client, connect: Connect
) -> None:
    """A group sees a gapless run: from some message on, every later one."""
    queue = client.create_queue("jobs", max_pushes_per_pipe=5, max_pop_width=1)
    over = threading.Event()
    pushed = 0
    failures: list[BaseException] = []

    def run() -> None:
        nonlocal pushed
        mine = connect()
        try:
            with mine.queue("jobs").pusher() as pusher, mine.queue("jobs").popper() as popper:
                while not over.is_set():
                    pusher.push(b"%d" % pushed)
                    pushed += 1
                    drain(popper)
                    if pushed % 10 == 0:
                        reap(mine)
        except BaseException as exc:
            failures.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    for n in range(12):
        begin = pushed
        eventually("pushing goes on", lambda b=begin: pushed > b or failures)
        queue.create_group(f"g{n}", start="now" if n % 2 else "beginning")
    over.set()
    joined("pushing and retiring", thread)
    assert not failures
    for n in range(12):
        found = [int(payload) for payload in payloads(drain(queue.popper(f"g{n}")))]
        assert found == list(range(pushed - len(found), pushed))
    audit = queue.audit()
    assert audit.findings == []
    assert audit.pushed == pushed
