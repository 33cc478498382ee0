"""Intake: what a pusher is asked to push becomes entries, and which of them may be appended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from cassq.errors import BackendError, is_outage
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import Bury
from cassq.message.batches import Receipt
from cassq.message.columns import encode_headers
from cassq.message.importance import all_with_importance
from cassq.model.rows import QueueRow
from cassq.pipes import Appender, Chore, Tended
from cassq.producer.appenders import Appenders
from cassq.producer.dedup import Once, append_once
from cassq.producer.entries import (
    Entry,
    batched,
    check_columns,
    check_key,
    check_payload,
    check_payloads,
    gathered,
)
from cassq.producer.limits import Gate
from cassq.producer.spilling import Spool, spilled_rest


class Appended(NamedTuple):
    """What became of pushes: those whose messages are durable, how many these are, and where."""

    entries: list[Entry]
    messages: int
    receipts: list[Receipt]
    written_bytes: int
    failed: BackendError | None = None  # the error of those behind them


class Intake:
    """Of one pusher. `entry` is for any thread, `append` for the one that leads.

    spool: where pushes go that no quorum takes, if the client has one.
    """

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        appenders: Appenders,
        bury: Bury,
        spool: Spool | None = None,
    ) -> None:
        self._ports = ports
        self._spool = spool
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

    def append(self, entries: list[Entry]) -> Appended:
        """Append pushes that wait together, or spill them while no quorum answers. Those that are
        refused get their error, and so do single ones behind those that could be appended."""
        first = entries[0]
        now_ms = self._ports.clock.wall_ms()
        spool = self._spool_for(first)
        if spool is not None and spool.down:
            batch = first.batch or gathered(entries, now_ms)
            receipts = spool.hold(self._queue(), batch, None)
            return Appended(entries, len(batch.payloads), receipts, 0)
        appender = None
        try:
            entries = self.admitted(entries)
            batch = first.batch or gathered(entries, now_ms)
            appender = self._appenders.of(first.lane)
            before_bytes = appender.written_bytes
            receipts = append_once(appender.append, batch, first.intend)
            size = appender.written_bytes - before_bytes
            return Appended(entries, len(batch.payloads), receipts, size)
        except BackendError as exc:
            if spool is None or not is_outage(exc):
                return _first_of(entries, appender, exc)
            spool.trouble(exc)
            once = first.intend if isinstance(first.intend, Once) else None
            batch = first.batch or gathered(entries, now_ms)
            try:
                receipts = spilled_rest(spool, self._queue(), batch, once, appender, exc)
            except BackendError as unspilled:
                return _first_of(entries, appender, unspilled)
            return Appended(entries, len(batch.payloads), receipts, 0)

    def tend(self) -> Tended:
        """Housekeeping of the appenders, as `Appender.tend`: for the thread that leads."""
        if self._spool is not None and self._spool.down:
            return Tended(1.0, [])  # whoever pushes would wait for this
        with self._noticing_outages():
            return self._appenders.tend()

    def do(self, chores: Iterable[Chore]) -> None:
        """Do what `tend` left to be done. Nobody who pushes waits for it."""
        with self._noticing_outages():
            for chore in chores:
                chore()

    @contextmanager
    def _noticing_outages(self) -> Iterator[None]:
        try:
            yield
        except BackendError as exc:
            if self._spool is not None and is_outage(exc):
                self._spool.trouble(exc)
            raise

    def _spool_for(self, first: Entry) -> Spool | None:
        """The spool for a push, if it may be spilled: not a move, and not of a cp queue."""
        if self._spool is None or not _is_new(first) or self._queue().policy.strict:
            return None
        return self._spool

    def admitted(self, entries: list[Entry]) -> list[Entry]:
        """Those of the pushes that wait together that may be appended now; the others get their
        error. Moves always may: they are no new messages. Raises as `Gate.admit` does."""
        first = entries[0]
        if not _is_new(first):
            return entries
        if first.batch is not None:
            self._gate.admit(len(first.batch.payloads), whole=True)
            return entries
        count = self._gate.admit(len(entries), whole=False)
        for entry in entries[count:]:
            entry.error = self._gate.full()
        return entries[:count]


def _is_new(entry: Entry) -> bool:
    """Whether it is a user's push: neither a move nor on its way from a spool."""
    return entry.intend is None or (isinstance(entry.intend, Once) and entry.intend.limited)


def _first_of(entries: list[Entry], appender: Appender | None, failed: BackendError) -> Appended:
    """Of pushes whose append failed, the single ones that it has pushed all the same; the others
    get the error. Raises it if there are none. appender: of this append; None: nobody began it."""
    receipts = appender.receipts if appender is not None and entries[0].batch is None else []
    count = sum(receipt.length for receipt in receipts)
    if not count:
        raise failed
    # What a spool took before it failed has ids that nobody knows.
    failed.outcome_unknown = failed.outcome_unknown or failed.fields.get("pushed", 0) > count
    failed.fields["pushed"] = 0
    for entry in entries[count:]:
        entry.error = failed
    return Appended(entries[:count], count, receipts, 0, failed)
