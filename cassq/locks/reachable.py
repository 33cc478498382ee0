"""Checks whether anything listens at an address: a server that is down is not one that refuses."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable

_SECONDS_MAX = 1.0


def any_reachable(hosts: Iterable[str]) -> bool:
    """Whether any of these `host:port` takes a connection. Cost: at most a second per host."""
    for each in hosts:
        host, _, port = each.rpartition(":")
        with contextlib.suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), _SECONDS_MAX).close()
            return True
    return False
