"""The popping side: the loop to copy. Pop a batch, write its results, and only then commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import cassq
from cassq.errors import ClaimLostError


class Results(Protocol):
    """Where a group keeps what it makes of the messages."""

    def write(self, messages: Sequence[cassq.Message]) -> int:
        """Put on disk what these messages say; returns how many of them were new to it.

        A message may come again, alone or among others. Writing it twice must change nothing.
        """


class Batch(NamedTuple):
    """What became of one popped batch, in numbers of messages."""

    popped: int
    redelivered: int  # popped before by somebody, but never committed
    duplicates: int  # redelivered, and the results already had them
    lost: int  # the claim ran out before the commit: these will be popped once more


def pop_flights(
    popper: cassq.Popper,
    results: Results,
    *,
    batch: int,
    go_on: Callable[[], bool],
    report: Callable[[Batch], None],
) -> None:
    """Pop and commit until `go_on` says no; no message is held when it returns.

    The order matters. Killed before `write`: the messages were never committed, so another
    popper gets them. Killed between `write` and `commit`: another popper gets them as well, and
    the results see by the messages' ids that they have them already.
    """
    while go_on():
        messages = popper.pop(max_messages=batch, wait=0.2)
        if not messages:
            continue
        new = results.write(messages)
        lost = 0
        try:
            popper.commit(messages)
        except ClaimLostError:
            # This batch took longer than the queue's claim timeout, so it was given to another
            # popper. As with a kill, that costs time but does no harm to the results.
            lost = len(messages)
        redelivered = sum(message.attempts > 1 for message in messages)
        report(Batch(len(messages), redelivered, len(messages) - new, lost))
