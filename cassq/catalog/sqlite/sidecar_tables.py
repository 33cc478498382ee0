"""Sidecars and the placements of extents on them, in SQLite."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace

from cassq.catalog.sidecar_port import Sidecars
from cassq.catalog.sqlite.database import Database, Row
from cassq.model.sidecar_rows import Placement, SidecarRow, SidecarState, replicas_at

PAGE = 1000  # placements read in one statement, so that other threads do not wait long

_COLUMNS = tuple(each.name for each in fields(SidecarRow))
_COLUMN_LIST = ", ".join(_COLUMNS)
# A beat: one row by key. A new row, or one of another generation, starts as up.
BEAT = f"""
INSERT INTO sidecars ({_COLUMN_LIST}) VALUES ({", ".join(f":{name}" for name in _COLUMNS)})
ON CONFLICT (name) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name != "state")},
    state = CASE WHEN sidecars.generation = excluded.generation THEN sidecars.state ELSE 0 END
RETURNING {_COLUMN_LIST}"""
# All sidecars: they are few.
SIDECARS = f"SELECT {_COLUMN_LIST} FROM sidecars ORDER BY name"

_PLACEMENT = "pipe_id, queue_name, strict, replicas, wanted, version, created_ms, end_seq"
ADD_PLACEMENT = f"INSERT OR IGNORE INTO placements ({_PLACEMENT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
# Placements by key.
PLACEMENTS_OF = f"""
SELECT {_PLACEMENT} FROM placements WHERE pipe_id IN (SELECT value FROM json_each(?))"""
PLACEMENT_VERSION = "SELECT version FROM placements WHERE pipe_id = ?"
# The compare-and-set, by key: a recorded end stays.
CHANGE_PLACEMENT = """
UPDATE placements SET queue_name = ?2, strict = ?3, replicas = ?4, wanted = ?5, version = ?6,
    created_ms = ?7, end_seq = ?8
WHERE pipe_id = ?1 AND version = ?9 AND (end_seq IS NULL OR end_seq = ?8)"""
FORGET_PLACEMENTS = "DELETE FROM placements WHERE pipe_id IN (SELECT value FROM json_each(?))"
# A page of all placements: a range of the key.
PLACEMENTS = f"SELECT {_PLACEMENT} FROM placements WHERE pipe_id > ? ORDER BY pipe_id LIMIT ?"


class SqliteSidecars(Sidecars):
    """Sidecars, and placements of extents on them."""

    def __init__(self, db: Database) -> None:
        self._db = db

    # --- sidecars -------------------------------------------------------------------------------

    def beat(self, row: SidecarRow) -> SidecarRow:
        values = asdict(replace(row, state=SidecarState.UP, seen_ms=self._db.now_ms()))
        with self._db.lock, self._db.write(synced=False) as tx:
            return _sidecar(tx.execute(BEAT, values).fetchone())

    def listed(self) -> list[SidecarRow]:
        return [_sidecar(row) for row in self._db.read(SIDECARS)]

    def set_state(self, name: str, state: SidecarState) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            values = (int(state), name)
            return tx.execute("UPDATE sidecars SET state = ? WHERE name = ?", values).rowcount == 1

    def forget(self, name: str) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            return tx.execute("DELETE FROM sidecars WHERE name = ?", (name,)).rowcount == 1

    # --- placements -----------------------------------------------------------------------------

    def add_placement(self, placement: Placement) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            if tx.execute(ADD_PLACEMENT, _values(placement)).rowcount == 1:
                return True
            found = tx.execute(PLACEMENT_VERSION, (placement.pipe_id,)).fetchone()
            return bool(found == (placement.version,))

    def placements_of(self, pipe_ids: Sequence[str]) -> list[Placement | None]:
        rows = self._db.read(PLACEMENTS_OF, (json.dumps(list(pipe_ids)),))
        found = {row[0]: _placement(row) for row in rows}
        return [found.get(pipe_id) for pipe_id in pipe_ids]

    def change_placement(self, old: Placement, new: Placement) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            if tx.execute(CHANGE_PLACEMENT, (*_values(new), old.version)).rowcount == 1:
                return True
            found = tx.execute(PLACEMENT_VERSION, (new.pipe_id,)).fetchone()
            return bool(found == (new.version,))

    def forget_placements(self, pipe_ids: Sequence[str]) -> None:
        with self._db.lock, self._db.write(synced=True) as tx:
            tx.execute(FORGET_PLACEMENTS, (json.dumps(list(pipe_ids)),))

    def placements(self) -> Iterator[Placement]:
        last = ""
        while rows := self._db.read(PLACEMENTS, (last, PAGE)):
            yield from map(_placement, rows)
            last = rows[-1][0]


def _sidecar(row: Row) -> SidecarRow:
    values = dict(zip(_COLUMNS, row, strict=True))
    values |= {"state": SidecarState(values["state"]), "read_only": bool(values["read_only"])}
    return SidecarRow(**values)


def _values(placement: Placement) -> Row:
    return (
        placement.pipe_id,
        placement.queue_name,
        int(placement.strict),
        json.dumps([each.text() for each in placement.replicas]),
        placement.wanted,
        placement.version,
        placement.created_ms,
        placement.end,
    )


def _placement(row: Row) -> Placement:
    pipe_id, queue_name, strict, replicas, wanted, version, created_ms, end = row
    at = replicas_at(json.loads(replicas))
    return Placement(pipe_id, queue_name, bool(strict), at, wanted, version, created_ms, end)
