"""Priorities: how urgent messages are, from 0, the default, to 9, the most urgent.

All messages of a pipe have its priority, so each priority that is used has pipes of its own, and
one that is not used costs nothing. Messages of a greater priority are delivered first; within one
priority the order is that of the queue. One in `priority_share` claims of a popper begins with the
lowest priority that has messages waiting, so that none starves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cassq.errors import UsageError
from cassq.model.queues import QueuePolicy

PRIORITY_MAX = 9
PRIORITIES = range(PRIORITY_MAX + 1)


def check_priority(priority: int) -> int:
    """`priority`, if it is valid; else raises UsageError."""
    number = isinstance(priority, int) and not isinstance(priority, bool)
    if not number or priority not in PRIORITIES:
        raise UsageError(
            f"priority must be a whole number from 0 to {PRIORITY_MAX}, not {priority!r}",
            hint=f"{PRIORITY_MAX} is the most urgent, 0 the default",
        )
    return priority


def check_allowed(priority: int, policy: QueuePolicy) -> None:
    """Raise UsageError for a priority that a queue cannot give."""
    if priority and policy.strict:
        raise UsageError(
            "a cp queue delivers messages in the order in which they were pushed, so none can have"
            f" a priority: {priority} is not 0",
            hint="leave out priority, or use an ap queue",
        )


def by_priority(priorities: Sequence[int]) -> dict[int, list[int]]:
    """The indexes of messages with each of these priorities, the greatest first."""
    found: dict[int, list[int]] = {}
    for index, priority in enumerate(priorities):
        found.setdefault(priority, []).append(index)
    return dict(sorted(found.items(), reverse=True))


class Level(NamedTuple):
    """What all messages that a pusher writes to the same pipes have in common."""

    priority: int
    key_lane: int


PLAIN = Level(0, 0)  # of most messages
Levels = dict[Level, Sequence[int]]  # the indexes of the messages of each level


def urgent_first(levels: Iterable[Level]) -> list[Level]:
    """The order in which messages of several levels are pushed."""
    return sorted(levels, key=lambda each: (-each.priority, each.key_lane))
