"""Group health: distinguishes a sick consumer from a poisonous message.

If a message fails while others of its group succeed, the message is at fault. If nothing in the
group has succeeded since it first failed, more likely the consumers are *sick*, or something that
they depend on. Then redelivery slows down, and until something succeeds no message becomes a dead
letter because of its number of deliveries. Nor does a message that failed during that time do so
right after it: it must first fail a delivery that began later. (`sick_check=False` turns this off.)

If nothing has ever succeeded in a group, it may have no healthy consumer, or no other message that
could succeed. There a message is kept for `sick_hold` seconds from its first failure, and then
counts as poisonous.

After a first failure it is unknown whether the group was sick. So if only one delivery is allowed,
that one decides, as soon as something succeeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from random import random

from cassq.base.sharing import answered
from cassq.lifecycle.ports import Ports
from cassq.model import claims
from cassq.model.queues import Rules
from cassq.model.rows import Claim, ClaimState

SLOW_FIRST_MS = 50
SLOW_MOST_MS = 30_000
DOUBLINGS_MAX = 30
NOTE_MS = 1000
LOOK_MS = 250

# How many failures do not make a message a dead letter, from its last one in a sick group on: that
# one, and the next, whose delivery may have begun before something succeeded.
SPARED = 2


class GroupHealth:
    """The health of one group, as one client sees it. rules: returns the group's current rules."""

    def __init__(self, ports: Ports, group_id: str, rules: Callable[[], Rules]) -> None:
        self._catalog = ports.catalog
        self._clock = ports.clock
        self._sharing = ports.sharing
        self._group_id = group_id
        self._rules = rules
        self._success_ms = self._own_ms = 0
        self._noted_ms = self._looked_ms = -NOTE_MS

    def succeeded(self, now_ms: int) -> None:
        """Note that something was committed. Cost: at most one unsynced write a second."""
        self._success_ms = self._own_ms = now_ms
        self._record_from_time_to_time(now_ms)

    def record_success(self, *, at_once: bool = False) -> None:
        """Record the last success for other clients, if that was not done. at_once: even if one was
        recorded a moment ago."""
        if self._own_ms > self._noted_ms:
            if at_once:
                self._note()
            else:
                self._record_from_time_to_time(self._catalog.now_ms())

    def _record_from_time_to_time(self, now_ms: int) -> None:
        if now_ms - self._noted_ms >= NOTE_MS:
            # Where this takes a round trip, one popper of this client does it for all; if there is
            # a background thread, none of them waits for it.
            key, boot_ms = ("success", self._group_id), self._clock.boot_ms
            sharing = self._sharing

            def note() -> None:
                answered(sharing, key, self._note, boot_ms, old_ms=NOTE_MS)

            if sharing is None or sharing.background is None:
                note()
            else:
                sharing.background.do(key, note)
            self._noted_ms = self._own_ms

    def _note(self) -> None:
        self._noted_ms = self._own_ms
        self._catalog.records.note_success(self._group_id, self._own_ms)

    def sick(self, claim: Claim) -> bool:
        """Whether the group is sick, judging by a claim's messages: see `claims.is_sick`."""
        if not self._rules().sick_check or not claims.is_sick(claim, self._success_ms):
            return False
        self._look()
        return claims.is_sick(claim, self._success_ms)

    def spares(self, claim: Claim) -> bool:
        """Whether to keep a claim's messages although they were delivered as often as allowed: if
        the group is sick, and has not kept them too long."""
        return self.sick(claim) and self._hold_left_ms(claim) != 0

    def _hold_left_ms(self, claim: Claim) -> int | None:
        """How much longer the group may keep messages because it is sick; None: no limit."""
        ends_ms = claims.hold_ends_ms(claim, self._rules().sick_hold_ms, self._success_ms)
        return None if ends_ms is None else max(0, ends_ms - self._catalog.now_ms())

    def _look(self) -> None:
        """Read the successes that other clients recorded, every `LOOK_MS` at most."""
        now_ms = self._clock.boot_ms()
        if now_ms - self._looked_ms >= LOOK_MS:
            self._looked_ms = now_ms
            self._success_ms = max(
                self._success_ms, self._catalog.records.success_ms(self._group_id)
            )

    def recorded(self, claim: Claim, failure: str) -> str:
        """The new failure record of a held claim's messages. failure: the record of why they failed
        just now, to which what must be kept of `claim.failure`, the record so far, is added."""
        if not claim.failure:
            return failure
        spared = json.loads(claim.failure).get("spared", 0)
        spared = SPARED if self.spares(claim) else max(0, spared - 1)
        record = json.loads(claims.failed_again(claim.failure, failure))
        return json.dumps({**record, "spared": spared} if spared else record)

    def slow_ms(self, claim: Claim) -> int:
        """How long a failed claim must wait at least: in a sick group this doubles with each
        failure, but is no longer than the group may keep the claim."""
        if claim.deliveries < 2 or not self.sick(claim):
            return 0
        doublings = min(DOUBLINGS_MAX, claim.deliveries - 2)
        slow_ms = int(min(SLOW_MOST_MS, SLOW_FIRST_MS * 2**doublings))
        return min(slow_ms, self._hold_left_ms(claim) or slow_ms)


def freed(
    claim: Claim, now_ms: int, rules: Rules, health: GroupHealth, version: claims.Version
) -> list[Claim]:
    """The rows that replace an expired claim: free at once, in their old place in line, or later,
    by the retry schedule."""
    wait_ms = max(rules.retry_ms(claim.deliveries, random()), health.slow_ms(claim))
    due_ms = now_ms + wait_ms if wait_ms else 0
    rows = claims.freed(claim, now_ms, due_ms, rules.max_deliveries, version)
    if claims.is_doomed(claim):
        return rows  # as it was
    return [
        replace(row, failure=health.recorded(claim, row.failure))
        if row.state is ClaimState.FREE
        else row
        for row in rows
    ]
