"""Limits of a group, over all processes: how many messages it gets in a given time, and how many
are in hand at once. For each limit the poppers share one short text, which they change by
compare-and-set. Pure.

**Rates.** A reservation takes the next *slots* of the group's time. Slots lie `slot_us` apart, and
each allows one message. A reservation has one or more *shares*. All slots of a share may be used
from the time of the first one on, each at most `early_us` before its own time, until `late_us`
after the time of the first one. So the slots that are used within any unit, such as a second, lie
within `unit + early + late`. `slot_us` is longer in the same proportion, so their number is what
the rate allows. This costs 7 % of the rate.

**Concurrency.** Each popper has a number of *permits*, with an expiry time that it extends while it
is alive. Together the poppers never have more permits than the limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from cassq.model.queues import rate_of

EARLY_SHARE = 0.03
LATE_SHARE = 0.04
AHEAD_US = 250_000  # how long before its time the first slot of a reservation may be reserved
TOOK_US_MAX = 5_000_000  # a reservation is not made further ahead than that
RESERVED_US_MAX = 3_000_000  # nor for longer, unless it is of a single share


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of a rate. Times are microseconds."""

    slot_us: int
    early_us: int
    late_us: int

    @property
    def most(self) -> int:
        """The most slots of a share."""
        return 1 + self.early_us // self.slot_us


def slots_of(rate: str) -> Slots:
    """The slots of a rate such as "10/s"."""
    count, unit_ms = rate_of(rate)
    unit_us = unit_ms * 1000
    early_us, late_us = round(EARLY_SHARE * unit_us), round(LATE_SHARE * unit_us)
    return Slots(-(-(unit_us + early_us + late_us) // count), early_us, late_us)


@dataclass(frozen=True, slots=True)
class Share:
    """`left` slots that a popper has reserved, which may be used from `begin_us` on, until
    `end_us`. next_us: the time after the last of them."""

    begin_us: int
    end_us: int
    next_us: int
    left: int


def reserved(slots: Slots, next_us: int, now_us: int, wanted: int) -> list[Share]:
    """The next `wanted` slots, one or more; none if they are too far ahead. next_us: the time of
    the first slot that is not reserved."""
    shares: list[Share] = []
    begin_us = max(next_us, now_us)
    if begin_us - now_us > AHEAD_US:
        return shares
    while wanted > 0:
        count = min(wanted, slots.most)
        end_us, after_us = begin_us + slots.late_us, begin_us + count * slots.slot_us
        shares.append(Share(begin_us, end_us, after_us, count))
        begin_us, wanted = after_us, wanted - count
    return shares


def next_as_text(next_us: int, slots: Slots, popper: str) -> str:
    """The shared text of a rate. popper: the one that changes it, so that no two write the same."""
    return f"{next_us} {slots.slot_us} {popper}"


def next_us_of(text: str, slots: Slots, now_us: int) -> int:
    """The time of the first slot that is not reserved, from the shared text; 0 if it is empty, or
    so far ahead that the one before was reserved while a popper's clock was wrong. If the rate has
    changed since, the slot counts from the last one at the old rate."""
    if not text:
        return 0
    last_us, slot_us, _ = text.split(" ", 2)
    next_us = int(last_us) - int(slot_us) + slots.slot_us
    return 0 if is_too_far(next_us, slots, now_us) else next_us


def is_too_far(next_us: int, slots: Slots, now_us: int) -> bool:
    """Whether a slot is further ahead than any can be that is the next one, or reserved."""
    reserved_us = max(slots.most * slots.slot_us, RESERVED_US_MAX)
    return next_us - now_us > AHEAD_US + TOOK_US_MAX + reserved_us


# Permits by popper: how many, and until when.
Permits = dict[str, tuple[int, int]]


def permits_as_text(permits: Mapping[str, tuple[int, int]], popper: str) -> str:
    """The shared text of permits; empty if there are none. popper: the one that changes it."""
    return json.dumps({"by": popper, **permits}, separators=(",", ":")) if permits else ""


def permits_of(text: str, now_ms: int) -> Permits:
    """The permits of the shared text that have not expired."""
    found: dict[str, list[int]] = json.loads(text) if text else {}
    found.pop("by", None)
    return {
        name: (count, until_ms) for name, (count, until_ms) in found.items() if until_ms > now_ms
    }


def permitted(permits: Permits, popper: str, wanted: int, most: int, until_ms: int) -> Permits:
    """The permits after a popper has taken as many as it wants, and as others leave of `most`."""
    others = {name: each for name, each in permits.items() if name != popper}
    count = max(0, min(wanted, most - sum(count for count, _ in others.values())))
    return {**others, popper: (count, until_ms)} if count else others


def kept(permits: Permits, popper: str, most: int, until_ms: int) -> Permits:
    """The permits after a popper has kept at most `most` of its own."""
    others = {name: each for name, each in permits.items() if name != popper}
    count = min(most, permits.get(popper, (0, 0))[0])
    return {**others, popper: (count, until_ms)} if count else others
