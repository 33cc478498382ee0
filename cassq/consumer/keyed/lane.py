"""Lanes: how a popper works for a keyed group, where no message passes an unsettled one of its key.

One popper at a time has the group's *lane*, by a lock. It claims runs of messages ahead of what it
hands out, in rows of at most `ROW_MESSAGES`, and keeps them in line by key (`keys.py` beside this):
so as many consumers as there are keys can work side by side, as threads that share the popper.

Invariants:
1. A message is handed out after its row says that it was tried, and after the acks of those before
   it of its key are written, or in the same write of one row.
2. The popper that takes the lane raises the epoch of each pipe before it reads or claims from it,
   so that what an earlier holder writes later is refused; and before it hands out any message, it
   knows all claim rows, and reads what consumers were given of them.
3. Of a pusher's pipes, one is claimed from only once everything in those before it is claimed (on a
   cp queue: of the queue's pipes).
4. Only messages that were handed out count as delivered, also after a crash.

Not thread-safe: `cassq.popper` holds its lock around every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import current_thread

from cassq.consumer.claiming.candidates import REFRESH_MS, UNREADABLE, PipeView
from cassq.consumer.claiming.claimer import DUE_LISTED, LOOK_BESIDE_MS, LOOK_MS, Claimer
from cassq.consumer.claiming.parts import LanePart
from cassq.consumer.delivery import Acknowledger, DeliveredRun, Delivery, Messages
from cassq.consumer.keyed import segment_hold
from cassq.consumer.keyed.elsewhere import ReceiptFollower
from cassq.consumer.keyed.holding import HeldKeyNotices
from cassq.consumer.keyed.keys import Acked, KeyLine, PopperCallbacks
from cassq.consumer.keyed.receiving import Receiving
from cassq.consumer.keyed.segment_hold import LaneMessages, SegmentHold, give_up_late
from cassq.consumer.keyed.segments import (
    Entry,
    ForgottenInHand,
    Segment,
    delivery_of,
    in_hand,
    seqs_of,
)
from cassq.consumer.keyed.take_over import HELD_FOR, LaterRows, TakeOver, lane_lock
from cassq.consumer.keyed.waiting import Waiting
from cassq.consumer.keyed.watching import Watch
from cassq.consumer.settling import Settler
from cassq.lifecycle.ports import Ports
from cassq.locks.port import Lock
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.rows import Claim, ClaimState, Cursor, GroupRow, PipeRow, QueueRow

ROW_MESSAGES = 8192
# How many messages may stand in line: until this many wait for their keys, more are claimed. The
# second limit holds while none of them is ready, and in fair groups, which must know of all keys.
LINE_MESSAGES, LINE_MESSAGES_MAX = 10_000, 1_000_000
LINE_BYTES_MAX = 256 * 1024 * 1024
# How many messages that must wait a call looks through if it has something, and how long if not.
LOOK_MESSAGES, LOOK_MS_MAX = 256, 1000
AHEAD_MESSAGES = 64  # the least that is read at once of what an earlier holder claimed ahead
ROWS_AHEAD = 4  # how many rows a call claims ahead in a fair group ...
AHEAD_MS, AHEAD_IDLE_MS = 20, 200  # ... and how often it looks if there is news, and if not
IDLE_MS = 2000  # how long a popper that takes nothing keeps the lane
IN_LINE_SECONDS = 0.1  # how often a popper without the lane tries to get it
_NEVER = 3600.0


class Lane(LaneMessages):
    """The lane of one popper.

    keep_alive_ms: how long a message may take while the thread that took it runs. part: its pipes.
    """

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        group: Callable[[], GroupRow],
        claimer: Claimer,
        settler: Settler,
        acknowledger: Acknowledger,
        callbacks: PopperCallbacks,
        keep_alive_ms: float,
        part: LanePart,
    ) -> None:
        self._ports, self._part = ports, part
        self._catalog = ports.catalog
        self._clock = ports.clock
        self._group = group
        self._claimer = claimer
        self._settler = settler
        self._acknowledger = acknowledger
        self._flush, self._wake, self._ring = callbacks
        self._keep_alive_ms = keep_alive_ms
        self._lock: Lock | None = None
        self._known = False  # whether all that is unsettled is in line
        self._line = KeyLine()
        self._take_over = TakeOver(ports, claimer, acknowledger, strict=queue().policy.strict)
        self._holding = HeldKeyNotices(ports, queue(), group())
        self._watch = Watch(ports.catalog)
        self._unread: list[PipeRow] = []  # pipes with unsettled messages that are not in line yet
        self._held_up: set[str] = set()  # the chains that they hold up
        self._epochs: dict[str, int] = {}  # what each pipe's epoch was raised to
        parts = self._take_over, self._holding
        self._elsewhere = ReceiptFollower(ports, settler, *parts, lambda: self._line)
        self.receiving: Receiving = Receiving(
            ports, claimer, settler, self._elsewhere, lambda: self._line
        )
        self._waiting = Waiting(
            ports, claimer, (*parts, self._elsewhere), lambda: self._line, self._epochs,
            self._own, self._forget,
        )  # fmt: skip
        self._segments: dict[Delivery, Segment] = {}
        self._forgotten = ForgottenInHand()
        self._bytes = 0  # of their messages
        self._after: list[Acked] = []  # whose acks are not written
        self._goes_on = False  # some ready messages follow others whose acks are not written
        self._looked_ms = self._kept_ms = self._used_ms = 0
        self._more_ahead = False  # whether the last look found more to claim
        self._ahead_ms = 0  # when it did not
        self._missed = False  # a claim was lost, so that others may have what it held
        # The last call found nothing that was ready; and did not look at everything.
        self._hungry = self._looks_on = False
        self._full = False  # so much waits that no more is claimed

    @property
    def is_held(self) -> bool:
        """Whether this popper has the lane, as far as it knows."""
        return self._lock is not None

    def look_soon(self) -> None:
        """Look at the next call what receipts did, as they did something. Takes no lock."""
        self._elsewhere.look_soon()

    # --- taking -------------------------------------------------------------------------------

    def take(self, limit: int) -> Messages:
        """At most `limit` messages.

        Cost: one write of the rows that they are in, synced for messages that were delivered, or
        pushed before the last boot; where they waited for others of their key, a synced one, of
        the acks noted so far, too. For each `ROW_MESSAGES` a claim; at the start a write for every
        64 pipes with unsettled messages, and a read of each row that was handed out before. Raises
        CorruptionError or ExtentMissingError once for a pipe that cannot be read.
        """
        had_it = self._lock is not None
        if had_it:
            self._keep_in_time()
        found = self._take(limit)
        if had_it and not self._known and not found:
            found = self._take(limit)
        if not found and self._claimer.window.unreported:
            raise self._claimer.window.unreported.pop(0)
        for run in found.runs:
            run.delivery.taken_by(current_thread())
        return found

    def _take(self, limit: int) -> Messages:
        now_ms = self._used_ms = self._clock.boot_ms()
        if not self._known and not self._begin(now_ms):
            return Messages()
        self._holding.look_again(self._line, now_ms)
        self.receiving.begin()
        self._take_due(now_ms)
        self._fill(limit, now_ms)
        if (self._after or self._elsewhere.acks) and len(self._line.ready) < limit:
            self._go_on(limit)
            self._fill(limit, now_ms)
        until_ms = now_ms + LOOK_MS_MAX
        waited, entries = len(self._line.ready), self._line.take(limit, self._catalog.now_ms())
        while waited and not (entries or self._line.ready) and self._clock.boot_ms() < until_ms:
            self._fill(limit, now_ms)  # all that was ready must wait for its time
            waited, entries = len(self._line.ready), self._line.take(limit, self._catalog.now_ms())
        self._hungry = not entries
        return self._hand_out(entries)

    def _go_on(self, limit: int) -> None:
        """Let messages be ready that waited for those that were acked since the last flush: if they
        are in the same row, without a flush, as one write then says both that a message is acked,
        and that the next of its key is tried."""
        before = len(self._line.ready)
        one_row = not self._elsewhere.acks and all(
            len(delivery_of(segment).rows) == 1 for segment, _ in self._after
        )
        if one_row:
            self._after = self._line.go_on(self._after, limit)
        if one_row and len(self._line.ready) > before:
            self._goes_on = True
        else:
            self._flush()

    def _hand_out(self, entries: list[Entry]) -> Messages:
        """Hand out messages just taken from the line, once their rows say so."""
        if not entries:
            return Messages()
        if self.receiving.ms is not None:
            return self._receive(entries, self.receiving.ms)
        runs = in_hand(entries)
        tried = seqs_of(runs)
        deliveries = [delivery_of(segment) for segment in tried]
        try:
            for segment, mine in tried.items():
                segment.trying = mine
                if segment.untried:
                    segment.untried -= mine
            if self._goes_on:
                for delivery in deliveries:
                    self._settler.will_write(delivery)
                self._flush()
            else:
                synced = any(segment.synced for segment in tried)
                self._settler.write_tried(deliveries, synced=synced)
        except BaseException:
            if self._known:
                self._line.put_back(entries)
            raise
        finally:
            for segment in tried:
                segment.trying = EMPTY
        lost = any(delivery.lost for delivery in deliveries)
        if self._lock is None or not self._lock.held():
            self._lose()
        elif lost:
            self._forget()
        if not self._known:
            return Messages()
        now_ms = self._catalog.now_ms()
        for segment, mine in tried.items():
            segment.hand(mine, now_ms)
        return Messages(
            [DeliveredRun(delivery_of(segment), bundle, seqs) for segment, bundle, seqs in runs]
        )

    def handed_out(self) -> None:
        """What was taken last comes into consumers' hands now."""
        self._line.handed_out(self._catalog.now_ms)

    def _receive(self, entries: list[Entry], ms: int) -> Messages:
        """`_hand_out` for a receiver: what it got is nobody else's for `ms` milliseconds."""
        try:
            found, refused = self.receiving.hand_out(entries, ms)
        except BaseException:
            self._forget()  # some may have deadlines of their own
            raise
        if refused:
            self._forget()
        return found

    def _fill(self, wanted: int, now_ms: int) -> None:
        """Claim more, until enough are ready, too many wait, or it takes too long."""
        line, window = self._line, self._claimer.window
        self._looks_on = self._full = False
        if window.is_stale(now_ms):
            window.refresh()
        if line.fair is not None:
            self._look_ahead(now_ms)
        elif window.top:
            self._fill_by_priority(now_ms)
        ready, before = len(line.ready), line.count
        while len(line.ready) < wanted and self._known:
            goes_on = line.ready or self._after or self._elsewhere.acks
            most = LINE_MESSAGES if goes_on else LINE_MESSAGES_MAX
            self._full = line.count >= most or self._bytes >= LINE_BYTES_MAX
            if self._full or not self._claim_more(now_ms):
                return
            if len(line.ready) > ready:
                ready, before = len(line.ready), line.count
            enough = line.count - before >= LOOK_MESSAGES
            if enough and (ready or self._clock.boot_ms() - now_ms >= LOOK_MS_MAX):
                self._looks_on = True
                return

    def _look_ahead(self, now_ms: int) -> None:
        """Claim what others may have pushed behind what is in line already: their keys may come
        first. Some at a time, as consumers wait meanwhile."""
        news = self._more_ahead or self._claimer.has_news()
        if now_ms - self._ahead_ms < (AHEAD_MS if news else AHEAD_IDLE_MS):
            return
        for _ in range(ROWS_AHEAD):
            room = self._line.count < LINE_MESSAGES_MAX and self._bytes < LINE_BYTES_MAX
            self._more_ahead = room and self._known and self._claim_more(now_ms)
            if not self._more_ahead:
                self._ahead_ms = now_ms
                return

    def _fill_by_priority(self, now_ms: int) -> None:
        """Claim a run of what goes before all that is ready, if anything does."""
        views = self._in_chains(now_ms)
        self._line.turn(upward=(upward := self._claimer.least_is_next()))
        if upward and self._take_over.ahead.chains and self._line.goes_first(0):
            self._line_up_ahead()  # these have the least
        for view in reversed(views) if upward else views:
            first = self._line.goes_first(view.row.priority) and self._known
            if not first or self._line.count >= LINE_MESSAGES_MAX or self._claim_from(view):
                return

    def _claim_more(self, now_ms: int) -> bool:
        """Claim the next run of the first pipe that has one; whether there was one."""
        window = self._claimer.window
        if self._take_over.ahead.chains and self._line_up_ahead():
            return True
        for again in (False, True):
            for view in self._in_chains(now_ms):
                if not self._known:
                    return False
                if self._claim_from(view):
                    return True
            if again or not window.refresh():
                return False
        return False

    def _line_up_ahead(self) -> bool:
        """Put more in line of what an earlier holder claimed ahead; whether there was more."""
        messages = max(AHEAD_MESSAGES, self._line.count)
        try:
            found = self._take_over.more(self._epochs, messages, self._stays)
            self._line_up(found or ())
        except BaseException:
            self._forget()  # some may be in no line
            raise
        self._waiting.take(self._line.due(self._catalog.now_ms()))  # others changed these
        return found is not None

    def _in_chains(self, now_ms: int) -> list[PipeView]:
        """The pipes to claim from, of those that nothing holds up; none if the lane is not known,
        as what is read of them then is old once it is."""
        if not self._known:
            return []
        views = self._claimer.window.in_chains(self._take_over.chain_of, now_ms)
        held_up, ahead = self._held_up, self._take_over.ahead.chains
        return [view for chain, view in views.items() if not (chain in held_up or chain in ahead)]

    def _claim_from(self, view: PipeView) -> bool:
        """Claim a run of a pipe; whether there was one."""
        window, lock = self._claimer.window, self._lock
        assert lock is not None
        pipe_id = view.row.id
        try:
            if pipe_id not in self._epochs:
                unseen = self._take_over.unseen_before(view.row, self._epochs)
                if unseen:
                    self._adopt_late(unseen)
                    return True
                view.cursor = self._adopt(pipe_id, timed=False, seen=view.cursor)
            elif view.cursor is None:
                view.cursor = self._catalog.claims.cursor(self._group().id, pipe_id)
            cursor = view.cursor
            if cursor is None:
                window.forget(view)
                return False
            if cursor.epoch != self._epochs.get(pipe_id):
                self._forget()
                return False
            found = self._take_over.claimed(view, lock, ROW_MESSAGES)
            if found is None:
                view.cursor = None
                return False
            delivery, pieces = found
            segment = Segment(delivery.rows[0], pieces)
            self._own(segment, delivery)
            self._line.add(segment)
            window.claimed(view)
            self._keep_in_time()  # behind a stuck key this may be a long way
            return True
        except UNREADABLE as exc:
            view.cursor = None
            window.pass_over(pipe_id, exc)
        except BaseException as exc:
            if getattr(exc, "outcome_unknown", True):
                self._forget()  # it may be claimed, and not in line
            view.cursor = None
            raise
        return False

    def _own(self, segment: Segment, delivery: Delivery) -> None:
        delivery.lock, delivery.keyed = None, True
        delivery.hold = SegmentHold(self, segment, delivery)
        segment.delivery = delivery
        reader = self._claimer.window.readers.get(delivery.pipe_id)
        segment.synced = delivery.deliveries > 1 or reader.earlier_boot
        self._segments[delivery] = segment
        segment.size = sum(piece.share for piece in segment.pieces)
        self._bytes += segment.size
        self._settler.take(delivery, segment.pieces, delivery.claimed_ms)

    # --- the lane -----------------------------------------------------------------------------

    def _begin(self, now_ms: int) -> bool:
        """Take the lane, with everything that is unsettled; False while another popper has it."""
        group = self._group()
        if self._lock is None:
            held_ms = HELD_FOR * self._claimer.rules.claim_timeout_ms
            self._lock = self._ports.locker.acquire(lane_lock(group.id, self._part.number), held_ms)
            self._kept_ms = now_ms
        if self._lock is None:
            return False
        self._line = KeyLine.of(group.policy, self._catalog.now_ms)
        self._looked_ms = now_ms - LOOK_BESIDE_MS
        try:
            live = self._catalog.pipes.live(group.queue_id)
            pipes = [pipe for pipe in live if pipe.is_for(group.id) and self._part.has(pipe)]
            self._unread = self._take_over.begun(group.id, pipes)
            self._holding.look(self._line)
            self._adopt_begun()
        except BaseException:
            self._forget()
            raise
        self._known = True
        self._kept_ms = now_ms  # the first of its rows may have been taken then
        self._keep_in_time()
        if self._lock is not None and not self._lock.held():
            self._lose()
        return self._lock is not None and self._known

    def _stays(self) -> bool:
        """Whether the lane is still ours; its lock is renewed, as taking over may take longer."""
        assert self._lock is not None
        now_ms, timeout_ms = self._clock.boot_ms(), self._claimer.rules.claim_timeout_ms
        if now_ms - self._kept_ms >= timeout_ms // 3 and self._lock.renew(HELD_FOR * timeout_ms):
            self._kept_ms = now_ms
        return self._lock.held()

    def _adopt_begun(self) -> None:
        """Adopt the pipes with unsettled messages, as far as they can be read."""
        adopted = self._take_over.adopt(self._group().id, self._unread, self._stays)
        self._unread, self._held_up = adopted.left, adopted.held_up
        self._line_up_of(adopted.segments, adopted.epochs, adopted.ahead)

    def _adopt_late(self, pipes: Iterable[PipeRow | None]) -> None:
        """Adopt pipes, in their places, of which an earlier holder has claimed something late."""
        known = {pipe.id for pipe in self._unread}
        self._unread += [pipe for pipe in pipes if pipe is not None and pipe.id not in known]
        self._unread.sort(key=lambda pipe: pipe.ordinal)
        self._adopt_begun()

    def _adopt(self, pipe_id: str, *, timed: bool, seen: Cursor | None = None) -> Cursor | None:
        """Fence a pipe and put what is unsettled in line; None if it is gone. seen: see `fence`."""
        fenced = self._take_over.fence(self._group().id, [pipe_id], seen=seen).get(pipe_id)
        if fenced is None:
            return None
        found = self._take_over.unsettled(fenced, timed=timed)
        self._line_up_of(found, {pipe_id: fenced.cursor.epoch})
        return fenced.cursor

    def _line_up_of(
        self, found: Sequence[Segment], epochs: Mapping[str, int], ahead: LaterRows = ()
    ) -> None:
        """Put what was found in pipes that were just fenced in line. ahead: what may be later."""
        try:
            if found:
                self._holding.look(self._line)
            self._epochs |= epochs
            self._claimer.window.forget_cursors(epochs)
            for chain, rows in ahead:
                self._take_over.ahead.add(chain, rows)
            self._line_up(found)
        except BaseException:
            self._forget()  # they are thought to be in line
            raise

    def _line_up(self, waiting: Sequence[Segment]) -> None:
        """Put segments of free rows in line: those that are due as ours, in their order, behind
        what was handed out and must wait, which consumers may still have."""
        now_ms = self._catalog.now_ms()
        due = [each for each in waiting if self._take_over.is_due(each.row, now_ms)]
        try:
            taken = self._take_over.taken(due, self._epochs, self._stays)
            last = {*taken, *(each for each in waiting if not each.row.deliveries)}
            for segment in sorted(waiting, key=last.__contains__):
                if segment in taken:
                    self._own(segment, taken[segment])
                self._line.add(segment)
        except BaseException:
            self._forget()  # some may be taken, and not in line
            raise

    def _lose(self) -> None:
        """The lock is lost: what was in hand is delivered again, by the lane's next holder."""
        self._forget()
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def _forget(self) -> None:
        """What is known of the lane is not as it is in the catalog, as somebody else changed it:
        start over. What was in hand is delivered again after a claim timeout."""
        for delivery, segment in list(self._segments.items()):
            if segment.out:
                self._forgotten.add(len(segment.out), delivery.due_ms)
            self._settler.forget(delivery)
        self._clear()

    def _clear(self) -> None:
        self._known = self._missed = self._looks_on = False
        self._segments.clear()
        self._bytes = 0
        self._epochs.clear()
        self._after.clear()
        for part in (self._take_over.ahead, self._elsewhere, self.receiving):
            part.clear()
        self._goes_on = False
        self._line = KeyLine()
        self._claimer.window.forget_cursors()

    # --- what is, or comes, due -----------------------------------------------------------------

    def _take_due(self, now_ms: int) -> None:
        """Take the free rows that are due: failed messages, and delayed ones."""
        changed = self._elsewhere.look(self._segments, now_ms, at_once=self._hungry)
        if changed is None:
            self._forget()
            return
        self._waiting.take(changed + self._line.due(self._catalog.now_ms()))
        look_ms = LOOK_MS if self._ports.sharing is None else LOOK_BESIDE_MS
        many = len(self._take_over.ahead.pipes)  # to leave out many takes long
        if now_ms - self._looked_ms < look_ms * min(10, 1 + many // 1000):
            return
        self._looked_ms = now_ms
        self._waiting.take(self._watch.changed(self._line, now_ms))
        if not self._known:
            return
        timers = self._claimer.timers
        if self._claimer.window.is_stale(now_ms):
            timers.refresh(old_ms=REFRESH_MS)
        timers.schedule()
        while timers.broken:
            self._claimer.window.set_aside(*timers.broken.pop())
        self._adopt_begun()
        out = {*self._claimer.window.left_alone(), *self._take_over.ahead.pipes}
        out.update(pipe.id for pipe in self._unread)
        due = self._part.due(self._group().id, self._catalog.now_ms(), DUE_LISTED, out)
        new_ids = [pipe_id for pipe_id in due if pipe_id not in self._epochs]
        late = [pipe_id for pipe_id in new_ids if not timers.owns(pipe_id)]
        if late:
            self._adopt_late(map(self._catalog.pipes.by_id, late))
        for pipe_id, some in due.items():
            if not self._known:
                return
            try:
                if pipe_id in new_ids:
                    if pipe_id not in late:
                        self._adopt(pipe_id, timed=True)
                    continue
                free = [row for row in some if row.state is ClaimState.FREE]
                ours = self._segments.values()
                new = [row for row in free if not self._elsewhere.knows(row, ours)]
                self._line_up([self._take_over.segment(row) for row in new])
            except UNREADABLE as exc:
                self._claimer.window.pass_over(pipe_id, exc)
                if pipe_id in self._epochs:
                    self._forget()
                    return

    # --- what the consumers say -----------------------------------------------------------------

    @property
    def elsewhere(self) -> ReceiptFollower:
        return self._elsewhere

    def acked(self, segment: Segment, keys: Sequence[bytes | None]) -> None:
        self._line.finished(keys)
        named = [key for key in keys if key is not None]
        if named:
            self._after.append((segment, named))
        if self._hungry and (self._after or self._elsewhere.acks):
            self._hungry = False
            self._wake()

    def over(self, delivery: Delivery) -> None:
        segment = self._segments.pop(delivery, None)
        self._missed |= delivery.lost
        self._bytes -= segment.size if segment is not None else 0

    def finished(self, count: int, since_ms: int) -> None:
        self._settler.pace.finished.append((count, self._catalog.now_ms() - since_ms))

    def put_back(self, entries: list[Entry], keys: Sequence[bytes | None]) -> None:
        self._line.finished(keys)
        self._line.put_back(entries)
        if self._hungry:
            self._hungry = False
            self._wake()

    def put_back_ahead(self, ahead: Mapping[Delivery, RangeSet]) -> None:
        """Messages that were taken ahead were not used."""
        segment_hold.put_back_ahead(self._segments, self._settler, ahead)

    def failed(self, row: Claim, entries: list[Entry]) -> None:
        self._line.failed(row, entries)

    def flushed(self, free: Sequence[Claim]) -> None:
        """All that was noted is written. free: the rows of what was given back."""
        if self._missed:
            self._forget()  # what of it was acked may not be, and comes again before what follows
            return
        after, self._after = self._after, []
        self._goes_on = False
        self._elsewhere.flushed()
        for _, keys in after:
            self._line.settled_all(keys)
        self._waiting.dead_letter_spent(free)

    def extend(self, delivery: Delivery, seq: int, ms: int) -> bool:
        """Give the consumer of a message `ms` milliseconds from now; False if it is not its."""
        segment = self._segments.get(delivery)
        if segment is None or delivery.lost or seq not in segment.out:
            return False
        segment.until_ms[seq] = self._catalog.now_ms() + ms
        return True

    # --- keeping --------------------------------------------------------------------------------

    def maintain_within(self) -> float:
        """In how many seconds `maintain` is due after a call of `take`."""
        return min(self._claimer.rules.claim_timeout_ms / 3, IDLE_MS) / 1000

    def maintain(self, *, leave: bool = False) -> float:
        """Keep the lane and its rows, take messages from consumers that are gone, and leave a lane
        that is not used; seconds until the next time. leave: it will not be used again.

        Cost: in a third of the claim timeout, that of renewing the lock; in the whole of it, a
        write of each row.
        """
        if self._lock is None:
            return _NEVER
        now_ms, timeout_ms = self._clock.boot_ms(), self._claimer.rules.claim_timeout_ms
        if (leave or now_ms - self._used_ms >= IDLE_MS) and not self._is_needed():
            self.leave({})
            return _NEVER
        self._keep_in_time()
        return min(max(0, self._kept_ms + timeout_ms // 3 - now_ms), IDLE_MS) / 1000

    def _is_needed(self) -> bool:
        """Whether consumers have messages that another popper, if it had the lane, would deliver
        at once: also such as were forgotten, until their rows say so (`TakeOver.fence`)."""
        forgotten = 0 if self._known else self._forgotten.count(self._catalog.now_ms)
        return forgotten > 0 or any(segment.out for segment in self._segments.values())

    def _keep_in_time(self) -> None:
        """Keep the lane, if that was not done for a while."""
        now_ms, timeout_ms = self._clock.boot_ms(), self._claimer.rules.claim_timeout_ms
        if now_ms - self._kept_ms >= timeout_ms // 3:
            self._keep(timeout_ms)
            self._kept_ms = now_ms  # only now: if it failed, nothing is handed out until it has not

    def due_ms(self, row: Claim) -> int:
        now_ms, timeout_ms = self._catalog.now_ms(), self._claimer.rules.claim_timeout_ms
        return row.due_ms if row.due_ms >= now_ms + timeout_ms else now_ms + HELD_FOR * timeout_ms

    def in_hand(self) -> int:
        """How many messages consumers have. Cost: linear in the rows held."""
        count = sum(len(segment.out) for segment in self._segments.values())
        count += self._forgotten.count(self._catalog.now_ms)
        return count + self._elsewhere.in_hand(self._claimer.name)

    def _keep(self, timeout_ms: int) -> None:
        if self._lock is None or not self._lock.renew(HELD_FOR * timeout_ms):
            self._lose()
            return
        now_ms = self._catalog.now_ms()
        if give_up_late(self._segments, self._settler, now_ms, timeout_ms, self._keep_alive_ms):
            self._flush()
        # What is kept for so long may wait for the next time.
        soon_ms = now_ms + timeout_ms + timeout_ms // 3
        due = [each for each in self._segments if any(row.due_ms < soon_ms for row in each.rows)]
        if due and not self._settler.extend_all(due, HELD_FOR * timeout_ms):
            self._forget()

    def leave(self, ahead: Mapping[Delivery, RangeSet]) -> None:
        """Give everything back, and leave the lane: what is in hand counts as delivered, but not
        what was only taken `ahead`."""
        lock = self._lock
        if lock is None:
            return
        segment_hold.give_up_all(self._segments, self._settler, ahead)
        self._lock = None
        self._clear()
        try:
            self._flush()
        finally:
            lock.release()
            self._ring()

    # --- waiting --------------------------------------------------------------------------------

    def until_due(self, most: float) -> float:
        """Seconds until there may be something to do; at most `most`."""
        if self._lock is None or self._claimer.paused:
            return most if self._claimer.paused else min(most, IN_LINE_SECONDS)
        most = self._watch.until_due(self._line, self._holding.until_due(self._line, most))
        most = self._elsewhere.until_due(most)
        return self._line.until_due(self._catalog.now_ms(), most)

    def has_news(self) -> bool:
        """Whether something may be ready. Memory reads only."""
        if self._lock is None or self._claimer.paused:
            return False
        if self._line.ready or self._after or self._elsewhere.acks or self._looks_on:
            return True
        stuck = self._full or self._held_up or self._take_over.ahead.chains
        return not stuck and self._claimer.has_news()
