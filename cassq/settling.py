"""Settling: how what a popper says of its messages gets into the catalog.

Acks are collected and written in groups; giving back and extending write at once, and take the
collected acks of the same claim along. Every write is conditional on the row's version (and, in
exclusive groups, on the pipe's epoch): one that does not apply means that the claim was lost. One
whose outcome is unknown is read back before anything else is written.

Not thread-safe: `cassq.popper` holds its lock around every call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import groupby

from cassq import claims
from cassq.catalog.port import Claim, ClaimState
from cassq.claims import Give
from cassq.errors import BackendError, ClaimLostError
from cassq.holdings import Holding
from cassq.ports import Ports
from cassq.ranges import EMPTY, RangeSet

Change = tuple[Holding, Claim, list[Claim]]


class Settler:
    """Keeps the holdings of one popper until all of their messages are settled.

    consumer: the popper's name, for failure records. finished: told of each holding that is over.
    """

    def __init__(
        self,
        ports: Ports,
        consumer: str,
        finished: Callable[[Holding, int], None],
        max_deliveries: Callable[[], int],
    ) -> None:
        self._catalog = ports.catalog
        self._version = ports.ids.version
        self._consumer = consumer
        self._finished = finished
        self._max_deliveries = max_deliveries
        self._dirty: dict[Holding, None] = {}
        self._unsure: list[tuple[Holding, Claim, list[Claim]]] = []  # writes of unknown outcome
        self.dirty_ms = 0  # when the oldest ack not yet written was made
        self.holdings: dict[Holding, None] = {}
        self.lost = 0  # messages whose claim was lost before they were settled

    @property
    def dirty(self) -> bool:
        """Whether there are acks not yet written."""
        return bool(self._dirty)

    @property
    def open_count(self) -> int:
        """How many messages are claimed and neither acked nor given back."""
        return sum(holding.left for holding in self.holdings)

    # --- acks ---------------------------------------------------------------------------------

    def note(self, holding: Holding, seqs: RangeSet, now_ms: int) -> None:
        """Collect acks. Raises ClaimLostError for messages that are not ours any more."""
        holding.settle(seqs)
        if not self._dirty:
            self.dirty_ms = now_ms
        self._dirty[holding] = None

    def flush(self) -> None:
        """One synced transaction for all collected acks; lost claims are marked."""
        self._clear_up()
        dirty = list(self._dirty)
        changes: list[Change] = []
        for holding in dirty:
            for row in holding.rows:
                acks = holding.pending & RangeSet([(row.start, row.end)])
                if acks:
                    changes.append((holding, row, claims.resolved(row, acks, (), self._version)))
        for epoch, part in groupby(changes, key=lambda change: change[0].epoch):
            self._write(list(part), epoch)
        for holding in dirty:
            holding.pending = EMPTY
            del self._dirty[holding]
            self._drop_if_over(holding)

    def _write(self, changes: list[Change], epoch: int | None) -> None:
        pairs = [(old, new) for _, old, new in changes]
        try:
            results = self._catalog.replace_many(pairs, epoch=epoch)
        except BackendError as exc:
            if exc.outcome_unknown:
                self._unsure += changes
            raise
        for (holding, old, new), done in zip(changes, results, strict=True):
            if done:
                holding.replace(old, new)
            else:
                self._lose(holding, old)

    def _clear_up(self) -> None:
        """Read back the writes whose outcome was unknown: they applied, did not, or the claim was
        lost before them."""
        while self._unsure:
            holding, old, new = self._unsure[-1]
            rows = self._catalog.claims(old.group_id, old.pipe_id)
            versions = {row.version for row in rows}
            if old.version not in versions:
                if any(row.version in versions for row in new) or self._is_done(old, holding, rows):
                    holding.replace(old, new)
                else:
                    self._lose(holding, old)
            self._unsure.pop()

    def _is_done(self, old: Claim, holding: Holding, rows: list[Claim]) -> bool:
        """Whether all of `old` is done, in rows merged or an ack offset that moved on."""
        cursor = self._catalog.cursor(old.group_id, old.pipe_id)
        if holding.epoch is not None and (cursor is None or cursor.epoch != holding.epoch):
            return False  # another was, or may have been, given the pipe since
        done = RangeSet((row.start, row.end) for row in rows if row.state is ClaimState.DONE)
        below = RangeSet([(0, cursor.ack.seq if cursor else old.end)])
        return (done | below).covers(old.start, old.end)

    def _lose(self, holding: Holding, row: Claim) -> None:
        holding.lost = True
        self.lost += row.count
        if row in holding.rows:
            holding.rows.remove(row)

    def _drop_if_over(self, holding: Holding) -> None:
        if holding.left > 0 and not holding.lost:
            return
        if holding in self.holdings:
            del self.holdings[holding]
            self._finished(holding, self._catalog.now_ms())
        if holding.lock is not None:
            holding.lock.release()
            holding.lock = None

    # --- giving back ----------------------------------------------------------------------------

    def give(
        self, holding: Holding, seqs: RangeSet, delay_ms: int, error: str | None, *, counted: bool
    ) -> list[Claim]:
        """Give messages back, with the acks of the same claim; the free rows that are there now.

        In an exclusive group what comes after them in the claim is given back as well, uncounted:
        it must not be done before them. Raises ClaimLostError.
        """
        self._clear_up()
        holding.check(seqs)
        seqs = seqs - holding.settled
        if not seqs:
            return []
        now_ms = self._catalog.now_ms()
        deliveries = holding.deliveries if counted else holding.deliveries - 1
        failure = self._failure(error, now_ms) if counted else ""
        gives = [Give(seqs, now_ms + delay_ms, deliveries, failure)]
        if counted:
            gives = [claims.cut_up(gives[0], self._max_deliveries())]
        if holding.epoch is not None:
            later = holding.open_seqs() - seqs - RangeSet([(0, seqs.ranges[-1][1])])
            gives.append(Give(later, now_ms, holding.deliveries - 1))
            seqs = seqs | later
        free = self._rewrite(holding, seqs, gives)
        holding.pending = EMPTY
        self._dirty.pop(holding, None)
        holding.given = holding.given | seqs
        holding.left -= len(seqs)
        self._drop_if_over(holding)
        if holding.lost:
            raise ClaimLostError(pipe_id=holding.pipe_id)
        return free

    def _rewrite(self, holding: Holding, seqs: RangeSet, gives: Sequence[Give]) -> list[Claim]:
        free: list[Claim] = []
        for row in list(holding.rows):
            span = RangeSet([(row.start, row.end)])
            acks = holding.pending & span
            if not acks and not (seqs & span):
                continue
            rows = claims.resolved(row, acks, gives, self._version)
            if self._replace(holding, row, rows):
                holding.replace(row, rows)
                free += [new for new in rows if new.state is ClaimState.FREE]
            else:
                self._lose(holding, row)
        return free

    def _replace(self, holding: Holding, old: Claim, new: list[Claim]) -> bool:
        try:
            return self._catalog.replace(old, new, epoch=holding.epoch)
        except BackendError as exc:
            if exc.outcome_unknown:
                self._unsure.append((holding, old, new))
            raise

    def _failure(self, error: str | None, now_ms: int) -> str:
        text = "" if error is None else str(error)[:4096]
        return json.dumps({"error": text, "consumer": self._consumer, "at_ms": now_ms})

    # --- keeping --------------------------------------------------------------------------------

    def extend(self, holding: Holding, ms: int) -> None:
        """Move the claim's deadline to `ms` from now. Raises ClaimLostError."""
        self._clear_up()
        holding.check(EMPTY)
        due_ms = self._catalog.now_ms() + ms
        if holding.lock is not None and not holding.lock.renew(ms):
            holding.lost = True
        else:
            for row in list(holding.rows):
                rows = claims.extended(row, due_ms, self._version)
                if self._replace(holding, row, rows):
                    holding.replace(row, rows)
                else:
                    self._lose(holding, row)
            holding.due_ms = due_ms
        if holding.lost:
            self._dirty.pop(holding, None)
            self._drop_if_over(holding)
            raise ClaimLostError(pipe_id=holding.pipe_id)

    def keep_alive(self, cap_ms: float, timeout_ms: int) -> None:
        """Extend each claim that nears its deadline, up to `cap_ms` after it was made."""
        now_ms = self._catalog.now_ms()
        for holding in list(self.holdings):
            left_ms = min(timeout_ms, holding.claimed_ms + cap_ms - now_ms)
            if left_ms > holding.due_ms - now_ms and holding.due_ms - now_ms < 0.7 * timeout_ms:
                try:
                    self.extend(holding, round(left_ms))
                except ClaimLostError:
                    continue  # whoever works on it learns it from his ack
