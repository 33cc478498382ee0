"""Bytes received over a connection, cut into messages of `cassq.extents.protocol.wire`.

Small messages share one buffer; a message larger than that gets a buffer of exactly its size, so
the bytes of a large frame stay where they were received until they are unpacked. A server does not
trust an announced size: there such a buffer begins with `piece` bytes and doubles when it is full.
"""

from __future__ import annotations

from cassq.extents.protocol.wire import MESSAGE_BYTES_MAX, body_length

BUFFER_BYTES = 64 * 1024
_PREFIX = 4


class Inbox:
    """What was received and not yet taken. limit: the longest message allowed; may be changed.
    piece: the most to reserve for a message before any of it has come. Call `room`, `filled` and
    `take` in turn."""

    __slots__ = ("_buffer", "_end", "_piece", "_start", "limit")

    def __init__(self, limit: int = MESSAGE_BYTES_MAX, piece: int = MESSAGE_BYTES_MAX) -> None:
        self.limit: int = limit
        self._piece = max(piece, BUFFER_BYTES)
        self._buffer = bytearray(BUFFER_BYTES)
        self._start = 0
        self._end = 0

    @property
    def waiting(self) -> int:
        """How many bytes were received and not yet taken."""
        return self._end - self._start

    def room(self) -> memoryview:
        """Where the next bytes go; never empty. What was taken before is no longer valid."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) != BUFFER_BYTES:
                self._buffer = bytearray(BUFFER_BYTES)
        need, full = self._needed(), self._end == len(self._buffer)
        if full or min(need, self._piece) > len(self._buffer) - self._start:
            self._move(max(min(need, max(self._piece, 2 * self.waiting)), BUFFER_BYTES))
        return memoryview(self._buffer)[self._end :]

    def filled(self, count: int) -> None:
        """Note that `count` bytes were written to the room."""
        self._end += count

    def take(self) -> memoryview | None:
        """The body of the next whole message, valid until `room` is called; None when none is
        complete. Raises ProtocolError for one that is too long."""
        if self._end - self._start < _PREFIX:
            return None
        begin = self._start + _PREFIX
        end = begin + body_length(self._buffer, self._start, limit=self.limit)
        if end > self._end:
            return None
        self._start = end
        return memoryview(self._buffer)[begin:end]

    def _needed(self) -> int:
        """The length of the message that has begun, as far as it is known; `take` refuses one
        that is too long."""
        if self._end - self._start < _PREFIX:
            return _PREFIX
        length = int.from_bytes(self._buffer[self._start : self._start + _PREFIX], "little")
        return _PREFIX + min(length, self.limit)

    def _move(self, size: int) -> None:
        """Move what is waiting to the front of a buffer of at least this size, with some room."""
        waiting = self._end - self._start
        if waiting >= size:
            size = 2 * waiting  # whole messages are waiting to be taken
        buffer = bytearray(size)
        buffer[:waiting] = memoryview(self._buffer)[self._start : self._end]
        self._buffer, self._start, self._end = buffer, 0, waiting
