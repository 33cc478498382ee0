"""Counters: what a client's pushers and poppers have done, and how its requests went.

Each pusher and popper has its own `Tally` and adds plain integers to it, inside locks that it holds
anyway: counting costs no lock and no write. A reader adds the tallies up, and may see one a moment
old. For the requests of a session with servers (`Requests`) only unusual events are counted, so
that counting costs a request next to nothing.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter

from cassq.errors import is_outage

COUNTS = (
    *("pushed", "spilled", "forwarded", "found", "carried_over", "doubtful", "refused"),
    *("written_bytes", "popped", "redelivered", "committed"),
    *("rolled_back", "released", "dead", "lost", "limited"),
)


class Tally:
    """What one pusher, or one popper of `group`, has done; in messages, unless said otherwise.

    pushed: durably; spilled: of those, into the spool. forwarded: from a spool; found: of those,
    the ones that had arrived before. carried_over: to another pipe, after a failed write; doubtful:
    of those, the ones that may be in both. refused: not pushed, as the storage did not answer.
    written_bytes:
    of frames, compressed if the queue's are. popped: delivered; redelivered: claimed again.
    committed: durably. rolled_back, released, dead: given back as failed, as untried, as dead
    letters. lost: their claim was lost. limited: pops that got less than they asked for because of
    their group's limits. push_failures: messages not pushed, by error. failures:
    operations, by (name, error).
    """

    __slots__ = (*COUNTS, "failures", "group", "over", "push_failures")

    pushed: int
    spilled: int
    forwarded: int
    found: int
    carried_over: int
    doubtful: int
    refused: int
    written_bytes: int
    popped: int
    redelivered: int
    committed: int
    rolled_back: int
    released: int
    dead: int
    lost: int
    limited: int

    def __init__(self, group: str = "") -> None:
        self.group: str = group
        for name in COUNTS:
            setattr(self, name, 0)
        self.push_failures: Counter[str] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()
        self.over: bool = False  # nothing more will be added

    def failed(self, operation: str, exc: Exception) -> None:
        """Count an operation that ended with an error."""
        self.failures[operation, type(exc).__name__] += 1

    def push_failed(self, count: int, exc: Exception) -> None:
        """Count a failed push of `count` messages; the first of them may be pushed nevertheless."""
        pushed = int(getattr(exc, "fields", {}).get("pushed", 0))
        self.pushed += pushed
        self.push_failures[type(exc).__name__] += count - pushed
        self.refused += count - pushed if is_outage(exc) else 0

    def given(self, count: int, *, counted: bool, doomed: bool) -> None:
        """Count messages that are given back."""
        if doomed:
            self.dead += count
        elif counted:
            self.rolled_back += count
        else:
            self.released += count

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.push_failures.update(other.push_failures.copy())
        self.failures.update(other.failures.copy())


class Tallies:
    """The tallies of one client, by (queue, group); finished ones are merged, so that their number
    does not grow and no total ever falls."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._past: dict[tuple[str, str], Tally] = {}
        self._present: dict[tuple[str, str], list[Tally]] = {}

    def add(self, queue: str, tally: Tally) -> None:
        """Add the tally of a new pusher or popper of a queue."""
        key = queue, tally.group
        with self._mutex:
            here = self._present.get(key, [])
            for over in (old for old in here if old.over):
                self._past.setdefault(key, Tally(tally.group)).add(over)
            self._present[key] = [*(old for old in here if not old.over), tally]

    def totals(self) -> dict[tuple[str, str], Tally]:
        """Sums by (queue, group); the group is empty for pushers."""
        found: dict[tuple[str, str], Tally] = {}
        with self._mutex:
            for key, here in self._present.items():
                total = found[key] = Tally(key[1])
                for tally in (*filter(None, [self._past.get(key)]), *here):
                    total.add(tally)
        return found


# The upper bounds of the buckets for the latency of answers, in seconds.
LATENCY_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Latency:
    """How long answers of one kind took. counts: in each bucket, and beyond the last; seconds:
    together."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(LATENCY_SECONDS) + 1)
        self.seconds: float = 0.0


class Latencies:
    """How long the requests of one session took until they were answered, by kind: what was done,
    and to which table. Thread-safe. Cost: about a microsecond a request."""

    __slots__ = ("_by_kind", "_mutex")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._by_kind: dict[tuple[str, str], Latency] = {}

    def note(self, kind: tuple[str, str], seconds: float) -> None:
        """Count an answer."""
        bucket = bisect_left(LATENCY_SECONDS, seconds)
        with self._mutex:
            latency = self._by_kind.get(kind)
            if latency is None:
                latency = self._by_kind[kind] = Latency()
            latency.counts[bucket] += 1
            latency.seconds += seconds

    def by_kind(self) -> dict[tuple[str, str], tuple[list[int], float]]:
        """The counts and the seconds of each kind, as they are now."""
        with self._mutex:
            return {kind: (list(each.counts), each.seconds) for kind, each in self._by_kind.items()}


# What is counted, of requests.
REQUESTS = {
    "repeated": "sent again because a try had failed",
    "doubled": "sent to a second server too because the first was slow",
    "overloaded": "refused by an overloaded server",
    "held_up": "after which an overloaded server stopped reading for a while",
    "unanswered": "not answered in time",
    "unknown": "of those, conditional writes that may have been applied",
    "changed_over": "that switched replicas: one was damaged or did not answer",
    "under_replicated": "for new pipes with fewer replicas than they should have",
}


class Requests:
    """The counts of one session, and how long answers took. Thread-safe."""

    __slots__ = ("_mutex", "latencies", *REQUESTS)

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.latencies: Latencies = Latencies()
        self.repeated = self.doubled = self.overloaded = 0
        self.held_up = self.unanswered = self.unknown = 0
        self.changed_over = self.under_replicated = 0

    def count(self, *names: str) -> None:
        """One more of each."""
        with self._mutex:
            for name in names:
                setattr(self, name, getattr(self, name) + 1)
