"""Limits: how a popper keeps to the limits of its group, which hold for all poppers of the group
together (`cassq.model.limits` says what they share).

A popper reserves slots of the rate as it needs them, and keeps permits while its consumer uses
them. If it is killed, the slots of one reservation stay unused (one message, or 3 % of what the
rate allows in its unit of time; where reserving is slow, those of up to three seconds), and its
permits for two claim timeouts.

Invariants:
1. Each message that is claimed to be handed out needs a slot, which it uses up, and a permit.
2. A popper has permits for all that its consumer has in hand, and they last longer than its claims.

Not thread-safe: `cassq.popper` holds its lock around every call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from cassq.base.clock import attempts
from cassq.base.counters import Tally
from cassq.catalog.port import limit_names
from cassq.consumer.delivery import Messages, NackOptions
from cassq.lifecycle.ports import Ports
from cassq.model import limits
from cassq.model.limits import Permits, Share, Slots
from cassq.model.queues import Rules

# How often a shared value is read and written again if others change it at the same time. After
# that the popper tries again later, and does other things meanwhile.
SWAPS_MAX = 6
# When to look again for permits that others have, in seconds: in a directory, and over a network.
LOOK_SECONDS = 0.05
LOOK_BESIDE_SECONDS = 0.25
# A reservation that takes long is for this many times as long, if its popper uses that up. Where
# others reserve too, it is shorter, as each waits for all others.
RESERVED_TIMES, RESERVED_BESIDE_TIMES = 10, 2
SOON_SECONDS = 0.001
UNUSED_MS = 500  # permits that were not used for this long are given back
_NEVER = 3600.0


class Limits:
    """The share of one popper in its group's limits.

    name, tally: the popper's. in_hand: how many messages its consumer has, and until when the last
    of them is claimed, in catalog time. put_back: gives messages back, durably.
    """

    def __init__(
        self,
        ports: Ports,
        group_id: str,
        name: str,
        tally: Tally,
        in_hand: Callable[[], tuple[int, int]],
        put_back: Callable[[Messages, NackOptions], None],
    ) -> None:
        self._tally = tally
        self._catalog, self._clock = ports.catalog, ports.clock
        self._leases = ports.catalog.leases
        self._look_seconds = LOOK_SECONDS if ports.sharing is None else LOOK_BESIDE_SECONDS
        self._rate_name, self._permits_name = limit_names(group_id)
        self._name = name
        self._in_hand = in_hand
        self._put_back = put_back
        self._rate: str | None = None
        self._slots: Slots | None = None
        self._shares = deque[Share]()  # that are reserved
        self._took_us = 0  # how long a reservation takes, by the longest recent one
        # Of the last reservation: its slots, how many were used, the time after all of them.
        self._count, self._used, self._next_us = 1, 0, 0
        self._permits = 0
        self._until_ms = 0  # when the permits are over
        self._used_ms = 0  # when all of them were last in use
        self.short: bool = False  # whether there was no permit for another message
        self._again = 0.0  # in how many seconds there may be more; 0: there was enough

    def claim(
        self, wanted: int, likely: int, rules: Rules, claim: Callable[[int], Messages]
    ) -> Messages:
        """Call `claim` with how many messages are allowed, and return what it finds. Other
        arguments: as for `_allowed`. If it finds nothing, reserved slots and unused permits are
        given back, as others may find some."""
        allowed = self._allowed(wanted, likely, rules)
        self._tally.limited += allowed < wanted
        if not allowed:
            return Messages()
        found = claim(allowed)
        self._use(len(found))
        if not found:
            self.give_back()
        elif rules.concurrency is not None:
            return self._covered(found, rules.concurrency, rules.claim_timeout_ms)
        return found

    def _allowed(self, wanted: int, likely: int, rules: Rules) -> int:
        """How many messages may be claimed and handed out now, at most `wanted`. likely: how many
        this popper finishes in a tenth of a second. Cost: a read and a conditional write for each
        limit, unless the popper already has what it needs."""
        self._again, self.short = 0.0, False
        if rules.concurrency is not None:
            wanted = self._permitted(wanted, rules.concurrency, rules.claim_timeout_ms)
        if wanted and rules.rate is not None:
            wanted = self._slots_now(wanted, likely, rules.rate)
        return wanted

    def give_back(self) -> None:
        """Give back what is not used. Cost: at most a read and two conditional writes."""
        self._give_back_slots()
        count, _ = self._in_hand()
        if self._permits > count:
            self._keep_permits(count, self._until_ms)

    def close(self) -> None:
        """Give everything back."""
        self._give_back_slots()
        if self._permits:
            self._keep_permits(0, 0)

    def until(self, most: float) -> float:
        """Seconds until more may be allowed, as far as the last `claim` found; at most `most`."""
        return min(most, self._again) if self._again else most

    def maintain_within(self, rules: Rules) -> float:
        """In how many seconds `maintain` is due after a call of `claim`. A rate needs none."""
        if rules.concurrency is None:
            return _NEVER
        return min(UNUSED_MS, rules.claim_timeout_ms / 3) / 1000

    def maintain(self, rules: Rules) -> float:
        """Renew permits, and give back those that were not used lately. Returns the seconds until
        the next time. Cost: a read and a conditional write, if there is something to do."""
        if not self._permits:
            return _NEVER
        if rules.concurrency is None:
            self._keep_permits(0, 0)
            return _NEVER
        now_ms, timeout_ms = self._catalog.now_ms(), rules.claim_timeout_ms
        count, due_ms = self._in_hand()
        unused = count < self._permits and now_ms - self._used_ms >= UNUSED_MS
        if unused or self._until_ms < max(due_ms, now_ms + timeout_ms * 4 // 3):
            until_ms = max(due_ms, now_ms + 2 * timeout_ms)
            self._keep_permits(count if unused else self._permits, until_ms)
        return self.maintain_within(rules)

    # --- the rate -------------------------------------------------------------------------------

    def _slots_now(self, wanted: int, likely: int, rate: str) -> int:
        if rate != self._rate or self._slots is None:
            self._rate, self._slots = rate, limits.slots_of(rate)
            self._shares.clear()
        now_us = self._now_us()
        if not self._left(now_us):
            likely = likely * self._slots.late_us // 200_000
            self._reserve(self._slots, max(wanted, likely), now_us)
            now_us = self._now_us()
        shares = self._left(now_us)
        if not shares:  # others have them, or to reserve them took longer than they last
            self._again = self._again or SOON_SECONDS
            return 0
        if now_us < shares[0].begin_us:
            self._again = (shares[0].begin_us - now_us) / 1e6
            return 0
        return min(wanted, shares[0].left)

    def _left(self, now_us: int) -> deque[Share]:
        """The shares whose slots may still be used; forgets those whose time is over, and such as
        were reserved while this popper's clock was wrong."""
        shares = self._shares
        while shares and now_us > shares[0].end_us:
            shares.popleft()
        if shares and self._slots and limits.is_too_far(shares[0].begin_us, self._slots, now_us):
            shares.clear()
        return shares

    def _use(self, count: int) -> None:
        """Use up slots, the first ones first."""
        self._used += count
        while count and self._shares:
            share = self._shares.popleft()
            used = min(count, share.left)
            count -= used
            if used < share.left:
                self._shares.appendleft(replace(share, left=share.left - used))

    def _to_reserve(self, slots: Slots, wanted: int, now_us: int, text: str) -> int:
        """How many slots to reserve: a share; or, where reserving takes long, twice as many as the
        last time if those were used up before their time was over, or if all of them were over
        before this popper could use any, and else as many as were used. text: the shared one, which
        tells whether others have reserved any since."""
        alone = text == limits.next_as_text(self._next_us, slots, self._name)
        times = RESERVED_TIMES if alone else RESERVED_BESIDE_TIMES
        most = min(limits.RESERVED_US_MAX, times * self._took_us) // slots.slot_us
        likely = self._used if self._used and now_us >= self._next_us else 2 * self._count
        return max(1, min(wanted, slots.most), min(likely, most))

    def _reserve(self, slots: Slots, wanted: int, now_us: int) -> None:
        """Reserve slots that begin no earlier than the reservation is likely to be written: if that
        takes longer than slots last, they would be over by then."""
        ready_us = now_us + self._took_us
        for _ in attempts(self._clock, SWAPS_MAX):
            text = self._leases.shared(self._rate_name)
            next_us = limits.next_us_of(text, slots, ready_us)
            count = self._to_reserve(slots, wanted, now_us, text)
            found = limits.reserved(slots, next_us, ready_us, count)
            if not found:
                self._again = (next_us - ready_us - limits.AHEAD_US) / 1e6 + SOON_SECONDS
                return
            new = limits.next_as_text(found[-1].next_us, slots, self._name)
            written = self._leases.swap(self._rate_name, text, new)
            took_us = self._now_us() - now_us
            self._took_us = min(limits.TOOK_US_MAX, max(took_us, self._took_us * 3 // 4))
            if written:
                self._shares.extend(found)
                self._count, self._used, self._next_us = count, 0, found[-1].next_us
                return
        self._again = self._look_seconds

    def _give_back_slots(self) -> None:
        """Give back the slots that are left, unless another popper has reserved later ones."""
        slots, left = self._slots, sum(each.left for each in self._left(self._now_us()))
        if left and slots is not None:
            old = limits.next_as_text(self._next_us, slots, self._name)
            self._shares.clear()
            self._count -= left
            self._next_us -= left * slots.slot_us
            new = limits.next_as_text(self._next_us, slots, f"{self._name}-")
            self._leases.swap(self._rate_name, old, new)

    def _now_us(self) -> int:
        return self._catalog.now_ms() * 1000

    # --- concurrency ----------------------------------------------------------------------------

    def _permitted(self, wanted: int, most: int, timeout_ms: int) -> int:
        now_ms = self._catalog.now_ms()
        count, due_ms = self._in_hand()
        if count + wanted > self._permits or self._until_ms < now_ms + timeout_ms:
            self._take_permits(count + wanted, most, due_ms, timeout_ms)
        room = max(0, min(self._permits, most) - count)
        if room <= wanted:
            self._used_ms = now_ms
        if not room:
            self._again, self.short = self._look_seconds, True
        return min(wanted, room)

    def _covered(self, found: Messages, most: int, timeout_ms: int) -> Messages:
        """The claimed messages for which there are permits. The claim may have taken longer than
        the permits last, because the process was paused or the catalog was slow; then the messages
        for which there are no new permits are given back, untried. Cost: none, unless the permits
        end before the claim."""
        count, due_ms = self._in_hand()
        now_ms = self._catalog.now_ms()
        if self._until_ms > now_ms and self._until_ms >= due_ms:
            return found
        kept = 0
        try:
            self._take_permits(count, most, due_ms, timeout_ms)
            kept = max(0, len(found) - max(0, count - self._permits))
        finally:
            if kept < len(found):
                self._again, self.short = self._look_seconds, True
                self._put_back(found[kept:], NackOptions(counted=False))
        return found[:kept]

    def _take_permits(self, count: int, most: int, due_ms: int, timeout_ms: int) -> None:
        """Take permits for `count` messages, or for as many as others leave. due_ms: until when
        those in hand are claimed."""
        now_ms = self._catalog.now_ms()
        until_ms = max(due_ms, now_ms + 2 * timeout_ms)
        self._change_permits(
            lambda permits: limits.permitted(permits, self._name, count, most, until_ms),
            max(due_ms, now_ms + timeout_ms),
        )

    def _keep_permits(self, most: int, until_ms: int) -> None:
        self._change_permits(
            lambda permits: limits.kept(permits, self._name, most, until_ms), until_ms
        )

    def _change_permits(self, change: Callable[[Permits], Permits], least_ms: int) -> None:
        """Change the shared permits. Nothing is written if our number stays the same and lasts
        until `least_ms` anyway. Gives up if others are quicker `SWAPS_MAX` times."""
        for _ in attempts(self._clock, SWAPS_MAX):
            text = self._leases.shared(self._permits_name)
            old = limits.permits_of(text, self._catalog.now_ms())
            new = change(old)
            before, after = old.get(self._name, (0, 0)), new.get(self._name, (0, 0))
            enough = before[0] == after[0] and (not after[0] or before[1] >= least_ms)
            if enough:
                after = before
            else:
                # While it is unknown whether the write applied, count on the fewer permits.
                self._permits = min(before[0], after[0])
                self._until_ms = min(before[1], after[1])
                written = limits.permits_as_text(new, self._name)
                if not self._leases.swap(self._permits_name, text, written):
                    self._permits, self._until_ms = before
                    continue
            self._permits, self._until_ms = after
            return
