"""Fair groups: the backlog of one key delays no other."""

from __future__ import annotations

from collections import Counter

import pytest

import cassq
from cassq.consumer.keyed import lane
from tests.integration.stage import Connect


@pytest.fixture
def fair(queue: cassq.Queue) -> cassq.Queue:
    """A queue with a fair group."""
    queue.create_group("fair", fair=True)
    return queue


def push(queue: cassq.Queue, keys: str) -> None:
    with queue.pusher() as pusher:
        pusher.push_many(
            [b"%s%d" % (key.encode(), number) for number, key in enumerate(keys)],
            keys=[None if key == "-" else key.encode() for key in keys],
        )


def taken(popper: cassq.Popper, count: int) -> str:
    """Take messages one by one, and commit each; their keys."""
    found = ""
    for _ in range(count):
        messages = popper.pop(1)
        found += "".join((message.key or b"-").decode() for message in messages)
        popper.commit(messages)
    return found


def test_a_key_behind_a_backlog_does_not_wait_for_it(fair: cassq.Queue, connect: Connect) -> None:
    push(fair, "a" * 3 * lane.ROW_MESSAGES)
    popper = fair.popper("fair")
    in_hand = popper.pop(10)
    push(connect().queue("jobs"), "b")  # by another pusher, which has a pipe of its own
    push(fair, "c")
    others = {"b", "c"}
    before = 0
    while others and before < 2 * lane.ROW_MESSAGES:  # a new pipe is found after a moment
        others -= set(taken(popper, 1))
        before += 1
    assert not others
    popper.commit(in_hand)


def test_keys_share_what_there_is(fair: cassq.Queue) -> None:
    push(fair, "a" * 500 + "b" * 50 + "c" * 20)
    counts = Counter(message.key for message in fair.popper("fair").pop(45))
    assert counts == {b"a": 15, b"b": 15, b"c": 15}


def test_everything_comes_once_whatever_fails(fair: cassq.Queue) -> None:
    push(fair, "a" * 60 + "bc-" * 10)
    popper = fair.popper("fair")
    done: Counter[bytes] = Counter()
    step = 0
    while messages := popper.pop(7):
        for message in messages:
            step += 1
            match step % 5:
                case 0:
                    message.nack(delay=0)
                case 1:
                    message.release()
                case _:
                    message.ack()
                    done[message.payload] += 1
        popper.flush()
    assert len(done) == done.total() == 90
    stats = fair.stats().groups["fair"]
    assert (stats.waiting, stats.pending, stats.committed, stats.dead) == (0, 0, 90, 0)
    assert fair.audit().findings == []


def test_with_order_the_messages_of_a_key_come_one_after_another(queue: cassq.Queue) -> None:
    queue.create_group("fair", fair=True, order="key")
    push(queue, "a" * 300 + "b" * 3)
    popper = queue.popper("fair")
    first = popper.pop(10)
    assert [message.payload for message in first] == [b"a0", b"b300"]
    assert popper.pop(10) == []
    popper.commit(first)
    assert sorted(message.payload for message in popper.pop(10)) == [b"a1", b"b301"]


def test_what_was_only_looked_at_was_not_delivered(fair: cassq.Queue) -> None:
    push(fair, "a" * 100)
    with fair.popper("fair") as popper:
        popper.commit(popper.pop(3))
        popper.pop(2)
    attempts = Counter(message.attempts for message in fair.popper("fair").pop(200))
    assert attempts == {1: 95, 2: 2}


def test_a_rate_of_each_key_and_fairness_go_together(queue: cassq.Queue) -> None:
    queue.create_group("fair", fair=True, rate_per_key="1/h")
    push(queue, "aaabbbc")
    with queue.popper("fair") as popper:
        assert popper.pop(10) == []  # a popper that takes the lane waits once for each key
    assert queue.audit().findings == []
