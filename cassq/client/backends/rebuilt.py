"""Whether a catalog was rebuilt from pipe files because the one before was lost.

Pipe files hold messages and the names of their queues. Everything else in the lost catalog is gone,
and a user may not notice that for long: a schedule that is gone just pushes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime

from cassq.catalog.port import Catalog

_NAME = "rebuilt"


def note_rebuild(catalog: Catalog) -> None:
    """Note that the catalog is being rebuilt. Cost: a read and a conditional write."""
    leases = catalog.leases
    leases.swap(_NAME, leases.shared(_NAME), str(catalog.wall_ms()))


def rebuilt_at(catalog: Catalog) -> datetime | None:
    """When the catalog was rebuilt; None if it never was. Cost: one read."""
    at_ms = catalog.leases.shared(_NAME)
    return datetime.fromtimestamp(int(at_ms) / 1000, UTC) if at_ms else None


def without_schedules(at: datetime) -> str:
    """The hint for a schedule that is not found in a catalog that was rebuilt."""
    when = at.isoformat(sep=" ", timespec="seconds")
    return f"the catalog was lost and rebuilt on {when}, without schedules: create them again"
