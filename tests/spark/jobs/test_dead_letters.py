"""The job `dead-letters`: what letters died of, and merging those that SQL names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.errors import ConfigError, GroupNotFoundError, QueueNotFoundError
from tests.integration.deadlines import eventually
from tests.integration.stage import drain, numbers, payloads, push
from tests.spark.places import everywhere


def die(queue: cassq.Queue, found: list[bytes], error: str) -> str:
    """Push messages that become dead letters; their pipe."""
    first, *_ = push(queue, *found)
    popper = queue.popper()
    popper.dead(popper.pop(len(found)), error)
    popper.close()
    letters = queue.dead_letters()
    eventually(
        "they are there",
        lambda: (
            len([each for each in letters.export() if each.death["error"] == error]) == len(found)
        ),
    )
    return first.split(":")[0]


@pytest.mark.long(reason="five jobs of Spark; the gate checks calls, and merges by ids")
@everywhere
def test_what_letters_died_of_is_counted_and_those_that_sql_names_come_back(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    from cassq.spark.jobs.dead_letters import Count, analyse, merge

    slow = die(queue, numbers(3), "timed out")
    bad = die(queue, numbers(2, 3), "no such customer")
    found = analyse(spark, client.url, queue.name)
    assert found.letters == 5
    by = {(each.what, each.value): each.letters for each in found.top if each.what != "consumer"}
    assert by == {
        ("reason", "rejected"): 5,
        ("error", "timed out"): 3,
        ("error", "no such customer"): 2,
        ("producer", slow): 3,
        ("producer", bad): 2,
    }
    few = analyse(spark, client.url, queue.name, where="deliveries = 1", top=1)
    assert few.letters == 5
    assert [each for each in few.top if each.what == "error"] == [Count("error", "timed out", 3)]
    assert len(list(queue.dead_letters().export())) == 5
    where = "error like '%out' and cast(payload as string) <> '1'"
    outcome = merge(spark, client.url, queue.name, where=where)
    assert (outcome.messages, outcome.complete) == (2, True)
    assert merge(spark, client.url, queue.name, where=where).messages == 0
    assert sorted(payloads(drain(queue.popper()))) == [b"0", b"2"]
    left = sorted(each.payload for each in queue.dead_letters().export())
    assert left == [b"1", b"3", b"4"]


def test_without_letters_nothing_is_counted_and_wrong_calls_are_refused(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    from cassq.spark.jobs.dead_letters import analyse, merge

    found = analyse(spark, client.url, queue.name)
    assert (found.letters, found.top) == (0, ())
    with pytest.raises(ConfigError, match="say which letters to merge"):
        merge(spark, client.url, queue.name, where="")
    with pytest.raises(ConfigError, match=r"Spark: .*colour"):
        analyse(spark, client.url, queue.name, where="colour = 1")
    with pytest.raises(QueueNotFoundError):
        analyse(spark, client.url, "nope")
    with pytest.raises(GroupNotFoundError):
        analyse(spark, client.url, queue.name, "nope")


@pytest.mark.long(reason="Spark jobs")
def test_the_command_counts_and_merges(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    die(queue, numbers(2), "no good")
    words = ["spark", "dead-letters", queue.name, "--url", client.url]
    summary = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert (summary["letters"], summary["top"][1]["value"]) == (2, "no good")
    assert CliRunner().invoke(main, [*words, "--merge"]).exit_code == 2
    done = CliRunner().invoke(main, [*words, "--where", "error = 'no good'", "--merge"])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[1].split() == [queue.name, "default", "2", "0", "0"]
    assert sorted(payloads(drain(queue.popper()))) == numbers(2)
