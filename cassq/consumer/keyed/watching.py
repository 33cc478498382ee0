"""Noticing what others do to messages that wait in a keyed group's line.

A failed message holds its key until it is due again, perhaps for hours. Meanwhile it may expire, be
purged, or be made a dead letter by an operator: then the key goes on.

Not thread-safe, like `cassq.consumer.keyed.lane`, which decides what stands in line.
"""

from __future__ import annotations

from collections import defaultdict

from cassq.catalog.port import Catalog
from cassq.consumer.keyed.keys import KeyLine
from cassq.consumer.keyed.segments import Segment
from cassq.model.rows import ClaimState

WATCH_MS = 1000
PIPES_AT_ONCE = 4


class Watch:
    """Compares the rows of waiting segments with the catalog, a few pipes at a time."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._looked_ms = 0
        self._last = ""  # the last pipe that was looked at

    def changed(self, line: KeyLine, now_ms: int) -> list[Segment]:
        """The waiting segments whose rows have changed; they wait no longer. now_ms: boot time.
        Cost: once a second, if any segment waits, a read of the open rows of `PIPES_AT_ONCE`
        pipes."""
        if now_ms - self._looked_ms < WATCH_MS or not line.waits:
            return []
        self._looked_ms = now_ms
        by_pipe: dict[str, list[Segment]] = defaultdict(list)
        for segment in line.waiting():
            if segment.away:
                continue  # `cassq.consumer.keyed.elsewhere` looks at these
            by_pipe[segment.row.pipe_id].append(segment)
        pipes = sorted(by_pipe, key=lambda pipe_id: (pipe_id <= self._last, pipe_id))
        found: list[Segment] = []
        for pipe_id in pipes[:PIPES_AT_ONCE]:
            self._last = pipe_id
            rows = self._catalog.claims.rows(by_pipe[pipe_id][0].row.group_id, pipe_id)
            versions = {row.start: row.version for row in rows if row.state is not ClaimState.DONE}
            found += [
                segment
                for segment in by_pipe[pipe_id]
                if versions.get(segment.row.start) != segment.row.version
            ]
        line.end_wait(found)
        return found

    def until_due(self, line: KeyLine, most: float) -> float:
        """Seconds until it is time to look again; at most `most`."""
        return min(most, WATCH_MS / 1000) if line.waits else most
