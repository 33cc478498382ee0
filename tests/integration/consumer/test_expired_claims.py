"""Expiry: claims of silent holders are taken over, cut up, and end with the one bad message."""

from __future__ import annotations

import logging

import pytest

import cassq
from tests.integration.deadlines import eventually, ticks
from tests.integration.stage import alone, drain, numbers, payloads, push, reap


def test_an_expired_claim_is_taken_over_with_its_attempts_counted(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.05, max_deliveries=100, sick_check=False)
    push(queue, b"x")
    popper = queue.popper(keep_alive=0)
    for attempt in range(1, 6):
        (message,) = eventually("it is delivered once more", popper.pop)
        assert message.attempts == attempt


def test_what_expired_comes_before_what_is_waiting(client: cassq.Client) -> None:
    alone(client)
    queue = client.create_queue("jobs", claim_timeout=0.05)
    push(queue, *numbers(3))
    silent = queue.popper(keep_alive=0)
    silent.pop()
    ticks(60)
    queue.update(claim_timeout=30)
    assert payloads(drain(queue.popper(keep_alive=0), 1)) == numbers(3)


def test_a_waiting_popper_gets_what_expires_meanwhile(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.1)
    push(queue, b"x")
    silent, waiting = queue.popper(keep_alive=0), queue.popper(keep_alive=0)
    silent.pop()
    (message,) = waiting.pop(1, wait=30)
    assert message.attempts == 2


def test_the_rollback_pass_frees_expired_claims_when_nobody_pops(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.05)
    alone(client)
    push(queue, *numbers(3))
    silent = queue.popper(keep_alive=0)
    silent.pop(3)

    def rolled_back() -> bool:
        return any(a.verb == "rollback" and a.outcome == "done" for a in reap(client))

    eventually("the pass frees the claim", rolled_back)
    assert queue.stats().groups["default"].waiting == 3
    assert payloads(drain(queue.popper(keep_alive=0))) == numbers(3)


def test_what_was_acked_of_an_expired_claim_stays_acked(client: cassq.Client) -> None:
    alone(client)
    queue = client.create_queue("jobs", claim_timeout=0.1)
    push(queue, *numbers(10))
    silent, other = queue.popper(keep_alive=0), queue.popper(keep_alive=0)
    messages = silent.pop(10)
    silent.commit([messages[n] for n in (0, 3, 4, 9)])
    found: list[bytes] = []

    def done() -> bool:
        found.extend(payloads(drain(other)))
        return len(found) == 6

    eventually("the rest is delivered again", done)
    assert sorted(found) == [b"1", b"2", b"5", b"6", b"7", b"8"]
    assert queue.audit().findings == []


def test_a_claim_is_whole_after_one_loss_and_cut_up_after_two(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.05, sick_check=False)
    push(queue, *numbers(160))
    popper = queue.popper(keep_alive=0)
    sizes = [len(eventually("a delivery", lambda: popper.pop(1000))) for _ in range(3)]
    assert sizes == [160, 160, 10]


@pytest.mark.parametrize("max_deliveries", [1, 2, 3, 10])
@pytest.mark.parametrize("by", ["silence", "rollback"])
def test_only_the_poisonous_message_dies(
    client: cassq.Client, caplog: pytest.LogCaptureFixture, max_deliveries: int, by: str
) -> None:
    caplog.set_level(logging.ERROR, "cassq")
    alone(client)
    queue = client.create_queue(
        "jobs", claim_timeout=0.05, max_deliveries=max_deliveries, sick_check=False
    )
    push(queue, *numbers(200))
    popper = queue.popper(keep_alive=0)
    by_itself = 0

    def finished() -> bool:
        nonlocal by_itself
        messages = popper.pop(1000)
        if b"77" not in payloads(messages):
            popper.commit(messages)
        else:
            by_itself += len(messages) == 1
            if by == "rollback":
                popper.rollback(messages)
        stats = queue.stats().groups["default"]
        return stats.waiting + stats.pending == 0

    eventually("all is done but the poison", finished)
    stats = queue.audit().groups["default"]
    assert (stats.committed, stats.dead) == (199, 1)
    assert by_itself >= 1
    (letter,) = client.queue("jobs~default~dead").popper().pop(10)
    assert letter.payload == b"77"


def test_a_live_change_of_the_deadline_holds_for_the_next_claim(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", claim_timeout=3600, lease=0.5)
    push(queue, b"kept")
    popper, other = queue.popper(keep_alive=0), queue.popper(keep_alive=0)
    (kept,) = popper.pop()
    client.queue("jobs").update(claim_timeout=0.05)

    def comes_back() -> bool:
        push(queue, b"more")
        popper.pop()
        return any(message.attempts == 2 for message in other.pop(100))

    eventually("a claim made under the new timeout expires", comes_back)
    popper.commit([kept])
