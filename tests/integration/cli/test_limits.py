"""`cassq queue pause`, `resume`, `drain` and `purge`, and limits as options."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.errors import ClaimLostError
from tests.integration.places import Place
from tests.integration.stage import LaterClock, drain, numbers, payloads, push, reap


def run(url: str, *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    result = CliRunner().invoke(main, [*words, "--url", url])
    return result.exit_code, result.stdout, result.stderr


def test_pause_and_resume_name_what_they_did(url: str, queue: cassq.Queue) -> None:
    assert run(url, "queue", "pause", "jobs")[1] == "jobs: push is paused, pop is paused\n"
    assert run(url, "queue", "resume", "jobs", "--pop")[1] == "jobs: push is paused, pop is open\n"
    code, out, _ = run(url, "queue", "resume", "jobs", "--json")
    assert (code, json.loads(out)) == (
        0,
        {"queue": "jobs", "paused": {"push": False, "pop": False}},
    )


def test_a_push_to_a_paused_queue_should_be_tried_later(url: str, queue: cassq.Queue) -> None:
    queue.pause()
    result = CliRunner().invoke(main, ["push", "jobs", "--url", url], input="x\n")
    assert result.exit_code == 75
    assert "paused" in result.stderr
    assert "cassq queue resume" in result.stderr


def test_a_pop_distinguishes_an_empty_queue_from_a_paused_one(url: str, queue: cassq.Queue) -> None:
    for words in ((), ("--all",), ("--max", "5"), ("--wait", "10ms")):
        assert run(url, "pop", "jobs", *words) == (0, "", "")
    push(queue, *numbers(2))
    queue.pause(push=False)
    for words in ((), ("--all",), ("--max", "5"), ("--wait", "10ms")):
        code, out, err = run(url, "pop", "jobs", *words)
        assert (code, out) == (75, "")
        assert err.startswith("error: popping from queue 'jobs' is paused\nhint: ")
        assert "`cassq queue resume jobs`" in err
    queue.resume(push=False)
    assert run(url, "pop", "jobs", "--max", "2")[:2] == (0, "0\n1\n")


def test_to_pop_all_and_to_follow_exclude_each_other(url: str, queue: cassq.Queue) -> None:
    code, out, err = run(url, "pop", "jobs", "--all", "--follow")
    assert (code, out) == (2, "")
    assert "--follow never ends" in err


def test_drain_shows_what_is_left(url: str, client: cassq.Client) -> None:
    queue = client.create_queue("jobs", lease=0.5)
    push(queue, *numbers(3))
    code, out, _ = run(url, "queue", "drain", "jobs", "--timeout", "0")
    assert (code, out) == (1, "jobs has 3 messages left\n")
    drain(queue.popper())
    assert run(url, "queue", "drain", "jobs")[:2] == (0, "jobs is drained\n")


def test_purge_wants_to_be_confirmed(url: str, queue: cassq.Queue) -> None:
    queue.create_group("billing")
    push(queue, *numbers(3))
    code, _, err = run(url, "queue", "purge", "jobs")
    assert code == 2
    assert "purging must be confirmed" in err
    assert "--yes" in err
    assert queue.count_waiting() == {"billing": 3, "default": 3}
    code, out, _ = run(url, "queue", "purge", "jobs", "--group", "billing", "--yes")
    assert (code, out) == (0, "purged 3 messages of group billing\n")
    assert len(drain(queue.popper())) == 3


def test_purge_of_what_is_held_is_an_option(url: str, queue: cassq.Queue) -> None:
    push(queue, *numbers(3))
    with queue.popper() as popper:
        held = popper.pop(2)
        code, out, _ = run(url, "queue", "purge", "jobs", "--held", "--yes", "--json")
        assert (code, json.loads(out)) == (0, {"queue": "jobs", "purged": {"default": 3}})
        with pytest.raises(ClaimLostError):
            popper.commit(held)


def test_a_delayed_message_is_cancelled_by_its_id_or_its_dedup_id(
    url: str, queue: cassq.Queue
) -> None:
    queue.update(dedup_window=600)
    with queue.pusher() as pusher:
        first = pusher.push(b"1", delay=3600)
        pusher.push(b"2", delay=3600, dedup_id="b")
        third = pusher.push(b"3", delay=0.001)
    assert run(url, "cancel", "jobs", first) == (0, "cancelled\n", "")
    code, out, _ = run(url, "cancel", "jobs", "--dedup-id", "b", "--json")
    assert (code, json.loads(out)) == (0, {"queue": "jobs", "cancelled": True})
    assert payloads(queue.popper().pop(wait=30)) == [b"3"]
    code, out, _ = run(url, "cancel", "jobs", third)
    assert (code, out) == (1, "not cancelled: it was delivered already\n")
    code, _, err = run(url, "cancel", "jobs", "--dedup-id", "c")
    assert code == 2
    assert "with dedup id 'c' in the last 600 seconds" in err
    code, _, err = run(url, "cancel", "jobs")
    assert code == 2
    assert "either the id of a message or its dedup_id" in err


@pytest.mark.embedded_only(reason="moves the clock, and a keyspace's servers tell the time")
def test_expired_groups_are_listed_with_what_they_had(url: str, place: Place) -> None:
    clock = LaterClock(0)
    with cassq.Client(place.url, place.open(clock), clock) as client:
        client.runtime.housekeeper.stop()
        queue = client.create_queue("jobs")
        queue.create_group("screen", group_expires=60)
        assert json.loads(run(url, "group", "list", "jobs", "--expired", "--json")[1]) == []
        push(queue, *numbers(3))
        for later in (60, 15):
            clock.later_ms += 1000 * later
            reap(client)
    (gone,) = json.loads(run(url, "group", "list", "jobs", "--expired", "--json")[1])
    assert (gone["name"], gone["pushed"], gone["counts"]["waiting"]) == ("screen", 3, 3)
    shown = run(url, "group", "list", "jobs", "--expired")[1].splitlines()
    assert shown[1].split()[:2] == ["jobs", "screen"]
    assert (
        "1 group expired in the last 60 days, with 3 messages not committed"
        in (run(url, "stats", "jobs")[1])
    )
    assert json.loads(run(url, "audit", "jobs", "--json")[1])["expired_groups"] == [gone]


def test_purge_for_a_group_that_is_not_there_purges_nothing(url: str, queue: cassq.Queue) -> None:
    push(queue, *numbers(3))
    code, _, err = run(url, "queue", "purge", "jobs", "--group", "biling", "--yes")
    assert code == 2
    assert "no group 'biling'" in err
    assert queue.count_waiting() == {"default": 3}


@pytest.mark.parametrize(
    ("option", "value", "name", "kept"),
    [
        ("--message-ttl", "1h", "message_ttl", 3600.0),
        ("--max-length", "5", "max_length", 5),
        ("--overflow", "drop-oldest", "overflow", "drop-oldest"),
        ("--dedup-window", "10m", "dedup_window", 600.0),
        ("--retain-consumed", "7d", "retain_consumed", 604800.0),
        ("--retain-unconsumed", "7d", "retain_unconsumed", 604800.0),
    ],
)
def test_limits_are_options(
    url: str, queue: cassq.Queue, option: str, value: str, name: str, kept: object
) -> None:
    before = getattr(queue.policy, name)
    assert run(url, "queue", "update", "jobs", option, value)[0] == 0
    assert getattr(queue.policy, name) == kept
    if before is None:
        assert run(url, "queue", "update", "jobs", option, "none")[0] == 0
        assert getattr(queue.policy, name) is None
