"""The user's handle on a schedule: shows, changes, pauses, resumes, runs and deletes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, NoReturn, Unpack, get_args

from cassq.base.arguments import check_count, refuse_pickling
from cassq.base.clock import attempts, contended
from cassq.client.backends.opening import row_named
from cassq.client.backends.rebuilt import rebuilt_at, without_schedules
from cassq.client.queue import Queue
from cassq.client.runtime import Runtime
from cassq.errors import (
    ConfigError,
    MessageTooLargeError,
    ScheduleExistsError,
    ScheduleNotFoundError,
    UsageError,
)
from cassq.lifecycle.ports import operation
from cassq.message.batches import Batch
from cassq.message.columns import encode_headers
from cassq.message.message_ids import MessageId
from cassq.model.priorities import check_allowed, check_priority
from cassq.model.queues import as_text, check_schedule_name
from cassq.model.rows import QueueRow
from cassq.model.schedules import (
    SCHEDULE_BYTES_MAX,
    SCHEDULE_HEADER,
    SCHEDULES_MAX,
    ScheduleRow,
    TickPlace,
    moved,
    resumed,
    retimed,
)
from cassq.model.ticks import checked_cron, interval_cron, ticks_of, zone_of
from cassq.producer.admission import check_key, check_payload
from cassq.producer.settled import unsettled_groups
from cassq.settings import Missed, Overlap, ScheduleSettings

NEXT_MAX = 10_000
# What a user chooses. Two schedules count as the same if these are equal.
_SETTINGS = ("cron", "tz", "payload", "headers", "key", "priority", "missed", "overlap")


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick whose message was pushed, or is being pushed, and the id of that message."""

    at: datetime
    message_id: str


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """The settings and state of a schedule at one moment.

    next_at: None while it is paused. last: the last tick pushed. pushing: a tick whose push was
    begun and not finished; the next pass finishes it. skipped_at, skipped_why: the last tick that
    was not pushed, and why: "missed" or "overlap". unsettled: the groups that are not done with the
    message of the last tick; with overlap="skip" the next tick is skipped because of them.
    """

    name: str
    queue: str
    cron: str
    tz: str
    payload: bytes
    headers: Mapping[str, str]
    key: bytes | None
    priority: int
    missed: Missed
    overlap: Overlap
    paused: bool
    created_at: datetime
    next_at: datetime | None
    last: Tick | None
    pushing: Tick | None
    skipped_at: datetime | None
    skipped_why: str
    unsettled: tuple[str, ...]


class Schedule:
    """A schedule; get one from `Client.create_schedule` or `Client.schedule`."""

    def __init__(self, runtime: Runtime, row: ScheduleRow) -> None:
        self._runtime = runtime
        self._life = runtime.life
        self._row = row

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._row.queue

    @property
    def cron(self) -> str:
        """Its cron expression; for an interval, one such as `@every 5m`."""
        return self._row.cron

    @operation
    def info(self) -> ScheduleInfo:
        """Its settings and its state. Cost: a read, and a few for each group of the queue."""
        row = self._load()
        zone, last = zone_of(row.tz), row.last
        unsettled: list[str] = []
        if last is not None:
            unsettled = unsettled_groups(self._runtime.ports, last.pipe_id, last.seq)
        skipped = row.skipped
        return ScheduleInfo(
            name=row.name,
            queue=row.queue,
            **_settings(row),
            paused=row.paused,
            created_at=_moment(row.created_ms, zone),
            next_at=_next_at(row, zone),
            last=_tick(last, zone),
            pushing=_tick(row.firing, zone),
            skipped_at=None if skipped is None else _moment(skipped.tick_ms, zone),
            skipped_why="" if skipped is None else skipped.why,
            unsettled=tuple(unsettled),
        )

    @operation
    def next(self, count: int = 5) -> list[datetime]:
        """The next ticks, in the schedule's time zone; of a paused schedule, the ticks that it
        would have if it were resumed now. Cost: one read."""
        check_count("count", count, NEXT_MAX)
        row = self._load()
        if row.paused:
            row = resumed(row, self._runtime.ports.catalog.wall_ms())
        return upcoming(row, row.next_ms - 1, count)

    @operation
    def update(self, **changes: Unpack[ScheduleSettings]) -> None:
        """Change settings, named as for `Client.create_schedule`; the others stay as they are.

        queue: the name of another queue. headers: replace all present ones; None removes them, as
        key=None removes the key. If `cron`, `every` or `tz` changes, the next tick is the first of
        the new times from now on, and intervals are counted from now. A tick that is due but not
        yet pushed stays due, and is pushed with the new settings; if the times change and several
        are due, only the last one stays. A push that was begun is finished with the old settings or
        the new ones.

        Raises as `Client.create_schedule`, UsageError for an unknown setting or for none, and
        ScheduleNotFoundError; then nothing is changed. Cost: two reads and a conditional write.
        """
        _check_changes(changes)
        catalog = self._runtime.ports.catalog
        queue = row_named(changes["queue"], catalog.queues.named) if "queue" in changes else None
        now_ms = catalog.wall_ms()

        def change(row: ScheduleRow) -> ScheduleRow:
            place = queue or self._queue_of(row)
            return changed(row, place, changes, now_ms)

        self._change(change)

    @operation
    def pause(self) -> None:
        """Push no ticks until `resume`. Ticks that come meanwhile are never pushed."""
        self._change(lambda row: replace(row, paused=True))

    @operation
    def resume(self) -> None:
        """End a pause; the next tick is the first one from now on."""
        now_ms = self._runtime.ports.catalog.wall_ms()
        self._change(lambda row: resumed(row, now_ms) if row.paused else row)

    @operation
    def run(self) -> MessageId:
        """Push the message now, in addition to the ticks, even while the schedule is paused;
        returns its id. It has the header `cassq-schedule`, but no `cassq-tick`, and `overlap`
        ignores it. Raises as `Pusher.push` does."""
        row = self._load()
        queue_row = self._queue_of(row)
        header = encode_headers({**row.headers, SCHEDULE_HEADER: row.name})
        batch = Batch([row.payload], self._runtime.clock.wall_ms(), [header], [row.key])
        batch = replace(batch, priority=row.priority)
        pusher = Queue(self._runtime, queue_row).tick_pusher()
        try:
            return pusher.push_intended(batch, None)[0]
        finally:
            pusher.close_inside()

    @operation
    def delete(self) -> None:
        """Delete the schedule. Its messages stay, and a push that was begun may still finish."""
        self._load()
        self.drop()

    def drop(self, queue_id: str | None = None) -> None:
        """Delete it if it still exists; for use inside a call of the client. queue_id: if given,
        only if it still pushes to this queue."""
        records = self._runtime.ports.catalog.records
        for _ in attempts(self._runtime.clock):
            row = records.schedule(self.name)
            if row is None or row.id != self._row.id or queue_id not in (None, row.queue_id):
                return
            if records.drop_schedule(row):
                return
        raise contended(f"schedule {self.name!r}")

    def _queue_of(self, row: ScheduleRow) -> QueueRow:
        queue = self._runtime.ports.catalog.queues.by_id(row.queue_id)
        if queue is None or queue.deleted:
            raise ScheduleNotFoundError(f"the queue of schedule {row.name!r} was deleted")
        return queue

    def _load(self) -> ScheduleRow:
        """The current row. Raises ScheduleNotFoundError if the schedule was deleted, even if
        another one with its name was created since."""
        row = self._runtime.ports.catalog.records.schedule(self.name)
        if row is None or row.id != self._row.id:
            raise ScheduleNotFoundError(f"schedule {self.name!r} was deleted")
        return row

    def _change(self, changed: Callable[[ScheduleRow], ScheduleRow]) -> None:
        for _ in attempts(self._runtime.clock):
            row = self._load()
            new = changed(row)
            if new == row or self._runtime.ports.catalog.records.change_schedule(row, new):
                self._row = new
                return
        raise contended(f"schedule {self.name!r}")

    def __reduce__(self) -> NoReturn:
        refuse_pickling(
            "schedule",
            "pass its name, and call cassq.connect(url).schedule(name) there",
        )

    def __repr__(self) -> str:
        return f"<Schedule {self.name}>"


# --- making one -----------------------------------------------------------------------------------


def wanted_schedule(
    name: str,
    *,
    cron: str | None,
    every: float | timedelta | None,
    tz: str,
    payload: bytes,
    headers: Mapping[str, str] | None,
    key: bytes | None,
    missed: Missed,
    overlap: Overlap,
    priority: int,
) -> ScheduleRow:
    """A schedule with these settings, without a queue yet. Arguments and errors: as for
    `Client.create_schedule`."""
    check_schedule_name(name)
    if (cron is None) == (every is None):
        raise ConfigError(
            "a schedule needs either cron or every", hint="for instance cron='0 3 * * *'"
        )
    if every is not None:
        seconds = every.total_seconds() if isinstance(every, timedelta) else every
        expression = interval_cron(seconds)
    else:
        assert cron is not None
        expression = checked_cron(cron)
    zone_of(tz)
    ticks_of(expression, tz, 0)
    _check_choice("missed", missed, get_args(Missed))
    _check_choice("overlap", overlap, get_args(Overlap))
    stored, header = check_payload(payload), encode_headers(headers) if headers else None
    size = len(stored) + len(header or b"") + len(check_key(key) or b"")
    if size > SCHEDULE_BYTES_MAX:
        raise MessageTooLargeError(
            f"payload, headers and key of a schedule have {size} bytes, the limit is"
            f" {SCHEDULE_BYTES_MAX}"
        )
    row = ScheduleRow("", name, "", "", expression, tz, 0, 0, stored, dict(headers or {}), key)
    return replace(row, missed=missed, overlap=overlap, priority=check_priority(priority))


def create_schedule(runtime: Runtime, queue: QueueRow, wanted: ScheduleRow) -> Schedule:
    """Create a schedule, or return the existing one if it has the same settings. Raises
    ScheduleExistsError, ConfigError if it never comes due or there are too many schedules, and
    UsageError for a priority that the queue does not support."""
    check_allowed(wanted.priority, queue.policy)
    ports = runtime.ports
    now_ms = ports.catalog.wall_ms()
    row = begun(wanted, now_ms)
    row = replace(
        row, id=ports.ids.new(ports.catalog.now_ms()), queue_id=queue.id, queue=queue.name
    )
    existing = ports.catalog.records.schedule(row.name)
    if existing is None:
        count = len(ports.catalog.records.schedules())
        if count >= SCHEDULES_MAX:
            raise ConfigError(
                f"there are {count} schedules, the limit is {SCHEDULES_MAX}",
                hint="delete some with `cassq schedule delete NAME`",
            )
        if ports.catalog.records.add_schedule(row):
            return Schedule(runtime, row)
        existing = ports.catalog.records.schedule(row.name)
        if existing is None:
            return create_schedule(runtime, queue, wanted)  # deleted this moment
    return Schedule(runtime, _same(existing, row))


def begun(wanted: ScheduleRow, now_ms: int) -> ScheduleRow:
    """A schedule that begins at `now_ms`. Raises ConfigError if it never comes due."""
    row = replace(wanted, created_ms=now_ms)
    return replace(row, next_ms=row.ticks.after(now_ms))


def changed(
    row: ScheduleRow, queue: QueueRow, changes: ScheduleSettings, now_ms: int
) -> ScheduleRow:
    """A schedule after changes at the wall time `now_ms`, with its next ticks in `queue`. Raises as
    `wanted_schedule` and `create_schedule`."""
    given = {name: value for name, value in changes.items() if name != "queue"}
    if "every" in given or "cron" in given:
        given = {"cron": None, "every": None} | given
    wanted = wanted_schedule(row.name, **({"every": None} | _settings(row) | given))
    check_allowed(wanted.priority, queue.policy)
    timed = retimed(row, wanted.cron, wanted.tz, now_ms)
    return moved(replace(timed, **_settings(wanted)), queue)


def _check_changes(changes: ScheduleSettings) -> None:
    known = ScheduleSettings.__annotations__
    unknown = sorted(name for name in changes if name not in known)
    if unknown:
        raise UsageError(
            f"a schedule has no setting {unknown[0]!r}", hint=f"it has {', '.join(known)}"
        )
    if not changes:
        raise UsageError("there is nothing to change", hint="name a setting, as in missed='all'")


def _same(existing: ScheduleRow, wanted: ScheduleRow) -> ScheduleRow:
    found = {
        name: (getattr(existing, name), getattr(wanted, name))
        for name in ("queue", *_SETTINGS)
        if getattr(existing, name) != getattr(wanted, name)
    }
    if existing.queue_id != wanted.queue_id and not found:
        found["queue"] = (f"an earlier {existing.queue}", wanted.queue)
    if found:
        raise ScheduleExistsError(
            f"schedule {existing.name!r} exists: {as_text(found)}", differences=found
        )
    return existing


def find_schedule(runtime: Runtime, name: str) -> Schedule:
    """The schedule with this name. Raises ScheduleNotFoundError."""
    row = runtime.ports.catalog.records.schedule(check_schedule_name(name))
    if row is None:
        catalog = runtime.ports.catalog
        rebuilt = None if catalog.records.schedules() else rebuilt_at(catalog)
        hint = {} if rebuilt is None else {"hint": without_schedules(rebuilt)}
        raise ScheduleNotFoundError(f"there is no schedule {name!r}", **hint)
    return Schedule(runtime, row)


def schedules_of(runtime: Runtime, queue_id: str | None) -> list[Schedule]:
    """The schedules of a queue, or of all (None), by name."""
    rows = runtime.ports.catalog.records.schedules()
    return [Schedule(runtime, row) for row in rows if queue_id in (None, row.queue_id)]


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


# --- as shown -------------------------------------------------------------------------------------


def upcoming(row: ScheduleRow, after_ms: int, count: int) -> list[datetime]:
    """The next ticks of a schedule, in its time zone."""
    zone = zone_of(row.tz)
    return [_moment(tick_ms, zone) for tick_ms in row.ticks.next(after_ms, count)]


def _settings(row: ScheduleRow) -> dict[str, Any]:
    return {each.name: getattr(row, each.name) for each in fields(row) if each.name in _SETTINGS}


def _next_at(row: ScheduleRow, zone: tzinfo) -> datetime | None:
    return None if row.paused else _moment(row.next_ms, zone)


def _tick(place: TickPlace | None, zone: tzinfo) -> Tick | None:
    if place is None:
        return None
    return Tick(_moment(place.tick_ms, zone), f"{place.pipe_id}:{place.seq}")


def _moment(at_ms: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(zone)
