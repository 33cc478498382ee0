"""Settling by receipt: anybody who has the receipt of a delivery settles it, or dates it anew.

The rows of claims decide: a receipt is valid while a row says that its holder has the message, and
every change is conditional on that row's version. Each claim has a holder of its own, so a receipt
of an earlier delivery never settles, shortens or lengthens a later one.

A message that gets a deadline of its own moves to a row of its own, with a holder that is marked.
The popper that delivered it leaves such rows alone: it neither extends them nor gives them back,
whether it closes or dies. Of a row that a receipt changed, it finds out what is still its own when
it writes the row next; see `Delivery.find_again`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NoReturn

from cassq.consumer.claimer import Claimer
from cassq.consumer.delivery import Acknowledger, Delivery, NackOptions
from cassq.consumer.settling import TRIES_MAX, Settler
from cassq.errors import BackendTimeoutError, UsageError
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import DeadLetterFn
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.receipts import Receipt
from cassq.model.rows import Claim, ClaimState, GroupRow, QueueRow

SPAN_MAX = 1024  # seqs of a pipe between two receipts whose rows are read together


class ReceiptSettler:
    """Settles deliveries of one group. Thread-safe. ring: wakes poppers that wait."""

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        group: Callable[[], GroupRow],
        dead_letter: DeadLetterFn,
        ring: Callable[[], None],
    ) -> None:
        self._catalog = ports.catalog
        self._version = ports.ids.version
        self._claimer = Claimer(ports, queue, group, dead_letter)
        self._settler = Settler(ports, self._claimer, lambda: None, group().name)
        self._ring = ring
        self._lock = threading.Lock()

    def settle(self, receipts: Sequence[Receipt], back: NackOptions | None) -> list[Receipt]:
        """Ack messages, or give them back; durable on return. Returns the receipts that are not
        valid, which change nothing. Cost: a read for each run of messages, one synced transaction
        for all of them."""
        with self._lock:
            self._check()
            return self._until_done(receipts, lambda found: self._settled(found, back))

    def extend(
        self, receipts: Sequence[Receipt], ms: int, *, overdue: bool = True
    ) -> list[Receipt]:
        """Give messages a deadline of their own, `ms` from now. overdue: also those past their
        deadline. Otherwise as `settle`."""
        with self._lock:
            self._check()
            invalid: list[Receipt] = []

            def act(found: dict[Receipt, Claim]) -> list[Receipt]:
                now_ms = self._catalog.now_ms()
                out = [r for r, row in found.items() if _is_out(row, None if overdue else now_ms)]
                invalid.extend(found.keys() - out)
                found = {receipt: found[receipt] for receipt in out}
                return self._dated(found, now_ms + ms) if found else []

            return self._until_done(receipts, act) + invalid

    def _check(self) -> None:
        if self._claimer.exclusive:
            raise UsageError(
                "messages of an exclusive group have no receipts",
                hint="settle them through the popper that delivered them",
            )
        self._claimer.look()

    def _until_done(
        self,
        receipts: Sequence[Receipt],
        act: Callable[[dict[Receipt, Claim]], list[Receipt]],
    ) -> list[Receipt]:
        """Act on the rows of receipts until each is done or not valid. act: returns those whose
        rows were changed meanwhile."""
        left = list(dict.fromkeys(receipts))
        invalid: list[Receipt] = []
        for _ in range(TRIES_MAX):
            found = self._rows(left)
            invalid += [receipt for receipt in left if receipt not in found]
            left = act(found) if found else []
            if not left:
                return invalid
        raise BackendTimeoutError(
            f"claims of pipe {left[0].pipe_id} are constantly changed by other clients"
        )

    def _rows(self, receipts: Sequence[Receipt]) -> dict[Receipt, Claim]:
        """The rows by which receipts are valid."""
        found: dict[Receipt, Claim] = {}
        ordered = sorted(receipts, key=attrgetter("pipe_id", "seq"))
        for _, some in groupby(ordered, key=lambda each: (each.pipe_id, each.seq // SPAN_MAX)):
            near = list(some)
            seqs = range(near[0].seq, near[-1].seq + 1)
            rows = self._catalog.claims.rows(near[0].group_id, near[0].pipe_id, seqs)
            for receipt in near:
                for row in rows:
                    if claims.is_delivery(row, receipt.seq, receipt.holder):
                        found[receipt] = row
        return found

    def _settled(self, found: dict[Receipt, Claim], back: NackOptions | None) -> list[Receipt]:
        settler, now_ms = self._settler, self._catalog.now_ms()
        deliveries: dict[str, Delivery] = {}
        for version, (row, seqs) in _by_row(found).items():
            delivery = deliveries[version] = Delivery(NOBODY, [row], now_ms, None, None)
            settler.deliveries[delivery] = None
            if back is None:
                settler.note(delivery, seqs, now_ms)
            else:
                settler.give(delivery, seqs, back)
        try:
            free = settler.flush()
            if settler.failure is not None:
                raise settler.failure
        finally:
            settler.unwritten.clear()
            settler.deliveries.clear()
        self._claimer.follow_up(free, succeeded=settler.acks_written)
        self._claimer.health.record_success()
        if free:
            self._ring()
        again: list[Receipt] = []
        for receipt, row in found.items():
            delivery = deliveries[row.version]
            if delivery.lost or receipt.seq in delivery.missed:
                again.append(receipt)
        return again

    def _dated(self, found: dict[Receipt, Claim], due_ms: int) -> list[Receipt]:
        rows = _by_row(found)
        changes = [
            (row, claims.dated(row, seqs, due_ms, self._version)) for row, seqs in rows.values()
        ]
        done = self._catalog.claims.replace_many(changes)
        self._ring()  # it may be due earlier than poppers that wait know
        changed = {version for version, is_done in zip(rows, done, strict=True) if not is_done}
        return [receipt for receipt, row in found.items() if row.version in changed]


def _is_out(row: Claim, now_ms: int | None) -> bool:
    """Whether somebody has the messages of a row; now_ms: and their time is not over."""
    return row.state is ClaimState.HELD and (now_ms is None or row.due_ms > now_ms)


def _by_row(found: dict[Receipt, Claim]) -> dict[str, tuple[Claim, RangeSet]]:
    """By version, each row and the seqs in it that are named."""
    rows = {row.version: row for row in found.values()}
    seqs: dict[str, list[int]] = {version: [] for version in rows}
    for receipt, row in found.items():
        seqs[row.version].append(receipt.seq)
    return {version: (row, RangeSet.of(sorted(seqs[version]))) for version, row in rows.items()}


def _refuse(*_: object) -> NoReturn:
    raise UsageError("a delivery found by its receipt has no popper")


NOBODY = Acknowledger(_refuse, _refuse, _refuse)
