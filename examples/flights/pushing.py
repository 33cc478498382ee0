"""The pushing side: one process pushes its share of the flights, a thousand at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import cassq

BATCH = 1_000


def push_flights(
    pusher: cassq.Pusher, messages: Sequence[bytes], *, report: Callable[[int], None]
) -> None:
    """Push all `messages`; `report` is told how many were added, a batch at a time.

    When `push_many` returns, the whole batch is on disk. A pusher that is killed before that
    has to push its batch again, as nobody told it that the batch was safe.
    """
    rest = iter(messages)
    while batch := list(islice(rest, BATCH)):
        ids = pusher.push_many(batch)
        report(len(ids))
