"""A contestant: the few verbs that every queue of the comparison is reduced to.

A peer is built in each process that uses it from a `Place`, connects on first use, and is closed by
that process. Timed code calls `push`, `pop`, `ack` and what `lane` returns; nothing else is timed.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

# How often a peer that cannot wait looks again. Shorter would win latency and burn a core.
POLL_SECONDS = 0.001


@dataclass(frozen=True)
class Place:
    """Where a peer keeps its data during one measurement, and what the messages are like."""

    directory: Path
    queue: str
    size: int
    address: str = ""
    server_pid: int = 0


@dataclass(frozen=True)
class Traits:
    """What a peer can and cannot do, as far as scenarios must know."""

    # The name of the server it needs; none for the embedded ones.
    server: str | None = None
    # A batch shares one sync. The others sync a message at a time and get fewer messages.
    batches: bool = True
    # So many times fewer messages pass through it on Cassandra, and beside sidecars, so that it
    # takes no longer.
    slowness: int = 1
    # Takes part with 1 M and 10 M waiting messages, not only with 10 k.
    deep: bool = False
    # Messages that nobody counts, to get up to speed with.
    warmup_messages: int = 20_000
    # One pass brings its server up to speed; a Java program goes on compiling itself for long.
    soon_warm: bool = False
    # The scenarios it takes part in; none means all.
    only: tuple[str, ...] = ()
    # What stands behind "acknowledged".
    durable: str = "disk"
    # How its batches look and what a reader should know, for the tables.
    note: str = ""


def slices(chunks: Iterable[Sequence[bytes]], limit: int) -> Iterator[Sequence[bytes]]:
    """The messages of all chunks, in batches of at most `limit`."""
    for chunk in chunks:
        for first in range(0, len(chunk), limit):
            yield chunk[first : first + limit]


class Peer(abc.ABC):
    """One queue at one place."""

    name: ClassVar[str]
    title: ClassVar[str]
    traits: ClassVar[Traits]
    # Messages of a batch (a transaction, a pipeline, a frame) by message size: the best ones found.
    batch_of_size: ClassVar[dict[int, int]] = {100: 1_000, 1_000: 1_000}

    def __init__(self, place: Place) -> None:
        self.place = place
        self.batch = self.batch_of_size.get(place.size, 1_000)

    @classmethod
    def find(cls) -> None:
        """Look for what it needs beside its server; raise MissingServerError with what to
        install."""

    @abc.abstractmethod
    def create(self) -> None:
        """Make the queue; called once, before any other process uses it."""

    @abc.abstractmethod
    def push(self, chunks: Iterable[Sequence[bytes]]) -> None:
        """Push all messages in batches; all of them are durable when it returns."""

    @abc.abstractmethod
    def lane(self, *, wakes: bool = False) -> Callable[[bytes], None]:
        """A function that pushes one message durably, for the calling thread alone.

        With `wakes`, somebody waits in another process, who must learn of each message at once.
        """

    @abc.abstractmethod
    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        """Up to `limit` messages, oldest first; an empty list if none came within `wait_s`."""

    def pop_singly(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        """`pop`, each payload taken from a message of its own where there are such."""
        return self.pop(limit, wait_s)

    @abc.abstractmethod
    def ack(self) -> None:
        """Acknowledge, durably, all that was popped since the last call."""

    def settle(self) -> None:
        """What an operator would do after loading a large backlog; never timed."""

    def close(self) -> None:
        """Give connections back."""

    def drop(self) -> None:
        """Remove a queue that lives in a server; directories go with the measurement."""


def poll(look: Callable[[], list[bytes]], wait_s: float) -> list[bytes]:
    """Wait for messages with a queue that cannot be waited on."""
    deadline = time.monotonic() + wait_s
    while True:
        found = look()
        if found or time.monotonic() >= deadline:
            return found
        time.sleep(POLL_SECONDS)
