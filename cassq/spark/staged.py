"""Staged writes: tasks fill pipes, and the driver publishes them. The data source, and `pusher`
with a write id, write like this.

A write to several queues is one write in each of them, all with one id. They are published one
after another, each in one step. If the driver dies in between, only some of them are published;
started again under the same id, it publishes the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import NamedTuple

from cassq.errors import BackendError, CassqError, FencedError
from cassq.lifecycle.ports import Ports
from cassq.model.rows import QueueRow, WriteRow, WriteState
from cassq.producer import staging
from cassq.producer.staging import Stage, StagedPipe
from cassq.spark.clients import Location, place_at, queue_of


def batch_id(write_id: str) -> str:
    """The catalog's ID of a write by a batch job, from the user's write id."""
    return f"batch:{write_id}"


class StagedWrite(NamedTuple):
    """A write to one queue or, if `queue` is empty, to those that its rows name. id: the catalog's.
    driver: the ID under which the driver leads it. number: that of a stream's batch."""

    location: Location
    queue: str
    id: str
    driver: str
    number: int = 0


class BegunWrite(NamedTuple):
    """The queue and epoch of a write, as a task attempt found them. epoch: 0 if the write had been
    published before."""

    queue_id: str
    epoch: int


class Attempt(NamedTuple):
    """A successful task attempt, and the pipes that it filled."""

    begun: BegunWrite
    pipes: Sequence[StagedPipe] = ()


class Part(NamedTuple):
    """What a write publishes in one queue. begun: what each attempt found; None for an attempt
    without a result."""

    write: StagedWrite
    begun: Collection[BegunWrite | None]
    pipes: Sequence[StagedPipe]


class Filling:
    """One task attempt, on an executor: it fills pipes for a write to one queue or several. Not
    thread-safe. Raises as `place_at`."""

    def __init__(self, location: Location) -> None:
        self._place = place_at(location)
        self._begun: dict[str, tuple[BegunWrite, Stage | None]] = {}

    @property
    def ports(self) -> Ports:
        return self._place.ports

    def stage(self, write: StagedWrite) -> Stage | None:
        """The stage of a write to one queue, begun by the first call; None if the write was
        published before. Raises QueueNotFoundError, and as `staging.begin`."""
        found = self._begun.get(write.queue)
        if found is None:
            row = queue_of(self.ports, write.queue)
            begun = staging.begin(self.ports, row, write.id, write.number, write.driver)
            over = staging.is_over(begun, write.number)
            found = self._begun[write.queue] = (
                BegunWrite(row.id, 0 if over else begun.epoch),
                None if over else Stage(self.ports, row, begun),
            )
        return found[1]

    def finish(self) -> dict[str, Attempt]:
        """End the attempt successfully; returns what it filled, by queue."""
        return {
            queue: Attempt(begun, stage.finish() if stage else ())
            for queue, (begun, stage) in self._begun.items()
        }

    def __enter__(self) -> Filling:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        if kind is not None:
            for _, stage in self._begun.values():
                if stage is not None:
                    stage.close()


def fill(write: StagedWrite, append: Callable[[Ports, Stage], None]) -> Attempt:
    """Run one task attempt for a single queue. append: appends its messages; it is not called if
    the write was published before. Raises as `append` and `Filling`."""
    with Filling(write.location) as filling:
        stage = filling.stage(write)
        if stage is not None:
            append(filling.ports, stage)
        return filling.finish()[write.queue]


def publish(part: Part, *, aborts: bool) -> bool:
    """Publish a write in one queue, on the driver. False if it was published before.

    aborts: whether to abort a write that cannot be published; if not, this may be called again.
    Raises FencedError, with nothing published, if the write was begun again while its tasks ran;
    and as `place_at`, `staging.begin` and `staging.publish`.
    """
    return publish_each([part], aborts=aborts)[0]


def publish_each(parts: Sequence[Part], *, aborts: bool) -> list[bool]:
    """Publish a write in each of its queues; as `publish`. All queues are checked before the first
    is published; an error after that says which queues have their rows. Cost: for several queues,
    also a read of the length of each one that has a limit."""
    ready = [_ready(part, aborts=aborts) for part in parts]
    if len(parts) > 1:
        for part, (ports, row, now) in zip(parts, ready, strict=True):
            if now is not None:
                staging.check_room(ports, row, sum(pipe.messages for pipe in part.pipes))
    published: list[bool] = []
    for part, (_, row, now) in zip(parts, ready, strict=True):
        try:
            published.append(now is not None and _publish(part, row, now, aborts=aborts))
        except CassqError as exc:
            if published:
                done = ", ".join(repr(each.write.queue) for each in parts[: len(published)])
                exc.hint = (
                    f"the rows of {done} are published already, the others are not: started again,"
                    " a stream or a job with a writeId writes only the rest; any other job writes"
                    " all rows again"
                )
            raise
    return published


def _ready(part: Part, *, aborts: bool) -> tuple[Ports, QueueRow, WriteRow | None]:
    """The ports and queue to publish in, and the write's row: None if it was published before."""
    write = part.write
    ports = place_at(write.location).ports
    row = queue_of(ports, write.queue)
    now = staging.begin(ports, row, write.id, write.number, write.driver)
    if staging.is_over(now, write.number):
        return ports, row, None
    if any(each != BegunWrite(row.id, now.epoch) for each in part.begun):
        if aborts:
            staging.abort(ports, now)
        raise FencedError(
            f"write {write.id!r} to queue {write.queue!r} was aborted or begun again since its"
            " tasks ran; none of it is published",
            hint="start the job again; if its driver is paused for a minute, its writes may be"
            " aborted",
        )
    return ports, row, now


def _publish(part: Part, row: QueueRow, now: WriteRow, *, aborts: bool) -> bool:
    place = place_at(part.write.location)
    try:
        published = staging.publish(place.ports, row, now, list(part.pipes))
    except BackendError as exc:
        if aborts and not exc.outcome_unknown:
            staging.abort(place.ports, now)
        raise
    if published:
        place.ring(row.id)
    return published


def give_up(write: StagedWrite) -> None:
    """Abort a write, on the driver, unless it is over or another driver leads it. If it writes to
    several queues, it is aborted in those where it is not published. Cost: for several, a read of
    the unfinished writes of all queues."""
    ports = place_at(write.location).ports
    writes = ports.catalog.writes
    if write.queue:
        row = writes.by_id(queue_of(ports, write.queue).id, write.id)
        found = [] if row is None else [row]
    else:
        found = writes.unfinished()
    ours = (write.id, write.number, write.driver, WriteState.OPEN)
    for row in found:
        if (row.id, row.number, row.driver, row.state) == ours:
            staging.abort(ports, row)
