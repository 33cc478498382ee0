"""What calls of a client leave to the garbage collector; in a process of its own, because what the
threads of other tests leave would count as well.

    python -m tests.integration.client.garbage URL

It writes, as JSON, for each of `acts` how many objects of which types `TIMES` calls left.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import cassq

TIMES = 200
ROUNDS = 3
Act = Callable[[], object]


@contextmanager
def acts(client: cassq.Client) -> Iterator[dict[str, Act]]:
    """By their names, what programs do with messages again and again."""
    queue = client.create_queue("jobs", dedup_window=600, sick_check=False)
    queue.create_group("keyed", order="key")
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


def garbage_of_each_round(act: Act) -> Counter[str]:
    """What is left in each of a few rounds, as calls leave more now and then."""
    for _ in range(10):
        act()
    for _ in range(ROUNDS):
        found = garbage_of(act)
        if not too_much(found):
            break
    return found


def too_much(found: Mapping[str, int]) -> bool:
    """Whether every other call left something."""
    return sum(found.values()) >= TIMES / 2


if __name__ == "__main__":
    with cassq.connect(sys.argv[1]) as opened, acts(opened) as named:
        json.dump({name: garbage_of_each_round(act) for name, act in named.items()}, sys.stdout)
