"""Notices to systemd, by sd_notify(3): that the service is ready, is alive, or is stopping.

Nothing is sent unless the service manager asked for it, by NOTIFY_SOCKET in the environment.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

logger: logging.Logger = logging.getLogger("cassq")


class Notices:
    """Sends notices. environ: the environment, in which the service manager asks for them. every:
    how many seconds may pass between two calls of `alive`; None: no watchdog."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]  # an abstract name
        watched = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = environ.get("WATCHDOG_USEC", "")
        self._watchdog = watched and microseconds.isdecimal() and int(microseconds) > 0
        # Half of what is allowed, as sd_watchdog_enabled(3) advises.
        self.every: float | None = int(microseconds) / 2e6 if self._watchdog else None

    def ready(self) -> None:
        """The service takes messages."""
        self._send("READY=1")

    def stopping(self) -> None:
        """The service was asked to end."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Reset the watchdog, if there is one: it waits twice `every` seconds for the next call."""
        if self.every is not None:
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.connect(self._address)
                sender.sendall(text.encode())
        except OSError as exc:
            logger.warning("the service manager cannot be notified: %s", exc)
