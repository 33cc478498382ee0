"""The published ends of extents as one process knows them, asked for in batches.

One request asks a sidecar about many extents. A caller that needs one end also asks for all ends
that other callers have announced to need. They share the answer if the request was sent after their
announcement, because a popper that is about to sleep must not miss a message that has just arrived.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from cassq.extents.protocol.messages import EXTENTS_MAX, Ends
from cassq.extents.sidecar.health import SidecarHealth
from cassq.extents.sidecar.net.network import CallResult, Patience
from cassq.extents.sidecar.replicas import nearest
from cassq.extents.sidecar.store_context import StoreContext, call_of
from cassq.model.sidecar_rows import Placement, ReplicaAt

# An end that was asked for within this time is fresh enough.
FRESH_MS = 4
# How long a sidecar waits for the acknowledgement of frames that have arrived.
WAIT_MS = 3
# How many seconds to wait for a sidecar, and for the last one to answer: an end may lag.
PATIENCE, LAG = 0.2, 0.05

# How many ends are remembered, the most recently read; each takes some hundred bytes.
KNOWN_MAX = 10_000

# What a sidecar reports about an extent: acked, end, fenced, closed, idle milliseconds.
End = tuple[int, int, bool, bool, int]


class KnownEnd:
    """The last known acknowledged end of one extent.

    absent: the last replica asked has no such extent.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.end: int = 0
        self.asked_ms: int | None = None
        self.round: threading.Event | None = None  # while it is being asked for
        self.absent = False
        self.tried: set[ReplicaAt] = set()  # in this round

    def learn(self, end: int) -> None:
        """Note that the end is here, or further on."""
        self.end = max(self.end, end)


class KnownEnds:
    """The published ends of the extents that are being read. Thread-safe."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._late = SidecarHealth(context.clock)  # too slow for ends, if not for other requests
        self._known: OrderedDict[str, KnownEnd] = OrderedDict()
        self._wanted: dict[str, KnownEnd] = {}

    def of(self, placement: Placement) -> KnownEnd:
        with self._lock:
            found = self._known.setdefault(placement.pipe_id, KnownEnd(placement))
            self._known.move_to_end(placement.pipe_id)
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
            found.placement = placement
            return found

    def want(self, published: KnownEnd) -> None:
        """Announce that its end, as of now or later, will be needed."""
        with self._lock:
            self._wanted[published.placement.pipe_id] = published

    def refresh(self, published: KnownEnd) -> None:
        """Refresh its end, if any replica knows it. Cost: none if it was asked for within FRESH_MS
        and not announced by `want` since; else one request to each sidecar that has a wanted
        extent."""
        if not self._is_fresh(published):
            self._join(published)
        if published.placement.pipe_id in self._wanted:
            self._join(published)  # the first request may have been sent before the announcement

    def _is_fresh(self, published: KnownEnd) -> bool:
        asked_ms = published.asked_ms
        if asked_ms is None or published.placement.pipe_id in self._wanted:
            return False
        return self._context.clock.boot_ms() - asked_ms < FRESH_MS

    def _join(self, published: KnownEnd) -> None:
        """Wait for a request in flight, or ask for all wanted ends."""
        mine = threading.Event()
        with self._lock:
            under_way = published.round
            asked = [] if under_way is not None else [published, *self._wanted.values()]
            self._wanted = {} if asked else self._wanted
            for each in asked:
                each.round = mine
        try:
            if under_way is None:
                self._ask(list({each.placement.pipe_id: each for each in asked}.values()))
            elif not self._context.clock.wait(under_way, self._context.settings.patience):
                published.round = None  # the caller that asked was interrupted
        finally:
            for each in asked:
                each.round = None
            mine.set()

    def _ask(self, wanted: Sequence[KnownEnd]) -> None:
        """Ask the nearest replica of each extent, then the next one if that does not know the end.
        The first time, ask all replicas: a writer's background messages may have reached only
        some."""
        now_ms = self._context.clock.boot_ms()
        new = [each for each in wanted if each.asked_ms is None]
        for each in wanted:
            each.asked_ms, each.absent = now_ms, False
            each.tried.clear()
        parts: dict[ReplicaAt, list[KnownEnd]] = {}
        for each in new:
            for replica in self._untried(each):
                parts.setdefault(replica, []).append(each)
        left = [each for each in wanted if each not in new]
        while left or parts:
            for each in left:
                for replica in self._untried(each)[:1]:
                    parts.setdefault(replica, []).append(each)
            left, parts = self._ask_these(parts), {}

    def _untried(self, published: KnownEnd) -> list[ReplicaAt]:
        """The replicas to ask, in order, without those that failed lately: an end may lag."""
        healths = (self._context.health, self._late)
        return [
            replica
            for replica in nearest(self._context, published.placement)
            if replica not in published.tried
            and not any(health.avoided(replica.sidecar) for health in healths)
        ]

    def _ask_these(self, parts: Mapping[ReplicaAt, Sequence[KnownEnd]]) -> list[KnownEnd]:
        """Ask each replica's sidecar for these; returns the extents that none of them knew."""
        asked = {
            replica: [(each.placement.pipe_id, each.end) for each in part]
            for replica, part in parts.items()
        }
        answers = ask_ends(self._context, asked, WAIT_MS)
        self._late.note(answers)
        all_asked = {id(each): each for part in parts.values() for each in part}
        heard: set[int] = set()
        for (replica, part), answer in zip(parts.items(), answers, strict=True):
            for published, end in zip(part, ends_told(answer, len(part)), strict=True):
                published.tried.add(replica)
                if end is not None:
                    published.learn(end[0])
                    heard.add(id(published))
                elif answer.error is None:
                    published.absent = True
        for key in heard:
            all_asked.pop(key).absent = False
        return list(all_asked.values())


def ask_ends(
    context: StoreContext, asked: Mapping[ReplicaAt, Sequence[tuple[str, int]]], wait_ms: int
) -> list[CallResult]:
    """Ask the sidecars of these replicas for the ends of extents; returns an answer from each.
    asked: pipe ids, and the ends known so far."""
    if not asked:
        return []
    calls = [
        call_of(replica, [Ends(some, wait_ms) for some in _cut(part)])
        for replica, part in asked.items()
    ]
    patience = Patience(PATIENCE, LAG, max(1, len(calls) - 1))
    answers = context.network.exchange(calls, patience)
    context.health.note(answers, slow=False)
    return answers


def ends_told(answer: CallResult, count: int) -> list[End | None]:
    """The ends of the `count` extents in an answer; None for each if it failed."""
    if answer.error is not None:
        return [None] * count
    return [end for reply in answer.replies for end in reply.ends]


def _cut(asked: Sequence[tuple[str, int]]) -> Iterable[Sequence[tuple[str, int]]]:
    for at in range(0, len(asked), EXTENTS_MAX):
        yield asked[at : at + EXTENTS_MAX]
