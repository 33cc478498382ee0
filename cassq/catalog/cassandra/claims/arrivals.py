"""Announcements of moves, at the destination pipe, before the moves are written.

A move is written before its message is pushed, so everything that may still arrive in a sealed pipe
has been announced. A client that wants to retire the pipe checks each announced move. If the move
does not exist, the announcement still counts for `ARRIVAL_MS`: the move may be about to be written.
"""

from __future__ import annotations

from collections.abc import Sequence

from cassq.catalog.cassandra.partition.claim_rows import MOVES, moves_of
from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.model.rows import Move

ARRIVAL_MS = 60_000

NOTE_ARRIVAL = (
    "INSERT INTO arrivals (dest_pipe, group_id, pipe_id, seq, noted_ms)"
    " VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?"
)
ARRIVALS = (
    "SELECT group_id, pipe_id, seq, noted_ms, writetime(noted_ms) FROM arrivals WHERE dest_pipe = ?"
)
# Only if it was not announced again meanwhile.
DROP_ARRIVAL = (
    "DELETE FROM arrivals USING TIMESTAMP ?"
    " WHERE dest_pipe = ? AND group_id = ? AND pipe_id = ? AND seq = ?"
)
DROP_ARRIVALS = "DELETE FROM arrivals WHERE dest_pipe = ?"

_Arrival = tuple[str, str, str, int]


class Arrivals:
    """Announced moves into pipes."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self._cql = keyspace.cql
        self._announced: dict[_Arrival, int] = {}  # ours, and when announced

    def note(self, moves: Sequence[Move]) -> None:
        """Cost: a round of plain writes."""
        now_ms = self._keyspace.now_ms()
        keys = [_key(move) for move in moves]
        stamps = [self._cql.stamp() for _ in keys]
        self._announced.update(zip(keys, stamps, strict=True))
        self._cql.write_many(
            [(NOTE_ARRIVAL, (*key, now_ms, stamp)) for key, stamp in zip(keys, stamps, strict=True)]
        )

    def settled(self, moves: Sequence[Move], *, withdrawn: bool) -> None:
        """Record that moves were settled or withdrawn. Our announcements of withdrawn moves are
        removed; others expire. Cost: a round of plain writes for withdrawn moves."""
        known = [(_key(move), self._announced.pop(_key(move), None)) for move in moves]
        if withdrawn:
            self._cql.write_many(
                [(DROP_ARRIVAL, (stamp, *key)) for key, stamp in known if stamp is not None]
            )

    def arriving(self, pipe_ids: Sequence[str]) -> set[str]:
        """The pipes into which a message may be moving, so that its mover may still check whether
        it arrived. Cost: a read per pipe, then one per announcement, concurrently."""
        answers = self._cql.read_many([(ARRIVALS, (pipe_id,)) for pipe_id in pipe_ids])
        noted = [(p, row) for p, rows in zip(pipe_ids, answers, strict=True) for row in rows]
        found = self._cql.read_many(
            [(MOVES, (group, pipe, seq, seq + 1)) for _, (group, pipe, seq, _, _) in noted]
        )
        young_ms = self._keyspace.now_ms() - ARRIVAL_MS
        arriving: set[str] = set()
        for (pipe_id, row), rows in zip(noted, found, strict=True):
            group_id, source, seq, noted_ms, stamp = row
            move = next(iter(moves_of((group_id, source), rows)), None)
            if move is not None and move.dest_pipe == pipe_id:
                if not move.settled:
                    arriving.add(pipe_id)
            elif noted_ms > young_ms:
                arriving.add(pipe_id)
            else:
                self._cql.write(DROP_ARRIVAL, (stamp, pipe_id, group_id, source, seq))
        return arriving


def _key(move: Move) -> _Arrival:
    return move.dest_pipe, move.group_id, move.pipe_id, move.seq
