"""Settling by receipt: any process that has the receipt of a delivery can settle the message, or
give it a new deadline.

The rows of claims decide: a receipt is valid while a row says that its holder has the message, and
every change is conditional on that row's version. Each claim has a holder of its own, so a receipt
of an earlier delivery never settles, shortens or lengthens a later one.

A message that gets a deadline of its own moves to a row of its own, with a holder that is marked.
The popper that delivered it leaves such rows alone: it does not extend them, and does not give them
back when it closes. If a receipt changed a row, the popper finds out which messages are still its
own when it next writes that row; see `Delivery.find_again`.

In a keyed group a change is also conditional on the epoch of the pipe, so that it is durable before
anyone sees it and the key goes on. See `cassq.consumer.keyed.elsewhere`.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, NoReturn

from cassq.base.clock import attempts, contended
from cassq.consumer.claiming.claimer import Claimer
from cassq.consumer.delivery import Acknowledger, Delivery, NackOptions
from cassq.consumer.settling import Settler
from cassq.errors import UsageError
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import DeadLetterFn
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.receipts import Receipt
from cassq.model.rows import Claim, ClaimState, GroupRow, QueueRow

SPAN_MAX = 1024  # seqs of a pipe between two receipts whose rows are read together
SOON_MS = 1000  # poppers that wait are woken for deadlines that are closer than this


class Found(NamedTuple):
    """The row of a receipt's delivery. epoch: of its pipe, in a keyed group."""

    row: Claim
    epoch: int | None


class ReceiptSettler:
    """Settles deliveries of one group by receipts. Thread-safe. ring: wakes poppers that wait."""

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        group: Callable[[], GroupRow],
        dead_letter: DeadLetterFn,
        ring: Callable[[], None],
    ) -> None:
        self._catalog, self._clock = ports.catalog, ports.clock
        self._version = ports.ids.version
        self._claimer = Claimer(ports, queue, group, dead_letter)
        self._settler = Settler(ports, self._claimer, lambda: None, group().name)
        self._keyed = group().policy.keyed
        self._ring = ring
        self._lock = threading.Lock()

    def settle(
        self, receipts: Sequence[Receipt], back: NackOptions | None, *, overdue: bool = True
    ) -> list[Receipt]:
        """Ack messages (back: None), or give them back; durable on return. overdue: also accept
        messages past their deadline. Returns the receipts that are not valid, which change nothing.
        Cost: a read for each run of messages, one synced transaction for all of them."""
        with self._lock:
            self._check()
            invalid: list[Receipt] = []

            def act(found: dict[Receipt, Found]) -> list[Receipt]:
                out = found if overdue else self._out(found, invalid, overdue=False)
                return self._settled(out, back) if out else []

            return self._until_done(receipts, act) + invalid

    def extend(
        self, receipts: Sequence[Receipt], ms: int, *, overdue: bool = True
    ) -> list[Receipt]:
        """Give messages a deadline of their own, `ms` from now. Everything else as for `settle`."""
        with self._lock:
            self._check()
            invalid: list[Receipt] = []

            def act(found: dict[Receipt, Found]) -> list[Receipt]:
                out = self._out(found, invalid, overdue=overdue)
                return self._dated(out, self._catalog.now_ms() + ms) if out else []

            return self._until_done(receipts, act) + invalid

    def _out(
        self, found: dict[Receipt, Found], invalid: list[Receipt], *, overdue: bool
    ) -> dict[Receipt, Found]:
        """The receipts whose messages are in a consumer's hands; adds the others to `invalid`.
        overdue: also accept messages past their deadline."""
        until_ms = None if overdue else self._catalog.now_ms()
        out = {r: each for r, each in found.items() if _is_out(each.row, until_ms)}
        invalid.extend(found.keys() - out.keys())
        return out

    def _check(self) -> None:
        if self._claimer.exclusive:
            raise UsageError(
                "messages of an exclusive group have no receipts",
                hint="settle them through the popper that delivered them, or use a group with"
                " order='key'",
            )
        self._claimer.look()

    def _until_done(
        self,
        receipts: Sequence[Receipt],
        act: Callable[[dict[Receipt, Found]], list[Receipt]],
    ) -> list[Receipt]:
        """Act on the rows of receipts until each is done or not valid; returns those not valid.
        act: returns the receipts whose rows were changed meanwhile."""
        left = list(dict.fromkeys(receipts))
        invalid: list[Receipt] = []
        for _ in attempts(self._clock):
            found = self._rows(left)
            invalid += [receipt for receipt in left if receipt not in found]
            left = act(found) if found else []
            if not left:
                return invalid
        raise contended(f"the claims of pipe {left[0].pipe_id}")

    def _rows(self, receipts: Sequence[Receipt]) -> dict[Receipt, Found]:
        """The rows of the receipts that are valid."""
        found: dict[Receipt, Found] = {}
        ordered = sorted(receipts, key=attrgetter("pipe_id", "seq"))
        for _, some in groupby(ordered, key=lambda each: (each.pipe_id, each.seq // SPAN_MAX)):
            near = list(some)
            seqs = range(near[0].seq, near[-1].seq + 1)
            key = near[0].group_id, near[0].pipe_id
            rows = self._catalog.claims.rows(*key, seqs)
            cursor = self._catalog.claims.find_cursor(*key) if self._keyed and rows else None
            starts = [row.start for row in rows]
            for receipt in near:
                row = rows[bisect_right(starts, receipt.seq) - 1] if rows else None
                if row is not None and claims.is_delivery(row, receipt.seq, receipt.holder):
                    found[receipt] = Found(row, None if cursor is None else cursor.epoch)
        return found

    def _settled(self, found: dict[Receipt, Found], back: NackOptions | None) -> list[Receipt]:
        settler, now_ms = self._settler, self._catalog.now_ms()
        deliveries: dict[str, Delivery] = {}
        for version, ((row, epoch), seqs) in _by_row(found).items():
            delivery = deliveries[version] = Delivery(NOBODY, [row], now_ms, None, epoch)
            delivery.keyed = self._keyed
            settler.deliveries[delivery] = None
            if back is None:
                settler.note(delivery, seqs, now_ms)
            else:
                settler.give_up(delivery, seqs, back)
        try:
            free = settler.flush()
            if settler.failure is not None:
                raise settler.failure
        finally:
            settler.unwritten.clear()
            settler.deliveries.clear()
        self._claimer.follow_up(free, settler.flushed_ms, succeeded=settler.acks_written)
        self._claimer.health.record_success()
        if free or self._keyed:
            self._ring()
        again: list[Receipt] = []
        for receipt, (row, _) in found.items():
            delivery = deliveries[row.version]
            acked = back is not None and receipt.seq in delivery.settled  # by another
            if delivery.lost or acked or receipt.seq in delivery.missed:
                again.append(receipt)
        return again

    def _dated(self, found: dict[Receipt, Found], due_ms: int) -> list[Receipt]:
        by_row = list(_by_row(found).values())
        changes = [
            (row, claims.dated(row, seqs, due_ms, self._version)) for (row, _), seqs in by_row
        ]
        epochs = [each.epoch for each, _ in by_row]
        done = self._catalog.claims.replace_many(changes, epochs=epochs)
        changed = {row.version for (row, _), ok in zip(changes, done, strict=True) if not ok}
        if due_ms < self._catalog.now_ms() + SOON_MS:
            self._ring()  # for later deadlines they look by themselves in time
        return [receipt for receipt, (row, _) in found.items() if row.version in changed]


def _is_out(row: Claim, now_ms: int | None) -> bool:
    """Whether the messages of a row are in a consumer's hands. now_ms: if given, also whether their
    deadline has not passed."""
    return row.state is ClaimState.HELD and (now_ms is None or row.due_ms > now_ms)


def _by_row(found: dict[Receipt, Found]) -> dict[str, tuple[Found, RangeSet]]:
    """Each row, and the seqs of the receipts in it, by the row's version."""
    rows = {each.row.version: each for each in found.values()}
    seqs: dict[str, list[int]] = {version: [] for version in rows}
    for receipt, each in found.items():
        seqs[each.row.version].append(receipt.seq)
    return {version: (each, RangeSet.of(sorted(seqs[version]))) for version, each in rows.items()}


def _refuse(*_: object) -> NoReturn:
    raise UsageError("a delivery found by its receipt has no popper")


NOBODY = Acknowledger(_refuse, _refuse, _refuse)
