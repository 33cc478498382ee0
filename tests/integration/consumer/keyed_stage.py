"""What tests of keyed groups share: their queues, and how they push, pop and pass the time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.consumer.delivery import Message, Messages


@pytest.fixture
def keyed(queue: cassq.Queue) -> cassq.Queue:
    """A queue with a group in the order of keys."""
    queue.create_group("keyed", order="key")
    return queue


def push(queue: cassq.Queue, texts: Iterable[str], delay: float | None = None) -> None:
    """Push texts, each of which begins with the letter of its key; "-": no key."""
    with queue.pusher() as pusher:
        for text in texts:
            key = None if text[0] == "-" else text[0].encode()
            pusher.push(text.encode(), key=key, delay=delay)


def texts(messages: Iterable[Message]) -> list[str]:
    return [message.payload.decode() for message in messages]


def drained(popper: cassq.Popper) -> list[str]:
    """Pop and commit until nothing comes."""
    found: list[str] = []
    while messages := popper.pop(100):
        found += texts(messages)
        popper.commit(messages)
    return found


def pass_time(clock: ManualClock, popper: cassq.Popper, seconds: int) -> None:
    """Let time pass, in which a popper's housekeeper does its work."""
    for _ in range(seconds):
        clock.advance(1)
        popper.maintain()


def by_key(found: Sequence[str]) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = defaultdict(list)
    for text in found:
        lines[text[0]].append(text)
    return lines


def counts(queue: cassq.Queue) -> tuple[int, int, int]:
    """Of the keyed group: how many are left, committed, dead."""
    stats = queue.stats().groups["keyed"]
    return stats.waiting + stats.pending, stats.committed, stats.dead


def pipe_for_each(client: cassq.Client, **options: Any) -> cassq.Queue:
    """A queue with a keyed group, each of whose messages is in a pipe, and so in a row, of its own.
    options: of the queue."""
    queue = client.create_queue("jobs", max_pushes_per_pipe=1, sick_check=False, **options)
    queue.create_group("keyed", order="key")
    return queue


def with_all_claimed(queue: cassq.Queue, count: int = 1) -> tuple[cassq.Popper, Messages]:
    """A popper that was given `count` messages, and has claimed all the others ahead: as it looked
    for one that was ready, and found none. Returns the messages, too."""
    popper = queue.popper("keyed")
    messages = popper.pop(count)
    assert len(messages) == count
    assert texts(popper.pop(1)) == []
    return popper, messages
