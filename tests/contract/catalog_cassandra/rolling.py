"""A pipe's worth of messages at a time."""

from __future__ import annotations

from collections.abc import Sequence

from cassq.popper import Popper
from cassq.producer.pusher import Pusher
from tests.integration.deadlines import DEADLINE_SECONDS


def pass_through(pusher: Pusher, popper: Popper, payloads: Sequence[bytes]) -> None:
    """Push these together, then pop and commit as many."""
    pusher.push_many(payloads)
    left = len(payloads)
    while left:
        popped = popper.pop(left, wait=DEADLINE_SECONDS)
        assert popped
        popper.commit(popped)
        left -= len(popped)
