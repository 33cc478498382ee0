"""Spark beside others at work: what it writes is popped as it comes, what it reads is being pushed,
sealed and retired."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import cassq
from tests.integration.deadlines import eventually, joined
from tests.integration.stage import numbers, reap
from tests.spark.patience import at_last
from tests.spark.places import everywhere
from tests.spark.processes.drivers import SECONDS

PUSHERS, ROUNDS, EACH = 2, 30, 100
SMALL = {"max_pushes_per_pipe": 250}


@contextmanager
def at_work(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Threads that work until the block is over; what one of them fails by comes out at its end."""
    over, failures = threading.Event(), list[BaseException]()

    def run(work: Callable[[threading.Event], None]) -> None:
        try:
            work(over)
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            joined("who works beside", thread, seconds=SECONDS)
    if failures:
        raise failures[0]


def pushing(queue: cassq.Queue, number: int) -> Callable[[threading.Event], None]:
    """Pushes its share of numbers, many at a time."""

    def work(_over: threading.Event) -> None:
        with queue.pusher() as pusher:
            for n in range(ROUNDS):
                pusher.push_many(numbers(EACH, EACH * (number * ROUNDS + n)))

    return work


def reaping(client: cassq.Client) -> Callable[[threading.Event], None]:
    def work(over: threading.Event) -> None:
        while not over.wait(0.05):
            reap(client)

    return work


@pytest.mark.long(reason="a stream or a popper that never rests, beside many writes")
def test_a_popper_that_never_rests_gets_each_message_of_each_write_once(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    ids: list[str] = []
    found: list[bytes] = []

    def work(over: threading.Event) -> None:
        with queue.popper() as popper:
            while not (over.is_set() and not queue.stats().groups["default"].waiting):
                messages = popper.pop(500, wait=0.1)
                ids.extend(message.id for message in messages)
                found.extend(messages.payloads)
                popper.commit(messages)

    def fails_at_first(batches: Any) -> Any:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 and context.partitionId() == 0:
            raise RuntimeError("the first attempt fails at its end")

    with at_work(work):
        for n in range(4):
            frame = spark.range(1000 * n, 1000 * (n + 1), numPartitions=2)
            frame = frame.selectExpr("cast(id as string) as payload")
            frame = frame.mapInArrow(fails_at_first, "payload string")
            writer = frame.write.format("cassq").mode("append")
            writer.options(url=client.url, queue=queue.name).save()
    assert Counter(found) == Counter(numbers(4000))
    assert len(set(ids)) == 4000
    assert queue.audit().findings == []


@pytest.mark.long(reason="a stream or a popper that never rests, beside many writes")
@everywhere
def test_a_stream_follows_pipes_that_are_pushed_sealed_and_retired_meanwhile(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    total = PUSHERS * ROUNDS * EACH
    queue.update(**SMALL)
    batches: dict[int, list[tuple[str, bytes]]] = {}

    def take(frame: Any, number: int) -> None:
        batches[number] = [(row.id, bytes(row.payload)) for row in frame.collect()]

    def all_is_read() -> bool:
        return sum(map(len, batches.values())) >= total

    reader = spark.readStream.format("cassq").schema("payload binary, id string")
    reader = reader.options(url=client.url, queue=queue.name, maxMessagesPerTrigger="700")
    frame = reader.load()
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "c"))

    def follow() -> None:
        query = writer.trigger(processingTime="100 milliseconds").start()
        try:
            eventually("all is read", lambda: all_is_read() or not query.isActive, seconds=SECONDS)
            if not all_is_read():
                query.awaitTermination()  # raises why it ended
        finally:
            query.stop()

    with at_work(*(pushing(queue, number) for number in range(PUSHERS)), reaping(client)):
        at_last(follow)
        eventually(
            "pipes were retired meanwhile",
            lambda: queue.stats().pipes["retired"] > PUSHERS,
            seconds=SECONDS,
        )
    found = [each for batch in batches.values() for each in batch]
    assert Counter(payload for _, payload in found) == Counter(numbers(total))
    assert len({id for id, _ in found}) == total
    assert queue.audit().findings == []


@pytest.mark.long(reason="reads a frame while its pipes go, for twenty seconds")
def test_a_frame_that_is_read_while_its_pipes_go_has_nothing_twice_and_nothing_else(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    """What was removed before it was read is left out, as it was asked for."""
    queue.update(**SMALL)
    pushed: set[bytes] = set()

    def push_on(over: threading.Event) -> None:
        with queue.pusher() as pusher:
            while not over.wait(0.01):
                some = numbers(EACH, len(pushed))
                pushed.update(some)
                pusher.push_many(some)

    def pop_on(over: threading.Event) -> None:
        held: deque[list[cassq.Message]] = deque()  # so that there is always something to read
        with queue.popper() as popper:
            while not over.is_set():
                held.append(popper.pop(EACH, wait=0.1))
                if len(held) > 5:
                    popper.commit(held.popleft())

    sizes: list[int] = []
    with at_work(push_on, pop_on, reaping(client)):
        eventually("pipes come and go", lambda: queue.stats().pipes["retired"], seconds=SECONDS)
        while len(sizes) < 3 or not any(sizes):
            reader = spark.read.format("cassq").schema("payload binary, id string")
            reader = reader.options(url=client.url, queue=queue.name, failOnDataLoss="false")
            rows = reader.load().collect()
            assert len({row.id for row in rows}) == len(rows)
            payloads = [bytes(row.payload) for row in rows]
            assert len(set(payloads)) == len(payloads)
            assert set(payloads) <= pushed
            sizes.append(len(rows))
    assert queue.audit().findings == []
