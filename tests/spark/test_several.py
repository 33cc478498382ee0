"""Reads of several queues, and of what the filters of a query leave of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import cassq
from cassq.errors import ConfigError, GroupNotFoundError, QueueNotFoundError
from tests.integration.stage import drain, numbers, payloads, push

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from cassq.spark.options import SCHEMA, SCHEMA_OF_SEVERAL, ReadOptions, read_options, stream_options
from cassq.spark.reading import BatchReader, FilteredReader, ScanTask, narrowed
from cassq.spark.source import CassqSource

NAMES = ("mails-a", "mails-b", "orders")
COLUMNS = StructType().add("payload", BinaryType()).add("queue", StringType())
AT_MS = 1_700_000_000_123


@pytest.fixture
def three(client: cassq.Client) -> Iterator[list[cassq.Queue]]:
    """Queues whose messages are ten numbers each, the next ones in each queue."""
    found = [client.create_queue(name, claim_timeout=3600) for name in NAMES]
    for at, queue in enumerate(found):
        push(queue, *numbers(10, 10 * at))
    yield found
    for queue in found:
        client.delete_queue(queue.name)


def reader(client: cassq.Client, *filters: Filter, **options: str) -> BatchReader:
    """A reader that was given filters."""
    found = FilteredReader(read_options({"url": client.url, **options}), COLUMNS)
    assert list(found.pushFilters(list(filters))) == list(filters)
    return found


def read(client: cassq.Client, *filters: Filter, **options: str) -> dict[str, list[bytes]]:
    """The payloads that a read gives, by queue."""
    found: dict[str, list[bytes]] = {}
    whole = reader(client, *filters, **options)
    for task in whole.partitions():
        for batch in whole.read(task):
            for row in batch.to_pylist():
                found.setdefault(row["queue"], []).append(row["payload"])
    return found


def all_of(*at: int) -> dict[str, list[bytes]]:
    return {NAMES[each]: numbers(10, 10 * each) for each in at}


def at(microseconds: int) -> datetime:
    """A time so long after `AT_MS`."""
    whole = datetime.fromtimestamp(AT_MS // 1000, UTC)
    return whole + timedelta(microseconds=AT_MS % 1000 * 1000 + microseconds)


@pytest.mark.usefixtures("three")
def test_rows_say_which_of_the_named_queues_they_are_from(client: cassq.Client) -> None:
    assert read(client, queues="mails-a, orders") == all_of(0, 2)
    assert read(client, queues="orders") == all_of(2)
    with pytest.raises(QueueNotFoundError, match="no queue 'nope'"):
        read(client, queues="mails-a,nope")


def test_a_pattern_names_queues_but_none_of_dead_letters(
    client: cassq.Client, three: list[cassq.Queue]
) -> None:
    assert read(client, queuePattern="mails-*") == all_of(0, 1)
    assert read(client, queuePattern="?rders") == all_of(2)
    assert read(client, queuePattern="Mails*") == {}
    popper = three[0].popper()
    popper.dead(popper.pop(2), "no good")
    popper.close()
    assert sorted(read(client, queuePattern="mails-*")) == ["mails-a", "mails-b"]


def test_states_are_read_of_each_queue(client: cassq.Client, three: list[cassq.Queue]) -> None:
    popper = three[0].popper()
    popper.commit(popper.pop(10))
    assert read(client, queuePattern="mails-*", state="waiting") == all_of(1)
    with pytest.raises(GroupNotFoundError, match="queue 'mails-a' has no group 'nope'"):
        read(client, queuePattern="mails-*", state="waiting", group="nope")


@pytest.mark.usefixtures("three")
def test_a_partition_may_have_messages_of_several_queues(client: cassq.Client) -> None:
    tasks = reader(client, queuePattern="mails-*", messagesPerPartition="15").partitions()
    assert [
        [(piece.queue, piece.messages) for piece in task.pieces]
        for task in tasks
        if isinstance(task, ScanTask)
    ] == [[("mails-a", 10), ("mails-b", 5)], [("mails-b", 5)]]


@pytest.mark.usefixtures("three")
def test_a_filter_on_the_queue_leaves_out_all_others(client: cassq.Client) -> None:
    mails = {"queuePattern": "*"}
    assert read(client, EqualTo(("queue",), "orders"), **mails) == all_of(2)
    assert read(client, In(("queue",), ("orders", "mails-b", "nope")), **mails) == all_of(1, 2)
    both = (In(("queue",), ("orders", "mails-b")), EqualTo(("queue",), "mails-b"))
    assert read(client, *both, **mails) == all_of(1)
    assert read(client, EqualTo(("queue",), "nope"), **mails) == {}
    assert read(client, Not(EqualTo(("queue",), "orders")), **mails) == all_of(0, 1, 2)


@pytest.mark.usefixtures("three")
def test_a_filter_on_the_push_time_leaves_out_messages(client: cassq.Client) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert read(client, GreaterThan(("pushed_at",), tomorrow), queues="orders") == {}
    assert read(client, LessThan(("pushed_at",), tomorrow), queues="orders") == all_of(2)


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (GreaterThanOrEqual(("pushed_at",), at(0)), (AT_MS, None)),
        (GreaterThanOrEqual(("pushed_at",), at(1)), (AT_MS + 1, None)),
        (GreaterThan(("pushed_at",), at(-1)), (AT_MS, None)),
        (GreaterThan(("pushed_at",), at(0)), (AT_MS + 1, None)),
        (LessThan(("pushed_at",), at(0)), (None, AT_MS)),
        (LessThan(("pushed_at",), at(1)), (None, AT_MS + 1)),
        (LessThanOrEqual(("pushed_at",), at(-1)), (None, AT_MS)),
        (LessThanOrEqual(("pushed_at",), at(0)), (None, AT_MS + 1)),
        (GreaterThan(("pushed_at",), datetime(2026, 5, 1)), (None, None)),  # noqa: DTZ001
        (GreaterThan(("seq",), 7), (None, None)),
        (EqualTo(("payload",), b"x"), (None, None)),
    ],
)
def test_a_filter_narrows_push_times_to_the_millisecond(
    condition: Filter, wanted: tuple[int | None, int | None]
) -> None:
    found = narrowed(ReadOptions("file:///x", "q"), condition)
    assert (found.since_ms, found.until_ms) == wanted


def test_a_filter_never_widens_what_the_options_select() -> None:
    options = ReadOptions("file:///x", "q", since_ms=AT_MS + 5, until_ms=AT_MS + 9)
    for condition in (
        GreaterThan(("pushed_at",), at(0)),
        LessThan(("pushed_at",), at(1_000_000)),
    ):
        assert narrowed(options, condition) == options


def test_the_schema_has_a_queue_only_for_several() -> None:
    one = {"url": "file:///x", "queue": "q"}
    assert CassqSource(one).schema() == SCHEMA
    for several in ({"queues": "a,b"}, {"queuePattern": "*"}):
        assert CassqSource({"url": "file:///x", **several}).schema() == SCHEMA_OF_SEVERAL


def test_what_names_queues_is_checked(client: cassq.Client) -> None:
    def options(**given: str) -> Any:
        return read_options({"url": client.url, **given})

    with pytest.raises(ConfigError, match="`queue` and `queues` both name queues"):
        options(queue="a", queues="b")
    with pytest.raises(ConfigError, match="`queues` and `queuePattern` both name queues"):
        options(queues="b", queuePattern="*")
    with pytest.raises(ConfigError, match="the option `queues` is empty"):
        options(queues=" , ")
    with pytest.raises(ConfigError, match="messages have no column 'queue'"):
        BatchReader(options(queue="a"), COLUMNS)
    for found in (options(queues="a, b"), stream_options({"url": client.url, "queues": "a, b"})):
        assert (found.queue, found.queues, found.pattern) == ("", ("a", "b"), "")


@pytest.fixture
def filtering(spark: Any) -> Iterator[Any]:
    """The session, while it pushes filters down."""
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    cassq.spark.register(spark)
    yield spark
    spark.conf.unset(setting)
    cassq.spark.register(spark)


@pytest.mark.long(reason="several Spark jobs")
@pytest.mark.usefixtures("three")
def test_spark_gives_its_filters_to_the_reader(filtering: Any, client: cassq.Client) -> None:
    frame = filtering.read.format("cassq").options(url=client.url, queuePattern="*").load()
    counted = {row.queue: row["count"] for row in frame.groupBy("queue").count().collect()}
    assert counted == dict.fromkeys(NAMES, 10)
    plan = frame.where("queue = 'orders'").select("payload")
    assert Counter(bytes(row.payload) for row in plan.collect()) == Counter(numbers(10, 20))
    parted = frame.where("queue in ('orders', 'mails-a')")
    assert {row.queue for row in parted.collect()} == {"orders", "mails-a"}
    middle = frame.selectExpr("max(pushed_at) as at").where("at is not null").collect()[0].at
    late = frame.where(frame.pushed_at > middle)
    assert late.collect() == []
    until = frame.where(frame.pushed_at <= middle)
    assert until.count() == 30
    copied = filtering.read.format("cassq").options(url=client.url, queues="orders").load()
    copies = client.create_queue("copies")
    copied.selectExpr("payload", "'copies' as queue").write.format("cassq").mode("append").options(
        url=client.url
    ).save()
    assert Counter(payloads(drain(copies.popper()))) == Counter(numbers(10, 20))


@pytest.mark.long(reason="Spark takes half a minute to start and stop a query")
def test_a_query_reads_streams_of_two_queues_as_one(
    spark: Any, client: cassq.Client, three: list[cassq.Queue], tmp_path: Any
) -> None:
    from tests.spark.patience import at_last

    streams = [
        spark.readStream.format("cassq").options(url=client.url, queue=queue.name).load()
        for queue in three[:2]
    ]
    checkpoint = str(tmp_path / "checkpoint")
    united = streams[0].union(streams[1]).select("payload")

    def run() -> None:
        writing = united.writeStream.format("cassq").trigger(availableNow=True)
        writing = writing.options(url=client.url, queue="orders", checkpointLocation=checkpoint)
        writing.start().awaitTermination()

    at_last(run)
    assert Counter(payloads(drain(three[2].popper()))) == Counter(numbers(30))


@pytest.mark.long(reason="Spark takes half a minute to start and stop a query")
def test_a_query_streams_the_queues_of_a_pattern_and_says_which(
    spark: Any, client: cassq.Client, three: list[cassq.Queue], tmp_path: Any
) -> None:
    """The second run, from the checkpoint, finds a queue more."""
    from tests.spark.patience import at_last

    frame = spark.readStream.format("cassq").options(url=client.url, queuePattern="mails-*").load()
    found: Counter[tuple[str, bytes]] = Counter()

    def take(batch: Any, _number: int) -> None:
        found.update((row.queue, bytes(row.payload)) for row in batch.collect())

    def run() -> None:
        writing = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
        writing.option("checkpointLocation", str(tmp_path / "x")).start().awaitTermination()

    at_last(run)
    wanted = [(name, each) for name, every in all_of(0, 1).items() for each in every]
    assert found == Counter(wanted)
    late = client.create_queue("mails-c")
    push(late, *numbers(5))
    push(three[0], *numbers(5, 90))
    at_last(run)
    wanted += [("mails-c", each) for each in numbers(5)]
    wanted += [("mails-a", each) for each in numbers(5, 90)]
    assert found == Counter(wanted)
    assert three[1].stats().groups["default"].committed == 10
    client.delete_queue(late.name)
