"""Settling: writes a popper's acks, nacks and extensions to the catalog.

Acks and nacks are collected and written in groups; an extension is written at once. Every write is
conditional on the row's version (and, in exclusive groups, on the pipe's epoch): if it is refused,
the claim was lost, unless receipts changed the row. If the outcome of a write is unknown, the rows
are read before anything else is written.

Not thread-safe: `cassq.popper` holds its lock around every call.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from random import random

from cassq.base.clock import attempts, contended
from cassq.base.counters import Tally
from cassq.consumer.claiming.claimer import Claimer
from cassq.consumer.delivery import TURN_MS, Delivery, NackOptions
from cassq.consumer.pace import ACK_INTERVAL_MS, PopperPace
from cassq.errors import BackendError, ClaimLostError
from cassq.lifecycle.ports import Ports
from cassq.message.bitsets import as_bits
from cassq.message.bundles import BundleSlice
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims
from cassq.model.claims import ReturnedSeqs
from cassq.model.rows import Claim, ClaimState

Change = tuple[Delivery, Claim, list[Claim]]

# A claim is extended once less than this share of its timeout is left. Claims are checked three
# times per timeout, so more than a third of it is left when that happens.
EXTENDED_BELOW = 0.7


class Settler:
    """Keeps the deliveries of one popper until all of their messages are settled.

    claimer: the popper's. finished: called when a delivery is over.
    """

    def __init__(
        self,
        ports: Ports,
        claimer: Claimer,
        finished: Callable[[], None],
        group: str,
    ) -> None:
        self._catalog, self._clock = ports.catalog, ports.clock
        self._version = ports.ids.version
        self._claimer = claimer
        self._finished = finished
        self.unwritten: dict[Delivery, None] = {}  # those with something to write
        self._unsure: list[tuple[Delivery, Claim, list[Claim]]] = []  # writes of unknown outcome
        self.flush_ms: int = 0  # when to write the acks not yet written
        self.acks_written: bool = False  # by the last flush
        self.flushed_ms: int = 0  # when that ended
        self.failure: Exception | None = None  # why it could not write everything
        self.deliveries: dict[Delivery, None] = {}
        self.tally: Tally = Tally(group)
        self.pace: PopperPace = PopperPace(int(ports.ids.client, 16))

    def take(self, delivery: Delivery, pieces: Sequence[BundleSlice], now_ms: int) -> None:
        """Keep a new delivery. pieces: its messages."""
        delivery.pieces = pieces
        # What was reserved may have been claimed long before.
        delivery.taken_ms = now_ms if delivery.reserved is None else self._catalog.now_ms()
        self.deliveries[delivery] = None
        if delivery.deliveries > 1:
            self.tally.redelivered += delivery.count

    def until_flush_ms(self, now_ms: int) -> int:
        """How much longer acks are, or would be, collected."""
        if self.unwritten:
            return max(0, self.flush_ms - now_ms)
        if self.pace.quick:
            return ACK_INTERVAL_MS
        return self.pace.ack_wait_ms(self._claimer.rules.claim_timeout_ms, now_ms)

    def begin(self, now_ms: int) -> int:
        """Called before an ack or nack is noted. Returns for how many milliseconds others may be
        collected with it; 0 if it joins a group that is already being collected."""
        if self.unwritten:
            return 0
        wait_ms = self.until_flush_ms(now_ms)
        self.flush_ms = now_ms + wait_ms
        return wait_ms

    def begin_wait(self) -> int:
        """Called before the popper waits. Returns for how many milliseconds acks may still be
        collected, so that a message that comes at once need not wait for their write. 0 if others
        wait for that write: for a message given back, or in a group with order or limits."""
        if self._claimer.rules.limited:
            return 0
        if any(each.pending_returns or each.epoch is not None for each in self.unwritten):
            return 0
        now_ms = self._catalog.now_ms()
        self.flush_ms = min(self.flush_ms, now_ms + ACK_INTERVAL_MS)
        return max(0, self.flush_ms - now_ms) if self.unwritten else 0

    @property
    def overdue(self) -> bool:
        """Whether acks were collected for long enough. Called only while there are any. In an
        exclusive group these could not be written at once, and all that follows waits for them."""
        return self._claimer.exclusive or self._catalog.now_ms() >= self.flush_ms

    @property
    def giving(self) -> bool:
        """Whether anything given back is not yet written."""
        return any(delivery.pending_returns for delivery in self.unwritten)

    @property
    def open_count(self) -> int:
        """How many messages are claimed and neither acked nor given back."""
        return sum(delivery.left for delivery in self.deliveries)

    def has_prime_suspect(self) -> bool:
        """Whether a consumer has a message that is suspected of having crashed earlier ones."""
        most = self._claimer.rules.max_deliveries
        return any(
            each.left and any(claims.is_prime_suspect(row, most) for row in each.rows)
            for each in self.deliveries
        )

    def in_hand(self, ahead: int) -> tuple[int, int]:
        """How many messages consumers have, and until when the last of them is claimed. ahead: how
        many claimed messages were not handed out yet."""
        due_ms = max((delivery.due_ms for delivery in self.deliveries), default=0)
        return self.open_count - ahead, due_ms

    # --- acks ---------------------------------------------------------------------------------

    def note(self, delivery: Delivery, seqs: RangeSet, now_ms: int) -> None:
        """Collect acks. Raises ClaimLostError for messages that are no longer ours."""
        has_returns, left = delivery.has_returns, seqs
        if delivery.hold is not None:
            delivery.hold.check(seqs)
            delivery.settle(as_bits(seqs, delivery.hold.base), ours=True)
            self._note(delivery, now_ms)
            delivery.hold.acked(seqs)
            return
        if has_returns and seqs.single is None:
            left = seqs - delivery.given_seqs()
            delivery.settle(left, ours=True)
        else:
            delivery.settle(seqs)
        if not (delivery.left or has_returns):
            self.pace.finished.append((delivery.count, now_ms - delivery.taken_ms))
        self._note(delivery, now_ms)
        if left != seqs:
            delivery.check(seqs - left)

    def flush(self) -> list[Claim]:
        """Write everything collected in one synced transaction, and mark lost claims. Returns the
        rows that were given back, now free. `failure` says why something could not be written."""
        begun_ms = self._catalog.now_ms()
        try:
            free = self._flush(begun_ms)
        except Exception as exc:
            self.tally.failed("commit", exc)
            raise
        self.flushed_ms = self._catalog.now_ms()
        self.pace.flushed(self.flushed_ms - begun_ms)
        return free

    def _flush(self, now_ms: int) -> list[Claim]:
        self._clear_up()
        self.acks_written, self.failure = False, None
        free: list[Claim] = []
        whole: dict[Delivery, bool] = {}
        left = list(self.unwritten)
        for _ in attempts(self._clock):
            changes: list[Change] = []
            for delivery in left:
                replaced, whole[delivery] = self._changes_of(delivery, now_ms)
                changes += replaced
            left = self._write(changes, free, now_ms) if changes else []
            if not left:
                break
        for delivery in left:
            del whole[delivery]  # it stays noted until the next flush
            self.failure = contended(f"the claims of pipe {delivery.pipe_id}")
        for delivery, gives_too in whole.items():
            self._written(delivery, gives_too=gives_too)
        return free

    def _changes_of(self, delivery: Delivery, now_ms: int) -> tuple[list[Change], bool]:
        """What to write for a delivery, and whether that is everything noted of it. If the rows for
        messages that it gives back cannot be built, these wait for the next flush: acks must not be
        lost because of that."""
        try:
            return self._changes(delivery, self._gives(delivery, now_ms)), True
        except Exception as exc:
            self.failure = exc
            return self._changes(delivery, []), False

    def _written(self, delivery: Delivery, *, gives_too: bool) -> None:
        """Clear what was noted of a delivery: it is now written, or lost with its claim."""
        if not delivery.lost:
            self.acks_written |= bool(delivery.pending)
            self.tally.committed += len(delivery.pending)
        delivery.pending = EMPTY
        if gives_too or delivery.lost:
            delivery.pending_returns.clear()
            del self.unwritten[delivery]
            self._drop_if_over(delivery)

    def write_tried(self, deliveries: Sequence[Delivery], *, synced: bool) -> None:
        """Write which messages a keyed group is about to hand out, and mark lost claims. The write
        survives a crash of the process, with `synced` also of the machine. Cost: a transaction."""
        self._clear_up()
        left, now_ms = list(deliveries), self._catalog.now_ms()
        for _ in attempts(self._clock):
            changes = [change for delivery in left for change in self._tries_of(delivery)]
            left = self._write(changes, [], now_ms, synced=synced) if changes else []
            if not left:
                return
        raise contended(f"the claims of pipe {left[0].pipe_id}")

    def _tries_of(self, delivery: Delivery) -> Iterator[Change]:
        """The replacement of each row whose handed-out messages change."""
        for row in delivery.rows:
            tried, due_ms = _tried(delivery, row)
            if tried is not None:
                new = claims.resolved(row, EMPTY, [], self._version, tried=tried, due_ms=due_ms)
                yield delivery, row, new

    def write_deadlines(self, changes: Sequence[Change], *, synced: bool) -> list[Change]:
        """Write the changes of a keyed group's rows that give messages deadlines of their own.
        Returns those that were applied; the claims of the others are lost. Cost: a transaction."""
        self._clear_up()
        done: list[Change] = []
        for change, is_done in zip(changes, self._replace(changes, synced=synced), strict=True):
            delivery, old, new = change
            if is_done:
                delivery.split_off(old, new)
                self._drop_if_over(delivery)
                done.append(change)
            else:
                self._lose(delivery, old)
        return done

    def _replace(self, changes: Sequence[Change], *, synced: bool) -> list[bool]:
        """Write changes in one transaction; returns whether each was applied."""
        pairs = [(old, new) for _, old, new in changes]
        epochs = [delivery.epoch for delivery, _, _ in changes]
        return self._catalog.claims.replace_many(pairs, epochs=epochs, synced=synced)

    def will_write(self, delivery: Delivery) -> None:
        """Have the next flush write which messages of a claim a keyed group has handed out."""
        self._note(delivery, self._catalog.now_ms())

    def _changes(self, delivery: Delivery, gives: list[ReturnedSeqs]) -> list[Change]:
        """The replacement of each row with messages that were acked or given back."""
        rows = sorted(delivery.rows, key=attrgetter("start"))
        starts = [row.start for row in rows]
        given: list[list[ReturnedSeqs]] = [[] for _ in rows]
        for give in gives:
            first, last = give.seqs.ranges[0][0], give.seqs.ranges[-1][1]
            for at in range(max(0, bisect_right(starts, first) - 1), bisect_left(starts, last)):
                seqs = give.seqs.within(rows[at].start, rows[at].end)
                if seqs:
                    given[at].append(self._recorded(give._replace(seqs=seqs), rows[at]))
        changes: list[Change] = []
        for row, mine in zip(rows, given, strict=True):
            acks = delivery.pending.within(row.start, row.end)
            if row.acked:  # some may have been written before the write of another row failed
                acks = acks - row.acked
            tried, due_ms = _tried(delivery, row)
            if acks or mine or tried is not None:
                new = claims.resolved(row, acks, mine, self._version, tried=tried, due_ms=due_ms)
                changes.append((delivery, row, new))
        return changes

    def _write(
        self,
        changes: list[Change],
        free: list[Claim],
        now_ms: int,
        *,
        synced: bool = True,
    ) -> list[Delivery]:
        """Write changes, and add the rows that are free now to `free`. Returns the deliveries that
        must be written again, as receipts have changed their rows."""
        if any(delivery.reserved is not None for delivery, _, _ in changes):
            changes = [each for each in changes if not self._write_reserved(each, free, now_ms)]
            if not changes:
                return []
        # The outcome is also unknown if a signal handler raises in the middle of this.
        self._unsure += changes
        try:
            results = self._replace(changes, synced=synced)
        except BackendError as exc:
            if not exc.outcome_unknown:
                del self._unsure[len(self._unsure) - len(changes) :]
            raise
        again: dict[Delivery, None] = {}
        for (delivery, old, new), done in zip(changes, results, strict=True):
            if done:
                free += self._replaced(delivery, old, new, now_ms)
            elif self._find_again(delivery, old):
                again[delivery] = None
        del self._unsure[len(self._unsure) - len(changes) :]
        return list(again)

    def _replaced(
        self, delivery: Delivery, old: Claim, new: list[Claim], now_ms: int
    ) -> list[Claim]:
        """Note that a row was replaced. Returns the new rows that are free."""
        delivery.replace(old, new)
        given = [row for row in new if row.state is ClaimState.FREE]
        if delivery.hold is not None:
            delivery.hold.written(given)
        else:
            for row in given:
                self._claimer.redelivery.retained.keep(row, delivery.pieces, now_ms)
        return given

    def _write_reserved(self, change: Change, free: list[Claim], now_ms: int) -> bool:
        """Write the first rows of a claim that is a reservation. False if it is not one, or not any
        more: then there may be a row to replace."""
        delivery, old, new = change
        if delivery.reserved is None:
            return False
        self._unsure.append(change)
        try:
            done = self._claimer.reserving.replace(delivery, new)
        except BackendError as exc:
            if not exc.outcome_unknown:
                self._unsure.pop()
            raise
        self._unsure.pop()
        delivery.reserved = None
        if done:
            free += self._replaced(delivery, old, new, now_ms)
        return done

    def _find_again(self, delivery: Delivery, old: Claim) -> bool:
        """A row is not as we last wrote it: whether only receipts changed it. If not, marks the
        claim as lost. Cost: a read; two in keyed groups; none in exclusive ones."""
        if delivery.epoch is None or delivery.keyed:
            seqs = range(old.start, old.end)
            rows = self._catalog.claims.rows(old.group_id, old.pipe_id, seqs)
            if not self._is_fenced(delivery) and delivery.find_again(old, rows):
                return True
        self._lose(delivery, old)
        return False

    def _is_fenced(self, delivery: Delivery) -> bool:
        """Whether another popper has taken the pipe of an exclusive or keyed group's claim."""
        if delivery.epoch is None:
            return False
        cursor = self._catalog.claims.find_cursor(delivery.group_id, delivery.pipe_id)
        return cursor is None or cursor.epoch != delivery.epoch

    def look_again(self, delivery: Delivery, row: Claim) -> None:
        """A row of a keyed group's claim is not as we last wrote it: find out what receipts did to
        it. If anything else changed it, the claim is lost. Cost: as `_find_again`."""
        self._clear_up()
        if row not in delivery.rows or delivery.lost:
            return
        if self._find_again(delivery, row) and delivery not in self.unwritten:
            self._drop_if_over(delivery)

    def _clear_up(self) -> None:
        """Find out by reading what became of writes of unknown outcome: each was applied or not, or
        the claim was lost before it."""
        if self._unsure:
            self._catalog.claims.ensure_durable()
        while self._unsure:
            delivery, old, new = self._unsure[-1]
            seqs = range(old.start, old.end)
            rows = self._catalog.claims.rows(old.group_id, old.pipe_id, seqs)
            if self._is_reserved(delivery):
                self._unsure.pop()
                continue  # nothing was written
            versions = {row.version for row in rows}
            if old.version not in versions and old in delivery.rows:
                written = any(row.version in versions for row in new)
                # If we were to keep some of the messages but all are done, others did that.
                whole = not any(row.state is ClaimState.HELD for row in new)
                if written or (whole and self._is_done(old, delivery, rows)):
                    delivery.replace(old, new)
                    if delivery.hold is not None:
                        delivery.hold.written([row for row in new if row.state is ClaimState.FREE])
                elif delivery.epoch is not None or not delivery.find_again(old, rows):
                    self._lose(delivery, old)
            self._unsure.pop()

    def _is_reserved(self, delivery: Delivery) -> bool:
        """Whether a claim is still a reservation after a write of unknown outcome. Called after its
        rows were read; that write may have been under way until then."""
        if delivery.reserved is None:
            return False
        then = delivery.reserved.cursor
        now = self._catalog.claims.find_cursor(delivery.group_id, delivery.pipe_id)
        if now is not None and (now.chain.seq, now.epoch) == (then.chain.seq, then.epoch):
            return True
        delivery.reserved = None
        return False

    def _is_done(self, old: Claim, delivery: Delivery, rows: list[Claim]) -> bool:
        """Whether all messages of `old` are done, by merged rows or a later ack offset."""
        cursor = self._catalog.claims.cursor(old.group_id, old.pipe_id)
        if delivery.epoch is not None and (cursor is None or cursor.epoch != delivery.epoch):
            return False  # another popper has, or may have, taken the pipe since
        done = RangeSet((row.start, row.end) for row in rows if row.state is ClaimState.DONE)
        below = RangeSet.run(0, cursor.ack.seq if cursor else old.end)
        return (done | below).covers(old.start, old.end)

    def _lose(self, delivery: Delivery, row: Claim) -> None:
        delivery.lost = True
        self.tally.lost += row.count
        if row in delivery.rows:
            delivery.rows.remove(row)

    def _drop_if_over(self, delivery: Delivery) -> None:
        if delivery.left > 0 and not delivery.lost:
            return
        if delivery in self.deliveries:
            del self.deliveries[delivery]
            self._finished()
            if delivery.hold is not None:
                delivery.hold.over()
        if delivery.lock is not None:
            delivery.lock.release()
            delivery.lock = None

    # --- giving back ----------------------------------------------------------------------------

    def give(self, delivery: Delivery, seqs: RangeSet, back: NackOptions) -> None:
        """Collect messages to give back; settled ones stay settled.

        In an exclusive group the messages after them in the claim are given back as well,
        uncounted, since they must not be done first. Raises ClaimLostError.
        """
        if self._unsure:
            self._clear_up()
        delivery.check(seqs)
        if delivery.settled:
            seqs = seqs - delivery.settled
        if not seqs:
            return
        if delivery.hold is not None:
            delivery.hold.check(seqs)
            if not back.counted:
                released, seqs = seqs, delivery.hold.released(seqs)
                self.will_write(delivery)
                self.tally.given(len(released) - len(seqs), counted=False, doomed=False)
                if not seqs:
                    return
            delivery.hold.failed(seqs)
        self.give_up(delivery, seqs, back)
        if delivery.epoch is not None and delivery.hold is None:
            later = delivery.open_seqs() - RangeSet([(0, seqs.ranges[-1][1])])
            if later:
                delivery.give(later, NackOptions(counted=False))

    def give_up(self, delivery: Delivery, seqs: RangeSet, back: NackOptions) -> None:
        """Collect messages to give back whose claim is known to be ours."""
        self._note(delivery, self._catalog.now_ms())
        delivery.give(seqs, back)
        self.tally.given(len(seqs), counted=back.counted, doomed=back.doomed)

    def give_one(self, delivery: Delivery, seq: int, back: NackOptions, now_ms: int) -> None:
        """`give` for one message of a non-exclusive group."""
        if self._unsure or delivery.lost or delivery.has_given(seq):
            self.give(delivery, RangeSet.run(seq, seq + 1), back)
        elif not delivery.settled.ranges or seq not in delivery.settled:
            if delivery not in self.unwritten:
                self._note(delivery, now_ms)
            delivery.give_one(seq, back)
            self.tally.given(1, counted=back.counted, doomed=back.doomed)

    def _note(self, delivery: Delivery, now_ms: int) -> None:
        """Note that a delivery has something to write."""
        if not self.unwritten and self.flush_ms <= now_ms:
            self.begin(now_ms)
        self.unwritten[delivery] = None

    def _gives(self, delivery: Delivery, now_ms: int) -> list[ReturnedSeqs]:
        """What is being given back, in the form for claim rows. Delays begin with the flush."""
        if not delivery.pending_returns:
            return []
        self._claimer.look()
        rules = self._claimer.rules
        slow_ms = self._claimer.health.slow_ms(delivery.rows[0]) if delivery.rows else 0
        gives: list[ReturnedSeqs] = []
        for back, spans in delivery.pending_returns.items():
            seqs = RangeSet(spans)
            if not seqs:
                continue  # the caller was interrupted before the seqs were noted
            if not back.counted:
                # They go to the front of the line, after the delay if there is one.
                gives.append(ReturnedSeqs(seqs, back.delay_ms or 0, delivery.deliveries - 1))
                continue
            wait_ms = back.delay_ms
            if wait_ms is None:
                wait_ms = rules.retry_ms(delivery.deliveries, random())
            failure = claims.failure_record(
                back.reason,
                back.error,
                self._claimer.name,
                now_ms,
                doomed=back.doomed,
            )
            due_ms = now_ms + (0 if back.doomed else max(wait_ms, slow_ms))
            give = ReturnedSeqs(seqs, due_ms, delivery.deliveries, failure)
            spent = delivery.deliveries >= rules.max_deliveries
            if back.doomed or (spent and not back.together):
                # Each becomes a dead letter by itself, so each needs a row of its own.
                gives += [give._replace(seqs=RangeSet.run(seq, seq + 1)) for seq in seqs]
            elif back.together:
                gives.append(claims.cut_up(give, rules.max_deliveries))
            else:
                gives.append(give)
        return gives

    def _recorded(self, give: ReturnedSeqs, row: Claim) -> ReturnedSeqs:
        """`give`, with what must be kept of the row's earlier failures."""
        if not give.failure:
            return give
        return give._replace(failure=self._claimer.health.recorded(row, give.failure))

    # --- keeping --------------------------------------------------------------------------------

    def extend(self, delivery: Delivery, ms: int) -> None:
        """Move the claim's deadline to `ms` from now. Raises ClaimLostError."""
        self._clear_up()
        delivery.check(EMPTY)
        now_ms = self._catalog.now_ms()
        if delivery.lock is not None and not delivery.lock.renew(ms):
            delivery.lost = True
        else:
            self._extend({delivery: now_ms + ms}, now_ms)
        if delivery.lost:
            self.unwritten.pop(delivery, None)
            self._drop_if_over(delivery)
            raise ClaimLostError(pipe_id=delivery.pipe_id)

    def _extend(self, due_ms: dict[Delivery, int], now_ms: int) -> None:
        """Write new deadlines of claims, for messages that have no deadline of their own."""
        left = list(due_ms)
        for _ in attempts(self._clock):
            changes: list[Change] = [
                (delivery, row, claims.extended(row, due_ms[delivery], self._version))
                for delivery in left
                for row in delivery.rows
                if row.due_ms != due_ms[delivery] or delivery.reserved is not None
            ]
            left = self._write(changes, [], now_ms) if changes else []
            if not left:
                break
        for delivery, then_ms in due_ms.items():
            if delivery not in left:
                delivery.due_ms = then_ms
        if left:
            raise contended(f"the claims of pipe {left[0].pipe_id}")

    def extend_all(self, deliveries: Sequence[Delivery], ms: int) -> bool:
        """Move the deadlines of a keyed group's claims to `ms` from now. False if any claim was
        lost. Cost: a synced transaction."""
        self._clear_up()
        now_ms = self._catalog.now_ms()
        self._extend(dict.fromkeys(deliveries, now_ms + ms), now_ms)
        return not any(delivery.lost for delivery in deliveries)

    def forget(self, delivery: Delivery) -> None:
        """Drop a claim that is lost."""
        delivery.lost = True
        delivery.hold = None
        self.unwritten.pop(delivery, None)
        self.tally.lost += len(delivery.open_seqs())
        self._drop_if_over(delivery)

    def near_deadline(self, cap_ms: float, timeout_ms: int) -> dict[Delivery, int]:
        """The claims to extend, each with the milliseconds from now: those close to their deadline
        whose consumers are alive. The limit is `cap_ms` after the claim was made."""
        now_ms = self._catalog.now_ms()
        found: dict[Delivery, int] = {}
        for delivery in self.deliveries:
            if delivery.hold is not None:
                continue  # `cassq.consumer.keyed.lane` keeps it
            rest_ms = delivery.due_ms - now_ms
            left_ms = min(timeout_ms, delivery.claimed_ms + cap_ms - now_ms)
            wanted = left_ms > rest_ms and rest_ms < EXTENDED_BELOW * timeout_ms
            if delivery.reserved is not None:
                if now_ms < delivery.taken_ms + TURN_MS:
                    continue  # it will probably be acked in a moment
                # To be extended it needs a row, by which others see that it is held.
                left_ms, wanted = max(left_ms, rest_ms + 1), True
            if wanted and delivery.is_attended:
                found[delivery] = round(left_ms)
        return found

    def look_ms(self, timeout_ms: int) -> float:
        """In how many milliseconds to look for such claims again."""
        return TURN_MS if any(each.reserved for each in self.deliveries) else timeout_ms / 3

    def keep_alive(self, wanted: dict[Delivery, int]) -> None:
        """Extend claims, each to the given time from now. If a claim is lost, its consumer gets the
        error at its ack. Cost: one synced transaction for all; in exclusive groups one for each."""
        together = [delivery for delivery in wanted if delivery.epoch is None]
        if together:
            self._clear_up()
            now_ms = self._catalog.now_ms()
            self._extend({delivery: now_ms + wanted[delivery] for delivery in together}, now_ms)
            for delivery in together:
                if delivery.lost:
                    self.unwritten.pop(delivery, None)
                    self._drop_if_over(delivery)
        for delivery, ms in wanted.items():
            if delivery.epoch is not None:
                try:
                    self.extend(delivery, ms)
                except ClaimLostError:
                    continue  # its consumer gets the error at its ack


def _tried(delivery: Delivery, row: Claim) -> tuple[RangeSet | None, int]:
    """Which messages a row must show as handed out, if that changes, and until when it must then be
    held."""
    hold = delivery.hold
    tried = None if hold is None else hold.tried(row)
    return (None, 0) if hold is None or tried is None else (tried, hold.due_ms(row))
