"""Rounds: what the last check of all extents' placements found.

The process that makes a round shares its result in the catalog: others then know whether another
is due, and reports and alerts need not check everything themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cassq.catalog.port import Catalog
from cassq.inspect.history import MINUTE_MS
from cassq.model.rows import Sample

# The subject under which rounds are recorded.
SUBJECT = "placements"
# How often to check even if all sidecars are well: extents may have been made with too few
# replicas.
AGAIN_MS = 3_600_000


class Round(NamedTuple):
    """What was found. began_ms, at_ms: catalog time of its beginning and end.

    sidecars, takers: the fleet at that time, see `cassq.extents.replicas.fleet.Fleet`. extents: how
    many there are. short: how many of them have fewer good replicas than they should. open: how
    many remain that can be repaired. stuck: how many are short and cannot be repaired now.
    unsealed: how many are not sealed and will need repair once they are. unreadable: how many have
    no known good replica. left: by name, how many replicas are on each sidecar that is draining or
    lost.
    """

    at_ms: int
    sidecars: Sequence[Sequence[str]]
    takers: Sequence[str]
    extents: int
    short: int
    open: int
    stuck: int
    unsealed: int
    unreadable: int
    left: Mapping[str, int]
    began_ms: int = 0


def note(catalog: Catalog, made: Round) -> None:
    """Record a round for all clients. Cost: a write."""
    data = json.dumps(made._asdict(), separators=(",", ":"))
    catalog.records.add_samples([Sample(SUBJECT, MINUTE_MS, made.at_ms, data)])


def last_round(catalog: Catalog) -> Round | None:
    """The last round; None if it is too long ago. Cost: a read."""
    found = catalog.records.samples(SUBJECT, MINUTE_MS, catalog.now_ms() - AGAIN_MS)
    return Round(**json.loads(found[-1].data)) if found else None
