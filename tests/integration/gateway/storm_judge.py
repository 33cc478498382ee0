"""Judging a storm: whether what its clients said can all be true of a queue that keeps what it
answered.

What a client that was killed, or cut off, had no answer of is left open: such a message may be
there or not, and such a deletion may be done or not.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable

from tests.integration.gateway import storm_clients as clients
from tests.integration.gateway.storm_clients import HOLD_SECONDS, Said


class StormJudge:
    """Goes through what all clients said, in order of time. asked, sent: bodies that were to be
    sent, and those whose sending was answered. ended: those whose deletion was asked for. deleted:
    when a deletion was answered. wrong: what must not be, with all that was said of the message
    until then. fifo: whether the queue is one, each
    sender with a group."""

    def __init__(self, said: Iterable[Said], *, fifo: bool) -> None:
        self.fifo: bool = fifo
        self.asked: set[str] = set()
        self.sent: set[str] = set()
        self.received: set[str] = set()
        self.ended: set[str] = set()
        self.deleted: dict[str, float] = {}
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self._stories: dict[str, list[Said]] = defaultdict(list)  # by body
        self._held: dict[str, float] = {}  # until when nobody else may get a body
        self._in_order: dict[str, deque[int]] = defaultdict(deque)  # sent, not ended, by group
        for each in sorted(said, key=lambda each: each.at):
            self._hear(each)

    @property
    def lost(self) -> set[str]:
        """What was sent, and never came to one who deleted it."""
        return self.sent - self.ended

    def _hear(self, said: Said) -> None:
        body = said.body
        self.counts[said.what] += 1
        self._stories[body].append(said)
        match said.what:
            case clients.ASKED:
                self.asked.add(body)
            case clients.SENT:
                self.sent.add(body)
                group, _, number = body.partition("-")
                self._in_order[group].append(int(number))
            case clients.SEEN:
                self._see(said)
            case clients.HIDDEN:
                self._held.pop(body, None)
            case clients.ENDED:
                self._held.pop(body, None)
                self.ended.add(body)
            case clients.DELETED:
                self.deleted[body] = said.at
            case clients.WRONG:
                self.wrong.append(body)

    def _see(self, said: Said) -> None:
        body, began = said.body, said.since
        self.received.add(body)
        if said.at < self._held.get(body, said.at):
            self._blame(body, "came while another had it")
        self._held[body] = began + HOLD_SECONDS
        if body not in self.asked:
            self._blame(body, "was invented")
        if self.deleted.get(body, began) < began:
            self._blame(body, "came again after its deletion was answered")
        if self.fifo:
            self._check_order(body)

    def _check_order(self, body: str) -> None:
        """Of a group nothing comes while an earlier message, whose sending was answered, is neither
        deleted nor about to be."""
        group, _, number = body.partition("-")
        waiting = self._in_order[group]
        while waiting and f"{group}-{waiting[0]}" in self.ended:
            waiting.popleft()
        if waiting and waiting[0] < int(number):
            before = f"{group}-{waiting[0]}"
            self._blame(body, f"came before {before}, of which was said {self._story(before)}")

    def _blame(self, body: str, what: str) -> None:
        self.wrong.append(f"{body} {what}: {self._story(body)}")

    def _story(self, body: str) -> str:
        return ", ".join(
            f"{said.what} at {said.at:.3f}" + (f" (since {said.since:.3f})" if said.since else "")
            for said in self._stories[body]
        )
