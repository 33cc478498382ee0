"""The job `archive`: finished pipes to Parquet, each once, whatever became of earlier runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.errors import BackendError, QueueNotFoundError
from cassq.model.rows import PipeState
from tests.integration.stage import alone, drain, numbers, push
from tests.spark.places import everywhere


def archived(spark: Any, client: cassq.Client, queue: cassq.Queue, to: Path, **options: Any) -> Any:
    from cassq.spark.jobs.archive import archive

    return archive(spark, client.url, queue.name, str(to), **options)


def rows(spark: Any, path: Path) -> list[Any]:
    """What another program sees of an archive: every message, by its place."""
    from cassq.spark.options import SCHEMA

    found = spark.read.schema(f"{SCHEMA}, queue string").parquet(str(path)).collect()
    return sorted(found, key=lambda row: (row.pipe, row.seq))


def payloads(spark: Any, path: Path) -> list[bytes]:
    return sorted(bytes(row.payload) for row in rows(spark, path))


def files(path: Path) -> dict[str, int]:
    """All files under a folder, and when each was written."""
    found = [file for file in path.rglob("*") if file.is_file()]
    return {str(file): file.stat().st_mtime_ns for file in found}


def sealed(client: cassq.Client, queue: cassq.Queue) -> list[str]:
    """The ids of the queue's sealed pipes, oldest first."""
    pipes = client.ports.catalog.pipes.live(queue.id)
    return [pipe.id for pipe in pipes if pipe.state is PipeState.SEALED]


def folder(path: Path, queue: cassq.Queue, pipe_id: str) -> Path:
    return path / f"queue={queue.name}" / f"pipe={pipe_id}"


# --- what is archived ---------------------------------------------------------------------------


@pytest.mark.long(reason="Spark jobs")
@everywhere
def test_sealed_pipes_are_archived_as_a_read_has_them_and_once(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    to = tmp_path / "archive"
    with queue.pusher() as pusher:
        pusher.push(b"one", headers={"x": "1", "ü": "\t"}, key=b"k")
        pusher.push_many([b"four", b""])
    push(queue, *numbers(1500))
    with queue.pusher() as pusher:
        pusher.push(b"open")
        before = queue.stats().pipes
        done = archived(spark, client, queue, to)
        assert (done.pipes, done.messages, done.already, done.missed) == (2, 1503, 0, ())
        assert queue.stats().pipes == before
        read = spark.read.format("cassq").options(url=client.url, queue=queue.name).load()
        wanted = {(r.pipe, r.seq): r for r in read.collect() if bytes(r.payload) != b"open"}
        found = {(r.pipe, r.seq): r for r in rows(spark, to)}
        assert found.keys() == wanted.keys()
        for place, row in found.items():
            assert {**wanted[place].asDict(), "queue": queue.name} == row.asDict()
        written = files(to)
        again = archived(spark, client, queue, to)
        assert (again.pipes, again.messages, again.already) == (0, 0, 2)
        assert files(to) == written
    third = archived(spark, client, queue, to)
    assert (third.pipes, third.messages, third.already) == (1, 1, 2)
    assert payloads(spark, to) == sorted([b"one", b"four", b"", b"open", *numbers(1500)])


@pytest.mark.long(reason="Spark jobs")
def test_consumed_pipes_are_archived_and_those_of_an_aborted_write_are_not(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    from cassq.producer import staging

    alone(client)
    ports = client.ports
    push(queue, *numbers(3))
    drain(queue.popper())
    (pipe_id,) = sealed(client, queue)
    row = ports.catalog.queues.named(queue.name)
    assert row is not None
    assert ports.catalog.pipes.retire([pipe_id], row.groups_version)
    driver = ports.ids.new(ports.catalog.now_ms())
    ports.catalog.writes.beat_driver(driver, 60_000)
    write = staging.begin(ports, row, "batch:given up", 0, driver)
    stage = staging.Stage(ports, row, write)
    stage.append(_run_of([b"never"]))
    stage.finish()
    staging.abort(ports, write)
    assert len(ports.catalog.pipes.consumed()) == 2
    assert archived(spark, client, queue, tmp_path / "archive").pipes == 1
    assert payloads(spark, tmp_path / "archive") == numbers(3)


@pytest.mark.long(reason="Spark jobs")
def test_a_queue_with_slashes_in_its_name_is_archived(
    spark: Any, client: cassq.Client, tmp_path: Path
) -> None:
    queue = client.create_queue("/orders/eu")
    push(queue, b"1")
    assert archived(spark, client, queue, tmp_path / "archive").messages == 1
    assert archived(spark, client, queue, tmp_path / "archive").already == 1
    assert [row.queue for row in rows(spark, tmp_path / "archive")] == ["/orders/eu"]


def test_a_queue_without_finished_pipes_gives_nothing(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    with queue.pusher() as pusher:
        pusher.push(b"open")
        done = archived(spark, client, queue, tmp_path / "archive")
    assert (done.pipes, done.messages, done.already, done.missed) == (0, 0, 0, ())


# --- runs that did not end well -----------------------------------------------------------------


@pytest.mark.long(reason="Spark jobs")
def test_only_a_pipe_that_a_killed_run_left_unfinished_is_written_again(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    to = tmp_path / "archive"
    push(queue, *numbers(10))
    push(queue, *numbers(10, 10))
    archived(spark, client, queue, to)
    half, whole = (folder(to, queue, pipe_id) for pipe_id in sealed(client, queue))
    (half / "_whole").unlink()
    for part in half.glob("part-*"):
        part.unlink()
    shutil.copy(next(whole.glob("part-*")), half / "part-stray.parquet")
    untouched = files(whole)
    stale = to / "_staging" / f"queue={queue.name}" / "pipe=stale"
    stale.mkdir(parents=True)
    done = archived(spark, client, queue, to)
    assert (done.pipes, done.messages, done.already) == (1, 10, 1)
    assert payloads(spark, to) == sorted(numbers(20))
    assert files(whole) == untouched
    assert not stale.exists()


@pytest.mark.long(reason="Spark jobs")
def test_what_was_written_before_a_run_died_is_kept_and_the_rest_comes_next_time(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    to = tmp_path / "archive"
    for first in (0, 10, 20):
        push(queue, *numbers(10, first))
    seen: list[tuple[int, ...]] = []

    def dies(progress: Any) -> None:
        seen.append(tuple(progress))
        if progress.pipes == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        archived(spark, client, queue, to, messages_per_step=10, progress=dies)
    assert seen == [(0, 3, 0, 30), (1, 3, 10, 30), (2, 3, 20, 30)]
    assert payloads(spark, to) == sorted(numbers(20))
    assert not (to / "_staging" / f"queue={queue.name}").exists()
    done = archived(spark, client, queue, to)
    assert (done.pipes, done.messages, done.already) == (1, 10, 2)
    assert payloads(spark, to) == sorted(numbers(30))


@pytest.mark.long(reason="its Spark job takes twenty seconds")
def test_a_pipe_removed_meanwhile_is_reported_and_left_out(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    alone(client)
    push(queue, *numbers(10))
    push(queue, *numbers(10, 10))
    gone, kept = sealed(client, queue)

    def removes(progress: Any) -> None:
        if progress.pipes == 0:
            client.ports.store.drop([gone])

    done = archived(spark, client, queue, tmp_path / "archive", progress=removes)
    assert (done.pipes, done.messages, done.missed) == (1, 10, (gone,))
    assert payloads(spark, tmp_path / "archive") == numbers(10, 10)
    assert not folder(tmp_path / "archive", queue, gone).exists()
    assert folder(tmp_path / "archive", queue, kept).exists()


# --- calls that are wrong, and the command ------------------------------------------------------


def test_what_is_wrong_with_a_call_is_said(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    from cassq.spark.jobs.archive import archive

    push(queue, b"1")
    with pytest.raises(QueueNotFoundError):
        archive(spark, client.url, "nope", str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(BackendError, match="Spark"):
        archived(spark, client, queue, tmp_path / "file")


@pytest.mark.long(reason="a Spark job by the command")
def test_the_command_reports_what_it_did(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    push(queue, *numbers(1200))
    to = str(tmp_path / "archive")
    words = ["spark", "archive", queue.name, to, "--url", client.url]
    first = CliRunner().invoke(main, [*words, "--json"])
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout) == {
        "queue": queue.name,
        "directory": to,
        "pipes": 1,
        "messages": 1200,
        "already": 0,
        "missed": [],
    }
    second = CliRunner().invoke(main, words)
    assert second.exit_code == 0, second.output
    assert second.stdout.split() == [
        *("QUEUE", "PIPES", "MESSAGES", "ALREADY", "MISSED"),
        *(queue.name, "0", "0", "1", "0"),
    ]
    assert spark.range(3).count() == 3  # a session that was there goes on


def _run_of(found: list[bytes]) -> Any:
    import pyarrow as pa

    from cassq.spark.encoding import Columns, run_of

    batch = pa.record_batch({"payload": pa.array(found, pa.binary())})
    return run_of([batch], Columns("payload", None, None), 1, "row {}", 0)
