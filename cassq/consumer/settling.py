"""Settling: how what a popper says of its messages gets into the catalog.

Acks are collected and written in groups; giving back and extending write at once, and take the
collected acks of the same claim along. Every write is conditional on the row's version (and, in
exclusive groups, on the pipe's epoch): one that does not apply means that the claim was lost. One
whose outcome is unknown is read back before anything else is written.

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

# A claim is kept alive once no more than this share of its timeout is left. It is looked at three
# times in a timeout, so more than a third is left then.
EXTENDED_BELOW = 0.7


class Settler:
    """Keeps the holdings of one popper until all of their messages are settled.

    claimer: who claims them. finished: told when a holding is over.
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
        self.said: dict[Delivery, None] = {}  # those of which something is to be written
        self._unsure: list[tuple[Delivery, Claim, list[Claim]]] = []  # writes of unknown outcome
        self.flush_ms: int = 0  # when the acks not yet written are to be
        self.acks_written: bool = False  # by the last flush
        self.failure: Exception | None = None  # why it could not write all that was said
        self.holdings: dict[Delivery, None] = {}
        self.tally: Tally = Tally(group)
        self.pace: PopperPace = PopperPace(int(ports.ids.client, 16))

    def take(self, holding: Delivery, pieces: Sequence[BundleSlice], now_ms: int) -> None:
        """Keep a new holding. pieces: its messages."""
        holding.pieces = pieces
        holding.taken_ms = now_ms
        self.holdings[holding] = None
        if holding.deliveries > 1:
            self.tally.redelivered += holding.count

    def until_flush_ms(self, now_ms: int) -> int:
        """How long acks are, or would be, collected from now on."""
        if self.said:
            return max(0, self.flush_ms - now_ms)
        if self.pace.quick:
            return ACK_INTERVAL_MS
        return self.pace.ack_wait_ms(self._claimer.rules.claim_timeout_ms, now_ms)

    def begin(self, now_ms: int) -> int:
        """Something is about to be said: for how many milliseconds it may be collected with more.
        0 when it is collected with what was said before."""
        if self.said:
            return 0
        wait_ms = self.until_flush_ms(now_ms)
        self.flush_ms = now_ms + wait_ms
        return wait_ms

    @property
    def overdue(self) -> bool:
        """Whether what was said was collected for long enough; asked while there is any."""
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
        """Collect acks. Raises ClaimLostError for messages that are not ours any more."""
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
        """One synced transaction for everything collected; lost claims are marked. The rows that
        were given back, as they are free now. What could not be written is in `failure`."""
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
        """What is to be written of a holding, and whether that is all that was said of it. If what
        it gives back cannot be made into rows that is left for the next time: it must cost no
        message its ack."""
        try:
            return self._changes(holding, self._gives(holding)), True
        except Exception as exc:
            self.failure = exc
            return self._changes(holding, []), False

    def _written(self, holding: Delivery, *, gives_too: bool) -> None:
        """What was said of a holding is written, or lost with its claim."""
        if not holding.lost:
            self.acks_written |= bool(holding.pending)
            self.tally.committed += len(holding.pending)
        holding.pending = EMPTY
        if gives_too or holding.lost:
            holding.backs.clear()
            del self.said[holding]
            self._drop_if_over(holding)

    def _changes(self, holding: Delivery, gives: list[GiveBack]) -> list[Change]:
        """What takes the place of each row of whose messages something was said."""
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
        # Also when a signal's handler raises in the middle of this, it is not known how it ended.
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
        """Read back the writes whose outcome was unknown: they applied, did not, or the claim was
        lost before them."""
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
        """Whether all of `old` is done, in rows merged or an ack offset that moved on."""
        cursor = self._catalog.claims.cursor(old.group_id, old.pipe_id)
        if holding.epoch is not None and (cursor is None or cursor.epoch != holding.epoch):
            return False  # another was, or may have been, given the pipe since
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
        """Collect messages to be given back; what was settled before stays as it is.

        In an exclusive group what comes after them in the claim is given back as well, uncounted:
        it must not be done before them. Raises ClaimLostError.
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
        """`give` for one message of a group that is not exclusive."""
        if self._unsure or holding.lost or holding.has_given(seq):
            self.give(holding, RangeSet.run(seq, seq + 1), back)
        elif not holding.settled or seq not in holding.settled:
            if holding not in self.said:
                self._note(holding, now_ms)
            holding.give_one(seq, back)
            self.tally.given(1, counted=back.counted, doomed=back.doomed)

    def _note(self, holding: Delivery, now_ms: int) -> None:
        """Something is said of a holding, to be written."""
        if not self.said and self.flush_ms <= now_ms:
            self.begin(now_ms)
        self.said[holding] = None

    def _gives(self, holding: Delivery) -> list[GiveBack]:
        """What is being given back, as the claim rows are to have it. Delays begin now."""
        if not holding.backs:
            return []
        self._claimer.look()
        rules, now_ms = self._claimer.rules, self._catalog.now_ms()
        slow_ms = self._claimer.health.slow_ms(holding.rows[0]) if holding.rows else 0
        gives: list[GiveBack] = []
        for back, spans in holding.backs.items():
            seqs = RangeSet(spans)
            if not seqs:
                continue  # who said it was interrupted before it was noted
            if not back.counted:
                gives.append(GiveBack(seqs, 0, holding.deliveries - 1))  # in front of the line
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
                # Each is given up by itself, in a row of its own.
                gives += [give._replace(seqs=RangeSet.run(seq, seq + 1)) for seq in seqs]
            elif back.together:
                gives.append(claims.cut_up(give, rules.max_deliveries))
            else:
                gives.append(give)
        return gives

    def _recorded(self, give: GiveBack, row: Claim) -> GiveBack:
        """With what is to be kept of the failures before."""
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
        """The claims that are to be extended, and to how long from now: those that near their
        deadline, up to `cap_ms` after they were made, and whose consumers live."""
        now_ms = self._catalog.now_ms()
        found: dict[Delivery, int] = {}
        for holding in self.holdings:
            rest_ms = holding.due_ms - now_ms
            left_ms = min(timeout_ms, holding.claimed_ms + cap_ms - now_ms)
            if left_ms > rest_ms and rest_ms < EXTENDED_BELOW * timeout_ms and holding.is_attended:
                found[holding] = round(left_ms)
        return found

    def keep_alive(self, wanted: dict[Delivery, int]) -> None:
        """Extend claims, each to so long from now. Who works on one that is lost learns of it
        from his ack. Cost: one synced transaction for all; in exclusive groups one for each."""
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
                    continue  # whoever works on it learns it from his ack
