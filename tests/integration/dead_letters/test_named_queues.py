"""Dead letters that move to a queue of the user's own, named by the policy."""

from __future__ import annotations

import cassq
from tests.integration.stage import alone, drain, payloads, push


def test_dead_letters_of_all_groups_move_to_the_queue_that_is_named(client: cassq.Client) -> None:
    alone(client)
    failed = client.create_queue("failed")
    queue = client.create_queue("jobs", max_deliveries=1, sick_check=False, dead_letters="failed")
    queue.create_group("audit")
    with queue.pusher() as pusher:
        message_id = pusher.push(b"bad", headers={"kind": "invoice"}, key=b"k")
    for group in ("default", "audit"):
        with queue.popper(group) as popper:
            (message,) = popper.pop()
            message.nack(error="no such customer")
    letters = drain(failed.popper())
    assert [letter.id for letter in letters] == [message_id, message_id]
    assert {letter.headers["kind"] for letter in letters} == {"invoice"}
    assert {letter.key for letter in letters} == {b"k"}
    assert queue.dead_letters().peek() == []
    explained = client.explain(message_id)
    assert {steps[-1].queue for steps in explained.groups.values()} == {"failed"}
    assert queue.stats().groups["audit"].dead == 1
    for each in (queue, failed):
        assert each.audit().findings == []


def test_the_named_queue_is_made_when_it_is_missing(client: cassq.Client) -> None:
    alone(client)
    queue = client.create_queue("jobs", max_deliveries=1, sick_check=False, dead_letters="failed")
    push(queue, b"bad")
    with queue.popper() as popper:
        popper.pop()[0].nack()
    assert payloads(drain(client.queue("failed").popper())) == [b"bad"]


def test_a_queue_that_names_itself_keeps_a_queue_for_its_dead_letters(client: cassq.Client) -> None:
    alone(client)
    queue = client.create_queue("jobs", max_deliveries=1, sick_check=False, dead_letters="jobs")
    push(queue, b"bad")
    with queue.popper() as popper:
        popper.pop()[0].nack()
    assert [letter.payload for letter in queue.dead_letters().peek()] == [b"bad"]


def test_letters_that_hold_their_keys_stay_with_their_group(client: cassq.Client) -> None:
    alone(client)
    queue = client.create_queue("jobs", max_deliveries=1, sick_check=False, dead_letters="failed")
    queue.create_group("ordered", order="key", on_dead="hold")
    with queue.pusher() as pusher:
        pusher.push(b"bad", key=b"k")
    with queue.popper("ordered") as popper:
        popper.pop()[0].nack()
    assert [letter.payload for letter in queue.dead_letters("ordered").peek()] == [b"bad"]
