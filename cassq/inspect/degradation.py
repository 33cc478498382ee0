"""Troubles: counts of how often the clients of a queue were degraded, shared in the catalog.

Each client writes what its pushers and poppers have counted since its last sample as a new sample,
under a subject of its own. Sums cover the last two days, which is how long samples are kept. The
outcomes of clients' requests to servers are recorded in the same way, for all queues together.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable

from cassq.base.clock import Clock
from cassq.base.counters import REQUESTS, Requests, Tally
from cassq.catalog.port import Catalog
from cassq.inspect.expired_groups import expired_groups
from cassq.inspect.history import KEPT_MS, MINUTE_MS
from cassq.inspect.stats import QueueStats, queue_stats
from cassq.lifecycle.ports import Ports
from cassq.model.rows import QueueRow, Sample

NOTE_SECONDS = 5.0
# How often counts of requests are written: rarely, because `stats` reads every sample, and some
# requests are always sent twice.
NOTE_REQUESTS_MS = 600_000
SPREAD_MS = 50  # clients that write at once use different milliseconds, out of this many
_OF_ALL = ""  # instead of a queue's id
# The fields of tallies that are counted.
TROUBLES = {
    "carried_over": "carried over to another pipe because a write had failed",
    "doubtful": "of those, perhaps written twice: the outcome is unknown",
    "spilled": "spilled to a client's disk",
    "forwarded": "forwarded from there",
    "found": "of those, found to have arrived before",
    "lost": "claimed by another popper while they were being processed",
    "refused": "not pushed because the storage did not answer",
}


class Notebook:
    """The counts of one client that are not written yet. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._tallies: list[tuple[str, Tally, Counter[str]]] = []
        self._requests: Counter[str] = Counter()  # written so far
        self._requests_ms = clock.boot_ms()

    def add(self, queue_id: str, tally: Tally) -> None:
        """From now on, record what this tally counts for a queue."""
        with self._mutex:
            self._tallies.append((queue_id, tally, Counter()))

    def maintain(self, ports: Ports) -> float:
        """Write what is new; return the seconds until the next time. Call it from one thread at a
        time. Cost: none if nothing is new, else a write and a read for each queue."""
        with self._mutex:
            tallies = list(self._tallies)
        over = {id(tally) for _, tally, _ in tallies if tally.over}
        news: dict[str, list[tuple[Counter[str], Counter[str]]]] = {}
        for queue_id, tally, noted in tallies:
            new = _counted(tally) - noted
            if new:
                news.setdefault(queue_id, []).append((noted, new))
        for queue_id, found in news.items():
            total: Counter[str] = Counter()
            for _, new in found:
                total.update(new)
            if _note(ports, queue_id, total):
                for noted, new in found:
                    noted.update(new)
        with self._mutex:
            self._tallies = [
                (queue_id, tally, noted)
                for queue_id, tally, noted in self._tallies
                if id(tally) not in over or _counted(tally) - noted
            ]
        if self._clock.boot_ms() - self._requests_ms >= NOTE_REQUESTS_MS:
            self._note_requests(ports)
        return NOTE_SECONDS

    def close(self, ports: Ports) -> None:
        """Write what is new, for the last time."""
        self.maintain(ports)
        self._note_requests(ports)

    def _note_requests(self, ports: Ports) -> None:
        if ports.requests is None:
            return
        self._requests_ms = self._clock.boot_ms()
        new = _counted(ports.requests) - self._requests
        if new and _note(ports, _OF_ALL, new):
            self._requests.update(new)


def _counted(tally: Tally | Requests) -> Counter[str]:
    names = REQUESTS if isinstance(tally, Requests) else TROUBLES
    return Counter({name: count for name in names if (count := getattr(tally, name))})


def _note(ports: Ports, queue_id: str, new: Counter[str]) -> bool:
    """Add a sample; at another millisecond if there already is one. False if there is one at each
    of the next `SPREAD_MS`."""
    catalog = ports.catalog
    data = json.dumps({**new, "client": ports.ids.client})
    now_ms = catalog.now_ms()
    for at_ms in range(now_ms, now_ms + SPREAD_MS):
        sample = Sample(_subject(queue_id), MINUTE_MS, at_ms, data)
        catalog.records.add_samples([sample])
        if sample in catalog.records.samples(sample.subject, MINUTE_MS, at_ms):
            return True
    return False


def troubles_of(catalog: Catalog, queue_id: str) -> dict[str, int]:
    """How many messages had each trouble in the last two days, as far as it was recorded. Cost: a
    range of a key."""
    return _sums(catalog, queue_id, TROUBLES)


def requests_of(catalog: Catalog) -> dict[str, int]:
    """`troubles_of` for the requests of all clients to servers. Cost: a range of a key."""
    return _sums(catalog, _OF_ALL, REQUESTS)


def _sums(catalog: Catalog, queue_id: str, names: Iterable[str]) -> dict[str, int]:
    found: Counter[str] = Counter()
    since_ms = catalog.now_ms() - KEPT_MS[MINUTE_MS]
    for sample in catalog.records.samples(_subject(queue_id), MINUTE_MS, since_ms):
        noted = json.loads(sample.data)
        found.update({name: noted.get(name, 0) for name in names})
    return {name: found[name] for name in names if found[name]}


def stats_with_troubles(ports: Ports, queue: QueueRow) -> QueueStats:
    """The statistics of a queue, with its troubles, the outcomes of requests, and the groups that
    expired. Cost: the sum of all four."""
    stats = queue_stats(ports, queue)
    stats.troubles = troubles_of(ports.catalog, queue.id)
    if gone := expired_groups(ports.catalog, queue.id):
        uncommitted = sum(group.uncommitted for group in gone)
        stats.expired_groups = {"groups": len(gone), "uncommitted": uncommitted}
    if ports.requests is not None:
        stats.requests = requests_of(ports.catalog)
    return stats


def _subject(queue_id: str) -> str:
    return f"troubles:{queue_id}"
