"""What statistics, metrics, explanations, peeks, audits and commands say of priorities."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import cassq
from cassq.base.clock import ManualClock
from cassq.cli.main import main
from cassq.inspect.metrics import queue_metrics
from tests.integration.stage import alone, client_on, drain
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


def push_some(queue: cassq.Queue) -> list[str]:
    """Two messages of priority 7, three of 0; their ids."""
    with queue.pusher() as pusher:
        return list(pusher.push_many([b"x"] * 5, priority=[7, 0, 0, 7, 0]))


def run(*arguments: str, text: str = "") -> str:
    done = CliRunner().invoke(main, list(arguments), input=text)
    assert done.exit_code == 0, done.output
    return done.output


def test_statistics_count_what_waits_by_priority(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", priority_share=0)
    assert queue.stats().groups["default"].priorities == {}
    push_some(queue)
    queue.pusher().push(b"later", delay=60, priority=3)
    assert queue.stats().groups["default"].priorities == {7: 2, 3: 1, 0: 3}
    popper = queue.popper()
    (first,) = popper.pop()
    assert queue.stats().groups["default"].priorities == {7: 1, 3: 1, 0: 3}
    first.nack(delay=5)
    popper.flush()
    assert queue.stats().groups["default"].priorities == {7: 2, 3: 1, 0: 3}
    assert queue.audit().groups["default"].priorities == {7: 2, 3: 1, 0: 3}


def test_statistics_of_a_queue_without_priorities_say_nothing_of_them(queue: cassq.Queue) -> None:
    queue.pusher().push_many([b"x"] * 3)
    stats = queue.stats()
    assert stats.groups["default"].priorities == {}
    (metric,) = [m for m in queue_metrics([stats]) if "priority" in m.name]
    assert list(metric.values) == []


def test_a_metric_has_what_waits_by_priority(queue: cassq.Queue) -> None:
    push_some(queue)
    (metric,) = [m for m in queue_metrics([queue.stats()]) if "priority" in m.name]
    assert metric.name == "cassq_group_priority_waiting_messages"
    found = {labels["priority"]: value for labels, value in metric.values}
    assert found == {"7": 2, "0": 3}
    assert {labels["messaging_consumer_group_name"] for labels, _ in metric.values} == {"default"}


def test_an_explanation_says_its_priority_and_what_goes_before(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", priority_share=5)
    high, low, *_ = push_some(queue)
    found = queue.explain(low)
    assert found.priority == 0
    assert "priority 0)" in found.sentences()[0]
    text = "\n".join(found.sentences())
    assert "Messages of priority 7 go before it, as its own is 0; one of 5 claims begins" in text
    assert queue.explain(high).as_dict()["priority"] == 7
    assert "go before it" not in "\n".join(queue.explain(high).sentences())
    queue.update(priority_share=0)
    assert "Messages of priority 7 go before it, as its own is 0." in "\n".join(
        queue.explain(low).sentences()
    )
    popper = queue.popper()
    drain(popper, 2)
    queue.pusher().push(b"x", priority=9)
    assert queue.explain(high).priority == 7, "it is there until its pipe is retired"


def test_an_explanation_of_a_dead_letter_has_its_priority(client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    alone(client)
    high, *_ = push_some(queue)
    popper = queue.popper()
    popper.dead(popper.pop(1), "bad")
    found = queue.explain(high)
    assert (found.priority, found.groups["default"][-1].state) == (7, "dead")


def test_a_peek_goes_by_priority(queue: cassq.Queue) -> None:
    push_some(queue)
    assert [message.priority for message in queue.peek()] == [7, 7, 0, 0, 0]


def test_pipes_say_their_priority(queue: cassq.Queue) -> None:
    push_some(queue)
    assert sorted(pipe.priority for pipe in queue.pipes()) == [0, 7]


@pytest.mark.embedded_only(reason="it changes rows of the catalog")
def test_an_audit_finds_claims_of_another_priority_than_their_pipe(directory: Path) -> None:
    with client_on(directory) as client:
        queue = client.create_queue("jobs")
        alone(client)
        push_some(queue)
        popper = queue.popper()
        popper.rollback(popper.pop(1), delay=60)
        assert queue.audit().findings == []
        database = client.ports.catalog.claims._db  # type: ignore[attr-defined]
        with database.lock, database.write(synced=True) as tx:
            tx.execute("UPDATE claims SET priority = 2 WHERE state < 2")
        (finding,) = queue.audit().findings
        assert "wait with priority 2, but were pushed with 7" in finding


@pytest.mark.embedded_only(reason="commands open a directory")
def test_commands_push_and_show_priorities(directory: Path) -> None:
    url = ("--url", f"file://{directory}")
    run("queue", "create", "jobs", "--priority-share", "0", *url)
    run("push", "jobs", *url, text="low\n")
    run("push", "jobs", "--priority", "9", *url, text="high\n")
    assert "priority 9" in run("pipe", "list", "jobs", *url)
    shown = run("stats", "jobs", *url)
    assert "PRIORITY" in shown
    listed = json.loads(run("pop", "jobs", "--json", *url).splitlines()[0])
    assert (listed["payload"], listed["priority"]) == ("high", 9)
    done = CliRunner().invoke(main, ["push", "jobs", "--priority", "10", *url], input="x\n")
    assert done.exit_code == 2
    assert "priority must be a whole number from 0 to 9, not 10" in done.output
    assert "9 is the most urgent" in done.output
