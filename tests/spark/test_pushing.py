"""The pusher for mapPartitions and foreachPartition."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.errors import ConfigError, InvalidPayloadError, UsageError
from cassq.spark import pusher
from cassq.spark.pushing import LOOKED_AT, batches, columns
from tests.integration.stage import drain, numbers, payloads
from tests.spark.places import everywhere


@everywhere
def test_partitions_are_pushed_and_receipts_tell_where(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    rdd = spark.sparkContext.parallelize(numbers(5000), 3)
    found = rdd.mapPartitions(pusher(client.url, queue.name, batch=700)).collect()
    assert sum(receipt.count for receipt in found) == 5000
    assert sum(receipt.bytes for receipt in found) == sum(map(len, numbers(5000)))
    messages = drain(queue.popper())
    assert Counter(payloads(messages)) == Counter(numbers(5000))
    places = {(m.id.rpartition(":")[0], int(m.id.rpartition(":")[2])) for m in messages}
    spots = {(r.pipe, r.first_seq + n) for r in found for n in range(r.count)}
    assert spots == places


def test_rows_with_headers_and_keys_are_pushed_for_each_partition(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    frame = spark.createDataFrame(
        [("a", {"x": "1"}, b"k"), ("b", None, None)],
        "payload string, headers map<string,string>, key binary",
    )
    frame.rdd.foreachPartition(pusher(client.url, queue.name))
    found = {m.payload: (dict(m.headers), m.key) for m in drain(queue.popper())}
    assert found == {b"a": ({"x": "1"}, b"k"), b"b": ({}, None)}


def test_what_cannot_be_pushed_fails_the_task_and_says_why(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    rdd = spark.sparkContext.parallelize([1], 1)
    with pytest.raises(Exception, match="a int has no payload"):
        rdd.mapPartitions(pusher(client.url, queue.name)).collect()
    with pytest.raises(Exception, match="there is no queue 'nope'"):
        rdd.mapPartitions(pusher(client.url, "nope")).collect()


def test_a_pusher_is_checked_where_it_is_made() -> None:
    with pytest.raises(UsageError, match="batch"):
        pusher("file:somewhere", "q", batch=0)
    with pytest.raises(ConfigError, match="url"):
        pusher(None, "q")


def test_a_relative_directory_is_resolved_where_the_pusher_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cassq.connect(f"file:{tmp_path}/here").close()
    monkeypatch.chdir(tmp_path)
    assert pusher("file:here", "q").location.url == f"file://{tmp_path}/here"


def test_batches_are_bounded_by_messages_and_bytes() -> None:
    taken = 0

    def rows() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 100_000

    large = [
        sum(len(fields.payload) for fields in batch) for batch in islice(batches(rows(), 10_000), 5)
    ]
    assert max(large) <= 8 * 1024 * 1024 + 100_000
    assert taken <= 5 * 84 + 2 * LOOKED_AT
    small = [len(batch) for batch in batches(iter([b"x"] * 25), 10)]
    assert small == [10, 10, 5]


def test_a_row_is_a_payload_or_has_one() -> None:
    rows = [b"a", "b", {"payload": "c", "key": "k"}, {"payload": "d", "priority": 4}]
    ((batch),) = list(batches(iter(rows), 10))
    assert batch == [
        (b"a", None, None, 0), (b"b", None, None, 0), (b"c", None, b"k", 0), (b"d", None, None, 4),
    ]  # fmt: skip
    with pytest.raises(InvalidPayloadError):
        list(batches(iter([{"payload": 1}]), 10))
    with pytest.raises(UsageError, match="priority must be a whole number from 0 to 9, not 10"):
        list(batches(iter([{"payload": "x", "priority": 10}]), 10))


def test_columns_are_apart_by_priority() -> None:
    rows = [{"payload": str(n), "priority": n % 2 * 7, "key": "k"} for n in range(4)]
    found = [(each.priority, each.payloads, each.keys) for each in columns(rows, 10)]
    assert found == [(7, [b"1", b"3"], [b"k"] * 2), (0, [b"0", b"2"], [b"k"] * 2)]
