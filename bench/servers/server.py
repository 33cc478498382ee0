"""A server of the comparison: found, started, awaited, and ended by its process id."""

from __future__ import annotations

import abc
import os
import pwd
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
POLL_SECONDS = 0.05
LOG_TAIL_CHARS = 2_000


class MissingServerError(Exception):
    """A server or the client library for it is missing; the message says what to install."""


class ServerFailedError(Exception):
    """A server ended, or did not answer in time, although it is installed."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on at this moment."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """As many, all different."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def accepts(port: int) -> bool:
    """Whether something accepts connections on a port of 127.0.0.1."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def unprivileged_user(*wanted: str) -> str | None:
    """The user a server runs as: None for oneself; root takes the first of `wanted` there is."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    for name in (*wanted, "nobody"):
        if name in known:
            return name
    raise MissingServerError("no unprivileged user to run the server as")


class Server(abc.ABC):
    """One server process with its data below `home`; a context manager that always ends it."""

    name: ClassVar[str]
    ready_seconds_max: ClassVar[float] = READY_SECONDS_MAX
    user: str | None = None

    def __init__(self, home: Path) -> None:
        self.home = home
        self.address = ""
        # Variables that only the server is to have.
        self.environment: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @abc.abstractmethod
    def find(self) -> None:
        """Look for all that is needed; raise MissingServerError with what to install."""

    @abc.abstractmethod
    def prepare(self) -> list[str]:
        """Write the configuration, set `address`, and return the command line of the server."""

    @abc.abstractmethod
    def ready(self) -> bool:
        """Whether a client's real request is answered by now."""

    @abc.abstractmethod
    def version(self) -> str:
        """Name and version as the results give them."""

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailedError(f"{self.name} was not started")
        return self._process.pid

    def start(self) -> None:
        """Start the process and wait until it answers."""
        self.find()
        self.home.mkdir(parents=True, exist_ok=True)
        command = self.prepare()
        with (self.home / "output.log").open("wb") as log:
            # A session of its own: Ctrl-C reaches the comparison alone, which ends its servers.
            self._process = subprocess.Popen(
                command,
                cwd=self.home,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                user=self.user,
                group=None if self.user is None else pwd.getpwnam(self.user).pw_gid,
                extra_groups=None if self.user is None else [],
                start_new_session=True,
            )
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the process by its id: politely, then for certain. Harmless when it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _await_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self.ready_seconds_max
        while not self.ready():
            if self._process.poll() is not None:
                raise ServerFailedError(f"{self.name} ended while starting:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise ServerFailedError(
                    f"{self.name} did not answer within {self.ready_seconds_max:.0f} s:\n"
                    f"{self._log_tail()}"
                )
            time.sleep(POLL_SECONDS)

    def _log_tail(self) -> str:
        log = self.home / "output.log"
        return log.read_text(errors="replace")[-LOG_TAIL_CHARS:] if log.exists() else ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
