"""The batch read: snapshots of a queue, with no effect on it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

import cassq
from cassq.errors import ConfigError
from tests.integration.deadlines import eventually
from tests.integration.stage import drain, numbers, payloads, push, reap
from tests.spark.places import everywhere


def load(
    spark: Any, queue: cassq.Queue, client: cassq.Client, schema: str = "", **options: str
) -> Any:
    """A queue as a frame."""
    reader = spark.read.format("cassq").options(url=client.url, queue=queue.name, **options)
    return (reader.schema(schema) if schema else reader).load()


def read(spark: Any, queue: cassq.Queue, client: cassq.Client, **options: str) -> list[bytes]:
    """The payloads that a read gives, sorted."""
    rows = load(spark, queue, client, "payload binary", **options).collect()
    return sorted(bytes(row.payload) for row in rows)


@everywhere
def test_a_queue_is_read_whole_and_stays_as_it_is(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    with queue.pusher() as pusher:
        first = pusher.push(b"one", headers={"x": "1", "ü": "\t"}, key=b"k")
        pusher.push_many([b"four", b""])
    open_pusher = queue.pusher()
    open_pusher.push(b"open")
    before = queue.stats().pipes
    rows = {bytes(row.payload): row for row in load(spark, queue, client).collect()}
    assert sorted(rows) == [b"", b"four", b"one", b"open"]
    one, four = rows[b"one"], rows[b"four"]
    assert (one.headers, bytes(one.key)) == ({"x": "1", "ü": "\t"}, b"k")
    assert (four.headers, four.key, four.attempts) == (None, None, 0)
    assert (one.id, f"{one.pipe}:{one.seq}") == (first, first)
    assert (four.pipe, four.seq, four.id) == (one.pipe, 1, f"{one.pipe}:1")
    age = datetime.now(UTC) - one.pushed_at.astimezone(UTC)
    assert abs(age.total_seconds()) < 300
    assert queue.stats().pipes == before
    assert queue.stats().groups["default"].waiting == 4
    assert Counter(payloads(drain(queue.popper()))) == Counter(rows.keys())


def test_partitions_are_cut_by_messages(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    push(queue, *numbers(700))
    push(queue, *numbers(300, 700))
    frame = load(spark, queue, client, "payload binary, seq bigint", messagesPerPartition="250")
    assert frame.rdd.getNumPartitions() == 4
    rows = frame.collect()
    assert Counter(bytes(row.payload) for row in rows) == Counter(numbers(1000))
    assert Counter(row.seq for row in rows) == Counter([*range(700), *range(300)])


def test_there_are_at_least_as_many_partitions_as_are_asked_for(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import StructType

    from cassq.spark.options import read_options
    from cassq.spark.reading import BatchReader

    def sizes(**options: str) -> list[int]:
        given = read_options({"url": client.url, "queue": queue.name, **options})
        tasks = BatchReader(given, StructType()).partitions()
        return [sum(piece.messages for piece in task.pieces) for task in tasks]  # type: ignore[attr-defined]

    push(queue, *numbers(70))
    assert sizes(minPartitions="1") == [70]
    assert sizes(minPartitions="7", state="waiting") == [10] * 7
    assert sizes(minPartitions="8") == [8] * 8 + [6]
    assert sizes(minPartitions="7", messagesPerPartition="5") == [5] * 14
    assert sizes(minPartitions="100") == [1] * 70
    with pytest.raises(ConfigError, match="minPartitions must be a number of partitions"):
        sizes(minPartitions="0")


@everywhere
def test_what_a_group_has_left_is_read_by_its_state(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    push(queue, *numbers(10))
    popper = queue.popper()
    popper.commit(popper.pop(3))
    held = popper.pop(2)
    assert read(spark, queue, client, state="pending") == payloads(held)
    assert read(spark, queue, client, state="waiting") == numbers(5, 5)
    assert read(spark, queue, client, state="unfinished") == numbers(7, 3)
    assert read(spark, queue, client, state="stored") == numbers(10)
    rows = load(spark, queue, client, state="pending").collect()
    assert {row.attempts for row in rows} == {1}
    popper.close()


def test_dead_letters_are_read(spark: Any, client: cassq.Client, queue: cassq.Queue) -> None:
    assert read(spark, queue, client, state="dead") == []
    push(queue, *numbers(4))
    popper = queue.popper()
    popper.dead(popper.pop(2), "no good")
    eventually("they are there", lambda: len(read(spark, queue, client, state="dead")) == 2)
    assert read(spark, queue, client, state="dead") == numbers(2)
    (one, _) = load(spark, queue, client, state="dead").collect()
    assert one.headers


def test_a_time_range_is_read(spark: Any, client: cassq.Client, queue: cassq.Queue) -> None:
    push(queue, b"early")
    early = load(spark, queue, client).collect()[0].pushed_at.astimezone(UTC)
    eventually("time passes", lambda: datetime.now(UTC) > early.replace(microsecond=999_999))
    push(queue, b"late")
    between = early.replace(microsecond=999_999).isoformat()
    assert read(spark, queue, client, since=between) == [b"late"]
    assert read(spark, queue, client, until=between) == [b"early"]
    assert read(spark, queue, client, since=between, until=between) == []


def test_a_queue_without_messages_is_read(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    assert load(spark, queue, client).collect() == []


@pytest.mark.long(reason="several Spark jobs")
def test_messages_removed_before_they_are_read_are_reported_or_left_out(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    push(queue, *numbers(5))
    strict = load(spark, queue, client, "payload binary")
    lax = load(spark, queue, client, "payload binary", failOnDataLoss="false")
    for frame in (strict, lax):  # planned now
        assert frame.rdd.getNumPartitions() == 1
    drain(queue.popper())
    eventually("it is retired", lambda: (reap(client), queue.stats().pipes["retired"])[1] == 1)
    with pytest.raises(Exception, match="messages 0 to 4 of pipe .* were removed"):
        strict.rdd.collect()
    assert lax.rdd.collect() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": "lost"}, "state must be one of stored, .* not 'lost'"),
        ({"since": "yesterday"}, "since must be a time such as .* not 'yesterday'"),
        ({"messagesPerPartition": "0"}, "at least 1, not '0'"),
        ({"failOnDataLoss": "perhaps"}, "must be true or false, not 'perhaps'"),
        ({"state": "waiting", "group": "nope"}, "has no group 'nope'"),
        ({"writeId": "x"}, "no option 'writeid'"),
    ],
)
def test_a_wrong_option_is_named(
    spark: Any, client: cassq.Client, queue: cassq.Queue, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=f"(?i){message}"):
        load(spark, queue, client, **options).collect()


def test_a_wrong_column_is_named(spark: Any, client: cassq.Client, queue: cassq.Queue) -> None:
    with pytest.raises(Exception, match="messages have no column 'colour'"):
        load(spark, queue, client, "colour string").collect()
    with pytest.raises(Exception, match="column 'seq' is bigint, not string"):
        load(spark, queue, client, "seq string").collect()
