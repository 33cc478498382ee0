"""The tasks of an audit on executors: read the rows of pipes, and every frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from cassq.inspect.audit import Standing, Walked, bounded, standing, walk_through
from cassq.lifecycle.ports import Ports
from cassq.model.rows import Cursor, GroupRow, PipeRow
from cassq.spark.clients import Location, place_at
from cassq.spark.reading import PipeRange, ScanTask

# How many misplaced dead letters of a pipe are named.
MISPLACED_MAX = 100


def standings(
    location: Location,
    groups: Sequence[GroupRow],
    pipes: Iterable[tuple[PipeRow, Sequence[Cursor | None]]],
) -> Iterator[Standing]:
    """Read the rows of each pipe. pipes: with the cursor of each group, which may be older than
    what is read here. Cost: for each pipe that of `standing`."""
    ports = place_at(location).ports
    for pipe, cursors in pipes:
        of_groups = zip(groups, cursors, strict=True)
        known = {group.id: cursor for group, cursor in of_groups if cursor is not None}
        found = standing(ports, groups, known, pipe)
        astray = {
            name: [f"group {name}, pipe {pipe.id}: {it}" for it in bounded(texts, MISPLACED_MAX)]
            for name, texts in found.astray.items()
        }
        yield found._replace(astray=astray)


def walks(location: Location, parts: Iterable[ScanTask]) -> Iterator[Walked]:
    """Read every frame of these pieces; verifies each checksum, and that seqs have no gap."""
    ports = place_at(location).ports
    for part in parts:
        yield from map(partial(walk, ports), part.pieces)


def walk(ports: Ports, piece: PipeRange) -> Walked:
    """Read every frame of a piece."""
    return walk_through(ports, piece.pipe_id, piece.start, piece.end_seq)
