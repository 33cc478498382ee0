"""Rounds: what was found when the placements of all extents were last looked at.

A round is noted by whoever made it, for all others: so they know whether another is due, and those
who tell people what is wrong need not look at everything themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cassq.catalog.port import Catalog
from cassq.inspect.history import MINUTE_MS
from cassq.model.rows import Sample

# Under this subject rounds are noted.
SUBJECT = "placements"
# However well all sidecars are: extents may have been made with fewer replicas than are wanted.
AGAIN_MS = 3_600_000


class Round(NamedTuple):
    """What was found. at_ms: catalog time of its end.

    sidecars, takers: the fleet it was found with, see `cassq.extents.replicas.fleet.Fleet`.
    extents: how many there are. short: of those, how many have fewer good replicas than they
    should. open: how many were left that can be mended. stuck: how many are short and cannot be
    mended now. unreadable: how many have no good replica that is known of. left: how many replicas
    a sidecar has that drains or is lost, by name. began_ms: catalog time of its beginning.
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
    """Tell all others. Cost: a write."""
    data = json.dumps(made._asdict(), separators=(",", ":"))
    catalog.records.add_samples([Sample(SUBJECT, MINUTE_MS, made.at_ms, data)])


def last_round(catalog: Catalog) -> Round | None:
    """The last one; None when it is too long ago. Cost: a read."""
    found = catalog.records.samples(SUBJECT, MINUTE_MS, catalog.now_ms() - AGAIN_MS)
    return Round(**json.loads(found[-1].data)) if found else None
