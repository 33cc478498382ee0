"""Batches: messages to push together, and how they are split into frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from cassq.frozen import dataclass
from cassq.message.frames import Extras, encode

FRAME_BYTES_TARGET = 1024 * 1024
FRAME_MESSAGES_MAX = 16_384

# Called with the place that messages are about to get, before they are written: the pipe, the seq
# of the first, and the messages' indexes in the batch.
Intend = Callable[[str, int, Sequence[int]], None]


class Appendable(Protocol):
    """What can be appended: messages to push together, in any memory layout."""

    @property
    def count(self) -> int: ...

    def frame_end(self, at: int, stop: int) -> int:
        """The end of the frame that begins at message `at`; at most `stop`."""

    def frame(
        self, seq: int, at: int, last: int, pipe_key: int, compression: str
    ) -> tuple[bytes, bytes]:
        """The frame of messages `at .. last`: header and body. seq: of the first message."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages to push together, by column; headers are encoded, times are wall milliseconds."""

    payloads: Sequence[bytes]
    times_ms: int | Sequence[int]
    headers: Sequence[bytes | None] | None = None
    keys: Sequence[bytes | None] | None = None
    ids: Sequence[bytes | None] | None = None
    length: int | None = None  # of each payload, if all are known to have the same
    dues_ms: int | Sequence[int] | None = None  # catalog time before which nothing is delivered
    priority: int = 0  # of all of them; not in the frame, but in the row of their pipe

    @property
    def count(self) -> int:
        return len(self.payloads)

    def frame_end(self, at: int, stop: int) -> int:
        return frame_end(self, at, stop)

    def frame(
        self, seq: int, at: int, last: int, pipe_key: int, compression: str
    ) -> tuple[bytes, bytes]:
        payloads, extras = self.cut(at, last)
        return encode(
            seq,
            payloads,
            extras,
            pipe_key=pipe_key,
            compression=compression,
            length=self.length,
        )

    def cut(self, first: int, last: int) -> tuple[Sequence[bytes], Extras]:
        """The columns of messages `first .. last`, as a frame takes them."""
        if first == 0 and last == len(self.payloads):
            extras = Extras(self.times_ms, self.headers, self.keys, self.ids, self.dues_ms)
            return self.payloads, extras
        dues = self.dues_ms
        return self.payloads[first:last], Extras(
            self.times_ms if isinstance(self.times_ms, int) else self.times_ms[first:last],
            self.headers and self.headers[first:last],
            self.keys and self.keys[first:last],
            self.ids and self.ids[first:last],
            dues if dues is None or isinstance(dues, int) else dues[first:last],
        )

    def only(self, wanted: Sequence[int]) -> Batch:
        """A batch of these messages only, by their indices in ascending order."""
        if len(wanted) == len(self.payloads):
            return self
        times, dues = self.times_ms, self.dues_ms
        return Batch(
            [self.payloads[n] for n in wanted],
            times if isinstance(times, int) else [times[n] for n in wanted],
            self.headers and [self.headers[n] for n in wanted],
            self.keys and [self.keys[n] for n in wanted],
            self.ids and [self.ids[n] for n in wanted],
            self.length,
            dues if dues is None or isinstance(dues, int) else [dues[n] for n in wanted],
            self.priority,
        )


class AppendReceipt(NamedTuple):
    """Where a run of messages went."""

    pipe_id: str
    first_seq: int
    length: int


class SpilledReceipt(AppendReceipt):
    """Where a run of messages is in the client's local spool."""

    __slots__ = ()


def frame_end(batch: Batch, at: int, stop: int) -> int:
    """The end of the frame that begins at message `at`: at its target of bytes or messages."""
    if stop == at + 1:
        return stop
    last = min(stop, at + FRAME_MESSAGES_MAX)
    size = _size(batch, at, last)
    if size <= FRAME_BYTES_TARGET:
        return last
    # Estimate by the mean, then halve until it fits or one message is left.
    last = at + max(1, (last - at) * FRAME_BYTES_TARGET // size)
    while last - at > 1 and _size(batch, at, last) > 2 * FRAME_BYTES_TARGET:
        last = at + (last - at) // 2
    return last


def _size(batch: Batch, first: int, last: int) -> int:
    """Bytes of the messages `first .. last`, headers and keys included."""
    if batch.length is not None:
        size = batch.length * (last - first)
    else:
        size = sum(map(len, batch.payloads[first:last]))
    for column in (batch.headers, batch.keys):
        if column is not None:
            size += sum(map(len, filter(None, column[first:last])))
    return size
