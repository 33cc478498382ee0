"""Shortages: notes that extents may have fewer good replicas than they should have.

A sealer that sees this writes a note to the catalog, and so does a sidecar that finds damage.
Repairers check all placements only for a reason, and such a note is one. A note is only a hint; the
check finds the missing replicas. If no note was written, for example because the sealer died, a
check comes later: every minute while there are unsealed extents, and every hour in any case
(`cassq.inspect.placements.walk`).
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
    """Whether a shortage was noted since a catalog time. Cost: a read."""
    return bool(catalog.records.samples(SUBJECT, _STEP_MS, max(0, since_ms - SKEW_MS)))
