"""Sidecars as processes, for tests: started by the command, and ended by signals."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import pytest

from cassq.base.clock import SystemClock
from cassq.catalog.sqlite import SqliteCatalog
from cassq.client.backends.embedded import CATALOG
from tests.integration.deadlines import DEADLINE_SECONDS


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqliteCatalog]:
    """The one of `file:tmp_path/queues`, at which the sidecars of a test register."""
    (tmp_path / "queues").mkdir()
    with closing(SqliteCatalog(tmp_path / "queues" / CATALOG, SystemClock())) as catalog:
        yield catalog


class Served:
    """A process that runs `cassq sidecar serve`; it listens at a port of its own choice.
    files_max: its hard limit of open files; 0 for the test's own."""

    def __init__(
        self, data: Path, catalog: str, *options: str, name: str = "a", files_max: int = 0
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [
                *(("sh", "-c", f'ulimit -n {files_max} && exec "$@"', "sh") if files_max else ()),
                *(sys.executable, "-m", "cassq", "sidecar", "serve", "--json"),
                *("--data", str(data), "--catalog", catalog, "--zone", "z", "--name", name),
                *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        self._logged = b""
        found = self._line()
        if not found:
            self.errors = self._stream("stderr").read()
            self.code = self._process.wait(DEADLINE_SECONDS)
            self._close()
            raise StartError(self.code, self.errors)
        self.address: str = json.loads(found)["address"]
        self.http: str = json.loads(found)["http"]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def signal(self, signum: signal.Signals) -> None:
        self._process.send_signal(signum)

    def ended(self) -> tuple[int, str]:
        """Its exit code, and what it wrote to standard error."""
        _, errors = self._process.communicate(timeout=DEADLINE_SECONDS)
        return self._process.returncode, self._logged.decode() + errors

    def logged(self) -> str:
        """What it has written to standard error so far."""
        fd = self._stream("stderr").fileno()
        while _is_readable(fd, 0) and (piece := os.read(fd, 65536)):
            self._logged += piece
        return self._logged.decode()

    def narrow_log(self) -> None:
        """Let the pipe from its standard error take no more than a page."""
        fcntl.fcntl(self._stream("stderr").fileno(), fcntl.F_SETPIPE_SZ, 4096)

    def kill(self) -> None:
        if self.runs:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
        self._process.wait(DEADLINE_SECONDS)
        self._close()

    def get(self, path: str) -> tuple[int, str]:
        """The status and the body of a page."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=20) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode()

    def health(self) -> tuple[int, dict[str, Any]]:
        status, body = self.get("/health")
        return status, json.loads(body)

    def _line(self) -> str:
        stdout = self._stream("stdout")
        if not _is_readable(stdout.fileno(), DEADLINE_SECONDS):
            self.kill()
            pytest.fail("the sidecar did not say that it serves")
        return stdout.readline()

    def _stream(self, which: str) -> IO[str]:
        stream: IO[str] = getattr(self._process, which)
        return stream

    def _close(self) -> None:
        self._stream("stdout").close()
        self._stream("stderr").close()


class StartError(Exception):
    """The process ended before it served."""

    def __init__(self, code: int, errors: str) -> None:
        super().__init__(f"{code}: {errors}")
        self.code = code
        self.errors = errors


def _is_readable(fd: int, seconds: float) -> bool:
    """Whether there is something to read, or the end, within so many seconds. `select` would not
    take the descriptors of a process that has more than 1,024."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * seconds))
