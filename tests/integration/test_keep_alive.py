"""Keep-alive: claims of messages being worked on are extended by themselves, up to a cap."""

from __future__ import annotations

import cassq
from tests.integration.deadlines import eventually
from tests.integration.stage import numbers, push


def test_a_kept_claim_outlives_its_timeout(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", claim_timeout=1.0)
    push(queue, *numbers(3))
    popper, other = queue.popper(keep_alive=3600), queue.popper()
    messages = popper.pop(3)
    catalog = client.ports.catalog
    end_ms = catalog.now_ms() + 3000  # three timeouts
    stolen: list[cassq.Message] = []

    def over() -> bool:
        stolen.extend(other.pop(3))
        return catalog.now_ms() > end_ms

    eventually("three timeouts pass", over)
    assert stolen == []
    popper.commit(messages)
    assert queue.stats().groups["default"].committed == 3


def test_a_kept_claim_ends_at_the_cap(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.2)
    push(queue, b"x")
    popper, other = queue.popper(keep_alive=0.5), queue.popper()
    catalog = client.ports.catalog
    popper.pop()
    claimed_ms = catalog.now_ms()
    (message,) = eventually("it is given up", other.pop)
    assert message.attempts == 2
    assert catalog.now_ms() - claimed_ms >= 490


def test_a_popper_that_is_not_asked_to_keeps_nothing_alive(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.05)
    push(queue, b"x")
    popper, other = queue.popper(), queue.popper()
    popper.pop()
    (message,) = eventually("it expires", other.pop)
    assert message.attempts == 2


def test_a_kept_claim_of_a_strict_queue_keeps_its_lock(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", consistency="cp", claim_timeout=0.2)
    push(queue, *numbers(2))
    popper, other = queue.popper(keep_alive=3600), queue.popper()
    messages = popper.pop()
    catalog = client.ports.catalog
    end_ms = catalog.now_ms() + 1000

    def over() -> bool:
        assert other.pop() == []
        return catalog.now_ms() > end_ms

    eventually("five timeouts pass", over)
    popper.commit(messages)
    assert [m.payload for m in other.pop()] == [b"1"]
