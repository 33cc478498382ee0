"""Intake: what a pusher is asked to push becomes entries, and which of them may be appended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from cassq.appenders import Appenders
from cassq.catalog.rows import QueueRow
from cassq.dedup import Once
from cassq.entries import (
    Entry,
    batched,
    check_columns,
    check_key,
    check_payload,
    check_payloads,
    gathered,
)
from cassq.frames import encode_headers
from cassq.importance import all_with_importance
from cassq.limits import Gate
from cassq.ports import Ports
from cassq.retries import Bury


class Intake:
    """Of one pusher. `entry` is for any thread, `admitted` for the one that appends."""

    def __init__(
        self, ports: Ports, queue: Callable[[], QueueRow], appenders: Appenders, bury: Bury
    ) -> None:
        self._ports = ports
        self._queue = queue
        self._appenders = appenders
        self._gate = Gate(ports, queue, bury)

    def entry(
        self,
        payload: bytes,
        headers: Mapping[str, str] | None,
        key: bytes | None,
        delay: float | None,
        due: datetime | None,
        dedup_id: str | None,
    ) -> Entry:
        """A single push, checked; one with a dedup id is appended by itself."""
        once = None if dedup_id is None else Once(self._ports, self._queue, [dedup_id])
        header = encode_headers(once.marked([headers])[0] if once else headers)
        entry = Entry(check_payload(payload), header, check_key(key))
        if delay is not None or due is not None:
            entry.lane, entry.due_ms = self._appenders.place(delay, due)
        if once is not None:
            entry.batch = gathered([entry], self._ports.clock.wall_ms())
            entry.intend = once
        return entry

    def entry_of_many(
        self,
        payloads: Iterable[bytes],
        headers: Sequence[Mapping[str, str] | None] | None,
        keys: Sequence[bytes | None] | None,
        delay: float | None,
        due: datetime | None,
        dedup_ids: Sequence[str | None] | None,
        importance: str | None,
    ) -> Entry:
        """A `push_many`, checked; it is appended by itself."""
        found, length = check_payloads(payloads)
        headers = all_with_importance(headers, importance, len(found))
        check_columns(len(found), headers=headers, keys=keys, dedup_ids=dedup_ids)
        once = None if dedup_ids is None else Once(self._ports, self._queue, dedup_ids)
        headers = once.marked(headers) if once else headers
        batch = batched(found, length, headers, keys, self._ports.clock.wall_ms())
        entry = Entry(b"", None, None, batch)
        entry.intend = once
        if delay is not None or due is not None:
            entry.lane, due_ms = self._appenders.place(delay, due)
            if entry.lane is not None:
                entry.batch = replace(batch, dues_ms=due_ms)
        return entry

    def admitted(self, entries: list[Entry]) -> list[Entry]:
        """Those of the pushes that wait together that may be appended now; the others get their
        error. Moves always may: they are no new messages. Raises as `Gate.admit` does."""
        first = entries[0]
        if first.intend is not None and not isinstance(first.intend, Once):
            return entries
        if first.batch is not None:
            self._gate.admit(len(first.batch.payloads), whole=True)
            return entries
        count = self._gate.admit(len(entries), whole=False)
        for entry in entries[count:]:
            entry.error = self._gate.full()
        return entries[:count]
