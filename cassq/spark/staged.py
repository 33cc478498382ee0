"""Writes that tasks fill pipes for, and the driver publishes: those of `pusher` with a write id and
of the data source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from cassq.errors import BackendError, FencedError
from cassq.lifecycle.ports import Ports
from cassq.model.rows import WriteState
from cassq.producer import staging
from cassq.producer.staging import Stage, StagedPipe
from cassq.spark.clients import Location, place_at, queue_of


class StagedWrite(NamedTuple):
    """A write to a queue. id: the catalog's. driver: the ID under which the driver leads it.
    number: of a stream's batch."""

    location: Location
    queue: str
    id: str
    driver: str
    number: int = 0


class Begun(NamedTuple):
    """What a task attempt found the write begun as. epoch: 0 if it had been published before."""

    queue_id: str
    epoch: int


class Attempt(NamedTuple):
    """A task attempt that ended well, and the pipes that it filled."""

    begun: Begun
    pipes: Sequence[StagedPipe] = ()


def fill(write: StagedWrite, append: Callable[[Ports, Stage], None]) -> Attempt:
    """Run one task attempt, on an executor. append: appends its messages; it is not called if the
    write was published before. Raises as `append`, `place_at` and `staging.begin`."""
    ports = place_at(write.location).ports
    row = queue_of(ports, write.queue)
    begun = staging.begin(ports, row, write.id, write.number, write.driver)
    if staging.is_over(begun, write.number):
        return Attempt(Begun(row.id, 0))
    stage = Stage(ports, row, begun)
    try:
        append(ports, stage)
        return Attempt(Begun(row.id, begun.epoch), stage.finish())
    except BaseException:
        stage.close()
        raise


def publish(
    write: StagedWrite,
    begun: Collection[Begun | None],
    pipes: Sequence[StagedPipe],
    *,
    aborts: bool,
) -> bool:
    """Publish these pipes, on the driver. False if the write was published before.

    begun: what each attempt found; None for one that is missing. aborts: whether a write that
    cannot be published is aborted; otherwise this may be called again. Raises FencedError, with
    nothing published, if the write was begun again while its tasks ran, and as `place_at`,
    `staging.begin` and `staging.publish`.
    """
    place = place_at(write.location)
    ports, row = place.ports, queue_of(place.ports, write.queue)
    now = staging.begin(ports, row, write.id, write.number, write.driver)
    if staging.is_over(now, write.number):
        return False
    if any(each != Begun(row.id, now.epoch) for each in begun):
        if aborts:
            staging.abort(ports, now)
        raise FencedError(
            f"write {write.id!r} to queue {write.queue!r} was aborted or begun again since its"
            " tasks ran; none of it is published",
            hint="start the job again; its driver must not be paused for a minute",
        )
    try:
        published = staging.publish(ports, row, now, list(pipes))
    except BackendError as exc:
        if aborts and not exc.outcome_unknown:
            staging.abort(ports, now)
        raise
    if published:
        place.ring(row.id)
    return published


def give_up(write: StagedWrite) -> None:
    """Abort a write, on the driver, unless it is over or another leads it."""
    ports = place_at(write.location).ports
    row = ports.catalog.writes.by_id(queue_of(ports, write.queue).id, write.id)
    ours = (write.number, write.driver, WriteState.OPEN)
    if row is not None and (row.number, row.driver, row.state) == ours:
        staging.abort(ports, row)
