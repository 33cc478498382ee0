"""The job `audit`: what `Queue.audit` says, found by tasks; and what is amiss, by pipe and seq."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.client.backends.embedded import CATALOG
from cassq.errors import ConfigError, QueueNotFoundError
from tests.integration.deadlines import eventually
from tests.integration.stage import alone, drain, numbers, pipe_file, push, reap
from tests.spark.places import everywhere


def audited(spark: Any, client: cassq.Client, queue: cassq.Queue, **options: Any) -> Any:
    from cassq.spark.jobs.audit import audit

    return audit(spark, client.url, queue.name, **options)


def lived(client: cassq.Client, queue: cassq.Queue) -> str:
    """Let messages of a queue come to many ends; the pipe that has most of them."""
    alone(client)
    push(queue, *numbers(5))
    drain(queue.popper())
    reap(client)
    first, *_ = push(queue, *numbers(50))
    popper = queue.popper()
    found = popper.pop(30)
    popper.commit(found[3:9])
    popper.dead(found[10:14])
    eventually("they are there", lambda: len(list(queue.dead_letters().export())) == 4)
    queue.create_group("late", start="now")
    popper.rollback(found[20:], delay=3600)
    popper.close()
    return first.split(":")[0]


@contextmanager
def tampered(client: cassq.Client) -> Iterator[sqlite3.Connection]:
    """The catalog, to be written by somebody who does not know what it means."""
    path = Path(client.url.removeprefix("file://")) / CATALOG
    with closing(sqlite3.connect(path, timeout=30)) as rows:
        yield rows
        rows.commit()


# --- what is as it must be ----------------------------------------------------------------------


@pytest.mark.long(reason="Spark jobs")
@everywhere
def test_the_job_says_what_the_audit_of_one_process_says(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    pipe = lived(client, queue)
    letters = queue.dead_letters()
    assert letters.merge(ids=[f"{pipe}:12"]).messages == 1
    assert letters.purge(ids=[f"{pipe}:13"]).messages == 1
    reports: list[Any] = []
    with queue.pusher() as pusher:  # a pipe that stays open
        pusher.push_many(numbers(7))
        found = audited(spark, client, queue, messages_per_task=20, progress=reports.append)
        assert found == queue.audit()
        assert found.balanced, found.findings
    mine = found.groups["default"]
    assert (mine.pushed, mine.dead, mine.committed, mine.delayed) == (63, 4, 11, 10)
    assert (mine.waiting + mine.pending, mine.deliveries[0]) == (48, 28)
    assert found.groups["late"].skipped >= 50
    assert (reports[0][1:], reports[-1][1:]) == ((0, 58), (58, 58))
    dead = client.queue(f"{queue.name}~default~dead")
    found = audited(spark, client, dead)
    assert found == dead.audit()
    (group,) = found.groups.values()
    assert (group.waiting, group.merged, group.purged) == (2, 1, 1)


@pytest.mark.long(reason="Spark jobs")
def test_what_is_done_meanwhile_is_not_a_finding(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    """Pushed, popped and retired after the rows were looked at, and before the frames are."""
    alone(client)
    gone = push(queue, *numbers(10))[0].split(":")[0]
    push(queue, *numbers(20))

    def works(progress: Any) -> None:
        if progress.messages == 0:
            popper = queue.popper()
            popper.commit(popper.pop(10))
            assert [action.verb for action in reap(client)].count("retire") == 1
            client.ports.store.drop([gone])
            drain(popper)
            push(queue, *numbers(3))

    found = audited(spark, client, queue, progress=works)
    assert found.findings == []
    assert (found.pushed, found.retired_pipes) == (30, 1)
    assert (found.groups["default"].committed, found.groups["default"].waiting) == (10, 20)


def test_what_is_wrong_with_a_call_is_said(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    from cassq.spark.jobs.audit import audit

    assert (audited(spark, client, queue).pushed, audited(spark, client, queue).pipes) == (0, 0)
    with pytest.raises(QueueNotFoundError):
        audit(spark, client.url, "nope")
    with pytest.raises(ConfigError, match="messages_per_task"):
        audited(spark, client, queue, messages_per_task=0)


# --- what is not --------------------------------------------------------------------------------


def test_rows_that_contradict_each_other_are_found_by_group_pipe_and_seq(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    pipe = lived(client, queue)
    assert audited(spark, client, queue).balanced
    (group,) = (g.id for g in client.ports.catalog.queues.groups(queue.id) if g.name == "default")
    letters = next(
        iter(client.ports.catalog.pipes.live(client.queue(f"{queue.name}~default~dead").id))
    )
    with tampered(client) as rows:
        purge = "INSERT INTO removed (group_id, pipe_id, start_seq, end_seq, reason, at_ms)"
        rows.execute(f"{purge} VALUES (?, ?, 11, 13, 'purged', 1)", (group, pipe))
        rows.execute(f"{purge} VALUES (?, ?, 60, 61, 'expired', 1)", (group, pipe))
        where = "WHERE group_id = ? AND pipe_id = ?"
        moved = rows.execute(f"UPDATE moves SET dest_seq = 2 {where} AND seq = 10", (group, pipe))
        assert moved.rowcount == 1
        lost = rows.execute(f"DELETE FROM claims {where} AND start_seq >= 14", (group, pipe))
        assert lost.rowcount >= 1
    found = audited(spark, client, queue)
    assert not found.balanced
    where = f"group default, pipe {pipe}"
    assert f"{where}: seqs 11-12 are both dead and purged" in found.findings
    assert f"{where}: seqs 60 are settled, but were never claimed" in found.findings
    assert any("have no fate" in each and where in each for each in found.findings)
    letter = f"message {pipe}:10 is not in the dead letters, where it should be {letters.id}:2"
    assert f"{where}: {letter}" in found.findings
    assert any(each.startswith("group default: waiting") for each in found.findings)
    assert not any("late" in each for each in found.findings)


def test_messages_in_the_pipe_of_another_key_lane_are_found(
    spark: Any, client: cassq.Client
) -> None:
    alone(client)
    queue = client.create_queue("lanes", key_lanes=2)
    with queue.pusher() as pusher:
        pusher.push_many(numbers(40), keys=[b"%d" % (number % 9) for number in range(40)])
    assert audited(spark, client, queue, messages_per_task=7).balanced
    with tampered(client) as rows:
        rows.execute("UPDATE pipes SET owner = 'another' WHERE queue_id = ?", (queue.id,))
    (finding,) = audited(spark, client, queue, messages_per_task=7).findings
    assert "whose keys belong to other key lanes" in finding
    assert queue.audit().findings == [finding]


def test_a_corrupt_frame_is_reported_with_pipe_and_seq_and_the_command_fails(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    pipe = push(queue, *numbers(3))[0].split(":")[0]
    words = ["spark", "audit", queue.name, "--url", client.url]
    good = CliRunner().invoke(main, words)
    assert good.exit_code == 0, good.output
    assert good.stdout.splitlines()[1].split() == ["default", "3", "3", *"00000000", "yes"]
    path = pipe_file(client, pipe)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.rindex(b"012")] ^= 0x40
    path.write_bytes(damaged)
    bad = CliRunner().invoke(main, [*words, "--messages-per-task", "1"])
    assert bad.exit_code == 1
    assert f"pipe {pipe} is damaged after seq 0: " in bad.stdout
    assert bad.stdout.count("is damaged") == 1
    assert f"the audit of {queue.name} does not balance" in bad.stderr
    summary = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert (summary["balanced"], len(summary["findings"]), summary["pushed"]) == (False, 1, 0)
