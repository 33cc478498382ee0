"""cassq embedded: one directory, no server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import ClassVar

import cassq
from bench.peers.peer import Peer, Place, Traits, slices
from cassq.settings import Consistency


class CassqPeer(Peer):
    name = "cassq"
    title = "cassq"
    traits = Traits(
        deep=True,
        note="push_many and pop in batches of 5,000 (100 B), 4,000 (1 KB); payloads read in bulk",
    )
    batch_of_size: ClassVar[dict[int, int]] = {100: 5_000, 1_000: 4_000}

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._held = cassq.Messages()

    @property
    def url(self) -> str:
        """What it connects to; for scenarios that ask more of cassq than a peer can."""
        return f"file://{self.place.directory.resolve()}"

    @cached_property
    def client(self) -> cassq.Client:
        return cassq.connect(self.url)

    @cached_property
    def _pusher(self) -> cassq.Pusher:
        return self.client.queue(self.place.queue).pusher()

    @cached_property
    def _popper(self) -> cassq.Popper:
        return self.client.queue(self.place.queue).popper()

    def create(self, consistency: Consistency = "ap") -> None:
        self.client.create_queue(self.place.queue, consistency=consistency)

    def push(self, chunks: Iterable[Sequence[bytes]]) -> None:
        push_many = self._pusher.push_many
        for batch in slices(chunks, self.batch):
            push_many(batch)

    def lane(self, *, wakes: bool = False) -> Callable[[bytes], None]:
        # One pusher serves all threads: that is what lets them share a sync.
        push = self._pusher.push

        def push_one(payload: bytes) -> None:
            push(payload)

        return push_one

    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        messages = self._popper.pop(max_messages=limit, wait=wait_s)
        self._held += messages
        return messages.payloads

    def pop_singly(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        messages = self._popper.pop(max_messages=limit, wait=wait_s)
        self._held += messages
        return [message.payload for message in messages]

    def ack(self) -> None:
        self._popper.commit(self._held)
        self._held = cassq.Messages()

    def close(self) -> None:
        opened = self.__dict__
        if "_popper" in opened:
            self._popper.close()
        if "_pusher" in opened:
            self._pusher.close()
        if "client" in opened:
            self.client.close()


def as_cassq(peer: Peer) -> CassqPeer:
    """The same peer, for what only cassq can be asked; TypeError if it is another."""
    if not isinstance(peer, CassqPeer):
        raise TypeError(f"{peer.name} is not cassq")
    return peer
