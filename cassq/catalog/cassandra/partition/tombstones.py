"""Tombstones in listings: one range tombstone covers all tombstones of a gap.

Each removed entry leaves a tombstone, which every later read of the listing passes until the
servers compact it away. So a client that lists repeatedly and sees that entries have disappeared
later deletes the whole gap between the remaining neighbours: one range tombstone, which covers the
tombstones of all the entries, and the earlier one of the gap.

The deletion has a timestamp `SETTLED_US` before the listing was read: an entry written before that
is in the listing, and not in a gap, or was removed. Entries written later are not affected. So
entries need no particular order, and two clients may delete the same gap.

Where entries come and go fast, that is too late: hundreds go in that time. There a client that
removes entries covers their gaps itself, after every `REMOVED_MOST`, up to a horizon; see
`horizons`.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cassq.cassandra.contact import STALE_SECONDS
from cassq.cassandra.session import Cql, Statement
from cassq.errors import BackendError

logger: logging.Logger = logging.getLogger("cassq")

# A plain write counts only if it was answered within STALE_SECONDS of its stamp; the rest allows
# for clients whose times differ.
SETTLED_US = int(STALE_SECONDS + 5) * 1_000_000
LISTINGS_MOST, GONE_MOST = 4096, 10_000  # kept in memory
# Entries that one process removes from a listing before it covers their gaps. While it does, others
# go on removing: a read passes several times as many tombstones.
REMOVED_MOST = 4
ALL_MOST = 4  # with up to this many gaps, all may contain old tombstones
_ENDS: dict[type, tuple[Any, Any]] = {str: ("", "\U0010ffff"), int: (-1, (1 << 63) - 1)}


@dataclass(slots=True)
class _Listing:
    """A listing as last read. gone: entries that disappeared since, and when that was seen."""

    first_us: int
    keys: Sequence[Any] = ()
    gone: list[tuple[int, Any]] = field(default_factory=list)
    is_known: bool = False  # whether gaps from before the first read were handled


class TombstoneCompactor:
    """Covers the gaps in all listings that this process reads. `drop`: the statement that deletes
    the range between two keys of a partition; it identifies the listing."""

    def __init__(self, cql: Cql) -> None:
        self._cql = cql
        self._lock = threading.Lock()
        self._listings: OrderedDict[tuple[str, Any], _Listing] = OrderedDict()
        self._removed: dict[tuple[str, Any], list[Any]] = {}

    def read(
        self, drop: str, partition: Any, keys: Sequence[Any], asked_us: int, kind: type = str
    ) -> None:
        """Take in a complete read of a partition, in order. asked_us: by `Cql.stamp`, before it.

        Cost: now and then a plain write for each gap that removed entries have left.
        """
        with self._lock:
            listing = self._listing((drop, partition), asked_us)
            there = set(keys)
            listing.gone += ((asked_us, key) for key in listing.keys if key not in there)
            del listing.gone[:-GONE_MOST]
            listing.keys = keys
            due = _due(listing, asked_us)
        if due:
            before_us = self._cql.not_ahead(asked_us) - SETTLED_US
            self._cover(drop, partition, _ranges(due, keys, _ENDS[kind]), before_us)

    def removed(self, drop: str, partition: Any, key: Any) -> list[Any]:
        """Record that this process removed an entry of a listing with a horizon; each time there
        are `REMOVED_MOST`, return them: the caller must `cover` them now. Cost: none."""
        with self._lock:
            removed = self._removed.pop((drop, partition), [])
            removed.append(key)
            if len(removed) >= REMOVED_MOST:
                return removed
            if len(self._removed) >= LISTINGS_MOST:
                del self._removed[next(iter(self._removed))]
            self._removed[drop, partition] = removed
            return []

    def cover(
        self,
        drop: str,
        partition: Any,
        removed: Sequence[Any],
        keys: Sequence[Any],
        horizon_us: int,
        kind: type = str,
    ) -> None:
        """Cover the gaps that removed entries have left. keys: the entries there, read after the
        horizon was raised. Cost: a plain write per gap, concurrently."""
        self._cover(drop, partition, _ranges(removed, keys, _ENDS[kind]), horizon_us)

    @contextmanager
    def ignoring_failures(self) -> Iterator[None]:
        """Logs failures of the servers, and goes on: tombstones only cost time, and are covered
        later."""
        try:
            yield
        except BackendError as exc:
            logger.info("tombstones in a listing are left for the next time: %s", exc)

    def _listing(self, name: tuple[str, Any], asked_us: int) -> _Listing:
        listing = self._listings.get(name)
        if listing is None:
            if len(self._listings) >= LISTINGS_MOST:
                self._listings.popitem(last=False)
            listing = self._listings[name] = _Listing(asked_us)
        self._listings.move_to_end(name)
        return listing

    def _cover(
        self, drop: str, partition: Any, ranges: Iterable[tuple[Any, Any]], before_us: int
    ) -> None:
        covers: list[Statement] = [(drop, (before_us, *partition, *ends)) for ends in ranges]
        with self.ignoring_failures():
            self._cql.write_many(covers)


def _due(listing: _Listing, now_us: int) -> list[Any]:
    """The entries that disappeared long enough ago, whose gaps should be covered now. A while after
    the first read, also the entries next to which others may have been removed before it."""
    settled_us = now_us - SETTLED_US
    due = [key for us, key in listing.gone if us < settled_us]
    if due:
        listing.gone = [each for each in listing.gone if each[0] >= settled_us]
    if not listing.is_known and listing.first_us < settled_us:
        listing.is_known = True
        keys = listing.keys
        due += [None, *(keys if len(keys) < ALL_MOST else keys[-1:])]
    return due


def _ranges(due: Iterable[Any], keys: Sequence[Any], ends: tuple[Any, Any]) -> set[tuple[Any, Any]]:
    """The ranges between remaining keys that contain, or directly follow, the keys in `due`. None:
    before all."""
    bounds = [ends[0], *keys, ends[1]]
    starts = [0 if key is None else bisect_right(keys, key) for key in due]
    return {(bounds[at], bounds[at + 1]) for at in starts if bounds[at] < bounds[at + 1]}
