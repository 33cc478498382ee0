"""Which keys of a keyed group are held up, and by what."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.errors import UsageError
from tests.integration.stage import Connect


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
