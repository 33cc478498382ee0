"""Sidecars and the placements of extents on them, in Cassandra.

A sidecar writes the cells of its row that describe it, and an operator who sets its state writes
two other cells. Both are plain writes: neither can overwrite the other, so no condition is needed.
A state belongs to one generation, and does not apply to a new one.

Placements decide, so they change only by conditional writes, read back if there is no answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from cassq.cassandra.session import Row
from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.catalog.sidecar_port import Sidecars
from cassq.model.sidecar_rows import Placement, SidecarRow, SidecarState, replicas_at

PAGE = 1000  # placements of one read
_BEFORE_ALL = -(1 << 63)  # a token that no key has

# The fields that a sidecar reports about itself.
_FACTS = tuple(each.name for each in fields(SidecarRow) if each.name not in ("name", "state"))
_REPORTED = ", ".join(_FACTS)
_SIDECAR = f"{_REPORTED}, name, state, state_of"
# All sidecars, or one: they are few, in one partition.
SIDECARS = f"SELECT {_SIDECAR} FROM sidecars WHERE all_of = 0"
SIDECAR = f"{SIDECARS} AND name = ?"
BEAT = f"INSERT INTO sidecars (all_of, name, {_REPORTED}) VALUES (0, ?{', ?' * len(_FACTS)})"
SET_STATE = "UPDATE sidecars SET state = ?, state_of = ? WHERE all_of = 0 AND name = ?"
FORGET = "DELETE FROM sidecars WHERE all_of = 0 AND name = ?"

_PLACEMENT = "pipe_id, queue_name, strict, replicas, wanted, version, created_ms, end_seq"
# One placement, by key.
PLACEMENT = f"SELECT {_PLACEMENT} FROM placements WHERE pipe_id = ?"
ADD_PLACEMENT = (
    f"INSERT INTO placements ({_PLACEMENT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS"
)
# Conditional on the known end, besides the version: a recorded end stays.
CHANGE_PLACEMENT = (
    "UPDATE placements SET queue_name = ?, strict = ?, replicas = ?, wanted = ?, version = ?,"
    " created_ms = ?, end_seq = ? WHERE pipe_id = ? IF version = ? AND end_seq = ?"
)
FORGET_PLACEMENT = "DELETE FROM placements WHERE pipe_id = ? IF EXISTS"
# A page of all placements: a range of tokens, each row being a partition.
PLACEMENTS = f"SELECT {_PLACEMENT}, token(pipe_id) FROM placements WHERE token(pipe_id) > ? LIMIT ?"


class CassandraSidecars(Sidecars):
    """Sidecars, and placements of extents on them."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self._cql = keyspace.cql

    # --- sidecars -------------------------------------------------------------------------------

    def beat(self, row: SidecarRow) -> SidecarRow:
        """Cost: a read, one write; one more for a new one, or a new generation."""
        before = self._sidecar(row.name)
        if before is not None and before.generation == row.generation:
            state = before.state
        else:
            # First, in case this generation was here before: its earlier state no longer applies.
            state = SidecarState.UP
            self._cql.write(SET_STATE, (int(state), row.generation, row.name))
        row = replace(row, state=state, seen_ms=self._keyspace.now_ms())
        self._cql.write(BEAT, (row.name, *(getattr(row, name) for name in _FACTS)))
        return row

    def listed(self) -> list[SidecarRow]:
        """Cost: one read."""
        found = [_sidecar(row) for row in self._cql.read(SIDECARS)]
        return [row for row in found if row is not None]

    def set_state(self, name: str, state: SidecarState) -> bool:
        """Cost: a read, one write."""
        row = self._sidecar(name)
        if row is not None:
            self._cql.write(SET_STATE, (int(state), row.generation, name))
        return row is not None

    def forget(self, name: str) -> bool:
        """Cost: a read, one write."""
        row = self._sidecar(name)
        if row is not None:
            self._cql.write(FORGET, (name,))
        return row is not None

    def _sidecar(self, name: str) -> SidecarRow | None:
        rows = self._cql.read(SIDECAR, (name,))
        return _sidecar(rows[0]) if rows else None

    # --- placements -----------------------------------------------------------------------------

    def add_placement(self, placement: Placement) -> bool:
        """Cost: one conditional write; a read if one exists."""
        return self._put(None, placement, ADD_PLACEMENT, _values(placement))

    def placements_of(self, pipe_ids: Sequence[str]) -> list[Placement | None]:
        """Cost: a read each, concurrently."""
        found = self._cql.read_many([(PLACEMENT, (pipe_id,)) for pipe_id in pipe_ids])
        return [_placement(rows[0]) if rows else None for rows in found]

    def change_placement(self, old: Placement, new: Placement) -> bool:
        """Cost: one conditional write; a read if it was changed already."""
        if old.end not in (None, new.end):
            return False
        values = (*_values(new)[1:], old.pipe_id, old.version, old.end)
        return self._put(old, new, CHANGE_PLACEMENT, values)

    def _put(self, old: Placement | None, new: Placement, text: str, values: Row) -> bool:
        """Whether `new` is stored after a conditional write of it (`text`, `values`). If there is
        no answer, it is tried again; if that is refused, the first attempt may have succeeded."""
        there = old

        def is_changed() -> bool:
            nonlocal there
            rows = self._cql.read(PLACEMENT, (new.pipe_id,), serial=True)
            there = _placement(rows[0]) if rows else None
            return _state(there) != _state(old)

        self._cql.apply_until(text, values, is_changed, f"pipe {new.pipe_id} was placed")
        return _state(there) in (_state(old), _state(new))

    def forget_placements(self, pipe_ids: Sequence[str]) -> None:
        """Cost: a conditional write each, concurrently."""
        gone = [(FORGET_PLACEMENT, (pipe_id,)) for pipe_id in pipe_ids]
        self._cql.apply_all(gone, "placements are removed")

    def placements(self) -> Iterator[Placement]:
        """Cost: a read for each page."""
        last = _BEFORE_ALL
        while rows := self._cql.read(PLACEMENTS, (last, PAGE)):
            yield from (_placement(row[:-1]) for row in rows)
            last = rows[-1][-1]


def _sidecar(row: Row) -> SidecarRow | None:
    """A sidecar from its row; None for the remains of one that is gone."""
    *values, name, state, state_of = row
    facts = dict(zip(_FACTS, values, strict=True))
    if facts["address"] is None:
        return None
    now = SidecarState(state) if state_of == facts["generation"] else SidecarState.UP
    return SidecarRow(name=name, state=now, **facts)


def _values(placement: Placement) -> Row:
    return (
        placement.pipe_id,
        placement.queue_name,
        placement.strict,
        [each.text() for each in placement.replicas],
        placement.wanted,
        placement.version,
        placement.created_ms,
        placement.end,
    )


def _state(placement: Placement | None) -> object:
    """The condition of a change of a placement."""
    return placement and (placement.version, placement.end)


def _placement(row: Row) -> Placement:
    pipe_id, queue_name, strict, replicas, wanted, version, created_ms, end = row
    at = replicas_at(replicas or ())
    return Placement(pipe_id, queue_name, strict, at, wanted, version, created_ms, end)
