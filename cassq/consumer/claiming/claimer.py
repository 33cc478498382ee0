"""The claimer: finds messages for a group, and claims them. No threads, no waiting.

Messages form one line. Those that were never claimed stand in it by push time, from the candidate
pipes in turn; those that failed, or were delayed, by due time; those given back untried, or whose
popper vanished, at the front. Where priorities are used each has a line, and the greatest comes
first, but every `priority_share`th claim begins with the least. In exclusive groups messages
are claimed in order, by `cassq.consumer.claiming.ordered`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from cassq.base.sharing import BESIDE_MS, answered
from cassq.consumer.claiming.candidates import REFRESH_MS, UNREADABLE, CandidatePipes, PipeView
from cassq.consumer.claiming.new_claims import ROUNDS_MAX, ClaimRequest, NewClaims
from cassq.consumer.claiming.ordered import OrderedClaims, RowVerbs
from cassq.consumer.claiming.parts import LanePart
from cassq.consumer.claiming.redelivery import Found, Redelivery
from cassq.consumer.claiming.reserving import Reserving
from cassq.consumer.delivery import TURN_MS, Acknowledger
from cassq.consumer.group_health import GroupHealth, freed
from cassq.errors import CassqError, CorruptionError
from cassq.extents.port import ExtentMissingError, ExtentUnavailableError
from cassq.lifecycle.expiry import Expiry
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import DeadLetterFn, dead_letter_or_leave
from cassq.lifecycle.timers import Timers
from cassq.model import claims
from cassq.model.queues import Rules, rules_of
from cassq.model.rows import Claim, ClaimState, GroupRow, QueueRow

logger: logging.Logger = logging.getLogger("cassq")

DUE_LISTED = 256
GRAIN_MS = 2
BURIED_AT_ONCE = 32  # dead letters: each costs a few syncs
PATIENCE_MS = 1000  # how long unreadable pipes are tried one after another
LOOK_MS = 40  # how often to look for redeliveries while there are new messages ...
LOOK_BESIDE_MS = 200  # ... and where that takes round trips, in the background


class Claimer:
    """Claims for one popper of one group.

    dead_letter: makes a spent message a dead letter of the group. singly: each message that it
    claims is settled by itself, by its receipt. extends: whether its popper extends its claims;
    None: it does not, and reserves nothing. part: the pipes to claim from; None: all pipes.
    """

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        group: Callable[[], GroupRow],
        dead_letter: DeadLetterFn,
        *,
        singly: bool = False,
        extends: bool | None = None,
        part: LanePart | None = None,
    ) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._version = ports.ids.version
        self._queue = queue
        self._group = group
        self._dead_letter = dead_letter
        self._singly = singly
        self._looked_ms = -LOOK_MS
        self._prefetch_limit = 0
        self._policies = queue().policy, group().policy
        self.rules: Rules = rules_of(*self._policies)  # as of the last `look`
        self.paused: bool = False  # whether popping was paused then
        self.name: str = part.popper if part else ports.ids.version()
        # The numbers of its claims. No two parts of a popper have the same.
        self._numbers = count(1 + part.number, part.key_lanes) if part else count(1)
        in_order = group().policy.exclusive or queue().policy.strict
        self.exclusive: bool = in_order and not group().policy.keyed
        whose = ports, queue, group()
        self.window: CandidatePipes = CandidatePipes(*whose, in_order=self.exclusive, part=part)
        self.timers: Timers = Timers(ports, group(), part.has if part else None)
        self.health: GroupHealth = GroupHealth(ports, group().id, lambda: self.rules)
        self.redelivery: Redelivery = Redelivery(
            ports.catalog, self.window, self.new_holder, self._version, singly=singly
        )
        self._expiry = Expiry(ports, queue)
        given = ports, self.name, self.window, self.new_holder, lambda: self.rules
        one_by_one = in_order or group().policy.keyed
        self.reserving: Reserving = Reserving(*given, extends=None if one_by_one else extends)
        self.maintained: bool = self.exclusive or not self.reserving.off  # see `maintain_within`
        reserving = None if self.reserving.off else self.reserving
        self.new_claims: NewClaims = NewClaims(ports, group, self.window, self._expiry, reserving)
        self._leveled = False  # whether messages with a priority were seen
        self._since_least = 0  # claims since the last one that began at the least priority
        # Whether a prime suspect is in hand: then no other may be, since a crash would hit both.
        # None: consumers take them one at a time anyway.
        self.has_prime_suspect: Callable[[], bool] | None = None
        self.passed_suspects: bool = False  # whether the last `claim` left some for that reason
        self._warned_sick = False  # since something last succeeded here
        self._owed: list[Claim] = []  # spent rows that an exclusive group's consumer gave back
        self._ordered: OrderedClaims | None = None
        if self.exclusive:
            verbs = RowVerbs(self.freed, self.is_spent, self.dead_letter, self.expired)
            claimed_by = self.name, self.window, self.new_claims
            self._ordered = OrderedClaims(ports, queue, group, *claimed_by, verbs)

    def new_holder(self, *, singly: bool = False) -> str:
        """The holder of a new claim. singly: see `claims.single_holder_name`."""
        number = next(self._numbers)
        if singly or self._singly:
            return claims.single_holder_name(self.name, number, self._catalog.now_ms())
        return claims.holder_name(self.name, number)

    def look(self) -> None:
        """Use the current policies from now on; called once for each operation. Raises as `queue`
        and `group` do once they are deleted. Cost: two memory reads."""
        queue, group = self._queue().policy, self._group().policy
        if queue is not self._policies[0] or group is not self._policies[1]:
            self._policies, self.rules = (queue, group), rules_of(queue, group)
        self.paused = queue.pop_paused

    def claim(
        self,
        acknowledger: Acknowledger,
        limit: int,
        prefetch_limit: int,
        began_ms: int,
        above: int = -1,
    ) -> list[Found]:
        """Claim messages, at most `limit` in all; empty if nothing can be claimed. Uses the
        policies of the last `look`.

        prefetch_limit: the limit for a pipe in which far more are waiting. began_ms: boot time now.
        above: only new messages of a greater priority than that; -1: what comes first in line.
        """
        if above >= 0:
            return self._claim_above(above, limit, acknowledger)
        policy = self._policies[0]
        most = policy.max_claim_messages
        limit, self._prefetch_limit = min(limit, most), min(prefetch_limit, most)
        self._forget_last()
        now_ms = began_ms
        fresh = self.window.is_stale(now_ms) and self._refresh(old_ms=REFRESH_MS)
        if self.window.top or self._leveled:
            self._leveled = True
            self.window.begin(upward=self.least_is_next())
        news = bool(self.timers.known) and self.timers.has_news()
        look = news or (now_ms - self._looked_ms >= LOOK_MS and self._may_be_due(now_ms))
        due = self._due_now(now_ms) if look else None
        while True:
            views = self.window.candidates(policy.max_pop_width, now_ms)
            for view in views:
                line = self._in_line(due, view) if due else []
                found = self._claim_both(line, view, limit, acknowledger)
                if found:
                    self.window.claimed(view)
                    return found
                if policy.strict and self._is_locked_out():
                    return []
                if policy.strict and self._is_unacked(view):
                    break  # nothing may be delivered before it, not even merged dead letters
            else:
                if self._leveled and self.window.go_on(views):
                    continue
                now_ms = self._ports.clock.boot_ms()
                if self.window.is_blocked() and now_ms - began_ms < PATIENCE_MS:
                    self.window.tried.clear()
                    continue  # behind the unreadable pipes there may be readable ones
                if not fresh:
                    fresh = self._refresh()
                    due = self._due_now(now_ms)
                    continue
                if self.window.truncated:
                    self.window.look_further()
                    continue
            due = self._due_now(self._ports.clock.boot_ms()) if due is None else due
            back = self._retake(due, limit, acknowledger)
            if not back and self.window.away is not None:
                raise self.window.away
            return back

    def _forget_last(self) -> None:
        """Forget what the last `claim` noted of itself."""
        self.window.away = None
        self.passed_suspects = False
        if self._ordered is not None:
            self._ordered.locked_out = False

    def claim_within(self, acknowledger: Acknowledger, limit: int, timeout_ms: int) -> list[Found]:
        """`claim` with deadlines `timeout_ms` from now, instead of the group's."""
        self.rules = replace(self.rules, claim_timeout_ms=timeout_ms)
        return self.claim(acknowledger, limit, 0, self._ports.clock.boot_ms())

    def least_is_next(self) -> bool:
        """Whether this claim begins at the least priority."""
        share, self._since_least = self._policies[0].priority_share, self._since_least + 1
        if not 0 < share <= self._since_least:
            return False
        self._since_least = 0
        return True

    def outranks(self, priority: int) -> bool:
        """Whether new messages go before messages of this priority that were claimed ahead. In
        exclusive and keyed groups none do."""
        if self.exclusive or self._group().policy.keyed or not self.window.above(priority, 1):
            return False
        return not self.least_is_next()  # then what was claimed ahead takes the place of it

    def _claim_above(self, priority: int, limit: int, acknowledger: Acknowledger) -> list[Found]:
        """New messages of a greater priority, if there are some."""
        self._prefetch_limit = 0
        for view in self.window.above(priority, self._policies[0].max_pop_width):
            found = self._claim_from(view, limit, acknowledger)
            if found:
                self.window.claimed(view)
                return found
        return []

    def _refresh(self, *, old_ms: int = 0) -> bool:
        self.timers.refresh(old_ms=old_ms)
        return self.window.refresh(old_ms=old_ms)

    def given_back(self) -> None:
        """Look for messages given back first at the next claim, as there may be some."""
        self._looked_ms = -LOOK_MS

    def _claim_both(
        self, line: list[Claim], view: PipeView, limit: int, acknowledger: Acknowledger
    ) -> list[Found]:
        """Claim what stands in line before a pipe's messages, and then as many of these as `limit`
        leaves room for, so that a few failures do not cost a separate pop."""
        room = limit - sum(row.left_count for row in line)
        if self._leveled and len(line) == DUE_LISTED:
            room = 0  # there may be more of a priority that comes first
        suspect = not self._singly and any(map(claims.is_suspect, line))
        if not line or self.exclusive or room <= 0 or suspect:
            return self._retake(line, limit, acknowledger) or self._claim_from(
                view, limit, acknowledger
            )
        fresh = self._claim_from(view, room, acknowledger, joint=not self._singly)
        try:
            back = self._retake(line, limit - room, acknowledger, joint=bool(fresh))
        except CassqError as exc:
            if not fresh:
                raise
            logger.warning("will be tried again: %s", exc)
            return fresh
        return back + fresh

    def _claim_from(
        self, view: PipeView, limit: int, acknowledger: Acknowledger, *, joint: bool = False
    ) -> list[Found]:
        try:
            request = ClaimRequest(
                self.new_holder(), acknowledger, self.rules, limit, self._prefetch_limit, joint
            )
            return (self._ordered or self.new_claims).claim(view, request)
        except UNREADABLE as exc:
            view.cursor = None  # by the next try, another popper may have continued past it
            self.window.pass_over(view.row.id, exc)
            return []
        except BaseException:
            view.cursor = None  # its state is unknown: read it again
            raise

    # --- new messages -----------------------------------------------------------------------

    def _in_line(self, due: list[Claim], view: PipeView) -> list[Claim]:
        """The due rows that come before the first waiting message of a pipe."""
        head_ms, own = self._head_ms(view), view.row.priority
        sign = -1 if self.window.upward else 1
        return [
            row
            for row in due
            if (above := sign * (row.priority - own)) > 0 or (not above and row.due_ms <= head_ms)
        ]

    def _head_ms(self, view: PipeView) -> int:
        """When the first waiting message of a pipe was pushed, in catalog time."""
        if view.cursor is None:
            return 0
        chain, end_seq = view.cursor.chain, self.window.end_seq(view)
        if chain.seq >= end_seq:
            return self._catalog.now_ms()  # all claimed, and not all acked
        try:
            reader = self.window.reader(view)
            ((frame, first, _),) = reader.read(chain, end_seq, 1, 0)
        except (ExtentMissingError, ExtentUnavailableError, CorruptionError):
            return 0  # claiming from it reports the error
        # The clocks are read one after the other: within their grain it counts as pushed first.
        to_catalog_ms = self._catalog.now_ms() - self._ports.clock.wall_ms()
        return frame.time_ms(first) + to_catalog_ms - GRAIN_MS

    # --- redeliveries, and delayed messages that came due ------------------------------------

    def _may_be_due(self, now_ms: int) -> bool:
        """Whether to look for what is due before new messages are claimed. Where finding that out
        takes round trips, they are made in the background. now_ms: boot time."""
        sharing, claims = self._ports.sharing, self._catalog.claims
        if sharing is None or sharing.background is None or self._looked_ms < 0:
            return True
        if self.timers.known:
            return True
        group_id = self._group().id
        answer = answered(
            sharing,
            ("due", group_id),
            lambda: claims.next_due_ms(group_id),
            self._ports.clock.boot_ms,
            old_ms=LOOK_BESIDE_MS,
            beside_ms=BESIDE_MS,
        )
        self._looked_ms = now_ms
        return answer.value is not None and answer.value <= self._catalog.now_ms()

    def _due_now(self, now_ms: int) -> list[Claim]:
        """What is due, except prime suspects while one is in hand."""
        due, most = self._all_due(now_ms), self.rules.max_deliveries
        if self.has_prime_suspect is None or not any(map(claims.is_suspect, due)):
            return due
        others = [row for row in due if not claims.is_prime_suspect(row, most)]
        self.passed_suspects = len(others) < len(due) and self.has_prime_suspect()
        return others if self.passed_suspects else due

    def _all_due(self, now_ms: int) -> list[Claim]:
        """The free rows that are due, in the order of the line. now_ms: boot time.

        First schedules delayed messages, frees expired claims, and makes dead letters of spent
        messages; if there are many of these, not all due rows are returned.
        """
        self._looked_ms = now_ms
        left: list[Claim] = []
        self.timers.schedule()
        while self.timers.broken:
            self.window.set_aside(*self.timers.broken.pop())
        for _ in range(ROUNDS_MAX):
            due = self._listed(self._catalog.now_ms())
            expired = [row for row in due if row.state is ClaimState.HELD]
            if expired:
                self._free(expired)
                continue
            spent = [row for row in due if self.is_spent(row)]
            left = [row for row in due if row not in spent]
            if self.put_away(spent) + sum(map(self.expired, left)) == 0:
                return left
            if len(spent) > BURIED_AT_ONCE:
                break
        self.given_back()
        return left

    def _listed(self, now_ms: int) -> list[Claim]:
        """What is due. In exclusive groups only in timer pipes: redeliveries in any other pipe are
        for the holder of its lock, and must not hide those in timer pipes."""
        without = self.window.left_alone()
        while True:
            due = self._catalog.claims.due(
                self._group().id,
                now_ms,
                DUE_LISTED,
                without=tuple(without),
                upward=self.window.upward,
            )
            self._leveled = self._leveled or any(row.priority for row in due[:1])
            if not self.exclusive:
                return due
            locked = {row.pipe_id for row in due if not self.timers.owns(row.pipe_id)}
            if not locked:
                return due
            without |= locked

    def follow_up(self, free: list[Claim], now_ms: int, *, succeeded: bool) -> None:
        """Do what follows from acks that were just written, or rows that are now free. Errors are
        logged, not raised: the caller must not think that the write failed."""
        try:
            if succeeded:
                self._warned_sick = False
                self.health.succeeded(now_ms)
            if any(row.due_ms <= now_ms for row in free):
                self.given_back()
            spent = [row for row in free if self.is_spent(row)]
            if self.exclusive:
                self._owed = (self._owed + spent)[-BURIED_AT_ONCE:]
            else:
                self.put_away(spent)
        except CassqError as exc:
            logger.warning("will be tried again: %s", exc)

    def put_away_owed(self) -> None:
        """Make dead letters of spent rows that the next holder of an exclusive group's lock would
        have to handle, since none may come. Done without the lock, as the reaper does."""
        self.put_away(self._owed)
        self._owed = []

    def put_away(self, spent: list[Claim]) -> int:
        """Make dead letters of spent rows; returns how many. If there are many, some wait for the
        next time, as this blocks pops and acks."""
        return sum(map(self._put_away, spent[:BURIED_AT_ONCE]))

    def is_spent(self, row: Claim) -> bool:
        if claims.is_doomed(row):
            return True
        if not claims.is_spent(row, self.rules.max_deliveries):
            return False
        if not self.health.spares(row):
            return True
        if not self._warned_sick:
            self._warned_sick = True
            logger.warning(
                "nothing in group %s of queue %s has succeeded since messages began to fail:"
                " messages that reached max_deliveries (%d) are kept, and retried at growing"
                " intervals (see sick_check, and sick_hold, %g s)",
                self._group().name,
                self._queue().name,
                self.rules.max_deliveries,
                self.rules.sick_hold_ms / 1000,
            )
        return False

    def _put_away(self, row: Claim) -> bool:
        return self._or_set_aside(row, lambda: self.dead_letter(row))

    def dead_letter(self, row: Claim) -> bool:
        return dead_letter_or_leave(self._dead_letter, self._queue(), self._group(), row)

    def expired(self, row: Claim, epoch: int | None = None) -> bool:
        """Whether messages of a free row had expired; if so, they are removed. epoch: of an
        exclusive or keyed group's pipe."""
        readers = self.window.readers
        return self._or_set_aside(
            row, lambda: self._expiry.remove_free(row, readers.get, epoch=epoch)
        )

    def _or_set_aside(self, row: Claim, act: Callable[[], bool]) -> bool:
        """The result of `act` for a row. If its pipe cannot be read, returns True, and what is due
        leaves that pipe out from now on."""
        try:
            return act()
        except UNREADABLE as exc:
            self.window.pass_over(row.pipe_id, exc)
            return True

    def _free(self, expired: list[Claim]) -> None:
        """Free claims that are past their deadlines."""
        for row in expired:
            consumer = claims.consumer_of(row.holder)
            level = logging.DEBUG if claims.is_single(row) else logging.INFO
            logger.log(
                level, "taking over an expired claim of pipe %s from %s", row.pipe_id, consumer
            )
        self._catalog.claims.replace_many([(row, self.freed(row)) for row in expired])

    def freed(self, row: Claim) -> list[Claim]:
        return freed(row, self._catalog.now_ms(), self.rules, self.health, self._version)

    def _retake(
        self, due: list[Claim], limit: int, acknowledger: Acknowledger, *, joint: bool = False
    ) -> list[Found]:
        """Take the first of the free rows that are due."""
        if not due:
            return []
        timeout_ms = self.rules.claim_timeout_ms
        found, more = self.redelivery.retake(due, limit, acknowledger, timeout_ms, joint=joint)
        if more or len(due) == DUE_LISTED:
            self.given_back()
        return found

    # --- exclusive groups ---------------------------------------------------------------------

    def maintain_within(self) -> float | None:
        """In how many seconds `maintain_turns`, or `reserving.maintain`, is due after a claim;
        None if no locks are kept."""
        return TURN_MS / 1000 if self._ordered is None else self._ordered.maintain_within()

    def overstays(self) -> bool:
        """Whether another popper has waited too long while this one works on what it prefetched."""
        return self._ordered is not None and self._ordered.overstays()

    def maintain_turns(self, *, leave: bool) -> float:
        """`OrderedClaims.maintain`."""
        return 3600.0 if self._ordered is None else self._ordered.maintain(leave=leave)

    def _is_locked_out(self) -> bool:
        return self._ordered is not None and self._ordered.locked_out

    def _is_unacked(self, view: PipeView) -> bool:
        """Whether anything in a pipe is unacked now: what a moment ago was may have expired."""
        view.cursor = view.cursor or self._catalog.claims.cursor(self._group().id, view.row.id)
        return self.window.waiting(view)

    def until_due(self, most: float) -> float:
        """Seconds until the next free row comes due or held row expires; at most `most`."""
        if self._ordered is not None and self._ordered.locked_out and not self.paused:
            return min(most, self._ordered.line_seconds)
        without = self.window.left_alone()
        due_ms = self._catalog.claims.next_due_ms(self._group().id, without=tuple(without))
        if due_ms is None or self.exclusive or self.paused or self.passed_suspects:
            return most
        return min(most, max(0.001, (due_ms - self._catalog.now_ms()) / 1000))

    def has_news(self) -> bool:
        """Whether something was pushed that a waiting popper has not seen. Cost: memory reads; on
        networked stores a round of reads."""
        if self.exclusive or self.paused:
            return False
        return self.window.has_news() or self.timers.has_news()

    def close_dropped(self) -> None:
        """Close the files of retired pipes. Cost: a system call for each open file."""
        self.window.close_dropped()
        self.timers.close_dropped()

    def close(self) -> None:
        """Release kept locks, reservations, file handles and mappings."""
        self.reserving.give_back()
        if self._ordered is not None:
            self._ordered.close()
        self.window.close()
        self.timers.close()
