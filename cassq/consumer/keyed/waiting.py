"""What waits in a keyed group's line: failed messages, and messages with deadlines of their own.
They are taken when they are due, or become dead letters. If others settle them, their keys go on.

Not thread-safe, like `cassq.consumer.keyed.lane`, which decides what stands in line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from cassq.consumer.claiming.candidates import UNREADABLE
from cassq.consumer.claiming.claimer import Claimer
from cassq.consumer.delivery import Delivery
from cassq.consumer.keyed.elsewhere import ReceiptFollower
from cassq.consumer.keyed.holding import HeldKeyNotices
from cassq.consumer.keyed.keys import KeyLine
from cassq.consumer.keyed.segments import Segment
from cassq.consumer.keyed.take_over import TakeOver
from cassq.lifecycle.ports import Ports
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims
from cassq.model.rows import Claim, ClaimState

LATER_MS = 1000  # when to look again at a message that another process is moving


class Waiting:
    """The segments that wait in one lane.

    line: returns the lane's current line. epochs: of its pipes. own: adds a segment that was taken
    to the lane. forget: makes the lane start again, since its rows are not as expected.
    """

    def __init__(
        self,
        ports: Ports,
        claimer: Claimer,
        parts: tuple[TakeOver, HeldKeyNotices, ReceiptFollower],
        line: Callable[[], KeyLine],
        epochs: Mapping[str, int],
        own: Callable[[Segment, Delivery], None],
        forget: Callable[[], None],
    ) -> None:
        self._catalog = ports.catalog
        self._claimer = claimer
        self._take_over, self._holding, self._elsewhere = parts
        self._line = line
        self._epochs = epochs
        self._own = own
        self._forget = forget

    def take(self, due: Sequence[Segment]) -> None:
        """Take segments that are due, unless they became dead letters or are gone."""
        if not due:
            return
        try:
            self._take_or_dead_letter(due)
        except BaseException:
            self._forget()  # they are no longer in line
            raise

    def _take_or_dead_letter(self, due: Sequence[Segment]) -> None:
        line, wanted = self._line(), list[Segment]()
        due, changed = self._elsewhere.over(due, self._epochs)
        for segment in changed:
            self._look_again(segment)
        for segment in due:
            row = segment.row
            left = row.left - segment.gone
            if not left:
                continue
            if claims.is_leaving(row) or self._claimer.is_spent(row):
                self.dead_letter(segment)
            elif self._claimer.expired(row, self._epochs.get(row.pipe_id)):
                self._look_again(segment)
            else:
                wanted.append(segment)
        if self._line() is not line:
            return  # the lane starts again, with what is free then
        taken = self._take_over.taken(wanted, self._epochs)
        for segment in wanted:
            if segment not in taken:
                self._look_again(segment)
                if self._line() is not line:
                    return  # starting again also frees the others
        for segment, delivery in taken.items():
            self._own(segment, delivery)
            line.taken(segment, delivery)

    def dead_letter_spent(self, free: Iterable[Claim]) -> None:
        """Make dead letters of messages that were given back for the last time. free: their
        rows."""
        for row in free:
            segment = self._line().waiting_at(row) if self._claimer.is_spent(row) else None
            if segment is not None:
                self.dead_letter(segment)

    def dead_letter(self, segment: Segment) -> None:
        """Make a dead letter of a segment's message; if that fails, check whether others did."""
        row = segment.row
        try:
            done = not claims.is_leaving(row) and self._claimer.dead_letter(row)
        except UNREADABLE as exc:
            self._claimer.window.pass_over(row.pipe_id, exc)
            done = False
        if done:
            self._holding.gone(self._line(), segment, row.left)
        else:
            self._look_again(segment)

    def _look_again(self, segment: Segment) -> None:
        """The row of a waiting segment has changed: read what is there now."""
        row = segment.row
        cursor = self._catalog.claims.cursor(row.group_id, row.pipe_id)
        if cursor is None or cursor.epoch != self._epochs.get(row.pipe_id):
            self._forget()
            return
        rows = self._catalog.claims.rows(row.group_id, row.pipe_id, range(row.start, row.end))
        found = [each for each in rows if each.state is not ClaimState.DONE]
        left = RangeSet.joined([EMPTY, *(each.left for each in found)]).within(row.start, row.end)
        self._holding.gone(self._line(), segment, row.left - left - segment.gone)
        if not left:
            return
        if len(found) == 1 and found[0].left == left:
            segment.row = found[0]
            self._wait_again(segment, row.version)
            return
        parts = self._line().split(segment, found) if segment.away else []
        for part in parts:
            self._wait_again(part, row.version)
        if not parts:
            self._forget()  # others split the row

    def _wait_again(self, segment: Segment, version: str) -> None:
        """Let a segment wait as its row says now. version: of the row that it had before."""
        row = segment.row
        if not claims.is_away(row):
            self._line().back(segment)
        free = row.state is ClaimState.FREE and not claims.is_leaving(row)
        again = segment.away or (free and row.version != version)
        later_ms = self._catalog.now_ms() + LATER_MS
        self._line().wait(segment, segment.waits_until_ms if again else later_ms)
