"""Settling: how a popper's acks, nacks and extensions get into the catalog.

Acks and nacks are collected and written in groups; extending writes at once. Every write is
conditional on the row's version (and, in exclusive groups, on the pipe's epoch): if it does not
apply, the claim was lost. If its outcome is unknown, it is read back before anything else is
written.

Not thread-safe: `cassq.popper` holds its lock around every call.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from random import random

from cassq.base.counters import Tally
from cassq.consumer.claimer import Claimer
from cassq.consumer.delivery import Delivery, NackOptions
from cassq.consumer.pace import ACK_INTERVAL_MS, PopperPace
from cassq.errors import BackendError, ClaimLostError
from cassq.lifecycle.ports import Ports
from cassq.message.bundles import BundleSlice
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims
from cassq.model.claims import GiveBack
from cassq.model.rows import Claim, ClaimState

Change = tuple[Delivery, Claim, list[Claim]]

# A claim is extended once no more than this share of its timeout is left. Claims are checked three
# times in a timeout, so more than a third is left then.
EXTENDED_BELOW = 0.7


class Settler:
    """Keeps the deliveries of one popper until all of their messages are settled.

    claimer: claims them. finished: called when a delivery is over.
    """

    def __init__(
        self,
        ports: Ports,
        claimer: Claimer,
        finished: Callable[[], None],
        group: str,
    ) -> None:
        self._catalog = ports.catalog
        self._version = ports.ids.version
        self._claimer = claimer
        self._finished = finished
        self.said: dict[Delivery, None] = {}  # those with something to write
        self._unsure: list[tuple[Delivery, Claim, list[Claim]]] = []  # writes of unknown outcome
        self.flush_ms: int = 0  # when to write the acks not yet written
        self.acks_written: bool = False  # by the last flush
        self.failure: Exception | None = None  # why it could not write everything
        self.holdings: dict[Delivery, None] = {}
        self.tally: Tally = Tally(group)
        self.pace: PopperPace = PopperPace(int(ports.ids.client, 16))

    def take(self, holding: Delivery, pieces: Sequence[BundleSlice], now_ms: int) -> None:
        """Keep a new delivery. pieces: its messages."""
        holding.pieces = pieces
        holding.taken_ms = now_ms
        self.holdings[holding] = None
        if holding.deliveries > 1:
            self.tally.redelivered += holding.count

    def until_flush_ms(self, now_ms: int) -> int:
        """How much longer acks are, or would be, collected."""
        if self.said:
            return max(0, self.flush_ms - now_ms)
        if self.pace.quick:
            return ACK_INTERVAL_MS
        return self.pace.ack_wait_ms(self._claimer.rules.claim_timeout_ms, now_ms)

    def begin(self, now_ms: int) -> int:
        """Before an ack or nack is noted: for how many milliseconds more may be collected with it;
        0 if it joins a group already being collected."""
        if self.said:
            return 0
        wait_ms = self.until_flush_ms(now_ms)
        self.flush_ms = now_ms + wait_ms
        return wait_ms

    @property
    def overdue(self) -> bool:
        """Whether acks were collected for long enough; called only while there are any."""
        return self._catalog.now_ms() >= self.flush_ms

    @property
    def giving(self) -> bool:
        """Whether anything given back is not yet written."""
        return any(holding.backs for holding in self.said)

    @property
    def open_count(self) -> int:
        """How many messages are claimed and neither acked nor given back."""
        return sum(holding.left for holding in self.holdings)

    # --- acks ---------------------------------------------------------------------------------

    def note(self, holding: Delivery, seqs: RangeSet, now_ms: int) -> None:
        """Collect acks. Raises ClaimLostError for messages that are no longer ours."""
        given, gave = EMPTY, holding.gave
        if gave and seqs.single is None:
            given = seqs & holding.given_seqs()
        holding.settle(seqs - given if gave else seqs)
        if not (holding.left or gave):
            self.pace.finished.append((holding.count, now_ms - holding.taken_ms))
        self._note(holding, now_ms)
        if gave:
            holding.check(given)

    def flush(self) -> list[Claim]:
        """Write everything collected in one synced transaction, and mark lost claims. Returns the
        rows given back, free now. `failure` says why something could not be written."""
        begun_ms = self._catalog.now_ms()
        try:
            free = self._flush()
        except Exception as exc:
            self.tally.failed("commit", exc)
            raise
        self.pace.flushed(self._catalog.now_ms() - begun_ms)
        return free

    def _flush(self) -> list[Claim]:
        self._clear_up()
        self.acks_written, self.failure = False, None
        free: list[Claim] = []
        for epoch, part in groupby(list(self.said), key=attrgetter("epoch")):
            changes: list[Change] = []
            whole: dict[Delivery, bool] = {}
            for holding in part:
                said, whole[holding] = self._said(holding)
                changes += said
            if changes:
                free += self._write(changes, epoch)
            for holding, gives_too in whole.items():
                self._written(holding, gives_too=gives_too)
        return free

    def _said(self, holding: Delivery) -> tuple[list[Change], bool]:
        """What to write for a delivery, and whether that is everything noted of it. If the rows
        for what it gives back cannot be built, those wait for the next time: no message may lose
        its ack over that."""
        try:
            return self._changes(holding, self._gives(holding)), True
        except Exception as exc:
            self.failure = exc
            return self._changes(holding, []), False

    def _written(self, holding: Delivery, *, gives_too: bool) -> None:
        """What was noted of a delivery is now written, or lost with its claim."""
        if not holding.lost:
            self.acks_written |= bool(holding.pending)
            self.tally.committed += len(holding.pending)
        holding.pending = EMPTY
        if gives_too or holding.lost:
            holding.backs.clear()
            del self.said[holding]
            self._drop_if_over(holding)

    def _changes(self, holding: Delivery, gives: list[GiveBack]) -> list[Change]:
        """The replacement of each row with messages that were acked or given back."""
        rows = sorted(holding.rows, key=attrgetter("start"))
        starts = [row.start for row in rows]
        given: list[list[GiveBack]] = [[] for _ in rows]
        for give in gives:
            first, last = give.seqs.ranges[0][0], give.seqs.ranges[-1][1]
            for at in range(max(0, bisect_right(starts, first) - 1), bisect_left(starts, last)):
                seqs = give.seqs.within(rows[at].start, rows[at].end)
                if seqs:
                    given[at].append(self._recorded(give._replace(seqs=seqs), rows[at]))
        changes: list[Change] = []
        for row, mine in zip(rows, given, strict=True):
            acks = holding.pending.within(row.start, row.end)
            if acks or mine:
                new = claims.resolved(row, acks, mine, self._version)
                changes.append((holding, row, new))
        return changes

    def _write(self, changes: list[Change], epoch: int | None) -> list[Claim]:
        pairs = [(old, new) for _, old, new in changes]
        # The outcome is unknown also when a signal handler raises in the middle of this.
        self._unsure += changes
        try:
            results = self._catalog.claims.replace_many(pairs, epoch=epoch)
        except BackendError as exc:
            if not exc.outcome_unknown:
                del self._unsure[len(self._unsure) - len(changes) :]
            raise
        free: list[Claim] = []
        now_ms = self._catalog.now_ms()
        for (holding, old, new), done in zip(changes, results, strict=True):
            if done:
                holding.replace(old, new)
                given = [row for row in new if row.state is ClaimState.FREE]
                for row in given:
                    self._claimer.retaker.remnants.keep(row, holding.pieces, now_ms)
                free += given
            else:
                self._lose(holding, old)
        del self._unsure[len(self._unsure) - len(changes) :]
        return free

    def _clear_up(self) -> None:
        """Read back the writes of unknown outcome: each applied, did not, or came after the claim
        was lost."""
        while self._unsure:
            holding, old, new = self._unsure[-1]
            seqs = range(old.start, old.end)
            rows = self._catalog.claims.rows(old.group_id, old.pipe_id, seqs)
            versions = {row.version for row in rows}
            if old.version not in versions and old in holding.rows:
                if any(row.version in versions for row in new) or self._is_done(old, holding, rows):
                    holding.replace(old, new)
                else:
                    self._lose(holding, old)
            self._unsure.pop()

    def _is_done(self, old: Claim, holding: Delivery, rows: list[Claim]) -> bool:
        """Whether all of `old` is done, by merged rows or an advanced ack offset."""
        cursor = self._catalog.claims.cursor(old.group_id, old.pipe_id)
        if holding.epoch is not None and (cursor is None or cursor.epoch != holding.epoch):
            return False  # another popper has, or may have, taken the pipe since
        done = RangeSet((row.start, row.end) for row in rows if row.state is ClaimState.DONE)
        below = RangeSet.run(0, cursor.ack.seq if cursor else old.end)
        return (done | below).covers(old.start, old.end)

    def _lose(self, holding: Delivery, row: Claim) -> None:
        holding.lost = True
        self.tally.lost += row.count
        if row in holding.rows:
            holding.rows.remove(row)

    def _drop_if_over(self, holding: Delivery) -> None:
        if holding.left > 0 and not holding.lost:
            return
        if holding in self.holdings:
            del self.holdings[holding]
            self._finished()
        if holding.lock is not None:
            holding.lock.release()
            holding.lock = None

    # --- giving back ----------------------------------------------------------------------------

    def give(self, holding: Delivery, seqs: RangeSet, back: NackOptions) -> None:
        """Collect messages to give back; settled ones stay settled.

        In an exclusive group the messages after them in the claim are given back as well,
        uncounted: they must not be done first. Raises ClaimLostError.
        """
        if self._unsure:
            self._clear_up()
        holding.check(seqs)
        if holding.settled:
            seqs = seqs - holding.settled
        if not seqs:
            return
        self._note(holding, self._catalog.now_ms())
        holding.give(seqs, back)
        self.tally.given(len(seqs), counted=back.counted, doomed=back.doomed)
        if holding.epoch is not None:
            later = holding.open_seqs() - RangeSet([(0, seqs.ranges[-1][1])])
            if later:
                holding.give(later, NackOptions(counted=False))

    def give_one(self, holding: Delivery, seq: int, back: NackOptions, now_ms: int) -> None:
        """`give` for one message of a non-exclusive group."""
        if self._unsure or holding.lost or holding.has_given(seq):
            self.give(holding, RangeSet.run(seq, seq + 1), back)
        elif not holding.settled or seq not in holding.settled:
            if holding not in self.said:
                self._note(holding, now_ms)
            holding.give_one(seq, back)
            self.tally.given(1, counted=back.counted, doomed=back.doomed)

    def _note(self, holding: Delivery, now_ms: int) -> None:
        """Note that a delivery has something to write."""
        if not self.said and self.flush_ms <= now_ms:
            self.begin(now_ms)
        self.said[holding] = None

    def _gives(self, holding: Delivery) -> list[GiveBack]:
        """What is being given back, in the form for claim rows. Delays begin now."""
        if not holding.backs:
            return []
        self._claimer.look()
        rules, now_ms = self._claimer.rules, self._catalog.now_ms()
        slow_ms = self._claimer.health.slow_ms(holding.rows[0]) if holding.rows else 0
        gives: list[GiveBack] = []
        for back, spans in holding.backs.items():
            seqs = RangeSet(spans)
            if not seqs:
                continue  # the caller was interrupted before the seqs were noted
            if not back.counted:
                gives.append(GiveBack(seqs, 0, holding.deliveries - 1))  # to the front of the line
                continue
            wait_ms = back.delay_ms
            if wait_ms is None:
                wait_ms = rules.retry_ms(holding.deliveries, random())
            failure = claims.failure_record(
                "rejected",
                back.error,
                self._claimer.name,
                now_ms,
                doomed=back.doomed,
            )
            due_ms = now_ms + (0 if back.doomed else max(wait_ms, slow_ms))
            give = GiveBack(seqs, due_ms, holding.deliveries, failure)
            spent = holding.deliveries >= rules.max_deliveries
            if back.doomed or (spent and not back.together):
                # Each becomes a dead letter by itself, so each needs a row of its own.
                gives += [give._replace(seqs=RangeSet.run(seq, seq + 1)) for seq in seqs]
            elif back.together:
                gives.append(claims.cut_up(give, rules.max_deliveries))
            else:
                gives.append(give)
        return gives

    def _recorded(self, give: GiveBack, row: Claim) -> GiveBack:
        """`give`, with what must be kept of earlier failures."""
        if not give.failure:
            return give
        return give._replace(failure=self._claimer.health.recorded(row, give.failure))

    # --- keeping --------------------------------------------------------------------------------

    def extend(self, holding: Delivery, ms: int) -> None:
        """Move the claim's deadline to `ms` from now. Raises ClaimLostError."""
        self._clear_up()
        holding.check(EMPTY)
        due_ms = self._catalog.now_ms() + ms
        if holding.lock is not None and not holding.lock.renew(ms):
            holding.lost = True
        else:
            version = self._version
            changes = [
                (holding, row, claims.extended(row, due_ms, version)) for row in holding.rows
            ]
            self._write(changes, holding.epoch)
            holding.due_ms = due_ms
        if holding.lost:
            self.said.pop(holding, None)
            self._drop_if_over(holding)
            raise ClaimLostError(pipe_id=holding.pipe_id)

    def near_deadline(self, cap_ms: float, timeout_ms: int) -> dict[Delivery, int]:
        """The claims to extend, and for how long from now: those close to their deadline whose
        consumers are alive, up to `cap_ms` after the claim was made."""
        now_ms = self._catalog.now_ms()
        found: dict[Delivery, int] = {}
        for holding in self.holdings:
            rest_ms = holding.due_ms - now_ms
            left_ms = min(timeout_ms, holding.claimed_ms + cap_ms - now_ms)
            if left_ms > rest_ms and rest_ms < EXTENDED_BELOW * timeout_ms and holding.is_attended:
                found[holding] = round(left_ms)
        return found

    def keep_alive(self, wanted: dict[Delivery, int]) -> None:
        """Extend claims, each to the given time from now. The consumer of a lost one learns of it
        when it acks. Cost: one synced transaction for all; in exclusive groups one for each."""
        together = [holding for holding in wanted if holding.epoch is None]
        if together:
            self._clear_up()
            now_ms = self._catalog.now_ms()
            changes: list[Change] = [
                (holding, row, claims.extended(row, now_ms + wanted[holding], self._version))
                for holding in together
                for row in holding.rows
            ]
            if changes:
                self._write(changes, None)
            for holding in together:
                holding.due_ms = now_ms + wanted[holding]
                if holding.lost:
                    self.said.pop(holding, None)
                    self._drop_if_over(holding)
        for holding, ms in wanted.items():
            if holding.epoch is not None:
                try:
                    self.extend(holding, ms)
                except ClaimLostError:
                    continue  # its consumer learns of it when it acks
