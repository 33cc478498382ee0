"""The schedule pass: each tick is one message, whoever pushes it and whatever the clocks say."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import cassq
from cassq.alerts.schedules import LATE_SECONDS
from cassq.alerts.targets import AlertTarget
from cassq.base.clock import ManualClock
from cassq.base.counters import Tallies
from cassq.errors import BackendError
from cassq.inspect.metrics import Meter
from cassq.lifecycle.sealing import seal_pipe
from cassq.message.frames import Place as At
from cassq.model.schedules import ScheduleRow, TickPlace
from cassq.reaper import DONE, FAILED, PLANNED
from tests.integration.deadlines import eventually, in_threads
from tests.integration.fronts import Append, FrontStore, client_with, front_catalog
from tests.integration.places import Place
from tests.integration.stage import Connect, alone, drain, payloads, reap
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]

MINUTE = 60.0
HOUR = 3600.0
HOUR_MS = 3_600_000


@pytest.fixture
def jobs(timed: cassq.Client) -> cassq.Queue:
    return timed.create_queue("jobs")


def tick(client: cassq.Client) -> list[str]:
    """Run the pass; the details of what it did."""
    return [action.detail for action in client.reaper.reap(only=("schedule",))]


def ticks_of(queue: cassq.Queue) -> list[str]:
    """The ticks of the messages that wait, in the order of their delivery; they are committed."""
    return [message.headers["cassq-tick"] for message in drain(queue.popper())]


def hourly(client: cassq.Client, **settings: Any) -> cassq.Schedule:
    """A schedule with ticks an hour apart, the first in an hour."""
    return client.create_schedule("tidy", "jobs", every=HOUR, **settings)


def due_now(client: cassq.Client, name: str = "tidy", count: int = 1) -> list[int]:
    """Make so many ticks of a schedule due, a second apart and none of them late; their times."""
    records = client.ports.catalog.records
    row = records.schedule(name)
    assert row is not None
    now_ms = client.ports.catalog.wall_ms()
    times = [now_ms - 30_000 + 1000 * number for number in range(count)]
    new = replace(row, cron="@every 1s", created_ms=times[0] - 1000, next_ms=times[0])
    assert records.change_schedule(row, new)
    return times


# --- each tick once -----------------------------------------------------------------------------


def test_a_tick_is_pushed_at_its_time_and_not_before(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    hourly(timed, payload=b"go", headers={"kind": "tidy"}, key=b"k")
    clock.advance(HOUR - 0.001)
    assert tick(timed) == []
    clock.advance(0.001)
    assert tick(timed) == ["1 tick pushed"]
    assert tick(timed) == []
    (message,) = drain(jobs.popper())
    assert (message.payload, message.key) == (b"go", b"k")
    assert message.headers == {
        "kind": "tidy",
        "cassq-schedule": "tidy",
        "cassq-tick": "2023-11-14T23:13:20Z",
    }


def test_a_cron_expression_is_by_the_clocks_of_its_zone(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    timed.create_schedule("night", "jobs", cron="0 3 * * *", tz="Europe/Vienna")
    clock.advance(6 * HOUR)
    assert tick(timed) == ["1 tick pushed"]
    assert ticks_of(jobs) == ["2023-11-15T02:00:00Z"]


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_the_ticks_come_in_their_order_on_either_kind_of_queue(
    timed: cassq.Client, clock: ManualClock, consistency: Any
) -> None:
    queue = timed.create_queue("jobs", consistency=consistency)
    hourly(timed, missed="all")
    clock.advance(3 * HOUR)
    assert tick(timed) == ["3 ticks pushed"]
    found = ["2023-11-14T23:13:20Z", "2023-11-15T00:13:20Z", "2023-11-15T01:13:20Z"]
    assert ticks_of(queue) == found


def test_each_tick_is_pushed_once_whichever_process_reaps(
    client: cassq.Client, connect: Connect
) -> None:
    queue = client.create_queue("jobs")
    client.create_schedule("tidy", "jobs", every=HOUR, missed="all")
    times = due_now(client, count=20)
    others = [connect() for _ in range(3)]

    def work(number: int) -> None:
        mine = others[number]
        row = mine.queue("jobs").row
        for _ in range(10):
            mine.reaper.reap([row], only=("schedule",))  # without the lease that shares work

    in_threads(3, work)
    found = eventually("all ticks are there", lambda: reaped(queue, client, len(times)))
    assert len(found) == len(set(found)), "none came twice"


def reaped(queue: cassq.Queue, client: cassq.Client, count: int) -> list[str]:
    client.reaper.reap([queue.row], only=("schedule",))
    peeked = queue.peek(1000)
    found = [message.headers["cassq-tick"] for message in peeked]
    return found if len(set(found)) >= count else []


def test_clients_with_a_popper_push_ticks_in_passing(client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    client.create_schedule("often", "jobs", every=1, payload=b"now")
    with queue.popper() as popper:
        found = popper.pop(1, wait=60)
    assert payloads(found) == [b"now"]


def test_a_tick_that_is_not_pushed_raises_an_alert_until_it_is(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    hourly(timed)
    jobs.pause(pop=False)
    clock.advance(HOUR + LATE_SECONDS)
    timed.reaper.targets = [AlertTarget("log")]
    tick(timed)

    def sent() -> list[str]:
        return [action.subject for action in timed.reaper.reap(only=("alert",))]

    assert sent() == ["late_schedule raised"]
    timed.reaper.reap([jobs.row], only=("alert",))
    assert sent() == []
    (late, paused) = (
        metric.values
        for metric in Meter(lambda: timed.ports, None, Tallies(), dict, queues=True).read()
        if metric.name.startswith("cassq_schedule")
    )
    assert [value for _, value in late] == [LATE_SECONDS]
    assert [value for _, value in paused] == [0]
    jobs.resume()
    assert tick(timed) == ["1 tick pushed"]
    assert sent() == ["late_schedule recovered"]


# --- other processes in between -----------------------------------------------------------------


@pytest.fixture
def other(connect: Connect) -> cassq.Client:
    """Another client; nothing is reaped in passing."""
    client = connect()
    alone(client)
    return client


def test_a_tick_whose_push_stalls_is_pushed_by_another_and_only_by_that(
    place: Place, other: cassq.Client
) -> None:
    """The first one has noted its place and stops; when it goes on, its pipe is sealed."""
    queue = other.create_queue("jobs")
    other.create_schedule("tidy", "jobs", every=HOUR)
    stalled: list[str] = []

    def stall(append: Append) -> At:
        if not stalled:
            stalled.append("now")
            done = other.reaper.reap([queue.row], only=("schedule",))
            assert [action.detail for action in done] == ["1 tick pushed"]
        return append()

    with client_with(place, store=lambda store: FrontStore(store, stall)) as slow:
        due_now_once(other)
        assert slow.reaper.reap([queue.row], only=("schedule",)) == []
        assert stalled
        reap(other)
        assert len(ticks_of(queue)) == 1
        assert queue.audit().findings == []


def due_now_once(client: cassq.Client) -> ScheduleRow:
    """Make one tick due, by the clocks of all clients: the one after it is an hour later."""
    records = client.ports.catalog.records
    row = records.schedule("tidy")
    assert row is not None
    due_ms = client.ports.catalog.wall_ms() - 5_000
    new = replace(row, created_ms=due_ms - HOUR_MS, next_ms=due_ms)
    assert records.change_schedule(row, new)
    return new


@pytest.mark.parametrize("verb", ["records.schedules", "records.change_schedule", "queues.by_id"])
@pytest.mark.parametrize("at", [1, 2])
def test_between_any_two_steps_another_may_do_it_all(
    place: Place, other: cassq.Client, verb: str, at: int
) -> None:
    queue = other.create_queue("jobs")
    other.create_schedule("tidy", "jobs", every=HOUR)
    seen: list[str] = []

    def after(done: str) -> None:
        if done != verb:
            return
        seen.append(done)
        if len(seen) == at:
            other.reaper.reap([queue.row], only=("schedule",))

    with client_with(place, catalog=lambda catalog: front_catalog(catalog, after)) as mine:
        due_now_once(other)
        row = queue.row
        for _ in range(2):
            mine.reaper.reap([row], only=("schedule",))
        assert len(seen) >= at
        assert len(ticks_of(queue)) == 1


@pytest.mark.parametrize("change", [{"payload": b"new"}, {"queue": "mail"}, {"priority": 3}])
def test_a_tick_is_pushed_as_an_update_says_that_came_before_it_was_noted(
    place: Place, other: cassq.Client, change: Any
) -> None:
    queue, mail = other.create_queue("jobs"), other.create_queue("mail")
    schedule = other.create_schedule("tidy", "jobs", every=HOUR, payload=b"old")
    seen: list[str] = []

    def after(done: str) -> None:
        if done == "queues.by_id" and not seen:
            seen.append(done)
            schedule.update(**change)

    with client_with(place, catalog=lambda catalog: front_catalog(catalog, after)) as mine:
        due_now_once(other)
        assert mine.reaper.reap([queue.row], only=("schedule",)) == [], "not with the old message"
        assert seen
        mine.reaper.reap([queue.row, mail.row], only=("schedule",))
    ((name, message),) = [(each.name, it) for each in (queue, mail) for it in each.peek(10)]
    found = {"queue": name, "payload": message.payload, "priority": message.priority}
    assert found == {"queue": "jobs", "payload": b"old", "priority": 0} | change


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("retired", [True, False])
def test_a_push_that_was_begun_before_the_schedule_got_another_queue_is_one_message(
    connect: Connect, other: cassq.Client, written: bool, retired: bool
) -> None:
    """Its place is in the queue before; whether the message is there is found by that queue."""
    queue, mail = other.create_queue("jobs"), other.create_queue("mail")
    schedule = other.create_schedule("tidy", "jobs", every=HOUR)
    row = due_now_once(other)
    with connect() as dying:
        dying.reaper.reap([queue.row], only=("schedule",))
    records = other.ports.catalog.records
    settled = records.schedule("tidy")
    assert settled is not None
    assert settled.last is not None
    # As if it had died before it settled the tick, or before it wrote the message.
    place = settled.last if written else settled.last._replace(seq=1)
    assert records.change_schedule(settled, replace(row, firing=place))
    schedule.update(queue="mail", priority=2)
    if retired:
        drain(queue.popper())
        others = [each for each in other.reaper.names if each != "schedule"]
        for _ in range(3):  # until the pipe's row is gone
            other.reaper.reap([queue.row], only=others)
    other.reaper.reap([mail.row], only=("schedule",))
    assert schedule.info().pushing is None
    assert [message.priority for message in mail.peek(10)] == ([] if written else [2])


@pytest.mark.parametrize("act", ["pause", "delete"])
def test_a_tick_is_not_pushed_if_the_schedule_ended_before_the_tick_was_noted(
    place: Place, other: cassq.Client, act: str
) -> None:
    queue = other.create_queue("jobs")
    schedule = other.create_schedule("tidy", "jobs", every=HOUR)
    seen: list[str] = []

    def after(done: str) -> None:
        if done == "queues.by_id" and not seen:
            seen.append(done)
            getattr(schedule, act)()

    with client_with(place, catalog=lambda catalog: front_catalog(catalog, after)) as mine:
        due_now_once(other)
        assert mine.reaper.reap([queue.row], only=("schedule",)) == []
        assert seen
        assert ticks_of(queue) == []


@pytest.mark.parametrize("payload", [b"new", b"old"])
def test_a_schedule_created_again_meanwhile_is_not_changed_by_a_push_of_the_old_one(
    place: Place, other: cassq.Client, payload: bytes
) -> None:
    queue = other.create_queue("jobs")
    other.create_schedule("tidy", "jobs", every=HOUR, payload=b"old")
    records = other.ports.catalog.records
    seen: list[str] = []

    def after(done: str) -> None:
        if done == "queues.by_id" and not seen:
            seen.append(done)
            other.schedule("tidy").delete()
            other.create_schedule("tidy", "jobs", every=HOUR, payload=payload)
            row = records.schedule("tidy")
            assert row is not None
            # As created by a client whose clock was behind.
            assert records.change_schedule(row, replace(row, next_ms=old.next_ms))

    with client_with(place, catalog=lambda catalog: front_catalog(catalog, after)) as mine:
        old = due_now_once(other)
        assert mine.reaper.reap([queue.row], only=("schedule",)) == []
        assert ticks_of(queue) == []
        assert other.schedule("tidy").info().payload == payload


def test_a_pause_during_the_push_does_not_undo_it(place: Place, other: cassq.Client) -> None:
    queue = other.create_queue("jobs")
    schedule = other.create_schedule("tidy", "jobs", every=HOUR)

    def pause(append: Append) -> At:
        end = append()
        schedule.pause()
        return end

    with client_with(place, store=lambda store: FrontStore(store, pause)) as mine:
        due_now_once(other)
        (done,) = mine.reaper.reap([queue.row], only=("schedule",))
        assert done.detail == "1 tick pushed"
        info = schedule.info()
        assert (info.paused, info.pushing) == (True, None)
        assert info.last is not None
        schedule.resume()
        reap(other)
        assert len(ticks_of(queue)) == 1


def test_a_push_that_fails_is_tried_again_by_the_next_pass(
    place: Place, other: cassq.Client
) -> None:
    queue = other.create_queue("jobs")
    other.create_schedule("tidy", "jobs", every=HOUR)
    broken = [True]

    def fail(append: Append) -> At:
        if broken:
            raise BackendError("the disk is broken")
        return append()

    with client_with(place, store=lambda store: FrontStore(store, fail)) as mine:
        due_now_once(other)
        (failed,) = mine.reaper.reap([queue.row], only=("schedule",))
        assert (failed.outcome, "the disk is broken" in failed.detail) == (FAILED, True)
        broken.clear()
        (done,) = mine.reaper.reap([queue.row], only=("schedule",))
        assert done.outcome == DONE
        assert len(ticks_of(queue)) == 1


def test_a_message_that_was_delivered_and_retired_before_its_tick_was_settled_counts(
    connect: Connect, other: cassq.Client
) -> None:
    """The pusher stalls after its append; the message is committed, and its pipe removed."""
    queue = other.create_queue("jobs")
    other.create_schedule("tidy", "jobs", every=HOUR)
    row = due_now_once(other)
    with connect() as mine:
        mine.reaper.reap([queue.row], only=("schedule",))
    assert len(ticks_of(queue)) == 1
    records = other.ports.catalog.records
    settled = records.schedule("tidy")
    assert settled is not None
    # As if it had stalled before it settled the tick.
    assert records.change_schedule(settled, replace(row, firing=settled.last))
    other.reaper.reap([queue.row], only=("retire",))
    assert queue.stats().pipes["retired"] == 1
    other.reaper.reap([queue.row], only=("schedule",))
    assert ticks_of(queue) == []
    assert other.schedule("tidy").info().pushing is None


def test_another_message_at_the_noted_place_is_not_the_tick_s(other: cassq.Client) -> None:
    queue = other.create_queue("jobs")
    other.create_schedule("tidy", "jobs", every=HOUR)
    with queue.pusher() as pusher:
        pipe_id, _, seq = pusher.push(b"another", headers={"a": "b"}).partition(":")
    row = due_now_once(other)
    place = TickPlace(row.next_ms, pipe_id, int(seq))
    assert other.ports.catalog.records.change_schedule(row, replace(row, firing=place))
    other.reaper.reap([queue.row], only=("schedule",))
    assert sorted(payloads(drain(queue.popper()))) == [b"", b"another"]


# --- clocks -------------------------------------------------------------------------------------


@pytest.mark.embedded_only(reason="the clock of the machine counts; on servers it is theirs")
def test_a_clock_that_is_set_back_brings_no_tick_again(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    hourly(timed, missed="all")
    clock.advance(2 * HOUR)
    assert tick(timed) == ["2 ticks pushed"]
    clock.jump_wall(-2 * HOUR)
    for _ in range(2):
        clock.advance(HOUR)
        assert tick(timed) == []
    clock.advance(HOUR)
    assert tick(timed) == ["1 tick pushed"]
    found = ticks_of(jobs)
    assert found == sorted(set(found))
    assert len(found) == 3


@pytest.mark.embedded_only(reason="the clock of the machine counts; on servers it is theirs")
def test_ticks_follow_the_wall_clock_when_it_is_set(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    hourly(timed)
    clock.jump_wall(HOUR)
    assert tick(timed) == ["1 tick pushed"]
    assert ticks_of(jobs) == ["2023-11-14T23:13:20Z"]


# --- missed -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "count", "first"),
    [
        ("once", 2, "2023-11-15T02:13:20Z"),
        ("all", 5, "2023-11-14T23:13:20Z"),
        ("skip", 1, "2023-11-15T03:13:20Z"),
    ],
)
def test_after_hours_without_any_client_the_policy_says_what_is_made_up_for(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock, missed: Any, count: int, first: str
) -> None:
    schedule = hourly(timed, missed=missed)
    clock.advance(5 * HOUR)  # the fifth tick is on time
    tick(timed)
    found = ticks_of(jobs)
    assert (len(found), found[0]) == (count, first)
    assert tick(timed) == []
    info = schedule.info()
    assert info.skipped_why == ("missed" if missed == "skip" else "")


def test_a_tick_that_is_a_minute_late_is_not_missed(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    hourly(timed, missed="skip")
    clock.advance(HOUR + MINUTE)
    assert tick(timed) == ["1 tick pushed"]
    clock.advance(HOUR + 0.001)
    assert tick(timed) == ["1 skipped"]


# --- overlap ------------------------------------------------------------------------------------


def test_a_tick_is_skipped_while_some_group_has_the_message_before_unfinished(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    jobs.create_group("second")
    schedule = hourly(timed, overlap="skip")
    clock.advance(HOUR)
    assert tick(timed) == ["1 tick pushed"]
    assert schedule.info().unsettled == ("default", "second")
    drain(jobs.popper())
    assert schedule.info().unsettled == ("second",)
    clock.advance(HOUR)
    assert tick(timed) == ["1 skipped"]
    info = schedule.info()
    assert (info.skipped_why, info.skipped_at) == ("overlap", info.created_at + timedelta(hours=2))
    popper = jobs.popper("second")
    messages = popper.pop(1)
    assert schedule.info().unsettled == ("second",), "it is held"
    popper.commit(messages)
    assert schedule.info().unsettled == ()
    clock.advance(HOUR)
    assert tick(timed) == ["1 tick pushed"]
    assert ticks_of(jobs) == ["2023-11-15T01:13:20Z"]


def test_a_dead_letter_or_a_purged_message_is_finished(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    schedule = hourly(timed, overlap="skip")
    clock.advance(HOUR)
    tick(timed)
    popper = jobs.popper()
    (message,) = popper.pop(1)
    message.dead("no good")
    popper.close()
    assert schedule.info().unsettled == ()
    clock.advance(HOUR)
    assert tick(timed) == ["1 tick pushed"]
    jobs.purge()
    clock.advance(HOUR)
    assert tick(timed) == ["1 tick pushed"]


def test_a_retired_message_is_finished(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    schedule = hourly(timed, overlap="skip")
    clock.advance(HOUR)
    tick(timed)
    drain(jobs.popper())
    last = schedule.info().last
    assert last is not None
    seal_pipe(timed.ports.catalog, timed.ports.store, last.message_id.partition(":")[0])
    timed.reaper.reap([jobs.row], only=("retire",))
    assert jobs.stats().pipes["retired"] == 1
    assert schedule.info().unsettled == ()
    clock.advance(HOUR)
    assert tick(timed) == ["1 tick pushed"]


def test_a_group_that_begins_later_and_a_message_that_waits_for_its_retry_count_as_they_are(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    schedule = hourly(timed, overlap="skip")
    clock.advance(HOUR)
    tick(timed)
    jobs.create_group("late", start="now")
    popper = jobs.popper()
    (message,) = popper.pop(1)
    message.nack(delay=7200)
    popper.close()
    assert schedule.info().unsettled == ("default",)


# --- queues that do not take it -----------------------------------------------------------------


def test_a_paused_queue_gets_its_tick_when_it_is_resumed(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    hourly(timed)
    jobs.pause(pop=False)
    clock.advance(HOUR)
    assert tick(timed) == []
    jobs.resume()
    assert tick(timed) == ["1 tick pushed"]
    assert len(ticks_of(jobs)) == 1


def test_a_full_queue_gets_its_tick_when_there_is_room(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", max_length=1)
    with queue.pusher() as pusher:
        pusher.push(b"first")
    hourly(timed)
    clock.advance(HOUR)
    assert tick(timed) == []
    assert payloads(drain(queue.popper())) == [b"first"]
    assert tick(timed) == ["1 tick pushed"]


def test_the_schedules_of_a_deleted_queue_are_removed_with_it(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    timed.create_queue("other")
    kept = timed.create_schedule("kept", "other", every=HOUR)
    hourly(timed)
    timed.delete_queue("jobs")
    assert [each.name for each in timed.schedules()] == [kept.name]


def test_a_schedule_created_while_its_queue_was_deleted_is_removed_at_its_tick(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    hourly(timed)
    row = timed.ports.catalog.records.schedule("tidy")
    assert row is not None
    timed.delete_queue("jobs")
    assert timed.ports.catalog.records.add_schedule(row)
    timed.create_queue("jobs")
    clock.advance(HOUR)
    assert tick(timed) == ["removed: its queue was deleted"]
    assert timed.schedules() == []
    assert ticks_of(timed.queue("jobs")) == [], "the new queue is another one"


# --- the pass -----------------------------------------------------------------------------------


def test_a_dry_run_shows_what_is_due_and_pushes_nothing(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    hourly(timed)
    clock.advance(HOUR)
    (planned,) = timed.reaper.reap(only=("schedule",), dry_run=True)
    assert (planned.verb, planned.subject, planned.queue) == ("schedule", "tidy", "jobs")
    assert (planned.outcome, planned.detail) == (PLANNED, "the tick of 2023-11-14T23:13:20Z")
    assert ticks_of(jobs) == []


def test_a_pass_over_some_queues_pushes_the_ticks_of_those(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    other = timed.create_queue("other")
    hourly(timed)
    clock.advance(HOUR)
    assert timed.reaper.reap([other.row], only=("schedule",)) == []
    assert len(timed.reaper.reap([jobs.row], only=("schedule",))) == 1


def test_a_pass_leaves_what_takes_too_long_to_the_next(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    timed.create_schedule("tidy", "jobs", every=MINUTE, missed="all")
    clock.advance(50 * MINUTE)
    timed.reaper.patience = 0.0
    assert tick(timed) == ["1 tick pushed"]
    timed.reaper.patience = 100.0
    assert tick(timed) == ["49 ticks pushed"]
    found = ticks_of(jobs)
    assert len(set(found)) == 50
    assert found == sorted(found)


def test_stats_and_audit_count_the_messages_of_schedules_like_any_other(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    hourly(timed, missed="all")
    clock.advance(3 * HOUR)
    tick(timed)
    assert jobs.stats().groups["default"].waiting == 3
    audit = jobs.audit()
    assert audit.balanced
    assert audit.findings == []
