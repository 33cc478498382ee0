"""The processes that consume on this machine: when one dies, its messages come again at once.

Each process that consumes lists its poppers in a file below the queues' directory, and locks the
file. The lock ends with the process, however that ends, and a fork does not inherit it. So a
process that can lock the file of another knows that the other is dead, and frees its claims. On a
Cassandra cluster claims end after `claim_timeout`.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import uuid
from contextlib import suppress
from pathlib import Path

from cassq.base.os_errors import translated
from cassq.client.client import Client
from cassq.consumer.dead_poppers import free_dead_popper

FOLDER = "consumers"
LOOK_SECONDS = 1.0
_NEW = ".new"


class ProcessRegistry:
    """Lists this process in a file of its own, and checks those of others. Thread-safe."""

    def __init__(self, directory: Path, client: Client) -> None:
        self._folder = directory / FOLDER
        self._client = client
        self._lock = threading.Lock()
        self._name = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._fd: int | None = None

    def add(self, queue: str, group: str, popper: str) -> None:
        """List a popper of this process; the first time, look for processes that have died."""
        with self._lock, translated("listing a consumer"):
            first = self._fd is None
            if self._fd is None:
                self._fd = self._open()
            os.write(self._fd, json.dumps([queue, group, popper]).encode() + b"\n")
        if first:
            self._client.runtime.add_maintenance(self.maintain, LOOK_SECONDS)
            self.maintain()

    def _open(self) -> int:
        """Create the file; it is locked before others see it."""
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{self._name}{_NEW}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.rename(self._folder / self._name)
        return fd

    def maintain(self) -> float:
        """Free the claims of dead processes; returns the seconds until the next check."""
        with suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                if path.suffix != _NEW and path.name != self._name:
                    self._free_if_dead(path)
        return LOOK_SECONDS

    def _free_if_dead(self, path: Path) -> None:
        try:
            # Closing a file gives up this process's locks on it; it has none on this one.
            file = path.open("r+b")
        except FileNotFoundError:
            return  # others were quicker
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return  # it lives
            for line in file.read().splitlines():
                self._free(*json.loads(line))
            path.unlink(missing_ok=True)

    def _free(self, queue: str, group: str, popper: str) -> None:
        ports = self._client.ports
        row = ports.catalog.queues.named(queue)
        if row is None:
            return
        for each in ports.catalog.queues.groups(row.id):
            if each.name == group and free_dead_popper(ports, row, each, popper):
                self._client.runtime.doorbell(row.id).ring()
