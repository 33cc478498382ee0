"""Writing an extent on servers: the part that is the same for Cassandra and sidecars."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

from cassq.base.clock import Clock
from cassq.errors import BackendUnavailableError, PipeSealedError
from cassq.extents.port import ExtentWriter
from cassq.message.frames import Place


class ServerWriter(ExtentWriter):
    """The one writer that an extent has in its life; no append follows one that failed. closed:
    called with the pipe's id when it stops."""

    def __init__(self, pipe_id: str, clock: Clock, closed: Callable[[str], object]) -> None:
        self.pipe_id: str = pipe_id
        self._clock = clock
        self._on_close = closed
        self._end = Place(0, 0)
        self._size_bytes = 0
        self._dead = False
        self._closed = False
        self._sealed = False
        self._turn_wanted = False
        self.last_append_ms: int = clock.boot_ms()

    @property
    def end(self) -> Place:
        return self._end

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def append(self, frames: Sequence[tuple[bytes, bytes]], end_seq: int) -> Place:
        if self._dead:
            raise PipeSealedError(f"pipe {self.pipe_id} accepts no more frames")
        self._dead = True  # until it has succeeded
        self._end = end = self._write(frames, end_seq)
        # Checked after the end is set: `close` may have published this end as the pipe's last.
        if self._closed:
            raise BackendUnavailableError(
                f"pipe {self.pipe_id} was closed during an append", outcome_unknown=True
            )
        self._dead = False
        self._size_bytes += sum(len(header) + len(body) for header, body in frames)
        self.last_append_ms = self._clock.boot_ms()
        self._publish()
        return end

    def turn_wanted(self) -> bool:
        return self._turn_wanted

    def want_turn(self) -> None:
        """Note that another pusher in this process asks for the next turn."""
        self._turn_wanted = True

    def close(self) -> None:
        if not self._closed:
            self._closed = self._dead = True
            self._publish()
            self._on_close(self.pipe_id)

    @abc.abstractmethod
    def _write(self, frames: Sequence[tuple[bytes, bytes]], end_seq: int) -> Place:
        """Write frames; returns the place after them once they may be acknowledged."""

    @abc.abstractmethod
    def _publish(self) -> None:
        """Publish the end to readers, and whether this writer is closed, in the background."""
