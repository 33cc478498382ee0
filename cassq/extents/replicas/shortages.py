"""Shortages: notes that an extent was sealed with fewer good replicas than it should have.

The sealer notices that, and notes it in the catalog. Repairers check all placements only for a
reason, and such a note is one. A note is only a hint; a check finds what is missing. It also finds
what nobody noted, as when a sealer dies first: extents that were seen unsealed are checked every
minute, and all of them every hour (`cassq.reaper.walk`).
"""

from __future__ import annotations

from cassq.catalog.port import Catalog
from cassq.model.rows import Sample

SUBJECT = "placements.short"
_STEP_MS = 60_000
# The clocks of the catalog's clients may differ by this much.
SKEW_MS = 5_000


def note_shortage(catalog: Catalog) -> None:
    """Notify the repairers. Cost: a write."""
    catalog.records.add_samples([Sample(SUBJECT, _STEP_MS, catalog.now_ms(), "{}")])


def shortage_since(catalog: Catalog, since_ms: int) -> bool:
    """Whether any was noted since then, in catalog time. Cost: a read."""
    return bool(catalog.records.samples(SUBJECT, _STEP_MS, max(0, since_ms - SKEW_MS)))
