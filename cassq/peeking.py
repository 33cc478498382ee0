"""Peeking: looking at what a group has before it, with no effect."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cassq.catalog.port import Claim, ClaimState, GroupRow
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError, ExtentReader
from cassq.frames import Frame, Place
from cassq.ports import Ports

logger = logging.getLogger("cassq")

PEEK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Peeked:
    """A message as it lies in its queue. state: "waiting" or "pending"."""

    id: str
    payload: bytes
    headers: dict[str, str]
    key: bytes | None
    pushed_at: datetime
    pipe_id: str
    seq: int
    state: str
    attempts: int


def peek_group(ports: Ports, group: GroupRow, limit: int) -> list[Peeked]:
    """The first messages that the group has not committed, pipe by pipe."""
    found: list[Peeked] = []
    for pipe in ports.catalog.unclaimed_pipes(group, 1 << 30, unacked=True):
        if len(found) >= limit:
            break
        try:
            reader = ports.store.reader(pipe.id)
        except (ExtentMissingError, CorruptionError) as exc:
            logger.warning("pipe %s is left out: %s", pipe.id, exc)
            continue
        try:
            end = pipe.end or reader.published()
            cursor = ports.catalog.cursor(group.id, pipe.id)
            if cursor is None:
                continue
            for row in ports.catalog.claims(group.id, pipe.id):
                if row.state is not ClaimState.DONE:
                    span = Place(row.start, row.pos)
                    messages = _read(reader, pipe.id, span, row.end, limit - len(found))
                    found += [_as_claimed(m, row) for m in messages if m.seq not in row.acked]
            found += _read(reader, pipe.id, cursor.chain, end.seq, limit - len(found))
        finally:
            reader.close()
    return found[:limit]


def _as_claimed(message: Peeked, row: Claim) -> Peeked:
    state = "pending" if row.state is ClaimState.HELD else "waiting"
    return replace(message, state=state, attempts=row.deliveries)


def _read(
    reader: ExtentReader, pipe_id: str, start: Place, end_seq: int, limit: int
) -> list[Peeked]:
    messages: list[Peeked] = []
    while start.seq < end_seq and len(messages) < limit:
        slices = reader.read(start, end_seq, limit - len(messages), PEEK_BYTES)
        for frame, first, last in slices:
            payloads = frame.payloads(first, last)
            messages += [
                _peeked(pipe_id, frame, at, payload) for at, payload in enumerate(payloads, first)
            ]
        start = reader.place_after(start, slices)
    return messages


def _peeked(pipe_id: str, frame: Frame, at: int, payload: bytes) -> Peeked:
    headers = frame.headers[at] if frame.headers else None
    first_id = frame.ids[at] if frame.ids else None
    seq = frame.base_seq + at
    return Peeked(
        id=first_id.decode() if first_id else f"{pipe_id}:{seq}",
        payload=payload,
        headers=json.loads(headers) if headers else {},
        key=frame.keys[at] if frame.keys else None,
        pushed_at=datetime.fromtimestamp(frame.time_ms(at) / 1000, UTC),
        pipe_id=pipe_id,
        seq=seq,
        state="waiting",
        attempts=0,
    )
