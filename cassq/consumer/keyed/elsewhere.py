"""What receipts do to messages of a keyed group that are in hand: any process may settle them, or
give them deadlines of their own, while one popper has the lane.

The popper that gave the receipts notices this in two ways: its next write of the row is refused,
and it looks, soon after the doorbell rang if a consumer waits, otherwise every `LOOK_MS`. A message
with a deadline of its own waits in line as a failed one does, and holds its key until it is
settled, or delivered again.

Not thread-safe, like `cassq.consumer.keyed.lane`, which decides what stands in line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from cassq.consumer.delivery import Delivery
from cassq.consumer.keyed.holding import HeldKeyNotices
from cassq.consumer.keyed.keys import KeyLine
from cassq.consumer.keyed.segments import Entry, Segment, delivery_of
from cassq.consumer.keyed.take_over import TakeOver
from cassq.consumer.settling import Settler
from cassq.lifecycle.ports import Ports
from cassq.message.bundles import BundleSlice
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims
from cassq.model.rows import Claim, ClaimState

LOOK_MS = 50  # how often to look while consumers find other messages ...
LOOK_BESIDE_MS = 200  # ... and where that takes round trips
AT_ONCE_MS = 5  # while a consumer waits: the doorbell may have woken it because of a receipt
# A pause between two looks lasts this many times as long as the last look, within a limit.
PAUSE = 10
PAUSE_MS_MAX = 500


class ReceiptFollower:
    """Follows the messages of one lane that have receipts. line: returns the lane's current line.

    active: whether some message in hand may have a receipt. acks: the acks of messages with
    receipts that are not written yet: segment, seq and key of each.
    """

    def __init__(
        self,
        ports: Ports,
        settler: Settler,
        take_over: TakeOver,
        holding: HeldKeyNotices,
        line: Callable[[], KeyLine],
    ) -> None:
        self._catalog = ports.catalog
        self._clock = ports.clock
        self._settler = settler
        self._take_over = take_over
        self._holding = holding
        self._line = line
        self._look_ms = LOOK_MS if ports.sharing is None else LOOK_BESIDE_MS
        self._looked_ms = self._pause_ms = 0
        self._again_ms: int | None = None  # when to make up for a look that came too early
        self.active: bool = False
        self.acks: list[tuple[Segment, int, bytes | None]] = []

    def clear(self) -> None:
        """Forget everything: nothing is in line any more."""
        self.active, self._again_ms = False, None
        self.acks.clear()

    def look_soon(self) -> None:
        """Look at the next call, however short the time since the last one."""
        self._looked_ms = self._pause_ms = 0

    # --- what the popper's own consumers say ----------------------------------------------------

    def acked(self, segment: Segment, acks: Iterable[tuple[int, bytes | None]]) -> None:
        """Note that messages in hand were acked here. Their keys go on once that is written: until
        then others may settle the messages by their receipts."""
        new = [(segment, seq, key) for seq, key in acks]
        self._line().finished(key for _, _, key in new)
        self.acks += new

    def flushed(self) -> None:
        """Let the keys go on of acks that are now written, except of messages that receipts had
        taken by then."""
        acks, self.acks = self.acks, []
        for segment, seq, key in acks:
            segment.receipts.discard(seq)
            if seq not in delivery_of(segment).missed:
                self._line().settled(key)

    # --- what others do -------------------------------------------------------------------------

    def gone(self, entry: Entry, rows: Sequence[Claim], *, in_hand: bool, acked: bool) -> None:
        """The receipt of a message was used. rows: the present rows. in_hand: False if it was also
        acked here, and that is not written. acked: whether the receipt acked it."""
        line, (segment, bundle, seq) = self._line(), entry
        key = bundle.key_at(seq - bundle.base_seq)
        if acked:
            if in_hand:
                line.finished([key])
                line.settled(key)
            return
        if not in_hand:
            line.begun([key])  # our own ack does not count
        one = RangeSet.run(seq, seq + 1)
        row = next((row for row in rows if _is_open(row, seq)), None)
        own = row or replace(segment.row, start=seq, end=seq + 1, acked=EMPTY, tried=None)
        apart = Segment(own, [BundleSlice(bundle, one).kept(one)])
        line.apart(apart)
        if row is None:
            self._holding.gone(line, apart, one)
            return
        if not claims.is_dated(row):
            line.back(apart)
        line.wait(apart, row.due_ms)

    def look(
        self, segments: Mapping[Delivery, Segment], now_ms: int, *, at_once: bool
    ) -> list[Segment] | None:
        """Check whether receipts were used, if that was not done for a while. now_ms: boot time.
        at_once: whether a consumer waits.

        Returns the segments in line whose rows changed: they wait no longer. None if a claim was
        lost. Cost: if messages have receipts, a read of the open rows of their pipes.
        """
        line = self._line()
        if not (self.active or line.away):
            self._again_ms = None
            return []
        gap_ms = max(AT_ONCE_MS if at_once else self._look_ms, self._pause_ms)
        if now_ms - self._looked_ms < gap_ms:
            self._again_ms = self._looked_ms + gap_ms
            return []
        self._looked_ms, self._again_ms = now_ms, None
        self.active = False  # before the check for receipts, as more may be given meanwhile
        ours = [segment for segment in segments.values() if segment.receipts]
        away = [segment for segment in line.waiting() if segment.away] if line.away else []
        self.active |= bool(ours)
        versions = self._versions(ours + away)
        lost = False
        for segment in ours:
            delivery = delivery_of(segment)
            for row in list(delivery.rows):
                if versions[row.pipe_id].get(row.start) != row.version:
                    self._settler.look_again(delivery, row)
            lost = lost or delivery.lost
        self._pause_ms = min(PAUSE_MS_MAX, PAUSE * (self._clock.boot_ms() - now_ms))
        if lost:
            return None
        changed = [s for s in away if versions[s.row.pipe_id].get(s.row.start) != s.row.version]
        if changed:
            line.end_wait(changed)
        return changed

    def _versions(self, segments: Iterable[Segment]) -> dict[str, dict[int, str]]:
        """The versions of open rows, by pipe and start."""
        groups = {segment.row.pipe_id: segment.row.group_id for segment in segments}
        return {
            pipe_id: {
                row.start: row.version
                for row in self._catalog.claims.rows(group_id, pipe_id)
                if row.state is not ClaimState.DONE
            }
            for pipe_id, group_id in groups.items()
        }

    def knows(self, row: Claim, segments: Iterable[Segment]) -> bool:
        """Whether the messages of a free row need not be added to the line: the row waits there
        already, or a receipt may have made it of messages that are thought to be in hand."""
        if self._line().waiting_at(row) is not None:
            return True
        return self.active and any(
            segment.row.pipe_id == row.pipe_id and not segment.receipts.isdisjoint(row.left)
            for segment in segments
        )

    def over(
        self, segments: Sequence[Segment], epochs: Mapping[str, int]
    ) -> tuple[list[Segment], list[Segment]]:
        """End deadlines that have passed. segments: those that no longer wait. Returns those that
        can be taken now, and those whose rows others changed; segments that must wait for their
        retry are put in line again. epochs: by pipe."""
        away = [segment for segment in segments if segment.away]
        if not away:
            return list(segments), []
        now_ms, line = self._catalog.now_ms(), self._line()
        ended = [segment for segment in away if segment.waits_until_ms <= now_ms]
        later = [segment for segment in away if segment.waits_until_ms > now_ms]
        kept = [segment for segment in ended if segment.row.state is ClaimState.FREE]
        dated = [segment for segment in ended if segment.row.state is not ClaimState.FREE]
        free, refused = self._take_over.freed(dated, epochs)
        due = [segment for segment in segments if not segment.away]
        for segment in kept + free:
            line.back(segment)
            if segment.row.due_ms > now_ms:
                line.wait(segment, segment.row.due_ms)
            else:
                due.append(segment)
        return due, refused + later

    def in_hand(self, popper: str) -> int:
        """How many messages that a popper delivered have a deadline of their own."""
        line = self._line()
        away = [segment for segment in line.waiting() if segment.away] if line.away else []
        rows = [(segment.row, segment.gone) for segment in away if claims.is_dated(segment.row)]
        return sum(
            len(row.left - gone) for row, gone in rows if claims.consumer_of(row.holder) == popper
        )

    def until_due(self, most: float) -> float:
        """Seconds until it is time to look again; at most `most`."""
        if self._again_ms is None:
            return most
        return min(most, max(1, self._again_ms - self._clock.boot_ms()) / 1000)


def _is_open(row: Claim, seq: int) -> bool:
    """Whether a row has a message that is not settled."""
    is_there = row.start <= seq < row.end and seq not in row.acked
    return is_there and row.state is not ClaimState.DONE
