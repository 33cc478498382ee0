"""The arithmetic of the comparison: rates, medians, percentiles, ratios, growth. All pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median


def rate(messages: int, seconds: float) -> float:
    """Messages a second."""
    if seconds <= 0:
        raise ValueError(f"a rate needs a positive duration, not {seconds}")
    return messages / seconds


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` (0 to 1) of all samples do not exceed."""
    if not samples:
        raise ValueError("a percentile needs at least one sample")
    if not 0 <= share <= 1:
        raise ValueError(f"a share lies between 0 and 1, not at {share}")
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def ratio(over: Sequence[float | None], under: Sequence[float | None]) -> float | None:
    """The median of the ratios of each round; None if no round has both.

    Rounds are compared with themselves first: what slows the machine down during one round slows
    both sides, and cancels out.
    """
    ratios = [a / b for a, b in zip(over, under, strict=False) if a is not None and b]
    return median(ratios) if ratios else None


def middle(values: Sequence[float | None]) -> float | None:
    """The median of the rounds that have a value."""
    present = [value for value in values if value is not None]
    return median(present) if present else None


def spread(values: Sequence[float | None]) -> tuple[float, float] | None:
    """The smallest and the largest of the rounds that have a value."""
    present = [value for value in values if value is not None]
    return (min(present), max(present)) if present else None


def growth(samples: Sequence[float]) -> float:
    """How much larger the peak of the last third is than that of the third before it.

    1.0 is flat. The first third is left out: caches and pools fill up there. Peaks are compared, as
    a directory whose pipes come and go is a saw.
    """
    third = len(samples) // 3
    if third == 0:
        raise ValueError(f"growth needs at least three samples, not {len(samples)}")
    before, after = max(samples[third:-third]), max(samples[-third:])
    if before <= 0:
        raise ValueError("growth needs positive samples")
    return after / before
