"""Receiving from a lane: messages that get deadlines of their own as they are handed out, for
consumers that settle each by its receipt.

One write takes them out of the lane's rows: messages of one pop that lie together get one row, with
one deadline and one holder, as in `cassq.consumer.receiving`. In line they wait like any message
with a deadline of its own; see `cassq.consumer.keyed.elsewhere`.

Not thread-safe except for `note`, like `cassq.consumer.keyed.lane`, which decides what stands in
line.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from cassq.consumer.claiming.claimer import Claimer
from cassq.consumer.delivery import DeliveredRun, Delivery, Messages
from cassq.consumer.keyed.elsewhere import ReceiptFollower
from cassq.consumer.keyed.keys import KeyLine
from cassq.consumer.keyed.segments import Entry, Segment, delivery_of
from cassq.consumer.receipts import NOBODY
from cassq.consumer.settling import Change, Settler
from cassq.lifecycle.ports import Ports
from cassq.message.bundles import BundleSlice
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.receipts import Receipt
from cassq.model.rows import Claim

GIVEN_KEPT = 256  # how many holders are kept before those whose messages are settled are dropped

_SEQ = itemgetter(2)


class HandedOut:
    """What one pop handed out, in the order of pipes and seqs."""

    __slots__ = ("segments", "starts")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self.segments = sorted(segments, key=_place)
        self.starts = [_place(segment) for segment in self.segments]

    def of(self, receipt: Receipt) -> Segment | None:
        """The segment of a receipt, while it is in a consumer's hands."""
        at = bisect_right(self.starts, (receipt.pipe_id, receipt.seq)) - 1
        segment = self.segments[at] if at >= 0 else None
        if segment is None or not segment.away or segment.row.pipe_id != receipt.pipe_id:
            return None
        return segment if receipt.seq < segment.row.end else None


def _place(segment: Segment) -> tuple[str, int]:
    return segment.row.pipe_id, segment.row.start


class Receiving:
    """How the lane of a receiver hands messages out. line: returns the lane's current line.

    ms: for how long a consumer gets messages; None: they are popped instead. delay_ms: how old a
    message must be.
    """

    def __init__(
        self,
        ports: Ports,
        claimer: Claimer,
        settler: Settler,
        elsewhere: ReceiptFollower,
        line: Callable[[], KeyLine],
    ) -> None:
        self._catalog = ports.catalog
        self._clock = ports.clock
        self._version = ports.ids.version
        self._claimer = claimer
        self._settler = settler
        self._elsewhere = elsewhere
        self._line = line
        self._given: dict[str, HandedOut] = {}  # by holder
        self._given_max = GIVEN_KEPT
        self._acked: deque[Receipt] = deque()
        self.ms: int | None = None
        self.delay_ms: int = 0

    def clear(self) -> None:
        """Nothing is in line any more."""
        self._given.clear()

    def note(self, acked: Iterable[Receipt]) -> None:
        """Note that messages were acked durably by their receipts: their keys go on at the next
        call. Takes no lock."""
        self._acked.extend(acked)

    def begin(self) -> None:
        """Called before messages are taken: let the keys of noted acks go on, and set from when on
        messages are old enough."""
        line = self._line()
        if self.delay_ms:
            ahead_ms = self._catalog.now_ms() - self._clock.wall_ms()
            line.after_push_ms = self.delay_ms + ahead_ms
        else:
            line.after_push_ms = None
        found: dict[Segment, list[int]] = {}
        while self._acked:
            receipt = self._acked.popleft()
            given = self._given.get(receipt.holder)
            segment = None if given is None else given.of(receipt)
            if segment is None:
                self._elsewhere.look_soon()
            else:
                found.setdefault(segment, []).append(receipt.seq)
        for segment, seqs in found.items():
            line.gone(segment, RangeSet.of(sorted(seqs)))
        line.end_wait([segment for segment in found if not segment.away])

    # --- handing out ----------------------------------------------------------------------------

    def hand_out(self, entries: Sequence[Entry], ms: int) -> tuple[Messages, bool]:
        """Write into their rows that messages just taken from the line are handed out for `ms`
        milliseconds. Returns them, and whether some were refused because their rows had changed.
        Cost: a transaction for those of each epoch, synced as in `Lane.take`."""
        by_segment: dict[Segment, list[Entry]] = {}
        for entry in entries:
            by_segment.setdefault(entry[0], []).append(entry)
        now_ms, holder = self._catalog.now_ms(), self._claimer.new_holder(singly=True)
        changes: list[Change] = []
        for segment, some in by_segment.items():
            some.sort(key=_SEQ)
            delivery, seqs = delivery_of(segment), RangeSet.of(map(_SEQ, some))
            for row in delivery.rows:
                mine = seqs.within(row.start, row.end)
                if mine:
                    new = claims.received(row, mine, now_ms + ms, holder, self._version)
                    changes.append((delivery, row, new))
        synced = any(segment.synced for segment in by_segment)
        done = self._settler.write_deadlines(changes, synced=synced)
        own: dict[Delivery, list[Claim]] = {}
        for delivery, _, new in done:
            own.setdefault(delivery, []).extend(row for row in new if row.holder == holder)
        runs: list[DeliveredRun] = []
        apart: list[Segment] = []
        for segment, some in by_segment.items():
            rows = sorted(own.get(delivery_of(segment), ()), key=_start)
            for row, its in _dealt(some, rows):
                pieces = list(_pieces(its))
                apart.append(Segment(row, pieces))
                out = Delivery(NOBODY, [row], now_ms, None, None)
                runs += [DeliveredRun(out, *piece) for piece in pieces]
        self._remember(holder, apart)
        return Messages(runs), len(done) < len(changes)

    def _remember(self, holder: str, apart: Sequence[Segment]) -> None:
        line = self._line()
        for segment in apart:
            line.apart(segment)
            line.wait(segment, segment.row.due_ms)
        if len(self._given) >= self._given_max:
            self._given = {
                name: each
                for name, each in self._given.items()
                if any(segment.away for segment in each.segments)
            }
            self._given_max = 2 * len(self._given) + GIVEN_KEPT
        self._given[holder] = HandedOut(apart)


def _start(row: Claim) -> int:
    return row.start


def _dealt(entries: Sequence[Entry], rows: Iterable[Claim]) -> Iterator[tuple[Claim, list[Entry]]]:
    """The messages of each row; both in their order."""
    at = 0
    for row in rows:
        first = at
        while first < len(entries) and entries[first][2] < row.start:
            first += 1  # its row was refused
        at = first
        while at < len(entries) and entries[at][2] < row.end:
            at += 1
        yield row, list(entries[first:at])


def _pieces(entries: Iterable[Entry]) -> Iterator[BundleSlice]:
    """Messages by bundle, in order. The other bytes of a bundle are not kept."""
    for _, some in groupby(entries, key=lambda entry: id(entry[1])):
        its = list(some)
        seqs = RangeSet.of(map(_SEQ, its))
        yield BundleSlice(its[0][1], seqs).kept(seqs)
