"""Scores of a run in which everything is reached, for what several peers are measured by."""

from __future__ import annotations

from bench.results.scores import Scores


def add_keys(scores: Scores, peer: str) -> None:
    """Add those of messages in the order of their keys."""
    scores.add("10,000 keys", peer, {"keyed": 500_000.0})
    scores.add("100 keys", peer, {"kept_even": 0.7})
    scores.add("one of 1,000", peer, {"beside": 1.0})
    scores.add("first", peer, {"first_ms": 3.0})
