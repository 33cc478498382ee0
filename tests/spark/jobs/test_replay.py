"""The job `replay`: finished pipes, or an archive, pushed again, once under each id."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.errors import ConfigError
from tests.integration.deadlines import eventually
from tests.integration.stage import alone, drain, numbers, payloads, push
from tests.spark.jobs.test_archive import archived, folder, sealed
from tests.spark.places import everywhere


def replayed(spark: Any, queue: cassq.Queue, client: cassq.Client, **options: Any) -> Any:
    """A replay into a queue. since, until, where: of its choice."""
    from cassq.spark.jobs.replay import Choice, replay

    names = {"since", "until", "where"}
    choice = Choice(**{name: options.pop(name) for name in names & options.keys()})
    write_id = options.pop("write_id", "w")
    return replay(spark, client.url, queue.name, write_id, choice=choice, **options)


def popped(queue: cassq.Queue) -> list[bytes]:
    return sorted(payloads(drain(queue.popper())))


LONG = pytest.mark.long(reason="a run of several Spark jobs")


@pytest.fixture
def other(client: cassq.Client, queue: cassq.Queue) -> cassq.Queue:
    """A second queue, to replay to."""
    return client.create_queue(f"{queue.name}-other")


@everywhere
def test_what_is_finished_is_replayed_once_under_its_id(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    with queue.pusher() as pusher:
        pusher.push(b"0", headers={"x": "1"}, key=b"k")
    push(queue, *numbers(99, 1))
    with queue.pusher() as pusher:
        pusher.push(b"open")
        done = replayed(spark, queue, client)
        assert (done.messages, done.writes, done.already) == (100, 1, 0)
        again = replayed(spark, queue, client)
        assert (again.messages, again.writes, again.already) == (0, 0, 1)
    found = drain(queue.popper())
    assert sorted(payloads(found)) == sorted([*numbers(100), *numbers(100), b"open"])
    first = [message for message in found if message.payload == b"0"]
    assert [(message.headers, message.key) for message in first] == [({"x": "1"}, b"k")] * 2
    assert len({message.id for message in first}) == 2
    assert queue.audit().findings == []


@pytest.mark.long(reason="Spark jobs")
@LONG
def test_an_archive_is_replayed_by_time_and_by_filter_without_what_is_half_there(
    spark: Any, client: cassq.Client, queue: cassq.Queue, other: cassq.Queue, tmp_path: Path
) -> None:
    push(queue, *numbers(10))
    early = datetime.now(UTC)
    eventually("time passes", lambda: datetime.now(UTC) > early + timedelta(milliseconds=5))
    between = (early + timedelta(milliseconds=3)).isoformat()
    eventually("it has passed", lambda: datetime.now(UTC) > early + timedelta(milliseconds=9))
    push(queue, *numbers(10, 10))
    push(queue, b"half 5")
    archived(spark, client, queue, tmp_path)
    (folder(tmp_path, queue, sealed(client, queue)[-1]) / "_whole").unlink()
    drain(queue.popper())
    place = {"source": queue.name, "archive": str(tmp_path)}
    five = "cast(payload as string) like '%5'"
    done = replayed(spark, other, client, write_id="1", where=five, **place)
    assert (done.messages, popped(other)) == (2, [b"15", b"5"])
    replayed(spark, other, client, write_id="2", since=between, where=five, **place)
    assert popped(other) == [b"15"]
    replayed(spark, other, client, write_id="3", until=between, **place)
    assert popped(other) == numbers(10)
    none = replayed(spark, other, client, write_id="4", since=between, until=between, **place)
    assert (none.messages, popped(other)) == (0, [])


@pytest.mark.long(reason="Spark jobs")
@LONG
def test_a_paced_run_that_died_continues_and_does_not_replay_its_own_messages(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    push(queue, *numbers(20_001))
    push(queue, b"last")
    pushed = _newest(queue)
    eventually("time passes", lambda: datetime.now(UTC) > pushed + timedelta(milliseconds=5))
    until = (pushed + timedelta(milliseconds=1)).isoformat()

    def dies(progress: Any) -> None:
        assert progress == (1, 4, 10_000)
        raise KeyboardInterrupt

    paced = {"until": until, "rate": 1e9}
    with pytest.raises(KeyboardInterrupt):
        replayed(spark, queue, client, progress=dies, **paced)
    with pytest.raises(ConfigError, match="was begun with a rate"):
        replayed(spark, queue, client, until=until)
    done = replayed(spark, queue, client, **paced)
    assert done.already >= 1
    assert done.messages == 10_002
    assert replayed(spark, queue, client, **paced).messages == 0
    wanted = [*numbers(20_001), b"last"]
    assert popped(queue) == sorted([*wanted, *wanted])


def _newest(queue: cassq.Queue) -> datetime:
    return max(message.pushed_at for message in queue.peek(30_000))


@LONG
def test_messages_removed_meanwhile_are_reported_and_nothing_is_replayed(
    spark: Any, client: cassq.Client, queue: cassq.Queue, other: cassq.Queue
) -> None:
    alone(client)
    push(queue, *numbers(10))
    push(queue, *numbers(10, 10))
    client.ports.store.drop(sealed(client, queue)[:1])
    with pytest.raises(cassq.errors.CassqError, match="were removed before they were read"):
        replayed(spark, other, client, source=queue.name)
    assert popped(other) == []


def test_what_is_wrong_with_a_call_is_said(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    push(queue, b"1")
    with pytest.raises(ConfigError, match="nothing of queue .* is archived"):
        replayed(spark, queue, client, archive=str(tmp_path))
    with pytest.raises(ConfigError, match="Spark: .*colour"):
        replayed(spark, queue, client, where="colour = 1")
    assert queue.audit().pushed == 1


@pytest.mark.long(reason="Spark jobs")
@LONG
def test_the_command_reports_what_it_did(
    spark: Any, client: cassq.Client, queue: cassq.Queue, other: cassq.Queue
) -> None:
    push(queue, *numbers(12))
    words = ["spark", "replay", other.name, "--from", queue.name, "--url", client.url]
    first = CliRunner().invoke(main, [*words, "--write-id", "x", "--json"])
    assert first.exit_code == 0, first.output
    wanted = {"queue": other.name, "messages": 12, "writes": 1, "already": 0}
    assert json.loads(first.stdout) == wanted
    second = CliRunner().invoke(main, [*words, "--write-id", "x"])
    assert second.stdout.splitlines()[1].split() == [other.name, "0", "0", "1"]
    assert popped(other) == sorted(numbers(12))
