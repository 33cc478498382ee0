"""Leveling: which of a pusher's messages may go to the same pipes.

All messages of a pipe have one priority, and in a queue with `key_lanes` one key lane. Messages
without a key go to the lanes in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from cassq.message.batches import Batch, Intend
from cassq.model.priorities import Level, Levels, by_priority, check_priority
from cassq.model.scaling import by_key_lane, key_lane_of
from cassq.producer.admission import Admission
from cassq.producer.dedup import DedupPush


class Leveling:
    """Finds the levels of one pusher's messages. by_key: whether their keys matter."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._turns = count()
        self.by_key: bool = admission.has_key_lanes

    @property
    def key_lanes(self) -> int:
        return self._admission.key_lanes if self.by_key else 1

    def level(self, priority: int, key: bytes | None) -> Level:
        """The level of a message. Raises UsageError for an invalid priority."""
        check_priority(priority)
        lanes = self.key_lanes
        if lanes == 1:
            return Level(priority, 0)
        lane = next(self._turns) % lanes if key is None else key_lane_of(key, lanes)
        return Level(priority, lane)

    def levels(self, priorities: Sequence[int], keys: Sequence[bytes | None] | None) -> Levels:
        """Which messages are of each level. Those without a key are all of one lane."""
        count = len(priorities)
        lanes = by_key_lane(keys, count, self.key_lanes, next(self._turns))
        if len(set(priorities)) == 1:
            return {Level(priorities[0], lane): which for lane, which in lanes.items()}
        found: Levels = {}
        for lane, which in lanes.items():
            for priority, some in by_priority([priorities[at] for at in which]).items():
                found[Level(priority, lane)] = [which[at] for at in some]
        return found

    def parts(self, batch: Batch) -> Levels:
        """Which messages of a batch are of each level."""
        priority = check_priority(batch.priority)
        if self.key_lanes == 1:
            return {Level(priority, 0): range(batch.count)}
        return self.levels([priority] * batch.count, batch.keys)


def of_some(intend: Intend, which: Sequence[int]) -> Intend:
    """The `intend` for some messages of a batch. which: their indexes."""
    assert not isinstance(intend, DedupPush), "these push a batch of one level"

    def intend_some(pipe_id: str, seq: int, messages: Sequence[int]) -> None:
        intend(pipe_id, seq, [which[at] for at in messages])

    return intend_some
