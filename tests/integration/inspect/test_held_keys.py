"""Which keys of a keyed group are held up, and by what."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

import cassq
from cassq.alerts.targets import AlertTarget
from cassq.alerts.watch import run
from cassq.base.clock import ManualClock
from cassq.cli.main import main
from cassq.errors import UsageError
from cassq.gateway.lane_receiver import LaneReceiver
from cassq.inspect.history import roll_up
from cassq.inspect.metrics import queue_metrics
from cassq.inspect.stats import STUCK_SECONDS
from cassq.model.rows import NOTED_MS
from tests.integration.stage import Connect, alone
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


def push(queue: cassq.Queue, keys: str) -> None:
    with queue.pusher() as pusher:
        pusher.push_many([key.encode() for key in keys], keys=[key.encode() for key in keys])


def test_a_failed_message_and_what_waits_behind_it_are_shown(
    queue: cassq.Queue, connect: Connect
) -> None:
    queue.create_group("keyed", order="key")
    push(queue, "aaabbc")
    popper = queue.popper("keyed")
    first, second, third = popper.pop(3)
    first.nack(delay=600, error="no answer")
    third.ack()
    popper.flush()
    failed, held = connect().queue("jobs").held_keys("keyed")
    assert (failed.key, failed.message_id, failed.state) == (b"a", first.id, "failed")
    assert (failed.attempts, failed.error, failed.behind) == (1, "no answer", 2)
    assert timedelta(minutes=9) < failed.due_at - datetime.now(UTC) < timedelta(minutes=11)
    assert (held.key, held.message_id, held.state) == (b"b", second.id, "in hand")
    assert (held.holder, held.behind) == (popper.name, 1)
    assert len(queue.held_keys("keyed", limit=1)) == 1
    assert failed.as_dict()["key"] == "a"
    popper.commit([second])
    assert [each.key for each in queue.held_keys("keyed")] == [b"a"]


@pytest.fixture
def holding(client: cassq.Client) -> cassq.Queue:
    """A queue with a message whose key a dead letter holds; another waits behind it."""
    alone(client)
    queue = client.create_queue("jobs")
    queue.create_group("keyed", order="key", on_dead="hold")
    push(queue, "aab")
    popper = queue.popper("keyed")
    popper.dead(popper.pop(1), "no good")
    popper.commit(popper.pop(1))
    popper.close()
    return queue


def test_a_dead_letter_that_holds_its_key_is_shown(holding: cassq.Queue) -> None:
    popper = holding.popper("keyed")
    assert not popper.pop(1)
    (held,) = holding.held_keys("keyed")
    (letter,) = holding.dead_letters("keyed").peek()
    assert (held.key, held.message_id, held.state) == (b"a", letter.id, "dead")
    assert (held.attempts, held.error, held.behind, held.due_at) == (1, "no good", 1, None)
    assert held.as_dict()["due_at"] is None
    assert holding.stats().groups["keyed"].held_keys == 1
    (metric,) = (m for m in queue_metrics([holding.stats()]) if m.name == "cassq_group_held_keys")
    assert [value for labels, value in metric.values if "keyed" in labels.values()] == [1]


def test_an_explanation_says_which_dead_letter_holds_the_key(holding: cassq.Queue) -> None:
    (letter,) = holding.dead_letters("keyed").peek()
    (behind,) = (m for m in holding.peek(group="keyed") if m.payload == b"a")
    text = "\n".join(holding.explain(behind.id).sentences())
    assert f"Its key is held by the dead letter {letter.id}" in text
    assert "Its key is held" not in "\n".join(holding.explain(letter.id).sentences())


def explained(queue: cassq.Queue, payload: bytes, number: int = 0) -> str:
    """What is said of a message that waits in the group "keyed"."""
    found = [each for each in queue.peek(group="keyed") if each.payload == payload]
    return "\n".join(queue.explain(found[number].id).sentences())


def test_an_explanation_says_which_failed_message_holds_the_key(queue: cassq.Queue) -> None:
    queue.create_group("keyed", order="key")
    push(queue, "aaab")
    popper = queue.popper("keyed")
    first, other = popper.pop(2)
    first.nack(delay=600)
    popper.flush()
    for number in (1, 2):
        text = explained(queue, b"a", number)
        assert f"Its key is held by message {first.id}, which failed, and is tried again" in text
        assert "release-key --give-up" in text
    assert "Its key is held" not in explained(queue, b"a"), "nothing holds up the one that holds"
    assert "Its key is held" not in explained(queue, b"b")
    other.ack()
    popper.close()
    assert f"held by message {first.id}" in explained(queue, b"a", 1), "though nobody claims it"


def test_an_explanation_says_who_has_the_message_that_holds_the_key(queue: cassq.Queue) -> None:
    queue.create_group("keyed", order="key", rate_per_key="10/s", fair=True)
    push(queue, "aa")
    popper = queue.popper("keyed")
    (first,) = popper.pop(1, wait=60)
    push(queue, "b")
    text = explained(queue, b"a", 1)
    assert f"Its key is held by message {first.id}, which consumer {popper.name} has until" in text
    assert "A key gets at most 10/s (rate_per_key)." in text
    assert "Its key is held" not in explained(queue, b"b")
    assert "(fair)" in explained(queue, b"b")
    popper.commit([first])
    assert "Its key is held" not in explained(queue, b"a")


def test_what_a_receiver_has_holds_its_key_too(client: cassq.Client, queue: cassq.Queue) -> None:
    queue.create_group("keyed", order="key")
    push(queue, "aa")
    (group,) = (g for g in client.ports.catalog.queues.groups(queue.row.id) if g.name == "keyed")
    receiver = LaneReceiver(client.runtime, queue, group, lambda: 0)
    (first,) = receiver.receive(1, 60_000)
    (held,) = queue.held_keys("keyed")
    assert (held.state, held.message_id, held.behind) == ("in hand", first.id, 1)
    text = explained(queue, b"a", 1)
    assert f"Its key is held by message {first.id}, which consumer {held.holder} has until" in text
    receiver.close()


def test_an_explanation_says_that_a_key_has_as_many_in_hand_as_it_may(queue: cassq.Queue) -> None:
    queue.create_group("keyed", limit_per_key=2)
    push(queue, "aaa")
    popper = queue.popper("keyed")
    first, _ = popper.pop(2)
    text = explained(queue, b"a", 2)
    assert "Consumers have 2 messages of its key, as many as they may at once" in text
    assert first.id in text
    first.ack()
    popper.flush()
    assert "Consumers have" not in explained(queue, b"a", 1)


def test_an_explanation_says_what_else_stops_a_claimed_message(queue: cassq.Queue) -> None:
    queue.create_group("keyed", order="key", concurrency=1)
    push(queue, "ab")
    popper = queue.popper("keyed")
    assert len(popper.pop(1)) == 1
    assert "concurrency is 1" in explained(queue, b"b")
    queue.pause()
    assert "The queue is paused" in explained(queue, b"b")


def test_an_alert_says_that_keys_are_held_until_they_are_released(
    client: cassq.Client, holding: cassq.Queue
) -> None:
    queues, log = [holding.row], AlertTarget("log")
    kinds = ("held_keys raised", "held_keys recovered")
    sent = [each.subject for each in run(client.ports, queues, [log])]
    assert kinds[0] in sent
    holding.release_key("keyed", b"a")
    sent = [each.subject for each in run(client.ports, queues, [log])]
    assert kinds[1] in sent


def test_the_command_releases_a_key(url: str, holding: cassq.Queue) -> None:
    words = ["group", "release-key", "jobs", "keyed", "a", "--url", url]
    shown = CliRunner().invoke(main, ["stats", "jobs", "--url", url])
    assert "dead letters hold 1 key of group keyed" in shown.stdout
    shown = CliRunner().invoke(main, ["group", "keys", "jobs", "keyed", "--url", url])
    assert shown.stdout.splitlines()[1].split()[:3] == ["a", "1", "dead"]
    released = CliRunner().invoke(main, words)
    assert released.stdout == "released key a, which 1 dead letter held\n"
    again = CliRunner().invoke(main, [*words, "--json"])
    assert json.loads(again.stdout)["letters"] == 0
    assert CliRunner().invoke(main, words).stdout == "no dead letter holds key a\n"


def test_a_key_that_goes_on_failing_is_shown_and_released(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", sick_check=False)
    queue.create_group("keyed", order="key")
    push(queue, "aab")
    popper = queue.popper("keyed")
    popper.rollback(popper.pop(1), delay=3600)
    queues, log = [queue.row], AlertTarget("log")

    def sent() -> list[str]:
        return [each.subject for each in run(timed.ports, queues, [log])]

    clock.advance(STUCK_SECONDS - 1)
    assert queue.stats().groups["keyed"].stuck_keys == 0
    assert "stuck_keys raised" not in sent()
    clock.advance(2)
    assert queue.stats().groups["keyed"].stuck_keys == 1
    (metric,) = (m for m in queue_metrics([queue.stats()]) if m.name == "cassq_group_stuck_keys")
    assert [value for labels, value in metric.values if "keyed" in labels.values()] == [1]
    assert "stuck_keys raised" in sent()
    assert queue.release_key("keyed", b"a", give_up=True) == 1
    assert queue.stats().groups["keyed"].stuck_keys == 0
    assert "stuck_keys recovered" in sent()


def pass_time(
    clock: ManualClock, popper: cassq.Popper, client: cassq.Client, queue: cassq.Queue, seconds: int
) -> None:
    """Let time pass, in which the popper keeps what it has, and samples are taken."""
    for _ in range(seconds // 10):
        clock.advance(10)
        popper.maintain()
        roll_up(client.ports, [queue.row], client.ports.catalog.now_ms())


def test_a_message_that_stays_in_hand_is_shown_and_its_key_named(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    queue.create_group("keyed", order="key")
    push(queue, "aabbbc")
    popper = queue.popper("keyed")
    messages = {message.key: message for message in popper.pop(3)}
    queues, log = [queue.row], AlertTarget("log")

    def sent() -> list[str]:
        found = [each for each in run(timed.ports, queues, [log]) if "stuck_keys" in each.subject]
        return [f"{each.subject} {each.detail}" for each in found]

    def stuck() -> int:
        return queue.stats().groups["keyed"].stuck_in_hand

    pass_time(clock, popper, timed, queue, STUCK_SECONDS - 10)
    assert (stuck(), sent()) == (0, [])
    pass_time(clock, popper, timed, queue, NOTED_MS // 1000 + 10)
    assert stuck() == 3
    (metric,) = (m for m in queue_metrics([queue.stats()]) if m.name == "cassq_group_stuck_in_hand")
    assert [value for labels, value in metric.values if "keyed" in labels.values()] == [3]
    (text,) = sent()
    assert text.startswith("stuck_keys raised")
    assert "3 messages were in hand for more than 15 minutes" in text
    assert f"at least 2 for message {messages[b'b'].id} of key 'b'" in text
    assert popper.name in text
    popper.commit([messages[b"a"], messages[b"b"]])
    assert stuck() == 1
    (text,) = sent()
    assert text.startswith("stuck_keys recovered"), "nothing waits for the third"
    popper.commit([messages[b"c"]])
    again = [*popper.pop(1), *popper.pop(1)]
    assert stuck() == 0
    pass_time(clock, popper, timed, queue, 60)
    assert (len(again), stuck()) == (2, 0), "others of the keys are in hand since now"


def test_a_message_that_was_delivered_again_is_not_in_hand_since_before(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", sick_check=False)
    queue.create_group("keyed", order="key")
    push(queue, "aa")
    popper = queue.popper("keyed")
    (message,) = popper.pop(1)
    pass_time(clock, popper, timed, queue, STUCK_SECONDS)
    popper.rollback([message])
    assert len(popper.pop(1)) == 1
    pass_time(clock, popper, timed, queue, NOTED_MS // 1000 + 10)
    assert queue.stats().groups["keyed"].stuck_in_hand == 0


def test_the_command_gives_a_failed_message_up(url: str, queue: cassq.Queue) -> None:
    queue.create_group("keyed", order="key")
    push(queue, "aa")
    with queue.popper("keyed") as popper:
        popper.rollback(popper.pop(1), delay=3600)
    words = ["group", "release-key", "jobs", "keyed", "a", "--url", url, "--give-up"]
    released = CliRunner().invoke(main, words)
    assert released.stdout == "released key a, which 1 message held\n"
    again = CliRunner().invoke(main, words)
    assert again.stdout == "no dead letter or failed message holds key a\n"
    assert queue.stats().groups["keyed"].dead == 1


def test_a_group_that_knows_no_keys_is_refused(queue: cassq.Queue) -> None:
    with pytest.raises(UsageError, match="do not wait for others of their key"):
        queue.held_keys("default")


def test_the_command_shows_them(url: str, queue: cassq.Queue) -> None:
    queue.create_group("keyed", order="key")
    push(queue, "aa")
    popper = queue.popper("keyed")
    (message,) = popper.pop(1)
    message.nack(delay=600, error="no answer")
    popper.flush()
    words = ["group", "keys", "jobs", "keyed", "--url", url]
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0, shown
    header, row = shown.stdout.splitlines()
    assert header.split() == ["KEY", "BEHIND", "STATE", "ATTEMPTS", "UNTIL", "ERROR", "MESSAGE"]
    assert row.split()[:4] == ["a", "1", "failed", "1"]
    (held,) = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert (held["key"], held["behind"], held["message_id"]) == ("a", 1, message.id)
    refused = CliRunner().invoke(main, ["group", "keys", "jobs", "default", "--url", url])
    assert refused.exit_code != 0
    assert "do not wait for others of their key" in refused.stderr
