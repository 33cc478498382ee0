"""Pipes that hold nothing of what a read asks for are not even opened; without Spark."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.base.clock import ManualClock, SystemClock
from cassq.client.backends.embedded import PIPES
from cassq.errors import CorruptionError
from tests.integration.stage import numbers, push
from tests.integration.timed import clock, timed

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.datasource import Filter, GreaterThanOrEqual
from pyspark.sql.types import BinaryType, StructType

from cassq.spark.clients import place_of
from cassq.spark.options import read_options
from cassq.spark.reading import CLOCK_STEP_MS, FilteredReader, snapshot

__all__ = ["clock", "timed"]
COLUMNS = StructType().add("payload", BinaryType())
HOUR = 3600


@pytest.fixture
def place(tmp_path: Path) -> Any:
    from tests.integration.places import DirectoryPlace

    return DirectoryPlace(tmp_path / "data")


def written_at(path: Path, wall_ms: int) -> None:
    """Have a file as if it was last written then: the test's clock is not the disk's."""
    os.utime(path, (wall_ms / 1000, wall_ms / 1000))


def spoil(path: Path) -> None:
    """Make a pipe's file one that cannot be opened."""
    at = path.stat().st_mtime
    path.write_bytes(bytes(path.stat().st_size))
    os.utime(path, (at, at))


def moment(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def read(client: cassq.Client, *filters: Filter, **options: str) -> list[bytes]:
    reader = FilteredReader(read_options({"url": client.url, "queue": "jobs", **options}), COLUMNS)
    reader.pushFilters(list(filters))
    found: list[bytes] = []
    for task in reader.partitions():
        for batch in reader.read(task):
            found += [row["payload"] for row in batch.to_pylist()]
    return found


@pytest.fixture
def old_file(timed: cassq.Client, clock: ManualClock, place: Any) -> Path:
    """The file of a sealed pipe with ten messages; two hours later ten more were pushed."""
    queue = timed.create_queue("jobs")
    push(queue, *numbers(10))
    (old,) = (place.directory / PIPES).glob("*.pipe")
    written_at(old, clock.wall_ms())
    clock.advance(2 * HOUR)
    push(queue, *numbers(10, 10))
    for each in (place.directory / PIPES).glob("*.pipe"):
        if each != old:
            written_at(each, clock.wall_ms())
    return Path(old)


@pytest.mark.parametrize("state", ["stored", "waiting"])
def test_a_pipe_that_ended_before_the_times_asked_for_is_not_opened(
    timed: cassq.Client, clock: ManualClock, old_file: Path, state: str
) -> None:
    since = moment(clock.wall_ms() - HOUR * 1000)
    spoil(old_file)
    wanted = numbers(10, 10)
    assert read(timed, state=state, since=since.isoformat()) == wanted
    assert read(timed, GreaterThanOrEqual(("pushed_at",), since), state=state) == wanted
    with pytest.raises(CorruptionError):
        read(timed, state=state)


def test_a_pipe_that_may_have_some_of_them_is_read(
    timed: cassq.Client, clock: ManualClock, old_file: Path
) -> None:
    """Clocks that were set back do not hide messages, and merged messages keep their times."""
    pushed_ms = clock.wall_ms() - 2 * HOUR * 1000
    for last_ms in (pushed_ms, pushed_ms - CLOCK_STEP_MS, clock.wall_ms()):
        written_at(old_file, last_ms)
        found = read(timed, GreaterThanOrEqual(("pushed_at",), moment(pushed_ms)))
        assert found == numbers(20)
        later = read(timed, GreaterThanOrEqual(("pushed_at",), moment(pushed_ms + 1)))
        assert later == numbers(10, 10)


@pytest.mark.parametrize("state", ["stored", "waiting"])
def test_in_a_keyspace_a_pipe_that_was_sealed_before_the_times_asked_for_is_not_planned(
    spark_keyspace: str, state: str
) -> None:
    def planned(since_ms: int) -> int:
        options = {"url": spark_keyspace, "queue": queue.name, "state": state}
        found = read_options({**options, "since": moment(since_ms).isoformat()})
        return sum(piece.messages for piece in snapshot(place_of(spark_keyspace).ports, found))

    with cassq.connect(spark_keyspace) as client:
        queue = client.create_queue(f"pruned-{state}")
        push(queue, *numbers(3))
        with queue.pusher() as pusher:
            pusher.push_many(numbers(3, 3))
            now_ms = SystemClock().wall_ms()
            assert planned(now_ms) == 6
            assert planned(now_ms + CLOCK_STEP_MS + HOUR * 1000) == 3, "the open pipe is read"


def test_a_pipe_that_is_still_open_is_read(
    timed: cassq.Client, clock: ManualClock, place: Any
) -> None:
    with timed.create_queue("jobs").pusher() as pusher:
        pusher.push_many(numbers(3))
        (path,) = (place.directory / PIPES).glob("*.pipe")
        written_at(path, clock.wall_ms() - 2 * HOUR * 1000)
        since = moment(clock.wall_ms() - 1).isoformat()
        assert read(timed, since=since) == numbers(3)
