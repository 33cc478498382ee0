"""Whether anybody listens at an address: to tell a server that is gone from one that refuses."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable

_SECONDS_MAX = 1.0


def any_reachable(hosts: Iterable[str]) -> bool:
    """Whether one of these, each `host:port`, takes a connection. Cost: a second a host at most."""
    for each in hosts:
        host, _, port = each.rpartition(":")
        with contextlib.suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), _SECONDS_MAX).close()
            return True
    return False
