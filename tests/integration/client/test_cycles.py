"""What is pushed and popped is freed at once: nothing waits for the garbage collector, which comes
late where payloads are large and objects few."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import cassq

TIMES = 200
Act = Callable[[], object]


@pytest.fixture
def queue(client: cassq.Client) -> cassq.Queue:
    queue = client.create_queue("jobs", dedup_window=600, sick_check=False)
    queue.create_group("keyed", order="key")
    return queue


@pytest.fixture
def acts(queue: cassq.Queue) -> Iterator[dict[str, Act]]:
    """By their names, what programs do with messages again and again."""
    with queue.pusher() as pusher, queue.popper() as popper, queue.popper("keyed") as keyed:
        count = 40 * TIMES
        pusher.push_many([b"x"] * count, keys=[b"%d" % (n % 7) for n in range(count)])
        ids = iter(range(10**6))
        yield {
            "push": lambda: pusher.push(b"x", headers={"a": "b"}, key=b"k"),
            "push once": lambda: pusher.push(b"x", dedup_id=str(next(ids))),
            "push later": lambda: pusher.push(b"x", delay=3600),
            "push many": lambda: pusher.push_many([b"x", b"y"]),
            "push soon": lambda: pusher.push_soon(b"x").result(),
            "pop and commit": lambda: popper.commit(popper.pop(2)),
            "pop and ack": lambda: [message.ack() for message in popper.pop(1)],
            "pop and nack": lambda: [message.nack(delay=0) for message in popper.pop(1)],
            "pop and release": lambda: popper.release(popper.pop(1)),
            "pop by keys": lambda: keyed.commit(keyed.pop(3)),
        }


@pytest.mark.parametrize(
    "name",
    [
        *("push", "push once", "push later", "push many", "push soon"),
        *("pop and commit", "pop and ack", "pop and nack", "pop and release", "pop by keys"),
    ],
)
def test_nothing_is_left_to_the_garbage_collector(acts: dict[str, Act], name: str) -> None:
    act = acts[name]
    for _ in range(10):
        act()
    # What threads of earlier tests leave comes once; what is left by each call comes each time.
    rounds = [garbage_of(act) for _ in range(3)]
    # What a call does now and then may leave a little.
    least = min(rounds, key=Counter.total)
    assert least.total() < TIMES / 2, least.most_common(5)


def garbage_of(act: Act) -> Counter[str]:
    """What `TIMES` calls leave, by its type."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(TIMES):
            act()
        gc.collect()
        return Counter(type(each).__name__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
