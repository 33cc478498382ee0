"""Where a new consumer group starts in each of a queue's live pipes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from cassq.errors import ConfigError, CorruptionError
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import end_of, live_pipe
from cassq.message.frames import Place
from cassq.model.rows import PipeRow, QueueRow

WALK_BYTES = 8 * 1024 * 1024


def group_starts(ports: Ports, queue: QueueRow, start: str | datetime) -> dict[str, Place]:
    """The places where the group starts, by pipe id. In other pipes it starts at 0.

    Raises ConfigError for an invalid start. Cost: for a datetime, a scan of each live pipe, a frame
    at a time, until the first message that counts; for "now", its end.
    """
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigError(
                "the start of a group needs a time zone",
                hint="for example datetime(2026, 1, 1, tzinfo=UTC)",
            )
        since_ms = int(start.astimezone(UTC).timestamp() * 1000)
        return _in_each(ports, queue, lambda pipe: _first_since(ports, pipe, since_ms))
    if start == "beginning":
        return {}
    if start == "now":
        return _in_each(ports, queue, lambda pipe: _end(ports, pipe))
    raise ConfigError(f"a group's start must be 'beginning', 'now' or a datetime, not {start!r}")


def _in_each(ports: Ports, queue: QueueRow, look: Callable[[PipeRow], Place]) -> dict[str, Place]:
    starts: dict[str, Place] = {}
    for pipe in ports.catalog.pipes.live(queue.id):
        try:
            starts[pipe.id] = look(pipe)
        except (ExtentMissingError, CorruptionError):
            if live_pipe(ports.catalog, pipe.id) is not None:
                raise
    return starts


def _end(ports: Ports, pipe: PipeRow) -> Place:
    return end_of(ports.catalog, ports.store, pipe)


def _first_since(ports: Ports, pipe: PipeRow, since_ms: int) -> Place:
    """The place of the first message pushed at `since_ms` or later. Cost: a scan of the pipe."""
    end = _end(ports, pipe)
    reader = ports.store.reader(pipe.id)
    try:
        place = Place(0, 0)
        while place.seq < end.seq:
            slices = reader.read(place, end.seq, 1, WALK_BYTES)
            frame, first, _ = slices[0]
            times = [frame.time_ms(i) for i in range(first, frame.count)]
            late = next((i for i, time_ms in enumerate(times) if time_ms >= since_ms), None)
            if late is not None:
                return Place(place.seq + late, place.pos)
            whole = reader.read(place, frame.end_seq, frame.count, WALK_BYTES)
            place = reader.place_after(place, whole)
        return end
    finally:
        reader.close()
