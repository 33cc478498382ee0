"""Streams through real queries: from a queue, and into one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import cassq
from tests.integration.deadlines import eventually
from tests.integration.stage import drain, numbers, payloads, push, reap
from tests.spark.patience import at_last
from tests.spark.places import everywhere

SECONDS = 600
ONCE_MORE = pytest.param(2, marks=pytest.mark.long(reason="the same checkpoint once more"))
Batch = list[bytes]


def finished(query: Any) -> None:
    """Wait for the end of a query with a trigger of its own; raises what it failed by."""
    assert query.awaitTermination(SECONDS)


def follow(spark: Any, client: cassq.Client, queue: cassq.Queue, **options: str) -> Any:
    """A queue as a stream of payloads."""
    reader = spark.readStream.format("cassq").schema("payload binary")
    return reader.options(url=client.url, queue=queue.name, **options).load()


def collect(frame: Any, checkpoint: Path, sink: Callable[[Any, int], None]) -> None:
    """Have all that is there now go through a sink."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    at_last(lambda: finished(writer.trigger(availableNow=True).start()))


def into(found: list[Batch]) -> Callable[[Any, int], None]:
    """A sink that keeps what each batch has."""

    def take(frame: Any, _number: int) -> None:
        found.append(sorted(bytes(row.payload) for row in frame.collect()))

    return take


def write_stream(
    frame: Any, client: cassq.Client, queue: cassq.Queue, checkpoint: Path, source: str = "cassq"
) -> None:
    """Write what is there now of a stream to a queue."""
    writer = frame.writeStream.format(source).option("checkpointLocation", str(checkpoint))
    writer = writer.options(url=client.url, queue=queue.name)
    at_last(lambda: finished(writer.trigger(availableNow=True).start()))


def lines(directory: Path, name: str, found: list[bytes]) -> None:
    """A file of messages for a stream of files."""
    directory.mkdir(exist_ok=True)
    draft = directory / f".{name}"
    draft.write_text("".join(json.dumps({"payload": each.decode()}) + "\n" for each in found))
    draft.rename(directory / name)


def files(spark: Any, directory: Path) -> Any:
    return spark.readStream.schema("payload string").json(str(directory))


def write_and_fail(
    spark: Any, frame: Any, client: cassq.Client, queue: cassq.Queue, checkpoint: Path
) -> None:
    """The same, but the driver fails as soon as the first batch is published."""
    from tests.spark.failing import FLAG, register_failing

    register_failing(spark)
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / FLAG).touch()
    with pytest.raises(Exception, match="fails after it has published"):
        write_stream(frame, client, queue, checkpoint, "failing")


@pytest.mark.long(reason="Spark takes half a minute to start and stop a query")
def test_a_stream_reads_in_batches_and_what_it_read_is_acked(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    push(queue, *numbers(300))
    push(queue, *numbers(300, 300))
    found: list[Batch] = []
    frame = follow(spark, client, queue, maxMessagesPerTrigger="250")
    collect(frame, tmp_path / "checkpoint", into(found))
    assert max(map(len, found)) <= 250
    assert Counter(chain.from_iterable(found)) == Counter(numbers(600))
    assert queue.stats().groups["default"].committed == 600
    reap(client)
    assert queue.stats().pipes["retired"] == 2
    push(queue, *numbers(10, 600))
    collect(frame, tmp_path / "checkpoint", into(found))
    assert Counter(chain.from_iterable(found)) == Counter(numbers(610))
    assert queue.audit().findings == []


@pytest.mark.long(reason="Spark takes half a minute to start and stop a query")
def test_a_batch_that_failed_is_read_again(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    push(queue, *numbers(100))
    found: list[Batch] = []
    fails = [True]

    def take(frame: Any, number: int) -> None:
        if fails:
            fails.pop()
            raise RuntimeError("the sink fails")
        into(found)(frame, number)

    frame = follow(spark, client, queue)
    with pytest.raises(Exception, match="the sink fails"):
        collect(frame, tmp_path / "checkpoint", take)
    assert queue.stats().groups["default"].committed == 0
    push(queue, *numbers(50, 100))
    collect(frame, tmp_path / "checkpoint", take)
    assert sorted(found[0]) == sorted(numbers(100)), "the batch is what it was"
    assert Counter(chain.from_iterable(found)) == Counter(numbers(150))


@pytest.mark.long(reason="Spark takes half a minute to start and stop a query")
def test_a_query_that_starts_at_the_latest_position_reads_its_first_batch_again(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    """A batch that failed is not before the start of the query that continues, though its messages
    are older: the position holds for a new checkpoint only."""
    push(queue, *numbers(50))
    found: list[Batch] = []
    frame = follow(spark, client, queue, startingPosition="latest")
    collect(frame, tmp_path / "checkpoint", into(found))
    assert list(chain.from_iterable(found)) == []
    push(queue, *numbers(20, 50))
    fails = [True]

    def take(frame: Any, number: int) -> None:
        if fails:
            fails.pop()
            raise RuntimeError("the sink fails")
        into(found)(frame, number)

    with pytest.raises(Exception, match="the sink fails"):
        collect(frame, tmp_path / "checkpoint", take)
    push(queue, *numbers(10, 70))
    collect(frame, tmp_path / "checkpoint", take)
    assert Counter(chain.from_iterable(found)) == Counter(numbers(30, 50))
    stats = queue.stats().groups["default"]
    assert (stats.purged, stats.waiting + stats.committed) == (50, 30)
    assert queue.audit().findings == []


@pytest.mark.long(reason="Spark takes half a minute to start and stop a query")
def test_the_very_first_batch_of_a_query_with_a_position_is_read_again(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    push(queue, *numbers(50))
    since = datetime.now(UTC)
    eventually("the clock advances", lambda: datetime.now(UTC) > since + timedelta(milliseconds=2))
    push(queue, *numbers(20, 50))
    found: list[Batch] = []
    fails = [True]

    def take(frame: Any, number: int) -> None:
        if fails:
            fails.pop()
            raise RuntimeError("the sink fails")
        into(found)(frame, number)

    position = (since + timedelta(milliseconds=1)).isoformat()
    frame = follow(spark, client, queue, startingPosition=position)
    with pytest.raises(Exception, match="the sink fails"):
        collect(frame, tmp_path / "checkpoint", take)
    push(queue, *numbers(10, 70))
    collect(follow(spark, client, queue, startingPosition="latest"), tmp_path / "checkpoint", take)
    assert Counter(chain.from_iterable(found)) == Counter(numbers(30, 50))
    assert queue.stats().groups["default"].purged == 50


@pytest.mark.long(reason="Spark takes half a minute to start and stop a query")
def test_the_progress_of_a_query_says_how_far_it_is_behind(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    push(queue, *numbers(60))
    frame = follow(spark, client, queue, maxMessagesPerTrigger="25")
    writer = frame.writeStream.foreachBatch(into([]))
    query = writer.option("checkpointLocation", str(tmp_path / "x")).trigger(availableNow=True)
    query = query.start()
    finished(query)
    sources = [progress["sources"][0] for progress in query.recentProgress]
    reported = [json.loads(source["latestOffset"]) for source in sources]
    rows = [source["numInputRows"] for source in sources]
    assert [each["behind"] for each in reported][:3] == [35, 10, 0]
    assert rows[:3] == [25, 25, 10]
    ends = [sum(done for _, done, _ in each["pipes"].values()) for each in reported]
    assert ends[:3] == [60, 60, 60]
    assert query.lastProgress["sources"][0]["latestOffset"] == sources[-1]["latestOffset"]


@pytest.mark.long(reason="Spark takes half a minute to start and stop a query")
def test_a_batch_that_is_replayed_is_published_once(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    checkpoint, source = tmp_path / "checkpoint", tmp_path / "source"
    lines(source, "first", numbers(200))
    write_and_fail(spark, files(spark, source), client, queue, checkpoint)
    assert queue.stats().groups["default"].waiting == 200
    lines(source, "second", numbers(100, 200))
    write_stream(files(spark, source), client, queue, checkpoint)
    assert Counter(payloads(drain(queue.popper()))) == Counter(numbers(300))
    assert queue.audit().findings == []
    assert client.ports.catalog.writes.unfinished([queue.id]) == []


@pytest.mark.parametrize("rounds", [1, ONCE_MORE])
@everywhere
def test_from_queue_to_queue_each_message_arrives_once(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path, rounds: int
) -> None:
    """Both ends of a stream, a driver that fails in the middle, and a popper all the while."""
    target = client.create_queue(f"{queue.name}-out")
    checkpoint = tmp_path / "checkpoint"
    popper = target.popper()
    found: list[bytes] = []
    for n in range(rounds):
        push(queue, *numbers(150, 150 * n))
        frame = follow(spark, client, queue, maxMessagesPerTrigger="100")
        write_and_fail(spark, frame, client, target, checkpoint)
        found += payloads(drain(popper))
        write_stream(frame, client, target, checkpoint)
        found += payloads(drain(popper))
    assert Counter(found) == Counter(numbers(150 * rounds))
    assert queue.stats().groups["default"].committed == 150 * rounds
    for each in (queue, target):
        assert each.audit().findings == []
    client.delete_queue(target.name)


def test_what_is_wrong_with_a_stream_is_said(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    push(queue, *numbers(10))
    popper = queue.popper()
    held = popper.pop(2)
    with pytest.raises(Exception, match="a popper of group 'default'.*has claimed messages"):
        collect(follow(spark, client, queue), tmp_path / "one", into([]))
    popper.release(held)
    popper.close()
    with pytest.raises(Exception, match="has no group 'nope'"):
        collect(follow(spark, client, queue, group="nope"), tmp_path / "two", into([]))
    with pytest.raises(Exception, match="a stream has no writeId"):
        source = tmp_path / "source"
        lines(source, "first", numbers(1))
        writer = files(spark, source).writeStream.format("cassq")
        writer = writer.options(url=client.url, queue=queue.name, writeId="x")
        writer = writer.option("checkpointLocation", str(tmp_path / "three"))
        finished(writer.trigger(availableNow=True).start())
