"""The batch write: exactly once into the queue, whatever becomes of tasks and drivers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.consumer.delivery import Message
from cassq.model.rows import WriteState
from cassq.spark import json_rows
from tests.integration.deadlines import eventually
from tests.integration.laned import check_lanes
from tests.integration.stage import drain, extents, numbers, payloads, push, reap
from tests.spark.places import everywhere


def saved(frame: Any, queue: cassq.Queue, client: cassq.Client, **options: str) -> None:
    """Write a frame to a queue."""
    writer = frame.write.format("cassq").mode("append")
    writer.options(url=client.url, queue=queue.name, **options).save()


def frame_of(spark: Any, first: int, last: int, partitions: int = 4) -> Any:
    """A frame whose payloads are the numbers `first .. last`."""
    ids = spark.range(first, last, numPartitions=partitions)
    return ids.selectExpr("cast(cast(id as string) as binary) as payload")


@everywhere
def test_a_frame_is_there_once(spark: Any, client: cassq.Client, queue: cassq.Queue) -> None:
    saved(frame_of(spark, 0, 20_000), queue, client)
    assert queue.stats().groups["default"].waiting == 20_000
    assert Counter(payloads(drain(queue.popper()))) == Counter(numbers(20_000))
    audit = queue.audit()
    assert (audit.pushed, audit.findings) == (20_000, [])


def test_headers_keys_and_text_are_written(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    rows = [
        ("plain", None, None),
        ("ü", {"x": "1"}, "k"),
        ("", {}, ""),
        ("quotes", {'a"b': "c\\d", "tab": "\t\x01", "ü": ""}, None),
    ]
    frame = spark.createDataFrame(rows, "text string, headers map<string,string>, place string")
    saved(frame, queue, client, payloadColumn="text", keyColumn="place")
    found = {m.payload.decode(): (dict(m.headers), m.key) for m in drain(queue.popper())}
    wanted = {
        text: (headers or {}, None if key is None else key.encode()) for text, headers, key in rows
    }
    assert found == wanted


def test_rows_go_to_the_lanes_of_their_keys(spark: Any, client: cassq.Client) -> None:
    queue = client.create_queue("spark-lanes", key_lanes=4, retain_consumed=3600)
    frame = spark.range(0, 200, numPartitions=2).selectExpr(
        "cast(id as string) as payload", "cast(id % 20 as string) as place",
        "if(id % 3 = 0, 0.001D, null) as later",
    )  # fmt: skip
    saved(frame, queue, client, keyColumn="place", delayColumn="later")
    found: list[Message] = []
    with queue.popper() as popper:
        while len(found) < 200:
            found += popper.pop(1000, wait=60)
    assert check_lanes(client, found, 4) == set(range(4))
    client.delete_queue(queue.name)


@everywhere
def test_delayed_rows_wait_for_their_time_and_are_written_once(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    timed = spark.range(0, 400, numPartitions=2).selectExpr(
        "cast(id as string) as payload",
        "if(id % 4 = 1, cast(id as double) * 100, null) as delay",
        "case id % 4 when 2 then timestamp '2035-01-01 00:00:00Z'"
        " when 3 then timestamp '2020-01-01 00:00:00Z' end as due",
    )
    for _ in range(2):
        saved(timed, queue, client, writeId="timed")
    waiting = [b"%d" % n for n in range(400) if n % 4 in (0, 3)]
    assert Counter(payloads(drain(queue.popper()))) == Counter(waiting)
    assert queue.stats().groups["default"].delayed == 200
    soon = timed.selectExpr("payload", "interval '0.2' second as delay").limit(50)
    saved(soon, queue, client, payloadColumn="payload", delayColumn="delay")
    popper = queue.popper()
    found: list[bytes] = []

    def all_came() -> bool:
        found.extend(payloads(drain(popper)))
        return len(found) == 50

    eventually("the delayed messages come", all_came)
    assert queue.stats().groups["default"].delayed == 200
    audit = queue.audit()
    assert (audit.pushed, audit.findings) == (450, [])


def test_rows_keep_their_priorities_from_frame_to_queue_and_back(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    queue.update(priority_share=0)
    ranked = spark.range(0, 90, numPartitions=3).selectExpr(
        "cast(id as string) as payload", "if(id % 3 = 0, null, cast(id % 3 * 4 as int)) as priority"
    )
    saved(ranked, queue, client)
    read = spark.read.format("cassq").options(url=client.url, queue=queue.name).load()
    rows = {row.payload: row.priority for row in read.select("payload", "priority").collect()}
    wanted = {b"%d" % n: n % 3 * 4 for n in range(90)}
    assert {bytes(payload): priority for payload, priority in rows.items()} == wanted
    copied = client.create_queue("copies")
    saved(read, copied, client)
    found = [(m.payload, m.priority) for m in drain(queue.popper(), 1)]
    assert dict(found) == wanted
    assert [priority for _, priority in found] == [8] * 30 + [4] * 30 + [0] * 30
    assert {m.payload: m.priority for m in drain(copied.popper())} == wanted


def test_rows_are_written_as_json(spark: Any, client: cassq.Client, queue: cassq.Queue) -> None:
    frame = spark.createDataFrame([(1, "a", "k")], "n int, word string, key string")
    saved(json_rows(frame, keep=("key",)), queue, client)
    (message,) = drain(queue.popper())
    assert (message.payload, message.key) == (b'{"n":1,"word":"a"}', b"k")


def test_an_empty_frame_is_written(spark: Any, client: cassq.Client, queue: cassq.Queue) -> None:
    saved(frame_of(spark, 0, 0), queue, client)
    saved(spark.createDataFrame([], "payload binary"), queue, client)
    assert drain(queue.popper()) == []
    assert client.ports.catalog.writes.unfinished([queue.id]) == []


@everywhere
def test_tasks_that_fail_and_are_run_again_write_once(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    """Each first attempt fails after it has filled pipes."""

    def fails_at_first(batches: Any) -> Any:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails at its end")

    frame = frame_of(spark, 0, 3000, 2).mapInArrow(fails_at_first, "payload binary")
    saved(frame, queue, client)
    assert Counter(payloads(drain(queue.popper()))) == Counter(numbers(3000))
    reap(client)
    assert extents_of(client, queue) == []


def test_of_a_job_that_fails_nothing_is_published(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    def fails(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == 1:
            raise RuntimeError("this partition always fails")

    frame = frame_of(spark, 0, 3000, 2).mapInArrow(fails, "payload binary")
    with pytest.raises(Exception, match="always fails"):
        saved(frame, queue, client)
    assert drain(queue.popper()) == []
    assert queue.audit().pushed == 0
    reap(client)
    assert extents_of(client, queue) == []


@everywhere
def test_a_write_with_an_id_is_done_once(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    for _ in range(2):
        saved(frame_of(spark, 0, 1000), queue, client, writeId="2026-05-01")
    saved(frame_of(spark, 1000, 1500), queue, client, writeId="2026-05-02")
    assert Counter(payloads(drain(queue.popper()))) == Counter(numbers(1500))
    row = client.ports.catalog.writes.by_id(queue.id, "batch:2026-05-01")
    assert row is not None
    assert row.state is WriteState.PUBLISHED


def test_a_job_that_failed_is_run_again_under_its_id(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    broken = frame_of(spark, 0, 100).selectExpr("raise_error('broken') as payload")
    with pytest.raises(Exception, match="broken"):
        saved(broken.selectExpr("cast(payload as binary) as payload"), queue, client, writeId="x")
    saved(frame_of(spark, 0, 100), queue, client, writeId="x")
    assert Counter(payloads(drain(queue.popper()))) == Counter(numbers(100))


def extents_of(client: cassq.Client, queue: cassq.Queue) -> list[str]:
    """The pipes of a queue whose messages are still stored."""
    mine = {info.pipe_id for info in client.ports.store.extents() if info.queue_name == queue.name}
    return sorted(mine & set(extents(client)))


# --- what cannot be written -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("cast(id as int) as payload", "column 'payload' is int, but must be binary or string"),
        ("'x' as text", "no column 'payload'"),
        ("'x' as payload, id as more", "column 'more' cannot be pushed"),
        ("'x' as payload, id as key", "column 'key' is bigint"),
        ("'x' as payload, 'y' as headers", "must be map<string,string>"),
    ],
)
def test_a_wrong_column_is_named(
    spark: Any, client: cassq.Client, queue: cassq.Queue, columns: str, message: str
) -> None:
    with pytest.raises(Exception, match=message):
        saved(spark.range(3).selectExpr(*columns.split(", ")), queue, client)
    assert queue.audit().pushed == 0


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("if(id = 2500, null, 'x')", "row 500: the payload is null"),
        (
            "if(id = 2500, repeat('x', 17000000), 'x')",
            "row 500: .* 17000000 bytes is over the limit",
        ),
    ],
)
def test_one_bad_row_of_many_is_named_and_nothing_is_published(
    spark: Any, client: cassq.Client, queue: cassq.Queue, payload: str, message: str
) -> None:
    frame = spark.range(0, 4000, numPartitions=2).selectExpr(f"{payload} as payload")
    with pytest.raises(Exception, match=f"partition 1, {message}"):
        saved(frame, queue, client)
    assert queue.audit().pushed == 0
    assert client.ports.catalog.writes.unfinished([queue.id]) == []


def test_what_is_wrong_with_a_call_is_said(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    def save(mode: str = "append", **options: str) -> None:
        frame_of(spark, 0, 10).write.format("cassq").mode(mode).options(**options).save()

    here = {"url": client.url, "queue": queue.name}
    with pytest.raises(Exception, match="there is no queue 'nope'"):
        save(url=client.url, queue="nope")
    with pytest.raises(Exception, match="`queue` is missing"):
        save(url=client.url)
    with pytest.raises(Exception, match="no option 'wrong'"):
        save(**here, wrong="1")
    with pytest.raises(Exception, match="cannot be overwritten"):
        save("overwrite", **here)
    with pytest.raises(Exception, match="is not a queue URL"):
        save(url="ftp://x", queue="q")


def test_a_cp_a_paused_and_a_full_queue_take_nothing(spark: Any, client: cassq.Client) -> None:
    frame = frame_of(spark, 0, 10)
    strict = client.create_queue("spark-strict", consistency="cp")
    small = client.create_queue("spark-small", max_length=5)
    push(small, b"one")
    paused = client.create_queue("spark-paused")
    paused.pause()
    wanted = {strict: "is cp", small: "no room for 10", paused: "is paused"}
    for queue, message in wanted.items():
        with pytest.raises(Exception, match=message):
            saved(frame, queue, client)
        client.delete_queue(queue.name)
