"""Counts: what the processes of a gateway did, in memory that all of them share.

Each process has a slot in one file, which only it writes, so no process waits. A process that
replaces another goes on in its slot, so counts never decrease. Any process can report the counts of
all, because Prometheus cannot choose which one answers it.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Sequence

from cassq.gateway.wire.query_codec import IDENTITY
from cassq.gateway.wire.sqs import ACTIONS
from cassq.inspect.metrics import COUNTER, GAUGE, Histogram, Metric

OTHER = "other"  # requests that name no action
# Requests of plain HTTP.
PLAIN_PUSH, PLAIN_RECEIVE, PLAIN_SETTLE, PLAIN_OTHER = "v1 push", "v1 receive", "v1 settle", "v1"
_PLAIN = (PLAIN_PUSH, PLAIN_RECEIVE, PLAIN_SETTLE, PLAIN_OTHER)
NAMES: Sequence[str] = (*ACTIONS, IDENTITY, OTHER, *_PLAIN)
PLACES = {name: at for at, name in enumerate(NAMES)}
# How a request ended: done; refused, because it was wrong; failed, because the gateway could not
# carry it out; or gone, because its client went away.
OUTCOMES: Sequence[str] = ("done", "refused", "failed", "gone")
DONE, REFUSED, FAILED, GONE = range(4)
# Upper bounds of the buckets by which durations are counted, in seconds.
BOUNDS: Sequence[float] = (0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0, 10.0, 20.0)
_SECONDS = len(OUTCOMES)  # here: total microseconds of ended requests, then the buckets
_EACH = _SECONDS + 1 + len(BOUNDS) + 1
_CONNECTIONS = len(NAMES) * _EACH
_REFUSED_CONNECTIONS = _CONNECTIONS + 1
_CELLS = _REFUSED_CONNECTIONS + 1


def counts_bytes(processes: int) -> int:
    """The size of the file for this many processes."""
    return processes * _CELLS * 8


class Counts:
    """The counts of one process among others. fd: of a file of `counts_bytes`; it can be closed
    afterwards. slot: this process's number, from 0."""

    def __init__(self, fd: int, slot: int) -> None:
        size = os.fstat(fd).st_size
        self._cells = memoryview(mmap.mmap(fd, size)).cast("Q")
        self._base = slot * _CELLS
        self._slots = len(self._cells) // _CELLS

    def ended(self, name: str, outcome: int, seconds: float) -> None:
        """A request has ended. name: its action, or OTHER. Cost: half a microsecond."""
        cells, at = self._cells, self._base + PLACES[name] * _EACH
        cells[at + outcome] += 1
        if outcome != GONE:
            cells[at + _SECONDS] += int(seconds * 1e6)
            cells[at + _SECONDS + 1 + bisect_left(BOUNDS, seconds)] += 1

    def connections(self, now: int, refused: int) -> None:
        """Set how many connections there are, and add how many more were refused."""
        self._cells[self._base + _CONNECTIONS] = now
        self._cells[self._base + _REFUSED_CONNECTIONS] += refused

    def metrics(self) -> list[Metric | Histogram]:
        """The metrics of all processes."""
        total = [sum(self._cells[cell::_CELLS]) for cell in range(_CELLS)]
        requests, seconds = [], []
        for name, place in PLACES.items():
            at = place * _EACH
            if not any(total[at : at + _SECONDS]):
                continue
            for outcome, count in zip(OUTCOMES, total[at:], strict=False):
                requests.append(({"action": name, "outcome": outcome}, count))
            buckets = total[at + _SECONDS + 1 : at + _EACH]
            seconds.append(({"action": name}, buckets, total[at + _SECONDS] / 1e6))
        return [
            Metric(
                "cassq_gateway_requests",
                COUNTER,
                "Requests that have ended, by action, and how.",
                requests,
            ),
            Histogram(
                "cassq_gateway_request_seconds",
                "How long requests took, with the time that they waited for messages.",
                BOUNDS,
                seconds,
            ),
            Metric(
                "cassq_gateway_connections",
                GAUGE,
                "Connections that are open.",
                [({}, total[_CONNECTIONS])],
            ),
            Metric(
                "cassq_gateway_refused_connections",
                COUNTER,
                "Connections that were refused, as there were too many.",
                [({}, total[_REFUSED_CONNECTIONS])],
            ),
            Metric(
                "cassq_gateway_processes", GAUGE, "Processes of the gateway.", [({}, self._slots)]
            ),
        ]
