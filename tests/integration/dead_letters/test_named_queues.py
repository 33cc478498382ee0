"""Dead letters that move to a queue of the user's own, named by the policy."""

from __future__ import annotations

import pytest

import cassq
from cassq.dead_letters.bulk_job import BulkOutcome
from tests.integration.cli.test_verbs import Cli, cli
from tests.integration.stage import alone, drain, payloads, push

__all__ = ["cli"]


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


# --- letters of several groups in one queue -------------------------------------------------------


@pytest.fixture
def failed(client: cassq.Client) -> cassq.Queue:
    """Where the queues `jobs` and `mails` let their dead letters go; `jobs` did so after its first.
    It also has a message that never died."""
    alone(client)
    queue = client.create_queue("failed")
    jobs = client.create_queue("jobs")
    die(jobs, b"early")
    jobs.update(dead_letters="failed")
    die(jobs, b"late", b"latest")
    die(client.create_queue("mails", dead_letters="failed"), b"mail")
    push(queue, b"alive")
    return queue


def die(queue: cassq.Queue, *payloads: bytes) -> None:
    push(queue, *payloads)
    with queue.popper() as popper:
        popper.dead(popper.pop(len(payloads)), "no such customer")
        assert popper.pop() == []


def test_a_group_sees_its_letters_among_those_of_others(
    client: cassq.Client, failed: cassq.Queue
) -> None:
    for name, wanted in (("jobs", [b"early", b"late", b"latest"]), ("mails", [b"mail"])):
        queue = client.queue(name)
        letters = queue.dead_letters()
        assert letters.name == "failed"
        assert [letter.payload for letter in letters.peek()] == wanted
        assert [letter.payload for letter in letters.peek(text="no such")] == wanted
        assert [each.payload for each in queue.peek(state="dead")] == wanted
        assert [each.payload for each in queue.peek(1, state="dead")] == wanted[:1]


def test_merged_letters_come_back_to_their_group_from_all_places(
    client: cassq.Client, failed: cassq.Queue
) -> None:
    jobs = client.queue("jobs")
    seen: list[int] = []

    def watch(outcome: BulkOutcome) -> bool:
        seen.append(outcome.messages)
        return False

    tried = jobs.dead_letters().merge(dry_run=True)
    assert (tried.messages, tried.complete) == (3, True)
    first = jobs.dead_letters().merge(limit=2)
    assert (first.messages, first.complete) == (2, False)
    rest = jobs.dead_letters().merge(watch=watch)
    assert (rest.messages, rest.complete) == (1, True)
    assert max(seen) <= 1
    assert payloads(drain(jobs.popper())) == [b"early", b"late", b"latest"]
    assert jobs.dead_letters().peek() == []
    assert payloads(drain(failed.popper())) == [b"mail", b"alive"]
    for queue in client.queues():
        assert queue.audit().findings == []


def test_a_purge_deletes_the_letters_of_its_group_alone(
    client: cassq.Client, failed: cassq.Queue
) -> None:
    assert client.queue("jobs").dead_letters().purge(everything=True).messages == 3
    assert payloads(drain(failed.popper())) == [b"mail", b"alive"]


def test_exported_letters_are_imported_to_where_they_go_now(
    client: cassq.Client, failed: cassq.Queue
) -> None:
    letters = client.queue("jobs").dead_letters()
    lines = [letter.to_json() for letter in letters.export()]
    assert letters.import_(lines).skipped == 3
    letters.purge(everything=True)
    assert letters.import_(lines).messages == 3
    assert sorted(letter.payload for letter in letters.peek()) == [b"early", b"late", b"latest"]
    assert len(drain(failed.popper())) == 5


def test_the_command_lists_and_merges_the_letters_of_each_group(
    client: cassq.Client, failed: cassq.Queue, cli: Cli
) -> None:
    listed = cli("dead", "list", "--json").json()
    assert [(row["queue"], row["name"], row["letters"]) for row in listed] == [
        ("jobs", "jobs~default~dead", 1),
        ("jobs", "failed", 2),
        ("mails", "failed", 1),
    ]
    (mails,) = cli("dead", "list", "mails", "--json").json()
    assert (mails["queue"], mails["letters"], mails["pending"]) == ("mails", 1, 0)
    assert cli("dead", "merge", "mails", "--json").json()["merged"] == 1
    assert payloads(drain(client.queue("mails").popper())) == [b"mail"]
