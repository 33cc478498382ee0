"""The floor: no queue can sync a message sooner than the bare disk syncs as many bytes."""

from __future__ import annotations

from collections.abc import Iterable

from bench.results.scores import DISK, Scores

CASE, FIGURE = "single", "one"
WRITES = ("one", "overwrite")  # of the disk: appends, and overwrites, which are faster


def unsynced(scores: Scores, synced: Iterable[str]) -> list[str]:
    """What is wrong with single pushes that were quicker than the disk ever was: nothing can have
    been synced. synced: the peers that promise to sync each message."""
    rounds = scores.rounds(CASE, DISK)
    best = max((figures.get(write, 0.0) for figures in rounds for write in WRITES), default=0.0)
    if not best:
        return []  # nobody has measured the disk
    found = []
    for peer in synced:
        pushed = scores.median(CASE, peer, FIGURE)
        if pushed is not None and pushed > best:
            found.append(
                f"{peer} pushed {pushed:,.0f} messages a second one by one, the bare disk synced"
                f" {best:,.0f} writes at best: nothing was synced"
            )
    return found
