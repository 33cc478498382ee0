"""Explaining a message: in every state, after every move, and when it is long gone."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.errors import MessageNotFoundError, UsageError
from cassq.inspect.explain import Explanation
from cassq.inspect.whereabouts import MessageStep
from tests.integration.deadlines import eventually
from tests.integration.stage import alone, drain, extents, numbers, push, reap

DEAD = "jobs~default~dead"


@pytest.fixture(autouse=True)
def no_other_passes(client: cassq.Client) -> None:
    """What the client's reaper is burying in passing, the test would find nowhere for a moment."""
    alone(client)


def now(explanation: Explanation, group: str = "default") -> MessageStep:
    return explanation.groups[group][-1]


def text_of(explanation: Explanation) -> str:
    return "\n".join(explanation.sentences())


def pop(popper: cassq.Popper, payload: bytes) -> cassq.Message:
    """The message of that payload; those popped with it are given back."""
    found = {m.payload: m for m in popper.pop(1000)}
    message = found.pop(payload)
    for other in found.values():
        other.release()
    popper.flush()
    return message


def test_a_message_that_waits_knows_what_is_before_it(queue: cassq.Queue) -> None:
    ids = push(queue, *numbers(3))
    explanation = queue.explain(ids[2])
    assert (explanation.id, explanation.queue, explanation.size) == (ids[2], "jobs", 1)
    assert explanation.pushed_at is not None
    assert datetime.now(UTC) - explanation.pushed_at < timedelta(minutes=1)
    step = now(explanation)
    assert (step.state, step.deliveries, step.holder) == ("waiting", 0, "")
    assert step.next == ("It will be delivered after the 2 messages before it in its pipe.",)
    assert "is the next message of its pipe" in text_of(queue.explain(ids[0]))


def test_a_held_message_shows_its_popper_its_deadline_and_what_follows(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs", claim_timeout=60, retry_schedule=[10], max_deliveries=5)
    (message_id,) = push(queue, b"x")
    popper = queue.popper()
    popper.pop()
    step = now(client.explain(message_id))
    assert (step.state, step.deliveries) == ("pending", 1)
    assert step.holder == popper._claimer.name
    assert step.due_at is not None
    assert timedelta(seconds=30) < step.due_at - datetime.now(UTC) < timedelta(seconds=61)
    assert f"Consumer {step.holder} has it until" in step.next[0]
    assert step.next[0].endswith("delivery 1 of 5.")
    assert step.next[1] == "Unless it is acked, it will then be delivered again, 10 seconds later."


def test_the_last_delivery_says_so(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_deliveries=1)
    ids = push(queue, *numbers(2))
    queue.popper().pop(1)
    queue.popper().pop(1)
    assert "then goes to the dead letters" in text_of(queue.explain(ids[0]))


def test_a_failed_message_shows_why_and_when_it_is_redelivered(queue: cassq.Queue) -> None:
    (message_id,) = push(queue, b"x")
    popper = queue.popper()
    popper.pop()[0].nack(delay=100, error="no such customer")
    popper.flush()
    step = now(queue.explain(message_id))
    assert (step.state, step.deliveries) == ("delayed", 1)
    assert step.due_at is not None
    assert timedelta(seconds=60) < step.due_at - datetime.now(UTC) < timedelta(seconds=101)
    assert (step.failure["reason"], step.failure["error"]) == ("rejected", "no such customer")
    assert step.happened[0] == "It was delivered once."
    assert "gave it back at" in step.happened[1]
    assert "'no such customer'" in step.happened[1]
    assert step.next[0].startswith("It will be delivered again at ")


def test_a_delayed_message_shows_when_it_is_due(queue: cassq.Queue) -> None:
    due = datetime.now(UTC) + timedelta(hours=2)
    with queue.pusher() as pusher:
        message_id = pusher.push(b"x", due=due)
    for _ in range(2):
        step = now(queue.explain(message_id))
        assert step.state == "delayed"
        assert step.due_at is not None
        assert abs(step.due_at - due) < timedelta(seconds=1)
        assert step.next[0].startswith("It will be delivered at ")
        queue.popper().pop()


def test_a_committed_message_is_reported_before_and_after_its_pipe_is_retired(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    ids = push(queue, *numbers(2))
    popper = queue.popper()
    popper.commit([pop(popper, b"1")])
    assert now(queue.explain(ids[1])).state == "committed"
    drain(popper)
    popper.close()
    reap(client)
    assert client.ports.catalog.pipes.by_id(ids[0].partition(":")[0]) is None
    explanation = client.explain(ids[0])
    assert (now(explanation).state, explanation.size) == ("committed", None)
    assert "is not stored any more" in text_of(explanation)


def test_every_group_is_reported_for_itself(queue: cassq.Queue) -> None:
    (first,) = push(queue, b"1")
    queue.create_group("archive", start="now")
    (second,) = push(queue, b"2")
    drain(queue.popper())
    before, after = queue.explain(first), queue.explain(second)
    assert (now(before).state, now(before, "archive").state) == ("committed", "skipped")
    assert (now(after).state, now(after, "archive").state) == ("committed", "waiting")


def dead_letter(queue: cassq.Queue, payload: bytes, error: str = "broken") -> None:
    with queue.popper() as popper:
        pop(popper, payload).dead(error)
        popper.flush()


def test_a_dead_letter_is_followed_into_its_queue(queue: cassq.Queue, client: cassq.Client) -> None:
    with queue.pusher() as pusher:
        message_id = pusher.push(b"bad", importance="high")
    dead_letter(queue, b"bad")
    explanation = client.explain(message_id)
    first, second = explanation.groups["default"]
    assert (first.queue, first.state) == ("jobs", "dead")
    assert (second.queue, second.state) == (DEAD, "dead")
    assert f"Group default: dead, in {DEAD}." in text_of(explanation)
    assert explanation.importance == "high"
    assert second.failure["error"] == "broken"
    assert "because a consumer gave it up" in text_of(explanation)
    assert "Before, it was delivered once" in text_of(explanation)
    assert client.queue(DEAD).explain(message_id) == explanation
    place = f"{second.pipe_id}:{second.seq}"
    assert client.explain(place).id == message_id, "its place is not its id, but leads to it"


def test_a_dead_letter_is_found_when_its_first_pipe_was_retired(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    ids = push(queue, *numbers(3))
    dead_letter(queue, b"1")
    drain(queue.popper())
    for popper in list(client.runtime.open):
        popper.close()
    reap(client)
    assert client.ports.catalog.pipes.by_id(ids[0].partition(":")[0]) is None
    explanation = client.explain(ids[1])
    assert [step.state for step in explanation.groups["default"]] == ["dead", "dead"]
    assert explanation.size == 1
    other = client.explain(ids[2])
    assert now(other).state == "gone"
    assert "Its pipe, of 3 messages, was retired: 1 moved to the dead letters" in text_of(other)


@pytest.mark.parametrize("whole", [True, False])
def test_a_merged_message_is_followed_back_into_its_queue(
    queue: cassq.Queue, client: cassq.Client, whole: bool
) -> None:
    ids = push(queue, *numbers(3))
    for payload in (b"0", b"1"):
        dead_letter(queue, payload)
    for pusher in list(client._letter_pushers.values()):
        pusher.close()
    queue.dead_letters().merge(**({} if whole else {"ids": [ids[1]]}))
    explanation = client.explain(ids[1])
    states = [(step.queue, step.state) for step in explanation.groups["default"]]
    back = [("jobs", "dead"), ("jobs", "waiting")]
    assert states == (back if whole else [back[0], (DEAD, "merged"), back[1]])
    assert now(client.explain(ids[0])).queue == ("jobs" if whole else DEAD)
    drain(queue.popper())
    assert now(client.explain(ids[1])).state == "committed"


def test_what_was_purged_says_so(queue: cassq.Queue, client: cassq.Client) -> None:
    (message_id,) = push(queue, b"x")
    dead_letter(queue, b"x")
    queue.dead_letters().purge(everything=True)
    step = now(client.explain(message_id))
    assert (step.queue, step.state) == (DEAD, "purged")
    assert "It was purged at" in step.happened[-1]


def test_what_was_cancelled_says_so_and_counts_as_purged(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    with queue.pusher() as pusher:
        message_id = pusher.push(b"x", delay=3600)
    assert queue.cancel(message_id)
    assert queue.cancel(message_id), "it was taken back before"
    step = now(client.explain(message_id))
    assert step.state == "cancelled"
    assert "It was cancelled at" in step.happened[-1]

    def balanced() -> bool:
        stats = queue.stats().groups["default"]
        assert queue.audit().findings == []
        return (stats.purged, stats.committed, stats.pushed) == (1, 0, 1)

    def retired() -> bool:
        reap(client)
        return client.ports.catalog.pipes.by_id(message_id.partition(":")[0]) is None

    assert balanced()
    eventually("its pipe is retired", retired)
    assert balanced()


def test_a_message_that_may_expire_says_when(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", message_ttl=3600)
    (message_id,) = push(queue, b"x")
    assert any(line.startswith("It expires at ") for line in now(queue.explain(message_id)).next)


def test_a_damaged_or_missing_file_is_not_an_obstacle(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    (message_id,) = push(queue, b"x")
    client.ports.store.drop(extents(client))
    assert now(client.explain(message_id)).state == "waiting"


@pytest.mark.parametrize("wrong", ["", "x", "x:", ":5", "x:-5", "x:5a", "x:" + "9" * 30, "x:٣"])
def test_an_invalid_id_is_refused(client: cassq.Client, wrong: str) -> None:
    with pytest.raises(UsageError, match="is not a message ID"):
        client.explain(wrong)


def test_a_message_that_nobody_knows_is_not_found(queue: cassq.Queue, client: cassq.Client) -> None:
    (message_id,) = push(queue, b"x")
    other = client.create_queue("other")
    with pytest.raises(MessageNotFoundError, match="not a message of any queue"):
        client.explain("0" * 24 + ":0")
    with pytest.raises(MessageNotFoundError, match="not a message of queue other"):
        other.explain(message_id)
    beyond = message_id.replace(":0", ":7")
    assert now(client.explain(beyond)).state == "missing"


def test_the_command_explains_in_sentences_and_as_json(queue: cassq.Queue, url: str) -> None:
    (message_id,) = push(queue, b"x")

    def run(*words: str) -> str:
        result = CliRunner().invoke(main, ["--url", url, "explain", *words])
        assert result.exit_code == 0, result.stderr
        return result.stdout

    assert run(message_id).splitlines()[1:] == [
        "Group default: waiting.",
        "  It is the next message of its pipe to be delivered.",
    ]
    found = json.loads(run(message_id, "--json"))
    assert found["id"] == message_id
    assert found["groups"]["default"][0]["state"] == "waiting"
    assert CliRunner().invoke(main, ["--url", url, "explain", "x"]).exit_code == 2
