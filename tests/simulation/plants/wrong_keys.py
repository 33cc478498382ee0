"""Wrong parts of keyed groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from cassq.consumer.claiming.candidates import CandidatePipes, PipeView
from cassq.consumer.claiming.parts import LanePart
from cassq.consumer.delivery import Delivery
from cassq.consumer.keyed.elsewhere import ReceiptFollower
from cassq.consumer.keyed.fairness import FairReady, Tenant
from cassq.consumer.keyed.holding import HeldKeyNotices
from cassq.consumer.keyed.keys import KeyLine
from cassq.consumer.keyed.lane import Lane
from cassq.consumer.keyed.lanes import Lanes
from cassq.consumer.keyed.segment_hold import SegmentHold
from cassq.consumer.keyed.segments import Entry, Segment
from cassq.consumer.keyed.take_over import FencedPipe, TakeOver
from cassq.consumer.settling import Settler
from cassq.locks.port import Lock
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims
from cassq.model.priorities import Level
from cassq.model.rows import Claim, PipeRow
from cassq.producer.leveling import Leveling


def forgets_keys_at_a_take_over() -> AbstractContextManager[Any]:
    """What failed, and waits, does not hold its key once another popper has the lane."""
    line_up = Lane._line_up

    def wrong(self: Lane, waiting: Sequence[Segment]) -> None:
        now_ms = self._catalog.now_ms()
        line_up(self, [each for each in waiting if each.row.due_ms <= now_ms])

    return patch.object(Lane, "_line_up", wrong)


def reads_all_pipes_at_once() -> AbstractContextManager[Any]:
    """The next pipe of a pusher is claimed from while the one before still has messages."""

    def wrong(
        self: CandidatePipes, chain_of: Callable[[PipeRow], str], now_ms: int
    ) -> dict[str, PipeView]:
        found = self.candidates(8, now_ms)
        return {view.row.id: view for view in sorted(found, key=lambda view: -view.row.ordinal)}

    return patch.object(CandidatePipes, "in_chains", wrong)


def notes_no_try() -> AbstractContextManager[Any]:
    """What is handed out is not noted first."""

    def wrong(self: Settler, deliveries: Sequence[Delivery], *, synced: bool) -> None:
        return None

    return patch.object(Settler, "write_tried", wrong)


def lets_keys_of_the_dead_go_on() -> AbstractContextManager[Any]:
    """A dead letter does not hold its key in the lane of the popper that saw the message die."""

    def wrong(self: HeldKeyNotices, line: KeyLine, segment: Segment, seqs: RangeSet) -> None:
        line.gone(segment, seqs)

    return patch.object(HeldKeyNotices, "gone", wrong)


def forgets_the_dead_at_a_take_over() -> AbstractContextManager[Any]:
    """A dead letter does not hold its key once another popper has the lane."""
    look = HeldKeyNotices.look

    def wrong(self: HeldKeyNotices, line: KeyLine) -> None:
        if line.held:
            look(self, line)

    return patch.object(HeldKeyNotices, "look", wrong)


def pushes_to_any_lane() -> AbstractContextManager[Any]:
    """Messages go to the key lanes in turn, as those without a key do."""
    level = Leveling.level

    def wrong(self: Leveling, priority: int, _key: bytes | None) -> Level:
        return level(self, priority, None)

    return patch.object(Leveling, "level", wrong)


def works_for_all_lanes() -> AbstractContextManager[Any]:
    """A popper with one lane takes the pipes of the others for its own."""
    return patch.object(LanePart, "has", lambda _self, _pipe: True)


def lets_keys_go_on_when_a_message_fails() -> AbstractContextManager[Any]:
    """A message that failed does not hold its key."""
    failed = KeyLine.failed

    def wrong(self: KeyLine, segment: Segment, entries: list[Any]) -> None:
        self._ordered = False
        failed(self, segment, entries)
        self._ordered = True

    return patch.object(KeyLine, "failed", wrong)


def lets_keys_go_on_while_dated() -> AbstractContextManager[Any]:
    """A message that gets a deadline of its own by its receipt lets its key go on."""
    gone = ReceiptFollower.gone

    def wrong(
        self: ReceiptFollower, entry: Entry, rows: Sequence[Claim], *, in_hand: bool, acked: bool
    ) -> None:
        dated = any(claims.is_dated(row) and row.start == entry[2] for row in rows)
        gone(self, entry, rows, in_hand=in_hand, acked=acked or dated)

    return patch.object(ReceiptFollower, "gone", wrong)


def releases_in_place_what_has_a_receipt() -> AbstractContextManager[Any]:
    """A released message comes again by the same claim, and so its receipt is valid again."""
    released = SegmentHold.released

    def wrong(self: SegmentHold, seqs: RangeSet) -> RangeSet:
        self.segment.receipts.difference_update(seqs)
        released(self, seqs)
        return EMPTY

    return patch.object(SegmentHold, "released", wrong)


def forgets_what_is_dated_at_a_take_over() -> AbstractContextManager[Any]:
    """A message with a deadline of its own does not hold its key once another popper has the
    lane."""
    unsettled = TakeOver.unsettled

    def wrong(self: TakeOver, fenced: FencedPipe, *, timed: bool) -> list[Segment]:
        found = unsettled(self, fenced, timed=timed)
        return [segment for segment in found if not claims.is_dated(segment.row)]

    return patch.object(TakeOver, "unsettled", wrong)


class AlwaysHeld(Lock):
    """A lock that everybody has."""

    def held(self) -> bool:
        return True

    def renew(self, ttl_ms: int) -> bool:
        return True

    def release(self) -> None:
        """Nobody waits for it."""


def begins_without_the_lock() -> AbstractContextManager[Any]:
    """A popper works for a lane though another one has its lock."""
    begin = Lane._begin

    def wrong(self: Lane, now_ms: int) -> bool:
        self._lock = self._lock or AlwaysHeld()
        return begin(self, now_ms)

    return patch.object(Lane, "_begin", wrong)


def gives_lanes_up_at_once() -> AbstractContextManager[Any]:
    """A popper that is asked for a lane does not wait until its consumers have settled what they
    have of it."""
    drain = Lanes._drain

    def wrong(self: Lanes, lane: Lane, now_ms: int) -> None:
        lane.leave({})
        drain(self, lane, now_ms)

    return patch.object(Lanes, "_drain", wrong)


def takes_the_longest_known_key() -> AbstractContextManager[Any]:
    """In a fair group the key comes first that was there first, whatever its share."""

    def wrong(self: FairReady) -> Tenant:
        found = next(tenant for tenant in self._tenants.values() if tenant.waiting)
        if found.noisy:
            self._noisy.remove(found)
        found.number, found.noisy = 0, False
        return found

    return patch.object(FairReady, "_next", wrong)


def counts_what_failed_as_in_hand() -> AbstractContextManager[Any]:
    """In a fair group what a consumer gave back counts for the share of its key for ever."""
    failed = KeyLine.failed

    def wrong(self: KeyLine, segment: Segment, entries: list[Entry]) -> None:
        with patch.object(FairReady, "finished", _forgets):
            failed(self, segment, entries)

    return patch.object(KeyLine, "failed", wrong)


def _forgets(_self: FairReady, keys: Iterable[bytes | None]) -> None:
    list(keys)
