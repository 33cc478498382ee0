"""Schedules by the API: creating, looking, pausing, running, deleting, and what is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.catalog.sqlite import SqliteCatalog
from cassq.catalog.sqlite.record_tables import SqliteRecords
from cassq.errors import (
    ConfigError,
    InvalidNameError,
    InvalidPayloadError,
    MessageTooLargeError,
    QueueFullError,
    QueueNotFoundError,
    QueuePausedError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    UsageError,
)
from cassq.model.schedules import SCHEDULE_BYTES_MAX, SCHEDULES_MAX, ScheduleRow
from tests.catalog_parts import put_part
from tests.integration.deadlines import in_threads
from tests.integration.stage import Connect, drain
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]

START = datetime.fromtimestamp(1_700_000_000, UTC)  # 2023-11-14 22:13:20
HOUR = 3600.0


@pytest.fixture
def jobs(timed: cassq.Client) -> cassq.Queue:
    return timed.create_queue("jobs")


def tick(client: cassq.Client) -> list[str]:
    return [action.detail for action in client.reaper.reap(only=("schedule",))]


def test_a_schedule_is_created_listed_and_found(timed: cassq.Client, jobs: cassq.Queue) -> None:
    timed.create_queue("mail")
    night = timed.create_schedule("night", "jobs", cron="0 3 * * *", tz="Europe/Vienna")
    poll = timed.create_schedule("/poll/it", "mail", every=timedelta(minutes=5))
    assert [each.name for each in timed.schedules()] == ["/poll/it", "night"]
    assert [each.name for each in timed.schedules("mail")] == ["/poll/it"]
    assert (night.queue, night.cron) == ("jobs", "0 3 * * *")
    assert timed.schedule("/poll/it").cron == poll.cron == "@every 5m"
    assert repr(night) == "<Schedule night>"


def test_its_info_says_what_it_is_and_where_it_is(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    schedule = timed.create_schedule(
        "tidy", "jobs", every=HOUR, payload=b"go", headers={"a": "b"}, key=b"k", missed="all",
        overlap="skip",
    )  # fmt: skip
    info = schedule.info()
    assert (info.name, info.queue, info.cron, info.tz) == ("tidy", "jobs", "@every 1h", "UTC")
    assert (info.payload, info.headers, info.key) == (b"go", {"a": "b"}, b"k")
    assert (info.missed, info.overlap, info.paused) == ("all", "skip", False)
    assert (info.created_at, info.next_at) == (START, START + timedelta(hours=1))
    assert (info.last, info.pushing, info.skipped_at, info.unsettled) == (None, None, None, ())
    clock.advance(HOUR)
    tick(timed)
    info = timed.schedule("tidy").info()
    (message,) = jobs.peek(1)
    assert info.last is not None
    assert (info.last.at, info.last.message_id) == (START + timedelta(hours=1), message.id)
    assert info.next_at == START + timedelta(hours=2)
    assert info.unsettled == ("default",)


def test_the_next_ticks_are_in_the_zone_of_the_schedule(
    timed: cassq.Client, jobs: cassq.Queue
) -> None:
    schedule = timed.create_schedule("night", "jobs", cron="0 3 * * *", tz="Europe/Vienna")
    found = schedule.next(3)
    vienna = ZoneInfo("Europe/Vienna")
    assert found == [datetime(2023, 11, day, 3, tzinfo=vienna) for day in (15, 16, 17)]
    assert found[0].tzinfo == vienna
    assert len(schedule.next()) == 5
    for wrong in (0, 10_001, True, "5"):
        with pytest.raises(UsageError, match="count must be"):
            schedule.next(wrong)  # type: ignore[arg-type]


def test_it_is_created_again_only_with_the_same_settings(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    timed.create_schedule("tidy", "jobs", cron="@every 60m", payload=b"1")
    clock.advance(60)
    again = timed.create_schedule("tidy", "jobs", every=HOUR, payload=b"1")
    assert again.info().created_at == START, "it is the first one"
    timed.create_queue("mail")
    with pytest.raises(ScheduleExistsError) as error:
        timed.create_schedule("tidy", "mail", every=60, payload=b"2")
    assert "queue is 'jobs', not 'mail', cron is '@every 1h', not '@every 1m'" in str(error.value)
    assert set(error.value.fields["differences"]) == {"queue", "cron", "payload"}
    assert again.cron == timed.schedule("tidy").cron


def test_a_paused_schedule_pushes_nothing_until_it_is_resumed(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    schedule = timed.create_schedule("tidy", "jobs", every=HOUR, missed="all")
    schedule.pause()
    schedule.pause()
    assert schedule.info().next_at is None
    clock.advance(3 * HOUR)
    assert tick(timed) == []
    upcoming = schedule.next(1)
    timed.schedule("tidy").resume()
    assert tick(timed) == [], "what came meanwhile is not made up for"
    assert schedule.info().next_at == upcoming[0] == START + timedelta(hours=4)
    clock.advance(HOUR)
    assert tick(timed) == ["1 tick pushed"]


def test_resuming_what_is_not_paused_changes_nothing(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    schedule = timed.create_schedule("tidy", "jobs", every=HOUR)
    clock.advance(HOUR)
    schedule.resume()
    assert tick(timed) == ["1 tick pushed"]


def test_a_run_pushes_the_message_now_beside_the_ticks(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    schedule = timed.create_schedule(
        "tidy", "jobs", every=HOUR, payload=b"go", headers={"a": "b"}, key=b"k", overlap="skip"
    )
    schedule.pause()
    message_id = schedule.run()
    schedule.resume()
    (message,) = jobs.peek(10)
    assert message.id == message_id
    assert (message.payload, message.key) == (b"go", b"k")
    assert message.headers == {"a": "b", "cassq-schedule": "tidy"}
    clock.advance(HOUR)
    assert tick(timed) == ["1 tick pushed"], "a run is no tick"
    assert len(drain(jobs.popper())) == 2


def test_a_run_is_refused_like_any_push(timed: cassq.Client) -> None:
    queue = timed.create_queue("jobs", max_length=1)
    schedule = timed.create_schedule("tidy", "jobs", every=HOUR)
    schedule.run()
    with pytest.raises(QueueFullError):
        schedule.run()
    queue.pause()
    with pytest.raises(QueuePausedError):
        schedule.run()


def test_a_deleted_schedule_is_gone_and_its_messages_stay(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    schedule = timed.create_schedule("tidy", "jobs", every=HOUR)
    clock.advance(HOUR)
    tick(timed)
    schedule.delete()
    clock.advance(HOUR)
    assert tick(timed) == []
    assert len(drain(jobs.popper())) == 1
    verbs = (schedule.info, schedule.next, schedule.pause, schedule.resume, schedule.run)
    for verb in (*verbs, schedule.delete, lambda: schedule.update(payload=b"x")):
        with pytest.raises(ScheduleNotFoundError, match="schedule 'tidy' was deleted"):
            verb()


def test_a_handle_is_of_one_schedule_and_not_of_a_later_one_with_its_name(
    timed: cassq.Client, jobs: cassq.Queue
) -> None:
    old = timed.create_schedule("tidy", "jobs", every=HOUR)
    old.delete()
    timed.create_schedule("tidy", "jobs", every=HOUR)
    with pytest.raises(ScheduleNotFoundError):
        old.delete()
    assert len(timed.schedules()) == 1


# --- changing one -------------------------------------------------------------------------------


def test_an_update_changes_what_it_names_and_leaves_the_rest(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    schedule = timed.create_schedule(
        "tidy", "jobs", every=HOUR, payload=b"go", headers={"a": "b"}, key=b"k", overlap="skip"
    )
    schedule.pause()
    before = schedule.info()
    schedule.update(payload=b"new", priority=7)
    assert schedule.info() == replace(before, payload=b"new", priority=7)
    timed.schedule("tidy").update(headers=None, key=None, missed="all")
    after = schedule.info()
    assert (after.headers, after.key, after.missed) == ({}, None, "all")
    assert (after.payload, after.priority, after.paused) == (b"new", 7, True)
    schedule.resume()
    clock.advance(HOUR)
    assert tick(timed) == ["1 tick pushed"]
    (message,) = jobs.peek(1)
    assert (message.payload, message.key, message.priority) == (b"new", None, 7)


def test_with_other_times_the_next_tick_is_the_first_from_now_on(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    schedule = timed.create_schedule("tidy", "jobs", cron="0 3 * * *")
    clock.advance(60)
    schedule.update(every=timedelta(minutes=5))
    assert schedule.cron == "@every 5m"
    assert schedule.next(1) == [START + timedelta(minutes=6)]
    schedule.update(cron="0 3 * * *", tz="Europe/Vienna")
    vienna = ZoneInfo("Europe/Vienna")
    assert schedule.next(1) == [datetime(2023, 11, 15, 3, tzinfo=vienna)]
    schedule.update(tz="UTC")
    assert schedule.next(1) == [datetime(2023, 11, 15, 3, tzinfo=UTC)]


def test_a_tick_that_is_due_is_pushed_as_the_update_says(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    mail = timed.create_queue("mail")
    schedule = timed.create_schedule("tidy", "jobs", every=HOUR, payload=b"old", missed="all")
    clock.advance(3 * HOUR)
    schedule.update(queue="mail", payload=b"new")
    assert schedule.queue == "mail"
    assert tick(timed) == ["3 ticks pushed"], "its times have not changed"
    clock.advance(2 * HOUR)
    schedule.update(every=60)
    assert tick(timed) == ["1 tick pushed"], "the last of those that were due"
    clock.advance(60)
    assert tick(timed) == ["1 tick pushed"]
    assert jobs.peek(10) == []
    messages = mail.peek(10)
    assert {message.payload for message in messages} == {b"new"}
    found = [message.headers["cassq-tick"][11:] for message in messages]
    assert found == ["23:13:20Z", "00:13:20Z", "01:13:20Z", "03:13:20Z", "03:14:20Z"]


def test_an_unfinished_message_in_the_queue_before_counts_for_overlap(
    timed: cassq.Client, jobs: cassq.Queue, clock: ManualClock
) -> None:
    timed.create_queue("mail").create_group("second")
    schedule = timed.create_schedule("tidy", "jobs", every=HOUR, overlap="skip")
    clock.advance(HOUR)
    tick(timed)
    schedule.update(queue="mail")
    assert schedule.info().unsettled == ("default",)
    clock.advance(HOUR)
    assert tick(timed) == ["1 skipped"]
    drain(jobs.popper())
    clock.advance(HOUR)
    assert tick(timed) == ["1 tick pushed"]
    assert schedule.info().unsettled == ("default", "second")


def test_of_two_changes_at_the_same_time_neither_is_lost(
    client: cassq.Client, connect: Connect
) -> None:
    client.create_queue("jobs")
    client.create_schedule("tidy", "jobs", every=HOUR)
    others = [connect() for _ in range(2)]

    def change(number: int) -> None:
        schedule = others[number].schedule("tidy")
        for count in range(1, 11):
            if number:
                schedule.update(priority=count % 10)
            else:
                schedule.update(payload=b"%d" % count)

    in_threads(2, change)
    info = client.schedule("tidy").info()
    assert (info.payload, info.priority) == (b"10", 0)


def test_deleting_a_queue_leaves_a_schedule_that_has_another_by_now(
    timed: cassq.Client, jobs: cassq.Queue
) -> None:
    timed.create_queue("mail")
    schedule = timed.create_schedule("tidy", "jobs", every=HOUR)
    stale = timed.schedule("tidy")
    schedule.update(queue="mail")
    timed.delete_queue("jobs")
    stale.drop(jobs.id)
    assert stale.info().queue == "mail"
    timed.delete_queue("mail")
    assert timed.schedules() == []


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error", "complaint"),
    [
        ({"cron": "0 25 * * *"}, ConfigError, "the hour '25'"),
        ({"cron": "@daily", "tz": "Europe/Viena"}, ConfigError, "did you mean 'Europe/Vienna'"),
        ({"every": 5, "tz": "Mars"}, ConfigError, "tz 'Mars' is not a known time zone"),
        ({"cron": "@daily", "tz": None}, ConfigError, "tz must be the name of a time zone"),
        ({}, ConfigError, "a schedule needs either cron or every"),
        ({"cron": "@daily", "every": 5}, ConfigError, "a schedule needs either cron or every"),
        ({"every": 0.9}, ConfigError, "every must be between 1 second and 366 days"),
        ({"every": timedelta(days=400)}, ConfigError, "every must be between"),
        ({"every": "5m"}, ConfigError, "every must be a number of seconds"),
        ({"every": 5, "missed": "never"}, ConfigError, "missed must be one of once, all, skip"),
        ({"every": 5, "overlap": True}, ConfigError, "overlap must be one of allow, skip"),
        ({"every": 5, "priority": True}, UsageError, "priority must be a whole number"),
        ({"every": 5, "payload": "text"}, InvalidPayloadError, "a payload must be bytes"),
        ({"every": 5, "key": "text"}, InvalidPayloadError, "a key must be bytes"),
        ({"every": 5, "headers": {"a": 1}}, InvalidPayloadError, "header 'a' = 1"),
        ({"every": 5, "payload": b"x" * (SCHEDULE_BYTES_MAX + 1)}, MessageTooLargeError, "65537"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_is_created(
    timed: cassq.Client, jobs: cassq.Queue, wrong: dict[str, Any], error: type, complaint: str
) -> None:
    with pytest.raises(error) as caught:
        timed.create_schedule("tidy", "jobs", **wrong)
    assert complaint in str(caught.value)
    assert timed.schedules() == []


@pytest.mark.parametrize(
    ("wrong", "error", "complaint"),
    [
        ({"cron": "0 25 * * *"}, ConfigError, "the hour '25'"),
        ({"cron": "0 0 30 2 *"}, ConfigError, "the day-of-month '30'"),
        ({"tz": "Mars"}, ConfigError, "tz 'Mars' is not a known time zone"),
        ({"cron": "@daily", "every": 5}, ConfigError, "either cron or every"),
        ({"cron": None}, ConfigError, "either cron or every"),
        ({"every": 0.9}, ConfigError, "every must be between"),
        ({"missed": "never"}, ConfigError, "missed must be one of once, all, skip"),
        ({"payload": "text"}, InvalidPayloadError, "a payload must be bytes"),
        ({"key": b"x" * SCHEDULE_BYTES_MAX}, MessageTooLargeError, "65540"),
        ({"priority": 10}, UsageError, "priority must be a whole number from 0 to 9"),
        ({"priority": 1, "queue": "strict"}, UsageError, "none can have a priority"),
        ({"queue": "nope"}, QueueNotFoundError, "'nope'"),
        ({"queue": None}, InvalidNameError, "a queue's name must be a str"),
        ({"name": "x"}, UsageError, "a schedule has no setting 'name'"),
        ({}, UsageError, "there is nothing to change"),
    ],
)
def test_a_wrong_change_is_named_and_changes_nothing(
    timed: cassq.Client, jobs: cassq.Queue, wrong: dict[str, Any], error: type, complaint: str
) -> None:
    timed.create_queue("strict", consistency="cp")
    schedule = timed.create_schedule("tidy", "jobs", cron="0 3 * * *", payload=b"go")
    before = schedule.info()
    with pytest.raises(error) as caught:
        schedule.update(**({"payload": b"gone"} | wrong if wrong else {}))
    assert complaint in str(caught.value)
    assert schedule.info() == before


def test_a_strict_queue_takes_no_schedule_with_a_priority(timed: cassq.Client) -> None:
    timed.create_queue("strict", consistency="cp")
    with pytest.raises(UsageError, match="none can have a priority"):
        timed.create_schedule("tidy", "strict", every=5, priority=1)
    assert timed.schedules() == []


def test_a_schedule_needs_a_queue_and_a_valid_name(timed: cassq.Client, jobs: cassq.Queue) -> None:
    with pytest.raises(QueueNotFoundError, match="'nope'"):
        timed.create_schedule("tidy", "nope", every=5)
    with pytest.raises(QueueNotFoundError, match="'nope'"):
        timed.schedules("nope")
    for wrong in ("", "a:b", "a b", "x" * 201, "~", 5):
        with pytest.raises(InvalidNameError, match="schedule"):
            timed.create_schedule(wrong, "jobs", every=5)  # type: ignore[arg-type]
    with pytest.raises(ScheduleNotFoundError, match="there is no schedule 'tidy'") as error:
        timed.schedule("tidy")
    assert "cassq schedule list" in error.value.hint
    assert timed.schedules() == []


class ManySchedules(SqliteRecords):
    """Records that list the first schedule `count` times."""

    count = SCHEDULES_MAX

    def schedules(self) -> list[ScheduleRow]:
        return super().schedules()[:1] * self.count


@pytest.mark.embedded_only(reason="a part of that catalog is replaced")
def test_the_number_of_schedules_is_limited(timed: cassq.Client, jobs: cassq.Queue) -> None:
    timed.create_schedule("0", "jobs", every=5)
    catalog = timed.ports.catalog
    assert isinstance(catalog, SqliteCatalog)
    many = put_part(catalog, ManySchedules)
    with pytest.raises(ConfigError, match="there are 1000 schedules, the limit is 1000"):
        timed.create_schedule("one-more", "jobs", every=5)
    many.count -= 1
    timed.create_schedule("one-more", "jobs", every=5)


def test_a_schedule_cannot_be_pickled(timed: cassq.Client, jobs: cassq.Queue) -> None:
    with pytest.raises(UsageError, match="a schedule cannot be pickled"):
        pickle.dumps(timed.create_schedule("tidy", "jobs", every=5))
