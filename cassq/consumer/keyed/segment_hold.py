"""Follows which messages of a keyed group's claim row consumers have, and how they settle them."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from itertools import compress

from cassq.consumer.delivery import Delivery, NackOptions
from cassq.consumer.hold import Hold
from cassq.consumer.keyed.elsewhere import ReceiptFollower
from cassq.consumer.keyed.segments import Entry, Segment
from cassq.consumer.settling import Settler
from cassq.errors import ClaimLostError
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.rows import Claim


class LaneMessages(abc.ABC):
    """Keeps the messages of a lane, and is notified of what becomes of them."""

    @abc.abstractmethod
    def acked(self, segment: Segment, keys: Sequence[bytes | None]) -> None:
        """Messages of a segment were acked, but that is not written yet."""

    @property
    @abc.abstractmethod
    def elsewhere(self) -> ReceiptFollower:
        """What follows the messages that have receipts."""

    @abc.abstractmethod
    def finished(self, count: int, since_ms: int) -> None:
        """All messages of a row that were handed out are settled. count: how many. since_ms: when
        the first was handed out."""

    @abc.abstractmethod
    def put_back(self, entries: list[Entry], keys: Sequence[bytes | None]) -> None:
        """Messages were not used: they are ready again. keys: of those that were in hand."""

    @abc.abstractmethod
    def failed(self, row: Claim, entries: list[Entry]) -> None:
        """Messages were given back, and are in a free row now."""

    @abc.abstractmethod
    def over(self, delivery: Delivery) -> None:
        """All messages of a row are settled or given back, and that is written."""

    @abc.abstractmethod
    def due_ms(self, row: Claim) -> int:
        """Until when a row must be held if messages of it are handed out now."""


class SegmentHold(Hold):
    """The messages of a claim row that are in consumers' hands."""

    def __init__(self, keeper: LaneMessages, segment: Segment, delivery: Delivery) -> None:
        self._keeper = keeper
        self.segment = segment
        self.base: int = segment.row.start
        self._delivery = delivery
        self._failed: dict[int, Entry] = {}  # given back, and not yet written

    def check(self, seqs: RangeSet) -> None:
        out, settled = self.segment.out, self._delivery.settled
        missing = [] if all(map(out.__contains__, seqs)) else [s for s in seqs if s not in out]
        if self._delivery.lost or not all(seq in settled for seq in missing):
            raise ClaimLostError(
                "the message was already given back or taken away",
                hint="unless it was acked, it is, or will be, delivered again",
                pipe_id=self._delivery.pipe_id,
            )

    def acked(self, seqs: RangeSet) -> None:
        segment = self.segment
        out = segment.out
        mine = list(filter(out.__contains__, seqs))
        keys = list(map(out.pop, mine))
        if segment.receipts:  # looked at afterwards: see `give_receipt`
            told = [seq in segment.receipts for seq in mine]
            self._keeper.elsewhere.acked(segment, compress(zip(mine, keys, strict=True), told))
            keys = [key for key, is_told in zip(keys, told, strict=True) if not is_told]
        if segment.until_ms:
            for seq in seqs:
                segment.until_ms.pop(seq, None)
        if not out and segment.handed:
            count, since_ms = sum(len(each) for _, each in segment.handed), segment.handed[0][0]
            segment.handed.clear()
            self._keeper.finished(count, since_ms)
        self._keeper.acked(segment, keys)

    def released(self, seqs: RangeSet) -> RangeSet:
        segment, kept = self.segment, EMPTY
        keys = {seq: segment.out.pop(seq) for seq in seqs if seq in segment.out}
        if segment.receipts:  # looked at afterwards: see `give_receipt`
            kept = RangeSet.of([seq for seq in seqs if seq in segment.receipts])
            segment.out.update((seq, keys.pop(seq)) for seq in kept)
            seqs = seqs - kept
        segment.untried |= seqs
        for seq in seqs:
            segment.until_ms.pop(seq, None)
        back = [(segment, segment.bundle_of(seq), seq) for seq in seqs]
        self._keeper.put_back(back, list(keys.values()))
        return kept

    def failed(self, seqs: RangeSet) -> None:
        segment = self.segment
        for seq in seqs:
            segment.out.pop(seq, None)
            self._failed[seq] = segment, segment.bundle_of(seq), seq

    def tried(self, row: Claim) -> RangeSet | None:
        segment, known = self.segment, EMPTY if row.tried is None else row.tried
        tried = known
        if segment.trying:
            tried = known | segment.trying.within(row.start, row.end)
        if segment.untried:
            tried = tried - (segment.untried & known)
        return None if tried == known else tried

    def over(self) -> None:
        self._keeper.over(self._delivery)

    def due_ms(self, row: Claim) -> int:
        return self._keeper.due_ms(row)

    def written(self, free: Sequence[Claim]) -> None:
        for row in free:
            failed = [self._failed.pop(seq) for seq in row.left if seq in self._failed]
            if failed:
                self.segment.receipts.difference_update(row.left)
                self._keeper.failed(row, failed)

    def give_receipt(self, seq: int) -> None:
        # First note the receipt, then check that the message is in hand. A thread that settles the
        # message does the opposite: it first takes it out of hand, then checks for a receipt.
        segment = self.segment
        is_new = seq not in segment.receipts
        segment.receipts.add(seq)
        self._keeper.elsewhere.active = True
        if self._delivery.lost or seq not in segment.out:
            if is_new:
                segment.receipts.discard(seq)
            raise ClaimLostError(pipe_id=self._delivery.pipe_id)

    def gone(self, seqs: RangeSet, acked: RangeSet, rows: Sequence[Claim]) -> bool:
        segment = self.segment
        if not all(seq in segment.receipts for seq in seqs):
            return False
        for seq in seqs:
            segment.receipts.discard(seq)
            segment.until_ms.pop(seq, None)
            in_hand = seq in segment.out or self._failed.pop(seq, None) is not None
            segment.out.pop(seq, None)
            entry = segment, segment.bundle_of(seq), seq
            self._keeper.elsewhere.gone(entry, rows, in_hand=in_hand, acked=seq in acked)
        return True


def give_up_late(
    segments: Mapping[Delivery, Segment],
    settler: Settler,
    now_ms: int,
    timeout_ms: int,
    keep_alive_ms: float,
) -> bool:
    """Give back messages that consumers have kept for too long, or whose threads died; the flush
    writes that. Returns whether there were any. now_ms: catalog time. keep_alive_ms: how long a
    message may take while the thread that took it runs."""
    found = False
    for delivery, segment in list(segments.items()):
        seqs = segment.overdue(now_ms, timeout_ms, keep_alive_ms if delivery.is_attended else 0)
        if seqs:
            found = True
            if delivery.hold is not None:
                delivery.hold.failed(seqs)
            settler.give_up(delivery, seqs, NackOptions(None, reason="expired"))
    return found


def put_back_ahead(
    segments: Mapping[Delivery, Segment], settler: Settler, ahead: Mapping[Delivery, RangeSet]
) -> None:
    """Put back messages that were taken ahead and not used; the flush writes that."""
    for delivery, seqs in ahead.items():
        segment = segments.get(delivery)
        if segment is not None:
            left = RangeSet.of([seq for seq in seqs if seq in segment.out])
            if left and delivery.hold is not None:
                delivery.hold.released(left)
                settler.will_write(delivery)


def give_up_all(
    segments: Mapping[Delivery, Segment], settler: Settler, ahead: Mapping[Delivery, RangeSet]
) -> None:
    """Give everything back; the flush writes that. Messages in hand count as delivered, but not
    those that were only taken `ahead`."""
    for delivery, segment in list(segments.items()):
        if delivery.lost:
            continue
        hand = RangeSet.of(sorted(segment.out)) - ahead.get(delivery, EMPTY)
        rest = delivery.open_seqs() - hand
        delivery.hold = None
        for seqs, counted in ((hand, True), (rest, False)):
            if seqs:
                settler.give_up(delivery, seqs, NackOptions(0, counted=counted))
