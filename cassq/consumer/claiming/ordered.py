"""Ordered claims: how a popper of an exclusive group claims from a pipe. It takes the pipe's lock,
takes over what the last holder left, and delivers the messages in order.

Everything it writes is conditional on the epoch, which it raises once it has the lock: a popper
that lost its lock is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cassq.catalog.cover import fault, fault_now, wedged
from cassq.catalog.port import pipe_lock
from cassq.consumer.claiming.candidates import CandidatePipes, PipeView
from cassq.consumer.claiming.new_claims import ROUNDS_MAX, ClaimRequest, NewClaims
from cassq.consumer.claiming.redelivery import Found, read_left
from cassq.consumer.delivery import Delivery
from cassq.consumer.pace import PREFETCH_SECONDS
from cassq.errors import GroupNotFoundError, QueueNotFoundError
from cassq.lifecycle.ports import Ports
from cassq.locks.port import Lock
from cassq.locks.turns import STALE_SHARE, HeldTurn, Turns
from cassq.model import claims
from cassq.model.queues import Rules
from cassq.model.rows import Claim, ClaimState, Cursor, GroupRow, QueueRow


class RowVerbs(NamedTuple):
    """What the claimer does with rows that cannot be handed out as they are.

    freed: the rows that replace a held one. is_spent: whether a free one becomes a dead letter.
    dead_letter, expired: `Claimer.dead_letter` and `Claimer.expired`.
    """

    freed: Callable[[Claim], list[Claim]]
    is_spent: Callable[[Claim], bool]
    dead_letter: Callable[[Claim], bool]
    expired: Callable[[Claim, int], bool]


class OrderedClaims:
    """Claims for one popper, of this name, of one exclusive group.

    locked_out: whether another popper had the lock at the last `claim`. line_seconds: if so, in how
    many seconds to try again.
    """

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        group: Callable[[], GroupRow],
        name: str,
        window: CandidatePipes,
        new_claims: NewClaims,
        verbs: RowVerbs,
    ) -> None:
        self._catalog, self._clock = ports.catalog, ports.clock
        self._locker, self._turns = ports.locker, ports.turns
        self._version = ports.ids.version
        self._queue, self._group = queue, group
        self._name = name
        self._window = window
        self._new_claims = new_claims
        self._verbs = verbs
        self.locked_out: bool = False
        self.line_seconds: float = 0.0

    def claim(self, view: PipeView, request: ClaimRequest) -> list[Found]:
        """Lock the pipe, take over what the lock's last holder left, and continue in order."""
        if not self._window.follows(view):
            return []
        if self._turns is not None:
            return self._claim_in_turn(self._turns, view, request)
        group, timeout_ms = self._group(), request.rules.claim_timeout_ms
        # Read again: a lock on a pipe retired meanwhile would be left behind.
        before = self._catalog.claims.cursor(group.id, view.row.id)
        if before is None:
            self._window.forget(view)
            return []
        if before.ack.seq >= self._window.end_seq(view):
            view.cursor = before
            return []
        lock = self._locker.acquire(pipe_lock(group.id, view.row.id), timeout_ms)
        if lock is None:
            return []
        found: list[Found] = []
        try:
            cursor = self._catalog.claims.cursor(group.id, view.row.id)
            # Checked after the cursor was read: if another popper took the lock since, it either
            # fenced before, and then the lock is not ours, or will later, and then the
            # compare-and-set fails.
            fenced = cursor and lock.held() and self._catalog.claims.fence(cursor, self._name)
            if fenced:
                view.cursor = fenced
                found = self._claim_in_order(view, fenced, request, lock)
            elif cursor is None:
                self._window.forget(view)
        finally:
            if not found:
                view.cursor = None
                lock.release()
        return found

    # --- turns ------------------------------------------------------------------------------------

    def _claim_in_turn(self, turns: Turns, view: PipeView, request: ClaimRequest) -> list[Found]:
        """The same with a lock that is kept from pop to pop. Cost: that of a claim; if the lock is
        not ours yet, also two reads, taking the lock, and raising the epoch."""
        group, timeout_ms = self._group(), request.rules.claim_timeout_ms
        name = pipe_lock(group.id, view.row.id)
        turn, self.locked_out = turns.resume(name, self._name, timeout_ms)
        now_ms = self._clock.boot_ms()
        if turn is not None:
            request.prefetch_limit = turn.fit(request.prefetch_limit, PREFETCH_SECONDS, now_ms)
            if turn.lapses_early(now_ms):
                turn = self._renewed(turn, view)
        if turn is None and not self.locked_out:
            before = self._catalog.claims.cursor(group.id, view.row.id)
            if before is None:
                self._window.forget(view)
                return []
            if before.ack.seq >= view.end_seq:
                view.cursor = before
                return []
            strict = self._queue().policy.strict
            turn = turns.begin(name, group.id, self._name, timeout_ms, in_line=strict)
            self.locked_out = turn is None
        if turn is None:
            self.line_seconds = turns.line_seconds(name, group.id)
            return []
        found: list[Found] = []
        try:
            found = self._claim_with(turn, view, request)
        finally:
            if not found:
                view.cursor = turn.cursor
                turn.put_down()
        if not found:
            return []
        ((delivery, _),) = found
        # Once this delivery is acked, all below the chain is, if it is everything unacked there.
        cursor, row = view.cursor, delivery.rows[0]
        whole = cursor is not None and (row.start, row.end) == (cursor.ack.seq, cursor.chain.seq)
        now_ms = self._clock.boot_ms()
        turn.hand_out(cursor if whole else None, lambda: delivery.is_acked, now_ms)
        return found

    def _renewed(self, turn: HeldTurn, view: PipeView) -> HeldTurn | None:
        """A turn with its lock renewed; None if it is over. Cost: a read, and `Lock.renew`."""
        try:
            # Read first, as in `claim`.
            cursor = self._catalog.claims.cursor(self._group().id, view.row.id)
            now_ms = self._clock.boot_ms()
            if cursor is not None and turn.refresh(now_ms, always=True):
                return turn
        except BaseException:
            turn.put_down()
            raise
        turn.end()
        return None

    def _claim_with(self, turn: HeldTurn, view: PipeView, request: ClaimRequest) -> list[Found]:
        """Claim in a turn of ours: from where it stopped, or from the cursor as read now."""
        if turn.cursor is not None:
            cursor = view.cursor = turn.cursor
            if cursor.ack.seq >= view.end_seq:
                return []
            turn.cursor = None
            found = self._claim_in_order(view, cursor, request, turn)
            if found:
                return found
        read = self._catalog.claims.cursor(self._group().id, view.row.id)
        if read is None:
            self._window.forget(view)
        # Read before the lock is checked, as in `claim`.
        elif turn.epoch is None and turn.held():
            read = self._catalog.claims.fence(read, self._name)
            if read is not None:
                turn.fenced(read.epoch)
        if read is None or read.epoch != turn.epoch:
            turn.end()
            return []
        view.cursor = read
        if read.ack.seq >= view.end_seq:
            turn.cursor = read
            return []
        return self._claim_in_order(view, read, request, turn)

    def maintain_within(self) -> float | None:
        """In how many seconds `maintain` is due after a claim; None if no locks are kept."""
        return None if self._turns is None else self._turns.due_seconds(self._name)

    def overstays(self) -> bool:
        """Whether another popper has waited too long while this one works on what it prefetched."""
        return self._turns is not None and self._turns.overstays(self._name)

    def maintain(self, *, leave: bool) -> float:
        """Renew kept locks, and release those that are not used or that others want. Returns the
        seconds until the next time. leave: this popper takes nothing for the moment."""
        if self._turns is None:
            return 3600.0
        try:
            leave = leave or self._queue().policy.pop_paused
        except (QueueNotFoundError, GroupNotFoundError):
            leave = True
        return self._turns.maintain(self._name, leave=leave)

    def close(self) -> None:
        """Release kept locks."""
        if self._turns is not None:
            self._turns.leave(self._name)

    # --- in order ---------------------------------------------------------------------------------

    def _claim_in_order(
        self, view: PipeView, cursor: Cursor, request: ClaimRequest, lock: Lock
    ) -> list[Found]:
        key = cursor.group_id, cursor.pipe_id
        for _ in range(ROUNDS_MAX):
            all_acked = cursor.ack.seq == cursor.chain.seq
            rows = [] if all_acked else self._catalog.claims.rows(*key)
            # It may also be that the ack offset has moved since.
            if fault(cursor, rows) and (found := fault_now(self._catalog.claims, *key)):
                raise wedged(cursor.pipe_id, found[1])  # nothing may pass it
            row = next((row for row in rows if row.state is not ClaimState.DONE), None)
            if row is None:
                self._new_claims.claim_for([request], view, lock)
                return [request.found] if request.found is not None else []
            if row.state is ClaimState.HELD:
                if self._turns is not None and self._is_nearly_due(row, request.rules):
                    return []  # a kept lock may lapse a little earlier than the claim
                # We have its holder's lock now, so we may free it, whatever its deadline.
                freed = self._verbs.freed(row)
                if not self._catalog.claims.replace(row, freed, epoch=cursor.epoch):
                    return []
            elif row.due_ms > self._catalog.now_ms():
                return []  # the first message is not due yet: nothing may pass it
            elif self._verbs.is_spent(row):
                if not self._verbs.dead_letter(row):
                    return []
            elif not self._verbs.expired(row, cursor.epoch):
                return self._take(row, request, lock, cursor.epoch)
        return []

    def _is_nearly_due(self, row: Claim, rules: Rules) -> bool:
        """Whether a held claim expires within the time that its holder's lock may lapse earlier."""
        left_ms = row.due_ms - self._catalog.now_ms()
        return 0 < left_ms <= STALE_SHARE * rules.claim_timeout_ms

    def _take(self, row: Claim, request: ClaimRequest, lock: Lock, epoch: int) -> list[Found]:
        """Take the free row at the head; its messages are read first. Only such as were never
        delivered are prefetched, as they share what happens to one another."""
        limit = request.limit
        if not (row.deliveries or row.losses):
            limit = max(limit, request.prefetch_limit - request.prefetch_limit % limit)
        pieces, until = read_left(self._window.readers.get(row.pipe_id), row, limit)
        due_ms = (now_ms := self._catalog.now_ms()) + request.rules.claim_timeout_ms
        mine, rows = claims.taken(row, until, request.holder, due_ms, self._version)
        if not self._catalog.claims.replace(row, rows, epoch=epoch):
            return []
        return [(Delivery(request.acknowledger, [mine], now_ms, lock, epoch), pieces)]
