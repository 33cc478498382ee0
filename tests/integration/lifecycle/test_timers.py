"""Delayed messages: never before their time, soon after it, once for every group."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import cassq
from cassq.base.clock import ManualClock, Stopwatch, SystemClock
from cassq.errors import ConfigError, InvalidPayloadError, MessageNotFoundError, UsageError
from cassq.lifecycle.timers import HORIZON_MS, schedule_pipe
from cassq.message.batches import Batch
from cassq.model.rows import ClaimState, Dedup
from tests.integration.deadlines import eventually, in_threads
from tests.integration.stage import Connect, alone, drain, numbers, payloads, push, reap
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]

FAR = 3 * 86400.0


def gathered(popper: cassq.Popper, count: int, batch: int = 1000) -> list[bytes]:
    """Pop and commit until so many have come; their payloads."""
    found: list[bytes] = []

    def come() -> bool:
        found.extend(payloads(drain(popper, batch)))
        return len(found) >= count

    eventually(f"{count} messages come", come)
    return found


def test_a_delayed_message_is_delivered_when_it_is_due_and_not_before(queue: cassq.Queue) -> None:
    popper, pusher = queue.popper(), queue.pusher()
    watch = Stopwatch()
    pusher.push(b"later", delay=1)
    (message,) = popper.pop(wait=30)
    assert (message.payload, message.attempts) == (b"later", 1)
    assert watch.seconds() >= 0.999
    popper.commit([message])
    assert queue.audit().findings == []


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_delayed_message_holds_up_no_other(
    timed: cassq.Client, clock: ManualClock, exclusive: bool
) -> None:
    queue = timed.create_queue("jobs")
    queue.create_group("one", exclusive=exclusive)
    popper, pusher = queue.popper("one"), queue.pusher()
    pusher.push(b"later", delay=1)
    pusher.push(b"now")
    assert payloads(drain(popper, 1)) == [b"now"]
    clock.advance(0.999)
    assert drain(popper, 1) == []
    clock.advance(0.001)
    assert payloads(drain(popper, 1)) == [b"later"]
    assert queue.audit().findings == []


def test_delayed_messages_are_delivered_by_due_time_whatever_the_order_of_pushes(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    start = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC) + timedelta(seconds=0.5)
    with queue.pusher() as pusher:
        for number in (4, 2, 5, 1, 3):
            pusher.push(b"%d" % number, due=start + timedelta(seconds=number / 10))
    popper = queue.popper()
    clock.advance(0.5)
    assert popper.pop() == []
    for number in (1, 2, 3):
        clock.advance(0.1)
        assert payloads(drain(popper)) == [b"%d" % number]
    clock.advance(1)
    assert payloads(drain(popper, 1)) == [b"4", b"5"]


@pytest.mark.parametrize(
    "dues_s", [[5.0, 4.0, 0.5, 0.5, 3.0], [0.5, 1.0, 5.0], [5.0, 0.5], [2.0, 2.0, 1.0, 3.0]]
)
def test_messages_of_one_frame_each_come_when_they_are_due(
    timed: cassq.Client, clock: ManualClock, dues_s: list[float]
) -> None:
    """Also where one is due before the one in front of it."""
    queue = timed.create_queue("jobs")
    popper = queue.popper()
    now_ms = timed.ports.catalog.now_ms()
    dues_ms = [now_ms + round(1000 * seconds) for seconds in dues_s]
    with queue.pusher() as pusher:
        ids = pusher.push_intended(
            Batch(numbers(len(dues_s)), clock.wall_ms(), dues_ms=dues_ms), None, lane=0
        )
    assert len(set(ids)) == len(dues_s)
    came: dict[bytes, float] = {}
    for half_seconds in range(1, 12):
        assert popper.pop(10) == [], "nothing comes between"
        clock.advance(0.5)
        came |= dict.fromkeys(payloads(drain(popper)), half_seconds / 2)
    assert came == dict(zip(numbers(len(dues_s)), dues_s, strict=True))


def test_a_popper_that_waits_wakes_when_the_next_comes_due(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    popper = queue.popper()
    assert popper._claimer.until_due(5.0) == 5.0
    with queue.pusher() as pusher:
        pusher.push(b"later", delay=0.3)
    assert popper.pop() == []
    assert popper._claimer.until_due(5.0) == pytest.approx(0.3)
    clock.advance(0.2)
    assert popper._claimer.until_due(5.0) == pytest.approx(0.1)
    assert popper._claimer.until_due(0.05) == 0.05


def test_every_way_of_pushing_takes_a_delay(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs")
    now = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
    with queue.pusher() as pusher:
        pusher.push(b"one", delay=1)
        pusher.push_many([b"two", b"three"], delay=1)
        pusher.push_soon(b"four", delay=1).result(30)
        pusher.push(b"five", due=now + timedelta(seconds=1))
        pusher.push_many([], delay=1)
        pusher.flush()
    popper = queue.popper()
    clock.advance(0.999)
    assert drain(popper) == []
    assert queue.stats().groups["default"].delayed == 5
    clock.advance(0.001)
    assert sorted(payloads(drain(popper))) == [b"five", b"four", b"one", b"three", b"two"]


def test_what_is_due_already_is_delivered_at_once(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        pusher.push(b"a", delay=0)
        pusher.push(b"b", due=datetime(2001, 1, 1, tzinfo=UTC))
    assert payloads(drain(queue.popper())) == [b"a", b"b"]
    assert queue.stats().groups["default"].delayed == 0


def test_a_waiting_popper_of_another_client_gets_a_short_delay_in_time(
    queue: cassq.Queue, connect: Connect
) -> None:
    """The popper already sleeps when the message is pushed, and knows no timer pipe yet."""
    popper = connect().queue("jobs").popper()
    lateness: list[float] = []

    def wait(number: int) -> None:
        if number:
            queue.pusher().push(b"x", delay=0.3)
            return
        (message,) = popper.pop(wait=30)
        lateness.append((SystemClock().wall_ms() - message.pushed_ms) / 1000 - 0.3)

    in_threads(2, wait)
    assert lateness[0] >= -0.01


def test_each_group_gets_it_and_a_later_group_too(queue: cassq.Queue) -> None:
    queue.create_group("early")
    with queue.pusher() as pusher:
        pusher.push_many(numbers(3), delay=0.2)
    queue.create_group("late")
    for group in ("default", "early", "late"):
        found = gathered(queue.popper(group), 3)
        assert found == numbers(3)
    assert queue.audit().findings == []


def test_far_timers_cost_no_claim_rows_until_they_are_near(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    with queue.pusher() as pusher:
        pusher.push_many(numbers(1000), delay=FAR)
    popper = queue.popper()
    push(queue, b"now")
    assert payloads(drain(popper)) == [b"now"]
    (timer,) = (p for p in client.ports.catalog.pipes.live(queue.row.id) if p.timer_ms is not None)
    assert timer.timer_ms is not None
    assert timer.timer_ms > client.ports.catalog.now_ms() + HORIZON_MS
    (group,) = client.ports.catalog.queues.groups(queue.row.id)
    assert client.ports.catalog.claims.rows(group.id, timer.id) == []
    assert queue.stats().groups["default"].delayed == 1000
    audit = queue.audit()
    assert (audit.findings, audit.groups["default"].waiting) == ([], 1000)


def test_messages_with_distant_due_times_are_in_separate_pipes(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    with queue.pusher() as pusher:
        for delay in (1, 60, 3600, 86400, 86400 * 365):
            pusher.push(b"x", delay=delay)
    timers = [p for p in client.ports.catalog.pipes.live(queue.row.id) if p.timer_ms is not None]
    assert len(timers) == 4  # the first two share one
    assert len({timer.timer_ms for timer in timers}) == 4


def test_a_scheduled_run_of_one_time_is_one_row(client: cassq.Client, queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        for _ in range(3):
            pusher.push_many(numbers(100), delay=30)
    queue.popper().pop()
    (timer,) = (p for p in client.ports.catalog.pipes.live(queue.row.id) if p.timer_ms is not None)
    (group,) = client.ports.catalog.queues.groups(queue.row.id)
    rows = client.ports.catalog.claims.rows(group.id, timer.id)
    assert [(row.start, row.end, row.state) for row in rows] == [
        (0, 100, ClaimState.FREE), (100, 200, ClaimState.FREE), (200, 300, ClaimState.FREE),
    ]  # fmt: skip


def test_a_delayed_message_fails_and_dies_like_any_other(client: cassq.Client) -> None:
    alone(client)
    queue = client.create_queue("brittle", max_deliveries=2, sick_check=False)
    with queue.pusher() as pusher:
        pusher.push(b"x", delay=0.1)
    popper = queue.popper()
    for attempt in (1, 2):
        (message,) = popper.pop(wait=30)
        assert message.attempts == attempt
        popper.rollback([message])
    assert payloads(drain(client.queue("brittle~default~dead").popper())) == [b"x"]
    assert queue.audit().findings == []


def test_timer_pipes_are_retired_when_all_is_done(client: cassq.Client, queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        pusher.push_many(numbers(10), delay=0.1)
    assert gathered(queue.popper(), 10) == numbers(10)
    eventually("retired", lambda: (reap(client), not queue.stats().pipes["sealed"])[1])
    audit = queue.audit()
    assert (audit.findings, audit.retired_pipes) == ([], 1)


def test_an_exclusive_group_gets_delayed_messages_too(queue: cassq.Queue) -> None:
    queue.create_group("one", exclusive=True)
    with queue.pusher() as pusher:
        pusher.push(b"now")
        pusher.push(b"later", delay=1)
    found = gathered(queue.popper("one"), 2, 1)
    assert found == [b"now", b"later"]


# --- cancelling -------------------------------------------------------------------------------


def test_a_cancelled_message_is_never_delivered(queue: cassq.Queue) -> None:
    queue.create_group("other")
    with queue.pusher() as pusher:
        ids = pusher.push_many(numbers(5), delay=0.2)
    assert queue.cancel(ids[2])
    assert queue.cancel(ids[2]), "again is no error"
    for group in ("default", "other"):
        found = gathered(queue.popper(group), 4)
        assert found == [b"0", b"1", b"3", b"4"]
    audit = queue.audit()
    assert audit.findings == []
    assert [stats.purged for stats in audit.groups.values()] == [1, 1]


def test_a_message_is_cancelled_by_its_dedup_id(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", dedup_window=600)
    with queue.pusher() as pusher:
        ids = pusher.push_many(numbers(3), delay=100, dedup_ids=["a", "b", "c"])
        assert queue.cancel(dedup_id="b")
        assert queue.cancel(dedup_id="b"), "again is no error"
        assert pusher.push(b"again", delay=100, dedup_id="b") == ids[1], "it stays cancelled"
    clock.advance(100)
    assert payloads(drain(queue.popper())) == [b"0", b"2"]
    assert not queue.cancel(dedup_id="a"), "it was delivered"
    stats = queue.audit().groups["default"]
    assert (stats.purged, stats.committed, queue.audit().findings) == (1, 2, [])


def test_a_dedup_id_names_a_message_within_its_window_alone(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", dedup_window=600)
    other = timed.create_queue("other", dedup_window=600)
    with queue.pusher() as pusher:
        first = pusher.push(b"1", delay=3600, dedup_id="a")
        clock.advance(600)
        with pytest.raises(MessageNotFoundError, match="'a' in the last 600 seconds"):
            queue.cancel(dedup_id="a")
        second = pusher.push(b"2", delay=3600, dedup_id="a")
        assert second != first
    with pytest.raises(MessageNotFoundError, match="queue 'other'"):
        other.cancel(dedup_id="a")
    assert queue.cancel(dedup_id="a")
    clock.advance(3600)
    assert payloads(drain(queue.popper())) == [b"1"]


def test_a_dedup_id_whose_push_failed_names_no_message(timed: cassq.Client) -> None:
    """Only its intent was written: nobody will push to that place any more."""
    queue = timed.create_queue("jobs", dedup_window=600)
    with queue.pusher() as pusher:
        pipe_id = pusher.push(b"x", delay=3600).partition(":")[0]
        now_ms = timed.ports.catalog.now_ms()
        intent = Dedup(queue.id, "failed", pipe_id, 1, now_ms)
        assert timed.ports.catalog.records.dedup(intent) == intent
        timed.ports.store.seal(pipe_id)
        with pytest.raises(MessageNotFoundError):
            queue.cancel(dedup_id="failed")
    assert queue.stats().groups["default"].delayed == 1


def test_what_names_no_delayed_message_is_refused(timed: cassq.Client) -> None:
    queue = timed.create_queue("jobs", dedup_window=600)
    with queue.pusher() as pusher:
        message_id = pusher.push(b"x", dedup_id="at once")
    with pytest.raises(UsageError, match="was not delayed"):
        queue.cancel(dedup_id="at once")
    with pytest.raises(InvalidPayloadError, match="dedup_id must be"):
        queue.cancel(dedup_id="")
    with pytest.raises(UsageError, match="the id of a message or its dedup_id"):
        queue.cancel(message_id, dedup_id="at once")
    with pytest.raises(UsageError, match="the id of a message or its dedup_id"):
        queue.cancel()
    with pytest.raises(ConfigError, match="has no dedup_window"):
        timed.create_queue("plain").cancel(dedup_id="a")
    assert payloads(drain(queue.popper())) == [b"x"]


def test_a_message_that_was_delivered_before_cannot_be_cancelled(
    timed: cassq.Client, clock: ManualClock
) -> None:
    """Though nobody holds it now: what it does may have been begun."""
    queue = timed.create_queue("jobs")
    with queue.pusher() as pusher:
        message_id = pusher.push(b"x", delay=1)
    clock.advance(2)
    popper = queue.popper()
    (message,) = popper.pop()
    message.nack(delay=5)
    popper.flush()
    assert not queue.cancel(message_id)
    clock.advance(10)
    assert payloads(popper.pop()) == [b"x"]


def test_a_far_message_is_cancelled_although_it_is_not_scheduled(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        ids = pusher.push_many(numbers(5), delay=FAR)
    assert queue.cancel(ids[4])
    assert queue.stats().groups["default"].delayed == 4
    assert queue.audit().findings == []


def test_a_message_that_a_group_has_got_cannot_be_cancelled_for_it(queue: cassq.Queue) -> None:
    queue.create_group("slow")
    with queue.pusher() as pusher:
        message_id = pusher.push(b"x", delay=0.05)
    popper = queue.popper()
    (message,) = popper.pop(wait=30)
    assert not queue.cancel(message_id)
    popper.commit([message])
    assert not queue.cancel(message_id)
    assert drain(queue.popper("slow")) == [], "but the other group does not get it"
    assert queue.audit().findings == []


def test_what_is_got_and_retired_while_it_is_cancelled_is_not_taken_back(
    connect: Connect, queue: cassq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = connect()
    with queue.pusher() as pusher:
        message_id = pusher.push(b"x", delay=0.05)

    def retired() -> bool:
        reap(other)
        return other.queue("jobs").stats().pipes["retired"] == 1

    def late(*args: Any) -> None:
        with other.queue("jobs").popper() as popper:
            assert gathered(popper, 1) == [b"x"]
        eventually("its pipe is retired", retired)
        schedule_pipe(*args)

    monkeypatch.setattr("cassq.lifecycle.cancelling.schedule_pipe", late)
    assert not queue.cancel(message_id)
    assert queue.audit().findings == []


@pytest.mark.parametrize("message_id", ["", "x", "x:1", ":3", "0" * 24, 7, "0" * 24 + ":-1"])
def test_an_id_that_is_none_is_refused(queue: cassq.Queue, message_id: Any) -> None:
    with pytest.raises(UsageError, match="not the id of a message"):
        queue.cancel(message_id)


def test_only_delayed_messages_of_this_queue_are_cancelled(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    with queue.pusher() as pusher:
        plain = pusher.push(b"x")
        delayed = pusher.push(b"y", delay=FAR)
    with pytest.raises(UsageError, match="was not delayed"):
        queue.cancel(plain)
    with pytest.raises(UsageError, match="not in queue"):
        client.create_queue("other").cancel(delayed)
    with pytest.raises(UsageError, match="no message"):
        queue.cancel(delayed.rpartition(":")[0] + ":99")
    assert not queue.cancel("0" * 24 + ":0"), "a pipe that is gone"


# --- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "1", True, 10**12])
def test_a_delay_that_makes_no_sense_is_refused(queue: cassq.Queue, delay: Any) -> None:
    pusher = queue.pusher()
    for push_it in (pusher.push, pusher.push_soon, lambda x, **kw: pusher.push_many([x], **kw)):
        with pytest.raises(UsageError, match="delay"):
            push_it(b"x", delay=delay)
    assert queue.stats().pushed == 0


def test_a_due_time_that_makes_no_sense_is_refused(queue: cassq.Queue) -> None:
    pusher = queue.pusher()
    wrong: list[tuple[Any, str]] = [
        (datetime.now(UTC).replace(tzinfo=None), "time zone"), (5, "must be a datetime"),
        (datetime.now(UTC) + timedelta(days=4000), "ten years"),
    ]  # fmt: skip
    for due, found in wrong:
        with pytest.raises(UsageError, match=found):
            pusher.push(b"x", due=due)
    with pytest.raises(UsageError, match="one of them"):
        pusher.push(b"x", delay=1, due=datetime.now(UTC))
    assert queue.stats().pushed == 0


def test_a_strict_queue_takes_no_delay(client: cassq.Client) -> None:
    with pytest.raises(UsageError, match="the order in which they were pushed"):
        client.create_queue("strict", consistency="cp").pusher().push(b"x", delay=1)
