"""A pusher's appenders: some for what is delivered at once, and one for each lane of timers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from cassq.base.arguments import DELAY_MAX_SECONDS, check_zone, milliseconds
from cassq.base.counters import Tally
from cassq.errors import UsageError
from cassq.lifecycle.ports import Ports
from cassq.model.lanes import lane_of
from cassq.model.rows import PipeRow, QueueRow
from cassq.pipes import Appender, Chore, Tended
from cassq.producer.scaling import share_of


class Appenders:
    """Made when they are first needed; not thread-safe, as an appender is not."""

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        group_id: str,
        *,
        patient: bool = True,
        tally: Tally | None = None,
    ) -> None:
        self._ports = ports
        self._tally = tally
        self._patient = patient
        self._queue = queue
        self._group_id = group_id
        self._lanes: dict[int, Appender] = {}
        self._owner = ports.ids.version()
        self._side_by_side: list[Appender] = []  # for what is delivered at once, in turn
        self._share = 1
        self._turn = 0

    def place(self, delay: float | None, due: datetime | None) -> tuple[int | None, int]:
        """The lane and due time (catalog milliseconds) of a delayed message; the lane is None
        when it is due already.

        Raises UsageError for a time that makes no sense, and on strictly ordered queues.
        """
        delay_ms = self._delay_ms(delay, due)
        if self._queue().policy.strict:
            raise UsageError(
                "a cp queue delivers in the order of the pushes, so nothing in it can be delayed",
                hint="push it when it is due, or use an ap queue",
            )
        lane = lane_of(delay_ms) if delay_ms > 0 else None
        return lane, self._ports.catalog.now_ms() + delay_ms

    def _delay_ms(self, delay: float | None, due: datetime | None) -> int:
        if due is None:
            return milliseconds("delay", delay)
        if delay is not None:
            raise UsageError("delay and due say the same: give one of them")
        if not isinstance(due, datetime):
            raise UsageError(f"due is a datetime, not {due!r}", hint="for seconds there is delay")
        check_zone("due", due)
        wall_ms = round(due.astimezone(UTC).timestamp() * 1000)
        delay_ms = wall_ms - self._ports.clock.wall_ms()
        if delay_ms > DELAY_MAX_SECONDS * 1000:
            raise UsageError(f"due is more than ten years away: {due}")
        return max(0, delay_ms)

    def of(self, lane: int | None) -> Appender:
        """The appender of a lane; None: the next of those for what is delivered at once."""
        if lane is None:
            self._turn = (self._turn + 1) % self._share
            if self._turn >= len(self._side_by_side):
                self._turn = len(self._side_by_side)
                self._side_by_side.append(self._appender(owner=self._owner))
            return self._side_by_side[self._turn]
        appender = self._lanes.get(lane)
        if appender is None:
            appender = self._lanes[lane] = self._appender(lane=lane)
        return appender

    def _appender(self, *, lane: int | None = None, owner: str = "") -> Appender:
        return Appender(
            self._ports,
            self._queue,
            lane=lane,
            group_id=self._group_id,
            owner=owner,
            patient=self._patient,
            tally=self._tally,
        )

    def tend(self) -> Tended:
        """Housekeeping of them all, as `Appender.tend`."""
        again, chores = 1.0, self._follow_wish()
        for appender in self._all():
            tended = appender.tend()
            again = min(again, tended.again)
            chores += tended.chores
        return Tended(again, chores)

    def _follow_wish(self) -> list[Chore]:
        """Take this pusher's share of the queue's wished pipes; what is too much is to be sealed.

        Cost: none while one pipe is wished for, else one query of a partial index.
        """
        queue = self._queue()
        pipes: list[PipeRow] = []
        if not self._group_id and max(queue.wished_pipes, queue.policy.min_open_pipes) > 1:
            pipes = self._ports.catalog.unsealed_pipes([queue.id])
        self._share = 1 if self._group_id else share_of(queue, pipes, self._owner)
        chores: list[Chore] = []
        while len(self._side_by_side) > self._share:
            chores.append(self._side_by_side.pop().close)
        return chores

    def _all(self) -> list[Appender]:
        return [*self._side_by_side, *self._lanes.values()]

    def close(self) -> None:
        """Seal what is open."""
        for appender in self._all():
            appender.close()
