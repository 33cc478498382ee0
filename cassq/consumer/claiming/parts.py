"""The parts into which the pipes of a queue fall for a keyed group: one for each key lane.

A popper works on each of its lanes separately, and other poppers work on the other lanes: so a list
of the pipes of one lane leaves out those of all others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from cassq.catalog.port import Catalog
from cassq.model.rows import Claim, PipeRow
from cassq.model.scaling import key_lane_of_pipe

KEPT = 4096  # of how many pipes it is remembered whether they are in the part


class LanePart:
    """The pipes of one key lane. popper: the name of the popper that claims from them. number: of
    the lane. key_lanes: how many lanes the queue has."""

    def __init__(self, catalog: Catalog, popper: str, number: int, key_lanes: int) -> None:
        self._catalog = catalog
        self.popper: str = popper
        self.number: int = number
        self.key_lanes: int = key_lanes
        self._ours: set[str] = set()  # pipes
        self._others: set[str] = set()

    def has(self, pipe: PipeRow) -> bool:
        """Whether a pipe belongs to this part."""
        return key_lane_of_pipe(pipe.owner, self.key_lanes) == self.number

    def due(
        self, group_id: str, now_ms: int, limit: int, without: set[str]
    ) -> dict[str, list[Claim]]:
        """The rows that `Claims.due` lists for these pipes, by pipe. Cost: that of `Claims.due`,
        and a read of each pipe that was not seen before."""
        found: defaultdict[str, list[Claim]] = defaultdict(list)
        for row in self._due(group_id, now_ms, limit, without):
            found[row.pipe_id].append(row)
        return found

    def _due(self, group_id: str, now_ms: int, limit: int, without: set[str]) -> Sequence[Claim]:
        if self.key_lanes == 1:
            return self._catalog.claims.due(group_id, now_ms, limit, without=tuple(without))
        if len(self._ours) + len(self._others) >= KEPT:
            self._ours.clear()  # most are retired
            self._others.clear()
        while True:
            left_out = (*without, *self._others)
            rows = self._catalog.claims.due(group_id, now_ms, limit, without=left_out)
            before = len(self._others)
            for pipe_id in sorted({row.pipe_id for row in rows} - self._ours):
                self._look_at(pipe_id)
            if len(self._others) == before:
                return rows

    def _look_at(self, pipe_id: str) -> None:
        row = self._catalog.pipes.by_id(pipe_id)
        ours = row is None or self.has(row)
        (self._ours if ours else self._others).add(pipe_id)
