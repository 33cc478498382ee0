"""The supervisor of `up`: keeps a cluster running and does what other shells ask of it."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from tests.servers.cluster import Cluster
from tests.servers.parts.errors import ServerFailedError
from tests.servers.registry import Entry, Message

_REQUEST_SECONDS_MAX = 10.0


def supervise(name: str, cluster: Cluster[Any], report: Callable[[Message], None]) -> None:
    """Start the cluster, report it, and serve until SIGINT, SIGTERM or a request to end.

    Whatever happens, nothing of the cluster is left: it ends with this process.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)
    entry = Entry(name)
    asker: socket.socket | None = None
    try:
        cluster.start()
        _publish(entry, cluster)
        report(_status(name, cluster))
        asker = _serve(entry, cluster)
    finally:
        cluster.stop()
        entry.close()
        if asker is not None:  # of the request to end: it is answered when all is gone
            _answer(asker, {"ended": name})


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def _serve(entry: Entry, cluster: Cluster[Any]) -> socket.socket:
    """Do one request after the other; return whoever asked for the end."""
    while True:
        asker, _ = entry.listener.accept()
        asker.settimeout(_REQUEST_SECONDS_MAX)
        try:
            with asker.makefile("rb") as lines:
                request = json.loads(lines.readline())
            if request.get("verb") == "down":
                return asker
            answer = _done(entry, cluster, request)
        except (ServerFailedError, ValueError, OSError) as error:
            answer = {"error": str(error)}
        _publish(entry, cluster)
        _answer(asker, answer)


def _done(entry: Entry, cluster: Cluster[Any], request: Message) -> Message:
    """Do what is asked, but for `down`."""
    verb, numbers = request.get("verb"), request.get("nodes", [])
    nodes = [cluster.node(number) for number in numbers]
    match verb:
        case "status":
            return _status(entry.name, cluster)
        case "mend":
            cluster.mend()
        case "cut":
            cluster.partition(*numbers)
        case "heal":
            cluster.heal()
        case "logs":
            return {"logs": "".join(node.logs() for node in nodes or cluster.nodes)}
        case "kill" | "pause" | "resume" | "restart":
            for node in nodes:
                getattr(node, verb)()
        case _:
            raise ValueError(f"no such verb: {verb}")
    return _status(entry.name, cluster)


def _status(name: str, cluster: Cluster[Any]) -> Message:
    return {"name": name, **cluster.status()}


def _publish(entry: Entry, cluster: Cluster[Any]) -> None:
    entry.write(_status(entry.name, cluster))


def _answer(asker: socket.socket, answer: Message) -> None:
    with contextlib.suppress(OSError):  # it did not wait for its answer
        asker.sendall(json.dumps(answer).encode() + b"\n")
    asker.close()
