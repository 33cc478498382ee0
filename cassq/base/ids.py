"""Ids of pipes, queues and clients, and versions of rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

_TIME_DIGITS, _RANDOM_DIGITS = 12, 12


class Ids:
    """A source of unique names; one a client, seeded only by the simulation."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._random = source or random.SystemRandom()
        self.client: str = f"{self._random.getrandbits(48):012x}"
        # Returns a version that no row has had before.
        self.version: Callable[[], str] = map(f"{self.client}.%d".__mod__, count(1)).__next__

    def new(self, now_ms: int) -> str:
        """24 hex digits: 48 bits of time, so that ids sort roughly by age, and 48 random bits."""
        time_part = now_ms & (1 << 48) - 1
        return f"{time_part:0{_TIME_DIGITS}x}{self._random.getrandbits(48):0{_RANDOM_DIGITS}x}"


def made_at_ms(name: str) -> int | None:
    """The time in a name that `Ids.new` returned; None for a name of another kind."""
    if len(name) != _TIME_DIGITS + _RANDOM_DIGITS:
        return None
    try:
        return int(name[:_TIME_DIGITS], 16)
    except ValueError:
        return None
