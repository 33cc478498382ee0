"""Wakes the thread that delivers messages, through a pipe, so that event loops can wait on it."""

from __future__ import annotations

import os
import select
from contextlib import suppress


class Signal:
    """Any thread sets it; one thread waits for it and clears it. fd: readable while it is set."""

    def __init__(self) -> None:
        self.fd: int
        self.fd, self._writer = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._writer, False)
        self._set = False
        self._closed = False

    def set(self) -> None:
        if not (self._set or self._closed):
            self._set = True
            with suppress(OSError):  # full, so it is readable; or closed this moment
                os.write(self._writer, b"!")

    def clear(self) -> None:
        """Clear it; the caller must look for messages afterwards. Later messages set it again."""
        with suppress(OSError):  # nothing is there
            os.read(self.fd, 4096)
        self._set = False

    def wait(self, seconds: float) -> None:
        """Return when it is set, or after `seconds`. It stays set."""
        if not self._closed:
            poll = select.poll()
            poll.register(self.fd, select.POLLIN)
            poll.poll(max(0, round(seconds * 1000)))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self.fd)
            os.close(self._writer)

    def __del__(self) -> None:
        # kombu drops connections without closing them.
        self.close()
