"""The pusher for `mapPartitions` and `foreachPartition`: pushes a partition in frames, in bounded
memory, and returns where it went. Executors need only cassq and the driver of the URL.

It simply pushes: a task that Spark runs again pushes again. Use the data source for
what must be there once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from cassq.errors import InvalidPayloadError, UsageError
from cassq.message.batches import FRAME_BYTES_TARGET
from cassq.message.message_ids import MessageIds
from cassq.spark.clients import Location, absolute, client_at, located

BATCH_MESSAGES = 10_000
LOOKED_AT = 256  # messages that are looked at together for their size
_FIELDS = ("payload", "headers", "key")


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a run of messages went, and the total size of their payloads."""

    pipe: str
    first_seq: int
    count: int
    bytes: int


class PartitionPusher:
    """What `pusher` returns: picklable, to be called with the rows of a partition."""

    def __init__(self, location: Location, queue: str, batch: int) -> None:
        self.location = location
        self.queue = queue
        self._batch = batch

    def __call__(self, rows: Iterable[Any]) -> Iterator[Receipt]:
        """Push the rows, and yield their receipts; all rows are durable when the iterator ends."""
        # At once, not at the first `next`: foreachPartition asks for nothing.
        return iter(list(self._pushed(rows)))

    def _pushed(self, rows: Iterable[Any]) -> Iterator[Receipt]:
        with client_at(self.location).queue(self.queue).pusher() as pusher:
            for batch in batches(iter(rows), self._batch):
                payloads = [payload for payload, _, _ in batch]
                headers = [header for _, header, _ in batch]
                keys = [key for _, _, key in batch]
                ids = pusher.push_many(
                    payloads,
                    headers=headers if any(headers) else None,
                    keys=keys if any(key is not None for key in keys) else None,
                )
                yield from receipts(ids, payloads)


def pusher(url: str | None, queue: str, *, batch: int = BATCH_MESSAGES) -> PartitionPusher:
    """A function for `rdd.mapPartitions`, which yields receipts, and for `foreachPartition`.

    url: as for `cassq.connect`; None: `CASSQ_URL` of this process. A row is a payload (bytes or
    str), or a Row, dict or object with `payload` and optionally `headers` and `key`. batch: the
    most messages to push together; fewer if they are large, about 8 MiB. Raises as `cassq.connect`,
    as this process reads which queues the URL names; and in the task what `push_many` raises, and
    ConfigError where the URL names others, such as a directory of another machine.
    """
    if not isinstance(batch, int) or batch < 1:
        raise UsageError(f"batch must be a number of messages, at least 1, not {batch!r}")
    return PartitionPusher(located(absolute(url)), queue, batch)


Fields = tuple[bytes, "Mapping[str, str] | None", "bytes | None"]


def batches(rows: Iterator[Any], most: int) -> Iterator[list[Fields]]:
    """The messages of rows in batches of `most`, or of about eight frames' bytes."""
    size, batch = 0, list[Fields]()
    for found in iter(lambda: list(islice(rows, min(LOOKED_AT, most))), []):
        messages = [fields_of(row) for row in found]
        for message in messages:
            size += len(message[0])
            batch.append(message)
            if len(batch) == most or size >= 8 * FRAME_BYTES_TARGET:
                yield batch
                size, batch = 0, []
    if batch:
        yield batch


def fields_of(row: Any) -> Fields:
    """The payload, headers and key of a row. Raises InvalidPayloadError for anything else."""
    if isinstance(row, (bytes, bytearray, str)):
        return _bytes(row), None, None
    if isinstance(row, Mapping):
        found = [row.get(name) for name in _FIELDS]
    else:
        found = [getattr(row, name, None) for name in _FIELDS]
    payload, headers, key = found
    if payload is None:
        raise InvalidPayloadError(f"a {type(row).__name__} has no payload: {row!r:.100}")
    return _bytes(payload), headers, None if key is None else _bytes(key)


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise InvalidPayloadError(f"a payload or key must be bytes or str, not {type(value).__name__}")


def receipts(ids: MessageIds, payloads: list[bytes]) -> Iterator[Receipt]:
    """The receipts of a `push_many`."""
    at = 0
    for pipe_id, first_seq, count in ids.runs:
        yield Receipt(pipe_id, first_seq, count, sum(map(len, payloads[at : at + count])))
        at += count
