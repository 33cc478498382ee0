"""Gaps in listings: what was removed there is covered by one tombstone, however much it was.

An entry is removed by a tombstone of its own, which every later read of the listing passes, until
the servers compact it away some day. So who lists again and again, and sees that entries went, or
has removed one that came and went between two readings, removes a while later the whole gap
between the neighbours that are left: one range tombstone, which covers those of all the entries,
and that of the gap as it was before.

What is removed so was written `SETTLED_US` before the listing was read, by the times of the writes
themselves: it is in the listing, and is left, or it is gone. What comes later stays, wherever it
comes. So no order of entries is asked for, and two may remove the same gap.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cassq.cassandra.contact import STALE_SECONDS
from cassq.cassandra.session import Cql, Statement
from cassq.errors import BackendError

logger: logging.Logger = logging.getLogger("cassq")

# A plain write counts only if it was answered within STALE_SECONDS of its stamp; the rest is for
# clients whose times differ.
SETTLED_US = int(STALE_SECONDS + 5) * 1_000_000
LISTINGS_MOST, GONE_MOST = 4096, 10_000  # remembered
ALL_MOST = 4  # gaps, up to which all are taken for such as somebody may have left
_ENDS: dict[type, tuple[Any, Any]] = {str: ("", "\U0010ffff"), int: (-1, (1 << 63) - 1)}


@dataclass(slots=True)
class _Listing:
    """As it was read last. gone: entries that went since, and when that was seen."""

    first_us: int
    keys: Sequence[Any] = ()
    gone: list[tuple[int, Any]] = field(default_factory=list)
    is_known: bool = False  # whether what others left before the first read was looked after


class TombstoneCompactor:
    """The gaps in all listings that this process reads. `drop` is the statement that removes the
    range between two keys of a partition, and names the listing."""

    def __init__(self, cql: Cql) -> None:
        self._cql = cql
        self._lock = threading.Lock()
        self._listings: OrderedDict[tuple[str, Any], _Listing] = OrderedDict()

    def read(
        self, drop: str, partition: Any, keys: Sequence[Any], asked_us: int, kind: type = str
    ) -> None:
        """All of a partition was read, in order; asked_us: by `Cql.stamp`, before that.

        Cost: none, but now and then a plain write for each gap that entries have left.
        """
        with self._lock:
            listing = self._listing((drop, partition), asked_us)
            there = set(keys)
            listing.gone += ((asked_us, key) for key in listing.keys if key not in there)
            del listing.gone[:-GONE_MOST]
            listing.keys = keys
            due = _due(listing, asked_us)
        if due:
            self._cover(drop, partition, _ranges(due, keys, _ENDS[kind]), asked_us - SETTLED_US)

    def went(self, drop: str, partition: Any, key: Any) -> None:
        """This process has removed an entry, which it may never have read there. Cost: none."""
        now_us = self._cql.stamp()
        with self._lock:
            listing = self._listing((drop, partition), now_us)
            listing.gone.append((now_us, key))
            del listing.gone[:-GONE_MOST]

    def _listing(self, name: tuple[str, Any], asked_us: int) -> _Listing:
        listing = self._listings.get(name)
        if listing is None:
            if len(self._listings) >= LISTINGS_MOST:
                self._listings.popitem(last=False)
            listing = self._listings[name] = _Listing(asked_us)
        return listing

    def _cover(
        self, drop: str, partition: Any, ranges: Iterable[tuple[Any, Any]], before_us: int
    ) -> None:
        covers: list[Statement] = [(drop, (before_us, *partition, *ends)) for ends in ranges]
        try:
            self._cql.write_many(covers)
        except BackendError as exc:
            logger.info("tombstones in a listing are left for the next time: %s", exc)


def _due(listing: _Listing, now_us: int) -> list[Any]:
    """The entries whose gaps are to be covered now: they went long enough ago. The first time, a
    while after the first read, those in whose place others may have been before that read."""
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
    """The ranges between the keys that are left, in which, or behind which, those in `due` were.
    None: before all."""
    bounds = [ends[0], *keys, ends[1]]
    starts = [0 if key is None else bisect_right(keys, key) for key in due]
    return {(bounds[at], bounds[at + 1]) for at in starts if bounds[at] < bounds[at + 1]}
