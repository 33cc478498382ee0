"""Speculative requests: one to a second server when the first is slow, unless many are slow.

While one server is slow, another answers for it. If all are slow because they have too much to do,
twice as many requests make it worse: so only a few of the last requests may be doubled, and none
for a while after a server said that it is overloaded.
"""

from __future__ import annotations

from collections.abc import Callable

from cassandra.policies import SpeculativeExecutionPlan, SpeculativeExecutionPolicy

SPECULATE_SECONDS = 0.15
# Over how many requests the share of doubled ones is measured, and its limit.
REMEMBERED = 100
SHARE_MAX = 0.1
# None are doubled for this long after a server was overloaded.
OVERLOADED_MS = 5_000


class Speculation(SpeculativeExecutionPolicy):  # type: ignore[misc]  # the driver has no types
    """When to send a request to a second server. seconds: after which the first is slow; 0: never.

    Only for requests that may be applied twice: the driver asks for no others. Updates are not
    locked; one that is lost does no harm.
    """

    def __init__(self, seconds: float, now_ms: Callable[[], int]) -> None:
        self._seconds = seconds
        self._now_ms = now_ms
        self._share = 0.0
        self._quiet_until_ms = 0

    def note(self, *, doubled: bool) -> None:
        """Note an answered request."""
        self._share += ((1.0 if doubled else 0.0) - self._share) / REMEMBERED

    def note_overload(self) -> None:
        """Note that a server has too much to do."""
        self._quiet_until_ms = self._now_ms() + OVERLOADED_MS

    def delay(self) -> float:
        """After how many seconds to send a new request to a second server; -1: never."""
        if not self._seconds or self._share > SHARE_MAX or self._now_ms() < self._quiet_until_ms:
            return -1
        return self._seconds

    def new_plan(self, keyspace: object, statement: object) -> SpeculativeExecutionPlan:
        """The driver's call for each request."""
        return _Once(self.delay())


class _Once(SpeculativeExecutionPlan):  # type: ignore[misc]
    """A plan of one further request at most."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def next_execution(self, host: object) -> float:
        """The driver's call before each request: in how many seconds comes another; -1: none."""
        seconds, self._seconds = self._seconds, -1
        return seconds
