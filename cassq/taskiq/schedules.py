"""The source of schedules for taskiq: kept with the queues, for any number of schedulers.

The catalog has one record for all schedules of a name, and one for the last tick of each schedule,
changed by compare-and-set. A scheduler claims a due tick before it sends it, and notes that it was
sent. Other schedulers wait for that note; if it does not come, because the scheduler died, they
send the tick themselves. So a tick is sent once; it is sent again only if a scheduler dies after it
has sent the tick and before it has noted that.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from cassq.base.arguments import check_seconds
from cassq.base.clock import SystemClock, attempts, contended
from cassq.client.places import QueueRegistry
from cassq.errors import UsageError
from cassq.extras import wanted
from cassq.model.queues import check_queue_name

with wanted("the source of schedules for taskiq needs", "taskiq", "taskiq"):
    import taskiq
    from taskiq import ScheduledTask
    from taskiq.exceptions import ScheduledTaskCancelledError

SCHEDULES_MAX = 1000
CLAIM_SECONDS_MAX = 3600.0
LOOK_SECONDS = 0.1


class SentTick(NamedTuple):
    """The last tick of a schedule. at_ms: wall time when it was claimed. sent: whether its
    scheduler noted that it was sent. text: the record as it is stored."""

    at_ms: int
    sent: bool
    text: str

    @staticmethod
    def of(text: str) -> SentTick | None:
        if not text:
            return None
        found = json.loads(text)
        return SentTick(found["at_ms"], found["sent"], text)

    @staticmethod
    def new(at_ms: int, *, sent: bool) -> SentTick:
        # No two records are equal.
        record = {"at_ms": at_ms, "sent": sent, "by": uuid.uuid4().hex}
        return SentTick(at_ms, sent, json.dumps(record))


class ScheduleSource(taskiq.ScheduleSource):
    """Schedules that any process can add while schedulers run; at most 1,000 under one name.

    url: as for `cassq.connect`; each process opens a client at its first use. name: of this set of
    schedules. claim_timeout: how many seconds other schedulers wait for one that is sending a tick,
    before they send it themselves.
    """

    def __init__(
        self, url: str | None = None, name: str = "taskiq", *, claim_timeout: float = 30.0
    ) -> None:
        check_seconds("claim_timeout", claim_timeout, CLAIM_SECONDS_MAX)
        self._registry = QueueRegistry(url, {})
        self._name = check_queue_name(name)
        self._claim_ms = round(claim_timeout * 1000)
        self._clock = SystemClock()
        self._claims: dict[str, SentTick] = {}  # what this scheduler is sending, by schedule

    async def startup(self) -> None:
        """Open the client. Raises as `cassq.connect`."""
        await asyncio.to_thread(lambda: self._registry.client)

    async def shutdown(self) -> None:
        """Close the client."""
        await asyncio.to_thread(self._registry.close)

    async def get_schedules(self) -> list[ScheduledTask]:
        """All schedules. Cost: a read."""
        found = await asyncio.to_thread(self._read)
        return [ScheduledTask.model_validate(each) for each in found.values()]

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Add a schedule, or replace the one with its id; durable on return. Raises UsageError if
        its arguments cannot be written as JSON, or there are too many schedules."""
        try:
            record = json.loads(schedule.model_dump_json())
        except ValueError as exc:
            raise UsageError(
                f"schedule {schedule.schedule_id} cannot be written as JSON: {exc}"
            ) from exc

        def added(schedules: dict[str, Any]) -> None:
            schedules[schedule.schedule_id] = record
            if len(schedules) > SCHEDULES_MAX:
                raise UsageError(
                    f"{self._name!r} already has {SCHEDULES_MAX:,} schedules, the maximum"
                )

        await asyncio.to_thread(self._change, added)

    async def delete_schedule(self, schedule_id: str) -> None:
        """Remove a schedule, if it exists; durable on return."""
        await asyncio.to_thread(self._delete, schedule_id)

    async def pre_send(self, task: ScheduledTask) -> None:
        """Claim a due tick. Waits while another scheduler is sending it. Raises taskiq's
        ScheduledTaskCancelledError if another has sent it, or the schedule was removed."""
        while not await asyncio.to_thread(self._claim, task):
            await asyncio.sleep(LOOK_SECONDS)

    async def post_send(self, task: ScheduledTask) -> None:
        """Note that a tick was sent; a schedule for a single time is removed."""
        await asyncio.to_thread(self._sent, task)

    # --- in a thread ----------------------------------------------------------------------------

    @property
    def _catalog(self) -> Any:
        return self._registry.client.ports.catalog

    @property
    def _key(self) -> str:
        return f"taskiq-schedules:{self._name}"

    def _tick_key(self, schedule_id: str) -> str:
        return f"taskiq-tick:{self._name}:{schedule_id}"

    def _read(self) -> dict[str, Any]:
        return _schedules_in(self._catalog.leases.shared(self._key))

    def _change(self, change: Callable[[dict[str, Any]], None]) -> None:
        catalog = self._catalog
        for _ in attempts(self._clock):
            text = catalog.leases.shared(self._key)
            schedules = _schedules_in(text)
            change(schedules)
            new = json.dumps({"by": uuid.uuid4().hex, "schedules": schedules})
            if catalog.leases.swap(self._key, text, new):
                catalog.claims.ensure_durable()
                return
        raise contended(f"the schedules of {self._name!r}")

    def _delete(self, schedule_id: str) -> None:
        self._change(lambda schedules: schedules.pop(schedule_id, None))
        key = self._tick_key(schedule_id)
        self._catalog.leases.swap(key, self._catalog.leases.shared(key), "")

    def _claim(self, task: ScheduledTask) -> bool:
        """Claim a tick, for this scheduler to send; False if another scheduler is sending it."""
        leases, key = self._catalog.leases, self._tick_key(task.schedule_id)
        now_ms = self._clock.wall_ms()
        if task.schedule_id not in self._read():
            raise ScheduledTaskCancelledError
        last = SentTick.of(leases.shared(key))
        if last is not None and not _is_due(task, last.at_ms, now_ms):
            if last.sent:
                raise ScheduledTaskCancelledError
            if now_ms - last.at_ms < self._claim_ms:
                return False
        claim = SentTick.new(now_ms, sent=False)
        if not leases.swap(key, "" if last is None else last.text, claim.text):
            return False
        self._claims[task.schedule_id] = claim
        return True

    def _sent(self, task: ScheduledTask) -> None:
        if task.time is not None:
            self._claims.pop(task.schedule_id, None)
            self._delete(task.schedule_id)
            return
        claim = self._claims.pop(task.schedule_id, None)
        if claim is not None:
            new = SentTick.new(claim.at_ms, sent=True)
            self._catalog.leases.swap(self._tick_key(task.schedule_id), claim.text, new.text)


def _schedules_in(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)["schedules"] if text else {}
    return found


def _is_due(task: ScheduledTask, last_ms: int, now_ms: int) -> bool:
    """Whether it is due again after its last tick, as taskiq counts: by the minute for cron, or by
    the interval, with a tolerance of half a second."""
    if task.interval is not None:
        interval = task.interval
        seconds = interval.total_seconds() if isinstance(interval, timedelta) else interval
        return now_ms - last_ms >= 1000 * (seconds - 0.5)
    if task.cron is not None:
        return _minute(now_ms) > _minute(last_ms)
    return False


def _minute(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).replace(second=0, microsecond=0)
