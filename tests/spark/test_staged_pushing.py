"""The pusher with a write id: what `publish` gets is there once, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import cassq
from cassq.errors import ConfigError, FencedError, QueueFullError, UsageError
from cassq.producer import staging
from cassq.spark import PushReceipt, publish, pusher
from cassq.spark.pushing import StagedReceipt
from tests.integration.laned import check_lanes
from tests.integration.stage import drain, numbers, payloads, reap
from tests.spark.places import everywhere

ID = "2026-05-01"


def rows(spark: Any, count: int, partitions: int = 3) -> Any:
    return spark.sparkContext.parallelize(numbers(count), partitions)


def staged(rdd: Any, client: cassq.Client, queue: cassq.Queue, write_id: str = ID) -> Any:
    return rdd.mapPartitions(pusher(client.url, queue.name, batch=700, write_id=write_id))


def failing(which: Callable[[Any], bool]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A step that fails at the end of some task attempts."""

    def work(found: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from found
        context = TaskContext.get()
        assert context is not None
        if which(context):
            raise RuntimeError("this attempt fails")

    return work


def assert_holds(client: cassq.Client, queue: cassq.Queue, count: int) -> None:
    """Each number is waiting once, and nothing else is stored."""
    assert Counter(payloads(drain(queue.popper()))) == Counter(numbers(count))
    assert queue.audit().findings == []
    reap(client)
    live = {pipe.id for pipe in client.ports.catalog.pipes.live(queue.id)}
    stored = {info.pipe_id for info in client.ports.store.extents(queue.name)}
    assert stored <= live


@everywhere
def test_all_is_there_at_once_when_it_is_published(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    found = staged(rows(spark, 5000), client, queue).collect()
    assert sum(receipt.count for receipt in found) == 5000
    assert sum(receipt.bytes for receipt in found) == sum(map(len, numbers(5000)))
    assert queue.audit().pushed == 0
    assert drain(queue.popper()) == []
    assert publish(found, partitions=3) == 5000
    assert publish(found) == 0, "it was published before"
    spots = {f"{r.pipe}:{r.first_seq + n}" for r in found for n in range(r.count)}
    messages = drain(queue.popper())
    assert {message.id for message in messages} == spots
    assert Counter(payloads(messages)) == Counter(numbers(5000))


@everywhere
def test_attempts_that_fail_and_are_run_again_push_once(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    """In the step before the pusher, and in a later one, when its pipes are whole."""
    first = failing(lambda context: context.attemptNumber() == 0)
    later = failing(lambda context: context.attemptNumber() == 1)
    found = staged(rows(spark, 3000).mapPartitions(first), client, queue).mapPartitions(later)
    assert publish(found.collect()) == 3000
    assert_holds(client, queue, 3000)


def test_a_job_whose_later_step_fails_pushes_nothing_and_is_run_again(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    always = failing(lambda context: context.partitionId() == 1)
    with pytest.raises(Exception, match="this attempt fails"):
        staged(rows(spark, 3000), client, queue).mapPartitions(always).collect()
    assert queue.audit().pushed == 0
    assert publish(staged(rows(spark, 3000), client, queue).collect()) == 3000
    assert_holds(client, queue, 3000)


def test_a_second_action_on_the_same_rdd_does_not_double(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    receipts = staged(rows(spark, 3000), client, queue)
    assert receipts.count() >= 3
    assert publish(receipts.collect()) == 3000
    assert publish(receipts.collect()) == 0
    assert_holds(client, queue, 3000)


def test_staged_rows_go_to_the_lanes_of_their_keys(spark: Any, client: cassq.Client) -> None:
    queue = client.create_queue("staged-lanes", key_lanes=4, retain_consumed=3600)
    some = [{"payload": f"{n}", "key": f"{n % 20}", "priority": n % 2} for n in range(200)]
    rdd = spark.sparkContext.parallelize(some, 2)
    assert publish(staged(rdd, client, queue).collect()) == 200
    found = drain(queue.popper())
    assert len(found) == 200
    assert check_lanes(client, found, 4) == set(range(4))
    client.delete_queue(queue.name)


@pytest.mark.long(reason="two Spark jobs")
def test_a_job_that_is_started_again_after_it_published_pushes_nothing(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    assert publish(staged(rows(spark, 100), client, queue).collect()) == 100
    again = staged(rows(spark, 100), client, queue).collect()
    assert [receipt.count for receipt in again] == [0, 0, 0]
    assert publish(again, partitions=3) == 0
    frame = spark.createDataFrame([(b"x",)], "payload binary")
    options = {"url": client.url, "queue": queue.name, "writeId": ID}
    frame.write.format("cassq").mode("append").options(**options).save()
    assert_holds(client, queue, 100)


def test_headers_keys_and_empty_partitions_are_pushed(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    rdd = spark.sparkContext.parallelize([{"payload": "a", "headers": {"x": "1"}, "key": "k"}], 3)
    found = staged(rdd, client, queue).collect()
    assert [receipt.count for receipt in found] == [0, 0, 1]
    assert publish(found, partitions=3) == 1
    (message,) = drain(queue.popper())
    assert (message.payload, dict(message.headers), message.key) == (b"a", {"x": "1"}, b"k")


def test_receipts_that_are_not_of_one_action_as_a_whole_publish_nothing(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    receipts = staged(rows(spark, 3000), client, queue)
    first, second = receipts.collect(), receipts.collect()
    other = staged(rows(spark, 10, 1), client, queue, "another").collect()
    last = max(receipt.partition for receipt in first)
    wrong = {
        "several attempts at partition 0": first + second,
        "several attempts at partition 2": [r for r in first if r.partition != last]
        + [r for r in second if r.partition == last][:1]
        + [r for r in first if r.partition == last][1:],
        "partition 1 are missing": [r for r in first if r.partition != 1],
        "a partition are missing": first[1:],
        "several writes": first + other,
        "without a write_id": [*first, PushReceipt("p", 0, 1, 1)],
        "there are 0 receipts": [],
    }
    for said, found in wrong.items():
        with pytest.raises(UsageError, match=said):
            publish(found)
    with pytest.raises(UsageError, match="partition 3 are missing"):
        publish(first, partitions=4)
    with pytest.raises(UsageError, match="of 3 partitions, but partitions=2"):
        publish(first, partitions=2)
    assert queue.audit().pushed == 0
    assert publish(other) == 10
    queue.purge()
    assert publish([*first, *first]) == 3000, "the same receipts twice are no second attempt"
    assert_holds(client, queue, 3000)


def test_receipts_of_an_aborted_write_publish_nothing(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    found: list[StagedReceipt] = staged(rows(spark, 100), client, queue).collect()
    row = client.ports.catalog.writes.by_id(queue.id, f"batch:{ID}")
    assert row is not None
    assert staging.abort(client.ports, row)
    with pytest.raises(FencedError, match="aborted or begun again"):
        publish(found)
    of_another = [replace(receipt, queue_id="q-before") for receipt in found]
    with pytest.raises(FencedError):
        publish(of_another)
    assert publish(staged(rows(spark, 100), client, queue).collect()) == 100
    assert_holds(client, queue, 100)


def test_a_full_queue_publishes_nothing_until_it_has_room(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    queue.update(max_length=50)
    found = staged(rows(spark, 100), client, queue).collect()
    with pytest.raises(QueueFullError, match="its limit is 50"):
        publish(found)
    queue.update(max_length=None)
    assert publish(found) == 100
    assert_holds(client, queue, 100)


def test_what_a_pusher_with_a_write_id_cannot_do_is_said_on_the_driver(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    client.create_queue("strict", consistency="cp")
    with pytest.raises(ConfigError, match="'strict' is cp"):
        pusher(client.url, "strict", write_id=ID)
    for wrong in ("", 5):
        with pytest.raises(UsageError, match="write_id"):
            pusher(client.url, queue.name, write_id=wrong)  # type: ignore[arg-type]
    broken = spark.sparkContext.parallelize([1], 1)
    with pytest.raises(Exception, match="a int has no payload"):
        staged(broken, client, queue).collect()
    assert publish(staged(rows(spark, 10), client, queue).collect()) == 10
