"""Popping and acknowledging until all that was pushed has been seen."""

from __future__ import annotations

import time

from bench.peers.peer import POLL_SECONDS, Peer

# With nothing on its way, an empty hand twice in a row means that messages are lost.
PATIENCE_SECONDS = 2.0
STALL_SECONDS_MAX = 60.0


class LostMessagesError(Exception):
    """Fewer, or more, messages came out than went in."""


def drain(peer: Peer, count: int, *, singly: bool = False) -> None:
    """Pop and acknowledge `count` messages that are there already, and leave further ones alone.
    singly: each message is looked at by itself, as a consumer does."""
    pop, ack, batch, left = peer.pop_singly if singly else peer.pop, peer.ack, peer.batch, count
    while left > 0:
        limit = min(batch, left)
        found = pop(limit) or pop(limit, PATIENCE_SECONDS)
        if not found:
            raise LostMessagesError(f"{left} of {count} messages did not come")
        if singly:
            for payload in found:
                if not payload:
                    raise LostMessagesError("a message came without its payload")
        ack()
        left -= len(found)
    if left < 0:
        raise LostMessagesError(f"{-left} more than {count} messages came")


def follow(peer: Peer, count: int) -> None:
    """Pop and acknowledge `count` messages while another process is still pushing them."""
    left = count
    last_seen = time.monotonic()
    while left > 0:
        found = peer.pop(peer.batch)
        if found:
            peer.ack()
            left -= len(found)
            last_seen = time.monotonic()
        elif time.monotonic() - last_seen > STALL_SECONDS_MAX:
            raise LostMessagesError(f"{left} of {count} messages did not come")
        else:
            time.sleep(POLL_SECONDS)
    if left < 0:
        raise LostMessagesError(f"{-left} more than {count} messages came")
