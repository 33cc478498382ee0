"""Expired groups: what each group had when it was removed because no popper came.

A removed group leaves no rows in the ledger. The step that removes it also records, in a sample,
how many messages had which fate for it, so that none disappears without being counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from cassq.catalog.port import Catalog
from cassq.inspect.history import HOUR_MS, KEPT_MS
from cassq.inspect.stats import LEDGER, GroupStats
from cassq.model.rows import GroupRow, Sample


@dataclass(frozen=True, slots=True)
class ExpiredGroup:
    """A consumer group that was removed because it had no popper for `expires` seconds.

    at: when. pushed: how many messages were pushed for it until then. counts: how many of them had
    which fate, as in `GroupStats`; they add up to `pushed`.
    """

    name: str
    at: datetime
    expires: float
    pushed: int
    counts: dict[str, int]

    @property
    def uncommitted(self) -> int:
        """How many messages were still to be delivered to it, or held by its poppers."""
        return self.counts["waiting"] + self.counts["pending"]

    def as_dict(self) -> dict[str, Any]:
        """As plain values; the time in ISO 8601, in UTC."""
        return {**asdict(self), "at": self.at.isoformat(timespec="milliseconds")}


def removal_of(group: GroupRow, stats: GroupStats, now_ms: int) -> Sample:
    """The record of a group that expires at this catalog time. Pure."""
    data = {
        "id": group.id,
        "name": group.name,
        "expires": group.policy.group_expires,
        "pushed": stats.pushed,
        "counts": {part: getattr(stats, part) for part in LEDGER},
    }
    return Sample(_subject(group.queue_id), HOUR_MS, now_ms, json.dumps(data))


def expired_groups(catalog: Catalog, queue_id: str) -> list[ExpiredGroup]:
    """The groups of a queue that expired in the last 60 days, oldest first. Cost: a range of a
    key."""
    since_ms = catalog.now_ms() - KEPT_MS[HOUR_MS]
    return list(_read(catalog.records.samples(_subject(queue_id), HOUR_MS, since_ms)))


def _read(samples: Iterable[Sample]) -> Iterable[ExpiredGroup]:
    for sample in samples:
        at = datetime.fromtimestamp(sample.at_ms / 1000, UTC)
        data = json.loads(sample.data)
        yield ExpiredGroup(data["name"], at, data["expires"], data["pushed"], data["counts"])


def _subject(queue_id: str) -> str:
    return f"expired:{queue_id}"
