"""The pusher for `mapPartitions` and `foreachPartition`: pushes a partition in frames, in bounded
memory, and returns receipts. Executors need only cassq and the client library that the URL needs.

Without a write id it simply pushes: a task that Spark runs again pushes again. With one, each task
attempt fills staged pipes of its own, which poppers do not see. `publish` gets the receipts of the
attempts that Spark counts, and makes their pipes visible in one step. All other pipes are removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple
from uuid import uuid4

from cassq.errors import InvalidPayloadError, UsageError
from cassq.lifecycle.ports import Ports
from cassq.message.batches import FRAME_BYTES_TARGET
from cassq.model.priorities import Level, by_priority, check_priority
from cassq.model.scaling import by_key_lane
from cassq.plurals import counted
from cassq.producer import staging
from cassq.producer.admission import batched, check_payloads
from cassq.producer.staging import Stage, StagedPipe
from cassq.spark import staged
from cassq.spark.clients import (
    Location,
    absolute,
    client_of,
    located,
    place_at,
    place_of,
    queue_of,
)
from cassq.spark.staged import BegunWrite, Part, StagedWrite, batch_id

BATCH_MESSAGES = 10_000
LOOKED_AT = 256  # messages that are looked at together for their size
_FIELDS = ("payload", "headers", "key", "priority")


@dataclass(frozen=True, slots=True)
class PushReceipt:
    """Where a run of messages went, and the total size of their payloads."""

    pipe: str
    first_seq: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StagedReceipt(PushReceipt):
    """Where a run of messages waits to be published. A partition without rows has one receipt, with
    an empty `pipe`.

    queue_id, epoch: of the write, as the attempt began it; epoch 0: it had been published before.
    task: the attempt at the partition. call: one call of the pusher in that attempt; it returned
    `receipts` receipts.
    """

    write: StagedWrite
    queue_id: str
    epoch: int
    partition: int
    task: int
    call: str
    receipts: int


class PartitionPusher:
    """What `pusher` returns: picklable, to be called with the rows of a partition."""

    def __init__(
        self, location: Location, queue: str, batch: int, write: StagedWrite | None = None
    ) -> None:
        self.location = location
        self.queue = queue
        self._batch = batch
        self._write = write

    def __call__(self, rows: Iterable[Any]) -> Iterator[PushReceipt]:
        """Push the rows; returns their receipts. All rows are durable when this returns."""
        # At once, not at the first `next`: foreachPartition asks for nothing.
        if self._write is not None:
            return iter(_stage(self._write, rows, self._batch))
        return iter(list(self._pushed(rows)))

    def _pushed(self, rows: Iterable[Any]) -> Iterator[PushReceipt]:
        place_at(self.location)  # refuses other queues than the driver's
        with client_of(self.location.url).queue(self.queue).pusher() as pusher:
            for payloads, headers, keys, priority in columns(rows, self._batch):
                ids = pusher.push_many(payloads, headers=headers, keys=keys, priority=priority)
                yield from receipts(ids.runs, payloads)


def pusher(
    url: str | None, queue: str, *, batch: int = BATCH_MESSAGES, write_id: str | None = None
) -> PartitionPusher:
    """A function for `rdd.mapPartitions`, which yields receipts, and for `foreachPartition`.

    url: as for `cassq.connect`; None: `CASSQ_URL` of this process. A row is a payload (bytes or
    str), or a Row, dict or object with `payload` and optionally `headers`, `key` and `priority`.
    batch: the most messages to push together; fewer if they have more than about 8 MiB, or several
    priorities. write_id: poppers see the messages only when `publish` gets the receipts, and only
    once under this id, however often the job is started. Call this in the driver's own process,
    which from then on renews the lease under which it leads the write.

    Raises UsageError, and as `cassq.connect`, because this process reads which queues the URL
    names; with a write id also QueueNotFoundError, QueuePausedError, and ConfigError for a cp
    queue. The tasks raise what `push_many` raises, and ConfigError where the URL names other
    queues, such as a directory of another machine.
    """
    if not isinstance(batch, int) or batch < 1:
        raise UsageError(f"batch must be a number of messages, at least 1, not {batch!r}")
    if write_id is not None and (not isinstance(write_id, str) or not write_id):
        raise UsageError(f"write_id must be a non-empty str, not {write_id!r}")
    location = located(absolute(url))
    if write_id is None:
        return PartitionPusher(location, queue, batch)
    from cassq.spark.heartbeats import driver_id, keeper

    staging.check_queue(queue_of(place_of(location.url).ports, queue))
    driver = driver_id(keeper().directory, location.url)
    # This is the same write as one by the data source with this id.
    write = StagedWrite(location, queue, batch_id(write_id), driver)
    return PartitionPusher(location, queue, batch, write)


def _stage(target: StagedWrite, rows: Iterable[Any], batch: int) -> list[StagedReceipt]:
    """One call of a staged pusher, in a task."""
    from pyspark.taskcontext import TaskContext

    found: list[PushReceipt] = []

    def append(ports: Ports, stage: Stage) -> None:
        for payloads, headers, keys, priority in columns(rows, batch):
            checked, length = check_payloads(payloads)
            now_ms = ports.clock.wall_ms()
            messages = batched(checked, length, headers, keys, now_ms)
            lanes = by_key_lane(messages.keys, messages.count, stage.key_lanes, now_ms)
            for lane, which in lanes.items():
                some = stage.append(messages.only(which), level=Level(priority, lane))
                found.extend(receipts(some, [payloads[at] for at in which]))

    begun = staged.fill(target, append).begun
    context = TaskContext.get()
    where = (context.partitionId(), context.taskAttemptId()) if context else (0, 0)
    call, named = uuid4().hex, found or [PushReceipt("", 0, 0, 0)]
    return [
        StagedReceipt(
            *(each.pipe, each.first_seq, each.count, each.bytes),
            *(target, *begun, *where, call, len(named)),
        )
        for each in named
    ]


def publish(receipts: Iterable[PushReceipt], *, partitions: int | None = None) -> int:
    """Make the messages of these receipts visible to poppers, all in one step; call it on the
    driver. Returns how many: 0 if a write of that id was published before.

    receipts: all that an RDD of a pusher with a `write_id` yielded, as `collect` returns them.
    partitions: how many the RDD has, to check that each has a receipt.

    Raises UsageError for receipts that are incomplete, or come from two attempts at a partition,
    from two writes or from a pusher without a write id; FencedError if a later run of the job began
    the write again, or its driver did not renew its lease for a minute; QueueFullError if a queue
    that rejects excess messages has no room; QueueNotFoundError if the queue was deleted. Nothing
    is published then. If a BackendError leaves the outcome unknown, call it again: it publishes
    only once.
    Cost: a conditional write, and one for each pipe in a keyspace.
    """
    found = _checked(list(dict.fromkeys(receipts)), partitions)
    if not found:
        return 0
    first = found[0]
    counts: dict[str, int] = {}
    for each in found:
        counts[each.pipe] = counts.get(each.pipe, 0) + each.count
    pipes = [StagedPipe(pipe_id, count, 0) for pipe_id, count in counts.items()]
    begun = {BegunWrite(each.queue_id, each.epoch) for each in found}
    published = staged.publish(Part(first.write, begun, pipes), aborts=False)
    return sum(counts.values()) if published else 0


def is_published(url: str | None, queue: str, write_id: str) -> bool:
    """Whether a write of this id, by `publish` or by a frame's `writeId`, is in the queue.

    url: as for `pusher`. False: it was never begun, was aborted, or is not finished. Raises as
    `cassq.connect`, and QueueNotFoundError. Cost: a read or two.
    """
    ports = place_of(absolute(url)).ports
    row = ports.catalog.writes.by_id(queue_of(ports, queue).id, batch_id(write_id))
    return row is not None and staging.is_over(row, 0)


def _checked(found: list[PushReceipt], partitions: int | None) -> list[StagedReceipt]:
    """Check that these are all receipts of one action, and of one write; returns them."""
    ours = [each for each in found if isinstance(each, StagedReceipt)]
    if len(ours) < len(found):
        raise UsageError(
            "these receipts come from a pusher without a write_id: their messages are visible"
            " already"
        )
    if len({each.write for each in ours}) > 1:
        raise UsageError(
            "these receipts come from several writes", hint="publish each write separately"
        )
    tasks: dict[int, set[int]] = {}
    calls: dict[str, list[StagedReceipt]] = {}
    for each in ours:
        tasks.setdefault(each.partition, set()).add(each.task)
        calls.setdefault(each.call, []).append(each)
    twice = sorted(partition for partition, of in tasks.items() if len(of) > 1)
    if twice:
        raise UsageError(
            f"there are receipts of several attempts at partition {twice[0]}: together they would"
            " publish its rows more than once, or only some of them",
            hint="pass the result of one action, such as collect()",
        )
    count = max(tasks, default=-1) + 1 if partitions is None else partitions
    missing = sorted({*range(count)} - {*tasks})
    torn = [each for each in calls.values() if len(each) != each[0].receipts]
    if missing or torn or (partitions is None and not ours):
        lacking = f"partition {missing[0]}" if missing else "a partition"
        raise UsageError(
            f"receipts of {lacking} are missing: there are {counted(len(ours), 'receipt')}",
            hint="pass all receipts of the action, including those of empty partitions",
        )
    if len(tasks) > count:
        raise UsageError(
            f"there are receipts of {len(tasks)} partitions, but partitions={partitions}"
        )
    return ours


Runs = Iterable[tuple[str, int, int]]  # pipe, seq of the first, and number of messages


class PushColumns(NamedTuple):
    """The columns of messages with one priority. headers, keys: None if no message has any."""

    payloads: list[bytes]
    headers: list[Mapping[str, str] | None] | None
    keys: list[bytes | None] | None
    priority: int


def columns(rows: Iterable[Any], most: int) -> Iterator[PushColumns]:
    """The batches of rows, by column; one for each priority in a batch."""
    for batch in batches(iter(rows), most):
        for priority, which in by_priority([fields.priority for fields in batch]).items():
            some = [batch[index] for index in which]
            headers = [fields.headers for fields in some]
            keys = [fields.key for fields in some]
            yield PushColumns(
                [fields.payload for fields in some],
                headers if any(headers) else None,
                keys if any(key is not None for key in keys) else None,
                priority,
            )


class Fields(NamedTuple):
    """What a row says about a message."""

    payload: bytes
    headers: Mapping[str, str] | None = None
    key: bytes | None = None
    priority: int = 0


def batches(rows: Iterator[Any], most: int) -> Iterator[list[Fields]]:
    """The messages of rows in batches of `most`, or of about eight frames' bytes."""
    size, batch = 0, list[Fields]()
    for found in iter(lambda: list(islice(rows, min(LOOKED_AT, most))), []):
        messages = [fields_of(row) for row in found]
        for message in messages:
            size += len(message.payload)
            batch.append(message)
            if len(batch) == most or size >= 8 * FRAME_BYTES_TARGET:
                yield batch
                size, batch = 0, []
    if batch:
        yield batch


def fields_of(row: Any) -> Fields:
    """The payload, headers, key and priority of a row. Raises InvalidPayloadError for a row without
    a payload or with one of another type, UsageError for an invalid priority."""
    if isinstance(row, (bytes, bytearray, str)):
        return Fields(_bytes(row))
    if isinstance(row, Mapping):
        found = [row.get(name) for name in _FIELDS]
    else:
        found = [getattr(row, name, None) for name in _FIELDS]
    payload, headers, key, priority = found
    if payload is None:
        raise InvalidPayloadError(f"a {type(row).__name__} has no payload: {row!r:.100}")
    stored_key = None if key is None else _bytes(key)
    return Fields(_bytes(payload), headers, stored_key, check_priority(priority or 0))


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise InvalidPayloadError(f"a payload or key must be bytes or str, not {type(value).__name__}")


def receipts(runs: Runs, payloads: list[bytes]) -> Iterator[PushReceipt]:
    """The receipts of messages that were appended in these runs."""
    at = 0
    for pipe_id, first_seq, count in runs:
        yield PushReceipt(pipe_id, first_seq, count, sum(map(len, payloads[at : at + count])))
        at += count
