"""Holding the keys of dead letters in the line of a keyed group made with `on_dead="hold"`.

`cassq.lifecycle.dead_keys` finds which keys are held. The popper with the lane asks it before it
puts in line what an earlier holder left, after each new dead letter, and five times a second while
any key is held.

Not thread-safe, like `cassq.consumer.keyed.lane`, which decides what stands in line.
"""

from __future__ import annotations

import logging

from cassq.consumer.keyed.keys import KeyLine
from cassq.consumer.keyed.segments import Segment
from cassq.errors import BackendError
from cassq.lifecycle.dead_keys import DeadKeys
from cassq.lifecycle.ports import Ports
from cassq.message.ranges import RangeSet
from cassq.model.rows import GroupRow, QueueRow

logger: logging.Logger = logging.getLogger("cassq")

LOOK_MS = 200  # how often to check whether a held key was released


class HeldKeyNotices:
    """Tells the line of one popper which keys are held. In a group without `on_dead="hold"` it does
    nothing."""

    def __init__(self, ports: Ports, queue: QueueRow, group: GroupRow) -> None:
        self._clock = ports.clock
        self._claims = ports.catalog.claims
        holds = group.policy.on_dead == "hold"
        self._letters = DeadKeys(ports, queue.name, group) if holds else None
        self._looked_ms = 0

    def look(self, line: KeyLine) -> None:
        """Hold the keys that dead letters hold, and release the others. Cost: `DeadKeys.look`."""
        if self._letters is None:
            return
        self._looked_ms = self._clock.boot_ms()
        found = self._letters.look()
        for key in found:
            if key not in line.held:
                line.hold(key)
        for key in [key for key in line.held if key not in found]:
            line.release(key)

    def look_again(self, line: KeyLine, now_ms: int) -> None:
        """Look for keys that were released, if that was not done lately. now_ms: boot time."""
        if line.held and now_ms - self._looked_ms >= LOOK_MS:
            self.look(line)

    def gone(self, line: KeyLine, segment: Segment, seqs: RangeSet) -> None:
        """Messages of a segment that waited are settled, perhaps as dead letters. If that cannot be
        read, their keys are held until the next look."""
        if self._letters is None or not seqs:
            line.gone(segment, seqs)
            return
        bundles = {seq: segment.bundle_of(seq) for seq in seqs}
        named = {seq: bundle.key_at(seq - bundle.base_seq) for seq, bundle in bundles.items()}
        for key in named.values():
            if key is not None:
                line.hold(key)
        line.gone(segment, seqs)
        row, first, last = segment.row, seqs.ranges[0][0], seqs.ranges[-1][1]
        try:
            for move in self._claims.moves(row.group_id, row.pipe_id, range(first, last)):
                key = named.get(move.seq)
                if move.settled and key is not None:
                    self._letters.expect(move, key)
            self.look(line)
        except BackendError as exc:
            logger.warning("keys stay held until the next look at dead letters: %s", exc)

    def until_due(self, line: KeyLine, most: float) -> float:
        """Seconds until it is time to look again; at most `most`."""
        return min(most, LOOK_MS / 1000) if line.held else most
