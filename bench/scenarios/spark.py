"""From Spark: a frame into a queue and back, beside the library by itself, and beside Kafka."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import PATIENCE_SECONDS, drain
from bench.measuring.meter import Meter
from bench.measuring.payloads import chunks
from bench.measuring.proof import take
from bench.measuring.rows import NOTHING, Rows, Tally, tally_of
from bench.measuring.session import session
from bench.peers.spark.in_spark import as_in_spark
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 900.0
LEFTOVER_SECONDS = 0.05
NATIVE = ("cassq", "cassq-cassandra")
ROW_BY_ROW = ("cassq-spark-rows", "cassq-spark-rows-cassandra")
# Messages that nobody counts, if there are as many: Java compiles for long, and Pythons start.
WARM_UP_MESSAGES = 1_000_000


@dataclass(frozen=True)
class Amounts:
    """How many messages Spark writes and reads, and how many a row at a time."""

    messages: int
    rows: int

    def of(self, seat: Seat) -> Rows:
        """Made once, beside the places of all measurements, which are cleared one by one."""
        return Rows(seat.place.directory.parent, self.messages)


# --- without Spark --------------------------------------------------------------------------------


def natively(_gate: Gate, seat: Seat, rows: Rows) -> Figures:
    """The same rows by the library itself: push_many, then pop and commit, one process."""
    peer = seat.peer()
    peer.create()
    warmup = chunks(seat.place.size, min(peer.batch, rows.count))
    peer.push(warmup)
    drain(peer, sum(map(len, warmup)))
    load = list(rows.chunks(peer.batch))
    os.sync()
    pushing, popping = Meter(seat.place.server_pid), Meter(seat.place.server_pid)
    with pushing:
        peer.push(load)
    del load
    found = NOTHING
    while found.messages < rows.count:
        with popping:
            payloads = peer.pop(peer.batch, PATIENCE_SECONDS)
            peer.ack()
        if not payloads:
            break
        found = found.plus(payloads)
    rows.tally().check(found.plus(peer.pop(1, LEFTOVER_SECONDS)), "popped")
    peer.close()
    peer.drop()
    return {
        "messages": rows.count,
        **costs("write", rows.count, pushing, pushing.cpu_s),
        **costs("read", rows.count, popping, popping.cpu_s),
    }


def costs(what: str, count: int, meter: Meter, cpu_s: float) -> Figures:
    """Of one step: its rate, and what it took of the processors on either side."""
    return {what: rate(count, meter.wall_s), f"{what}_cpu_s": cpu_s}


# --- with Spark -----------------------------------------------------------------------------------


class Step:
    """A step of Spark's, timed: the CPU seconds are those of this process, its JVM and its
    Pythons."""

    def __init__(self, what: str, count: int) -> None:
        self._what = what
        self._count = count
        self._meter = Meter(os.getpid())

    def __enter__(self) -> None:
        os.sync()
        self._meter.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._meter.__exit__(*raised)

    def figures(self) -> Figures:
        return costs(self._what, self._count, self._meter, self._meter.server_cpu_s)


def thinned(frame: Any, count: int, wanted: int) -> Any:
    """About as many of a frame's rows as are wanted, from all its parts."""
    return frame.where(f"id % {max(1, count // wanted)} = 0")


def discard(frame: Any) -> None:
    """Have all of a frame read."""
    frame.write.format("noop").mode("overwrite").save()


def stream(frame: Any, column: str, checkpoint: Path) -> Tally:
    """Read a stream to the end of what is there; the tally of what came."""
    found = NOTHING

    def take_batch(batch: Any, _number: int) -> None:
        nonlocal found
        found = found.joined(tally_of(batch, column))

    writer = frame.writeStream.option("checkpointLocation", str(checkpoint))
    query = writer.foreachBatch(take_batch).trigger(availableNow=True).start()
    query.awaitTermination()
    return found


def make_rows(_gate: Gate, seat: Seat, rows: Rows) -> Figures:
    with session(seat.place.directory) as spark:
        rows.make(spark)
    return {}


def by_frames(_gate: Gate, seat: Seat, rows: Rows) -> Figures:
    """Write all rows; read all columns; read payloads; read a stream."""
    with session(seat.place.directory, as_in_spark(seat.peer()).connector()) as spark:
        frame = rows.frame(spark)
        _through(spark, seat.part("warm"), thinned(frame, rows.count, WARM_UP_MESSAGES))
        return {"messages": rows.count, **_through(spark, seat.part("all"), frame)}


def _through(spark: Any, seat: Seat, frame: Any) -> Figures:
    peer = as_in_spark(seat.peer())
    peer.meet(spark)
    peer.make()
    frame = frame.select("payload")
    wanted = tally_of(frame)
    step = partial(Step, count=wanted.messages)
    writing, reading, reading_all, streaming = map(step, ("write", "read", "read_all", "stream"))
    with writing:
        peer.write(frame)
    wanted.check(tally_of(peer.read(spark, payload_only=True), peer.column), "read")
    with reading:
        discard(peer.read(spark, payload_only=True))
    with reading_all:
        discard(peer.read(spark, payload_only=False))
    with streaming:
        found = stream(peer.follow(spark), peer.column, seat.place.directory / "checkpoint")
    wanted.check(found, "read as a stream")
    peer.close()
    peer.drop()
    return {
        name: value
        for each in (writing, reading, reading_all, streaming)
        for name, value in each.figures().items()
    }


def by_rows(_gate: Gate, seat: Seat, rows: Rows, count: int) -> Figures:
    """Some of the rows, each pushed by itself."""
    with session(seat.place.directory) as spark:
        frame = rows.frame(spark)
        peer = as_in_spark(seat.part("all").peer())
        peer.meet(spark)
        peer.make()
        some = thinned(frame, rows.count, count).select("payload")
        wanted = tally_of(some)
        peer.write(some.limit(100))
        drain(peer, 100)
        writing = Step("write", wanted.messages)
        with writing:
            peer.write(some)
        found = NOTHING.plus(take(peer, wanted.messages)).plus(peer.pop(1, LEFTOVER_SECONDS))
        wanted.check(found, "pushed a row at a time")
        peer.close()
        peer.drop()
        return {"messages": wanted.messages, **writing.figures()}


# --- the scenarios --------------------------------------------------------------------------------


class Spark(Scenario):
    name = "spark"
    title = "From Spark (local[2]): a frame into a queue and back, 100 B"
    headline = "write"
    own = "cassq-spark"
    needs_own = True
    peers: ClassVar[tuple[str, ...]] = (
        *("cassq", "cassq-spark-rows", "kafka-spark", "kafka-spark-synced"),
    )

    def amounts(self, plan: Plan) -> Amounts:
        return Amounts(plan.spark_messages, plan.spark_rows)

    def cases(self, plan: Plan) -> list[Case]:
        return [Case(self.name, "messages a second")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("write", "write/s", "rate"),
            Column("read", "read/s, payloads", "rate"),
            Column("read_all", "read/s, all columns", "rate"),
            Column("stream", "read/s, as a stream", "rate"),
            Column("messages", "messages", "rate"),
            Column("write_cpu_s", "write, CPU s", "s"),
            Column("read_cpu_s", "read, CPU s", "s"),
            Column("read_all_cpu_s", "all columns, CPU s", "s"),
            Column("stream_cpu_s", "stream, CPU s", "s"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        amounts = self.amounts(plan)
        rows = amounts.of(seat)
        if not rows.made:
            run([Job(make_rows, (seat.part("rows"), rows))], SECONDS_MAX)
        if seat.peer_name in NATIVE:
            job = Job(natively, (seat, rows))
        elif seat.peer_name in ROW_BY_ROW:
            job = Job(by_rows, (seat, rows, amounts.rows))
        else:
            job = Job(by_frames, (seat, rows))
        return run([job], SECONDS_MAX)[0]


class SparkOnCassandra(Spark):
    name = "spark-cassandra"
    title = (
        "From Spark (local[2]) on Cassandra, one node, synced: a frame into a queue and back, 100 B"
    )
    own = "cassq-spark-cassandra"
    peers: ClassVar[tuple[str, ...]] = ("cassq-cassandra", "cassq-spark-rows-cassandra")

    def amounts(self, plan: Plan) -> Amounts:
        return Amounts(plan.spark_cassandra_messages, plan.spark_cassandra_rows)
