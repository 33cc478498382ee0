"""The tasks of an audit on executors: read the rows of pipes, and every frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from cassq.inspect.audit import Standing, Walked, bounded, cursors_of, standing, walk_through
from cassq.lifecycle.ports import Ports
from cassq.model.rows import GroupRow, PipeRow
from cassq.spark.clients import Location, place_at
from cassq.spark.reading import PipeRange, ScanTask

# How many misplaced dead letters of a pipe are listed at most.
MISPLACED_MAX = 100


def standings(
    location: Location, groups: Sequence[GroupRow], pipes: Iterable[PipeRow]
) -> Iterator[Standing]:
    """Read the rows of each pipe. Cost: the cursors of the groups in these pipes; for each pipe
    that of `standing`."""
    ports, mine = place_at(location).ports, list(pipes)
    ids = [pipe.id for pipe in mine]
    cursors = {group.id: cursors_of(ports, group, ids) for group in groups}
    for pipe in mine:
        found = standing(ports, groups, cursors, pipe)
        astray = {
            name: [f"group {name}, pipe {pipe.id}: {it}" for it in bounded(texts, MISPLACED_MAX)]
            for name, texts in found.astray.items()
        }
        yield found._replace(astray=astray)


def walks(location: Location, key_lanes: int, parts: Iterable[ScanTask]) -> Iterator[Walked]:
    """Read every frame of these pieces; verify each checksum, and that seqs have no gap.
    key_lanes: of the queue."""
    ports = place_at(location).ports
    for part in parts:
        yield from map(partial(walk, ports, key_lanes), part.pieces)


def walk(ports: Ports, key_lanes: int, piece: PipeRange) -> Walked:
    """Read every frame of a piece."""
    return walk_through(ports, piece.pipe_id, piece.start, piece.end_seq, key_lanes)
