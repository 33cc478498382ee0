"""Horizons of listings: times up to which every entry is in any later read of the listing, or will
be added again.

A client that covers the gaps of a listing, or raises its floor, must not hide what another client
is just adding. So it

1. raises the horizon to its present time,
2. reads the listing,
3. covers gaps with deletions of that time, and raises the floor to that time at most.

A client that adds an entry takes a stamp, writes the entry, and then reads the horizon. If the
horizon is not earlier than its stamp, it adds the entry again, with a later stamp.

Reads and writes reach a quorum. If the horizon was raised before the writer's read began, the
writer adds the entry again: beyond the horizon, where nothing is hidden. Otherwise the listing was
read after the entry was written: the entry is in it, so it is neither in a gap nor below the floor.
No client waits, and clocks that differ cost no more than another attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from cassq.base.clock import contended
from cassq.cassandra.session import Cql
from cassq.catalog.cassandra.partition.tombstones import TombstoneCompactor

# Of two clients' horizons the later one stands.
RAISE_HORIZON = "INSERT INTO listing_horizons (owner_id, at_us) VALUES (?, ?) USING TIMESTAMP ?"
HORIZON = "SELECT at_us FROM listing_horizons WHERE owner_id = ?"
DROP_HORIZON = "DELETE FROM listing_horizons WHERE owner_id = ?"
# An addition that took longer is repeated. Floors also rise without a horizon, to positions that
# are twice as old.
LATE_US = 300_000_000


class Horizons:
    """The horizons of listings. owner_id: of the queue whose pipes are listed, or of the group
    whose cursors are; or a slice of consumed pipes."""

    def __init__(self, cql: Cql, gaps: TombstoneCompactor) -> None:
        self._cql = cql
        self._gaps = gaps

    def stamps(self, owner_ids: Collection[str], listing: str) -> Iterator[int]:
        """Yields stamps; the caller adds its entries after each one, because the one before was not
        beyond the horizons. After the last, the entries stay. listing: its name, for the error if
        this does not end. Cost: a round of reads per stamp."""
        for _ in self._cql.attempts():
            stamp = self._cql.stamp()
            yield stamp
            found = self._cql.read_many([(HORIZON, (owner_id,)) for owner_id in owner_ids])
            horizon_us: int = max((at_us for rows in found for (at_us,) in rows), default=0)
            if stamp > horizon_us and self._cql.stamp() - stamp < LATE_US:
                return
            self._cql.stamp(horizon_us)
        raise contended(f"the listing of {listing}")

    def raised(self, owner_id: str) -> int:
        """Raise a horizon to the present; return it. Cost: a plain write."""
        now_us = self._cql.stamp()
        self._cql.write(RAISE_HORIZON, (owner_id, now_us, now_us))
        return now_us

    def removed(
        self,
        owner_id: str,
        cover: str,
        partition: tuple[str | int, ...],
        key: str,
        listed: Callable[[], Sequence[str]],
    ) -> None:
        """Record that this process removed an entry; after every few, cover the gaps that they
        left.
        cover: the statement for a gap. listed: reads the entries there. Cost: now and then two
        rounds of plain writes and that read."""
        gone = self._gaps.removed(cover, partition, key)
        if gone:
            with self._gaps.ignoring_failures():
                horizon_us = self.raised(owner_id)
                self._gaps.cover(cover, partition, gone, listed(), horizon_us)

    def drop(self, owner_id: str) -> None:
        """Forget the horizon of a deleted queue or group. Cost: a plain write."""
        self._cql.write(DROP_HORIZON, (owner_id,))
