"""Pipes as rows: the deciding row (conditional writes only), and the beats of its owner.

`mark` names the client that is about to retire a pipe or move it to another queue, and since when.
A client that changes or removes the mark stops this: the last step is conditional on the mark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

from cassandra.query import UNSET_VALUE

from cassq.cassandra.session import Row
from cassq.message.frames import Place
from cassq.model.rows import PipeRow, PipeState, Retired

_PIPE = (
    "queue_id, state, owner, created_ms, lease_ms, end_seq, end_pos, predecessor, position,"
    " group_id, timer_ms, mark, totals, stage, priority"
)
# One pipe, by its key.
PIPE = f"SELECT {_PIPE} FROM pipes WHERE pipe_id = ?"
BEATS = "SELECT beat, opened, rate FROM beats WHERE pipe_id = ?"
ADD_PIPE = (
    f"INSERT INTO pipes ({_PIPE}, pipe_id)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', '', ?, ?, ?) IF NOT EXISTS"
)
PUT_BEAT = "INSERT INTO beats (pipe_id, beat, opened, rate) VALUES (?, ?, ?, ?)"
DROP_BEATS = "DELETE FROM beats WHERE pipe_id = ?"
# Records the end, if there is none.
SEAL = (
    "UPDATE pipes SET end_seq = ?, end_pos = ?, state = 2 WHERE pipe_id = ?"
    " IF end_seq = null AND state = 1"
)
# The end of a staged pipe.
SEAL_STAGED = (
    "UPDATE pipes SET end_seq = ?, end_pos = ? WHERE pipe_id = ? IF end_seq = null AND state = 4"
)
# Carries out the decision of a write's row: the pipe is listed at that position ...
UNSTAGE = (
    "UPDATE pipes SET state = 2, stage = '', position = ?, created_ms = ? WHERE pipe_id = ?"
    " IF state = 4 AND stage = ?"
)
# ... or dropped.
DROP_STAGED = "UPDATE pipes SET state = 3 WHERE pipe_id = ? IF state = 4 AND stage = ?"
# When the end was recorded, in microseconds: nothing else writes it.
SEALED_AT = "SELECT writetime(end_seq) FROM pipes WHERE pipe_id = ?"
SET_MARK = "UPDATE pipes SET mark = ? WHERE pipe_id = ? IF mark = ? AND state = 2 AND queue_id = ?"
CLEAR_MARK = "UPDATE pipes SET mark = '' WHERE pipe_id = ? IF mark = ?"
# The last step of the client that set the mark.
RETIRE = (
    "UPDATE pipes SET state = 3, mark = '', totals = ? WHERE pipe_id = ?"
    " IF mark = ? AND state = 2 AND totals = ?"
)
REPOINT = (
    "UPDATE pipes SET queue_id = ?, group_id = ?, position = ?, created_ms = ?, predecessor = '',"
    " mark = '', totals = ? WHERE pipe_id = ? IF mark = ? AND state = 2 AND totals = ?"
)
# Names another block for the totals, after the first one was closed.
MOVE_TOTALS = "UPDATE pipes SET totals = ? WHERE pipe_id = ? IF totals = ?"
# A pipe of a deleted queue or group, whatever its state.
CONSUME = "UPDATE pipes SET state = 3, mark = '' WHERE pipe_id = ? IF queue_id = ? AND state != 3"
# Removes a pipe whose frames are gone, or that was never used.
FORGET = "DELETE FROM pipes WHERE pipe_id = ? IF state = 3"
ALL = "SELECT pipe_id FROM pipes"

# Leaves a column out; None would write a tombstone, which every read would pass.
ABSENT = UNSET_VALUE

RETIRING, LEAVING = "retire", "repoint"  # prefixes of marks


class Total(NamedTuple):
    """A pipe's totals in a ledger, and the block they are copied into; see `totals`."""

    row: Retired
    block: int


@dataclass(frozen=True, slots=True)
class Pipe:
    """A pipe's row."""

    row: PipeRow  # without its owner's beats
    mark: str
    totals: tuple[Total, ...]

    @property
    def is_leaving(self) -> bool:
        """Whether it is about to move to another queue."""
        return self.mark.startswith(LEAVING)

    @property
    def marked_ms(self) -> int:
        """When it was marked, in catalog time."""
        return int(self.mark.split(":")[1])


def pipe_of(pipe_id: str, row: Row) -> Pipe:
    end = None if row[5] is None else Place(row[5], row[6])
    pipe = PipeRow(
        id=pipe_id,
        queue_id=row[0],
        state=PipeState(row[1]),
        owner=row[2],
        created_ms=row[3],
        lease_ms=row[4],
        end=end,
        predecessor=row[7],
        ordinal=row[8],
        group_id=row[9],
        timer_ms=row[10],
        stage=row[13] or "",
        priority=row[14] or 0,
    )
    return Pipe(pipe, row[11] or "", totals_of(row[12] or ""))


def pipes_of(pipe_ids: Sequence[str], answers: Sequence[Sequence[Row]]) -> list[Pipe | None]:
    """Pipes, from the answers to `PIPE` for each."""
    return [
        pipe_of(pipe_id, rows[0]) if rows else None
        for pipe_id, rows in zip(pipe_ids, answers, strict=True)
    ]


def columns(row: PipeRow) -> Row:
    """The values of `ADD_PIPE`."""
    return (
        row.queue_id,
        int(max(row.state, PipeState.OPEN)),
        row.owner,
        row.created_ms,
        row.lease_ms,
        *(row.end or (ABSENT, ABSENT)),
        row.predecessor,
        row.ordinal,
        row.group_id,
        ABSENT if row.timer_ms is None else row.timer_ms,
        row.stage,
        row.priority or ABSENT,
        row.id,
    )


def with_beats(row: PipeRow, beats: Sequence[Row]) -> PipeRow:
    """The pipe with its owner's beats."""
    if not beats:
        return row
    beat, opened, rate = beats[0]
    state = row.state
    if state is PipeState.OPEN and not opened:
        state = PipeState.READY
    return replace(row, beat=beat or 0, state=state, rate=rate or 0)


def totals_text(totals: Sequence[Total]) -> str:
    return json.dumps([[*_values(row), block] for row, block in totals]) if totals else ""


def _values(row: Retired) -> tuple[object, ...]:
    """`lost` is left out if it is 0, so that older texts stay the same."""
    values = astuple(row)
    return values if row.lost else values[:-1]


def totals_of(text: str) -> tuple[Total, ...]:
    return tuple(Total(Retired(*row), n) for *row, n in json.loads(text)) if text else ()
