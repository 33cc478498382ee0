"""Transactions: committed at the end of the block, rolled back when it raises."""

from __future__ import annotations

import json

import pytest

import cassq
from tests.integration.deadlines import eventually
from tests.integration.stage import alone, drain, numbers, payloads, push


@pytest.fixture(autouse=True)
def no_other_passes(client: cassq.Client) -> None:
    """What the client's reaper is burying in passing, the test would find nowhere for a moment."""
    alone(client)


def test_a_block_that_ends_well_commits(queue: cassq.Queue) -> None:
    push(queue, *numbers(5))
    popper = queue.popper()
    with popper.transaction(max_messages=3) as messages:
        assert payloads(messages) == numbers(3)
    stats = queue.stats().groups["default"]
    assert (stats.waiting, stats.pending, stats.committed) == (2, 0, 3)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_block_that_raises_rolls_back_and_passes_the_error_on(
    queue: cassq.Queue, error: type[BaseException]
) -> None:
    push(queue, *numbers(5))
    popper = queue.popper()
    with pytest.raises(error, match="mine"):
        with popper.transaction(max_messages=3):
            raise error("mine")
    again = [(m.payload, m.attempts) for m in drain(popper)]
    # What failed stands behind what waits.
    assert again == [(b"3", 1), (b"4", 1), (b"0", 2), (b"1", 2), (b"2", 2)]


def test_a_block_over_nothing_gets_an_empty_list(queue: cassq.Queue) -> None:
    with queue.popper().transaction(wait=0.01) as messages:
        assert messages == []


def test_what_was_settled_inside_stays_so_when_the_block_ends(queue: cassq.Queue) -> None:
    push(queue, *numbers(4))
    popper = queue.popper()
    with popper.transaction(max_messages=4) as messages:
        messages[0].ack()
        messages[1].nack()
        messages[2].release()
    stats = queue.stats().groups["default"]
    assert (stats.waiting, stats.committed) == (2, 2)


def test_what_was_settled_inside_stays_so_when_the_block_raises(queue: cassq.Queue) -> None:
    push(queue, *numbers(4))
    popper = queue.popper()
    with pytest.raises(ValueError, match="mine"):
        with popper.transaction(max_messages=4) as messages:
            messages[0].ack()
            messages[1].release()
            raise ValueError("mine")
    again = {message.payload: message.attempts for message in drain(popper)}
    assert again == {b"1": 1, b"2": 2, b"3": 2}
    assert queue.audit().groups["default"].committed == 4


def test_a_block_that_lost_its_claim_still_raises_its_own_error(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.05)
    push(queue, b"x")
    popper, other = queue.popper(keep_alive=0), queue.popper()
    with pytest.raises(ValueError, match="mine"):
        with popper.transaction():
            eventually("another has it", other.pop)
            raise ValueError("mine")
    assert queue.audit().findings == []


def test_the_error_of_the_block_is_kept_with_the_dead_letter(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_deliveries=2, sick_check=False)
    push(queue, b"x")
    popper = queue.popper()
    for _ in range(2):
        with pytest.raises(ValueError, match="no such invoice"):
            with popper.transaction():
                raise ValueError("no such invoice")
    (letter,) = client.queue("jobs~default~dead").popper().pop()
    assert json.loads(letter.headers["cassq-death"])["error"] == "ValueError: no such invoice"


def test_one_bad_message_of_a_batch_dies_alone_in_the_end(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_deliveries=5, sick_check=False)
    push(queue, *numbers(100))
    popper = queue.popper()
    rounds = 0
    while queue.stats().groups["default"].waiting:
        rounds += 1
        assert rounds < 200, "the batch comes again for ever"
        try:
            with popper.transaction(max_messages=100) as messages:
                assert b"42" not in payloads(messages), "bad"
        except AssertionError as exc:
            assert str(exc).startswith("bad")
    stats = queue.audit().groups["default"]
    assert (stats.committed, stats.dead) == (99, 1)
    assert payloads(drain(client.queue("jobs~default~dead").popper())) == [b"42"]
