"""Shortages: that an extent was sealed with fewer good replicas than it should have.

Who seals it knows, and notes so in the catalog; who repairs looks at all placements only when there
is a reason, and this is one. A note is a hint: what it lacks is found by looking. So is one that is
not made, as by a sealer that ends before it: what was seen unsealed is looked for every minute, and
all there is every hour (`cassq.reaper.walk`).
"""

from __future__ import annotations

from cassq.catalog.port import Catalog
from cassq.model.rows import Sample

SUBJECT = "placements.short"
_STEP_MS = 60_000
# Clocks of the catalog's clients may differ by so much.
SKEW_MS = 5_000


def note_shortage(catalog: Catalog) -> None:
    """Tell who repairs. Cost: a write."""
    catalog.records.add_samples([Sample(SUBJECT, _STEP_MS, catalog.now_ms(), "{}")])


def shortage_since(catalog: Catalog, since_ms: int) -> bool:
    """Whether any was noted from then on; catalog time. Cost: a read."""
    return bool(catalog.records.samples(SUBJECT, _STEP_MS, max(0, since_ms - SKEW_MS)))
