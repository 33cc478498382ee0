"""What the executors of an audit do: join the rows of pipes, and read every frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from cassq.catalog.cover import fault
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError
from cassq.inspect.audit import LOOKS_MAX, MENDED, Walked, misplaced, walk_through
from cassq.inspect.stats import GroupView, view_of
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import known_end
from cassq.model.rows import Cursor, GroupRow, PipeRow
from cassq.spark.clients import client_of
from cassq.spark.jobs.fates import Joined, bounded, joined
from cassq.spark.reading import Part, Piece

# Of the dead letters of a pipe that are not where they should be, so many are named.
MISPLACED_MAX = 100


class Standing(NamedTuple):
    """A pipe as its rows tell it. end: everything acknowledged lay below when all was looked at.
    groups: by id, of those that it is for."""

    pipe: PipeRow
    end: int
    groups: dict[str, Joined]
    findings: list[str]


# --- what the rows say --------------------------------------------------------------------------


def standings(url: str, groups: Sequence[GroupRow], pipes: Iterable[PipeRow]) -> Iterator[Standing]:
    """Join the rows of each pipe. Cost: the cursors of the groups; three ranges of keys for each
    pipe and group, and a frame here and one there for each dead message."""
    ports = client_of(url).ports
    cursors = {group.id: cursors_of(ports, group) for group in groups}
    for pipe in pipes:
        yield standing(ports, groups, cursors, pipe)


def standing(
    ports: Ports,
    groups: Sequence[GroupRow],
    cursors: Mapping[str, Mapping[str, Cursor]],
    pipe: PipeRow,
) -> Standing:
    """Join the rows of a pipe. cursors: by group and pipe."""
    found: dict[str, Joined] = {}
    findings: list[str] = []
    for group in groups:
        if pipe.is_for(group.id):
            mine = found[group.id] = _joined(ports, group, pipe, cursors[group.id])
            findings += (f"group {group.name}, pipe {pipe.id}: {it}" for it in mine.findings)
    # After its rows: nothing can have been claimed that lies past it.
    claimed = max((mine.claimed for mine in found.values()), default=0)
    try:
        end = known_end(ports.catalog, ports.store, pipe, claimed)
    except (ExtentMissingError, CorruptionError) as exc:
        end = 0
        findings.append(exc.message)
    return Standing(pipe, end, found, findings)


def cursors_of(ports: Ports, group: GroupRow) -> dict[str, Cursor]:
    return {cursor.pipe_id: cursor for cursor in ports.catalog.claims.cursors(group.id)}


def _joined(ports: Ports, group: GroupRow, pipe: PipeRow, cursors: Mapping[str, Cursor]) -> Joined:
    """The rows are not all of one moment: while something is amiss and others are at work in
    between, they are looked at again."""
    view = view_of(ports.catalog, group.id, pipe.id, cursors.get(pipe.id))
    found = _look(ports, pipe, view)
    for _ in range(LOOKS_MAX - 1):
        if not found.findings:
            break
        before, cursor = view, cursors_of(ports, group).get(pipe.id)
        view = view_of(ports.catalog, group.id, pipe.id, cursor)
        if view == before:
            break
        found = _look(ports, pipe, view)
    return found


def _look(ports: Ports, pipe: PipeRow, view: GroupView) -> Joined:
    found = joined(view, ports.catalog.now_ms())
    if view.cursor is not None and (why := fault(view.cursor, view.rows)):
        found.findings.append(f"wedged, {why}; {MENDED}")
    astray = misplaced(ports, pipe, [move for move in view.moves if move.settled])
    found.findings += bounded(astray, MISPLACED_MAX)
    return found


# --- what the frames say ------------------------------------------------------------------------


def walks(url: str, parts: Iterable[Part]) -> Iterator[Walked]:
    """Read every frame of these pieces: each checksum is verified, and that seqs have no gap."""
    ports = client_of(url).ports
    for part in parts:
        yield from map(partial(walk, ports), part.pieces)


def walk(ports: Ports, piece: Piece) -> Walked:
    """Read every frame of a piece."""
    return walk_through(ports, piece.pipe_id, piece.start, piece.end_seq)
