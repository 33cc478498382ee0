"""What a popper of a fair group must keep to: whose message comes next, and by which count.

It looks into the line of the popper, as nobody else knows which messages were ready. Only where one
thread has the popper, so that nothing changes while it is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp
from typing import Any

from cassq.consumer.keyed.fairness import (
    FORGOTTEN_BUSY,
    NOISY_IN_HAND,
    NOISY_SHARE,
    WINDOW_MS,
    FairReady,
    Tenant,
)
from cassq.consumer.keyed.keys import KeyLine
from cassq.consumer.keyed.lane import Lane
from tests.simulation.checks.ledger import BrokenPromiseError
from tests.simulation.checks.model import Delivery

Key = bytes | None
ROUNDED = 1.001  # shares closer to each other than this may be taken for equal


class FairLines:
    """Follows the lines of poppers of fair groups."""

    def __init__(self) -> None:
        self._ready: dict[Lane, tuple[KeyLine, set[Key]]] = {}  # as of the last look

    def check(self, popper: Any, batch: Sequence[Delivery], *, at_once: bool) -> None:
        """A popper has handed messages out. at_once: no time has passed since its pop began."""
        for lane in popper.lanes.lanes:
            fair = lane._line.fair
            if fair is None or not lane._known:
                continue
            self._check_counts(lane, fair)
            line, before = self._ready.get(lane, (None, set()))
            ready = {key for key, tenant in fair._tenants.items() if tenant.waiting}
            self._ready[lane] = lane._line, ready
            taken = {each.sent.key for each in batch if each.message._delivery in lane._segments}
            if at_once and line is lane._line:
                self._check_choice(fair, taken, (ready & before) - taken)

    def _check_counts(self, lane: Lane, fair: FairReady) -> None:
        """What is in hand of each key is what counts for its share."""
        hands: Counter[Key] = Counter()
        for delivery, segment in lane._segments.items():
            hands.update(segment.out.values())
            failed = getattr(delivery.hold, "_failed", {})  # until that is written
            hands.update(bundle.key_at(seq - bundle.base_seq) for _, bundle, seq in failed.values())
        for segment in lane._line.waiting():
            if segment.away:
                hands.update(segment.keys(segment.row.left - segment.gone))
        counted = Counter({key: each.in_hand for key, each in fair._tenants.items()})
        if counted != hands or fair._all.in_hand != hands.total():
            raise BrokenPromiseError(
                f"a fair line counts {+counted}, together {fair._all.in_hand}; in hand are {hands}"
            )

    def _check_choice(self, fair: FairReady, taken: set[Key], passed: set[Key]) -> None:
        """No noisy key comes while a quiet one is ready. passed: those that were ready all the
        time."""
        all_busy = max(_busy(fair._all, fair._now_ms), FORGOTTEN_BUSY)
        for key in passed:
            tenant = fair._tenants[key]
            quiet = _busy(tenant, fair._now_ms) * ROUNDED < NOISY_SHARE * all_busy
            if not quiet or tenant.in_hand >= NOISY_IN_HAND:
                continue
            for other in taken:
                share = _busy(fair._tenants[other], fair._now_ms) / all_busy
                if share > NOISY_SHARE * ROUNDED:
                    raise BrokenPromiseError(
                        f"{other!r} came, with a share of {share}, while {key!r} was ready"
                    )


def _busy(tenant: Tenant, now_ms: int) -> float:
    """How many were in hand on average, lately."""
    kept = exp(min(0, tenant.at_ms - now_ms) / WINDOW_MS)
    return tenant.busy * kept + tenant.in_hand * (1 - kept)
