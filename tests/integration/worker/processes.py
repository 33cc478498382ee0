"""`cassq worker` as a process of a test, with a module of handlers that do what payloads say."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import cassq
from tests.integration.deadlines import DEADLINE_SECONDS, eventually

ROOT = Path(__file__).resolve().parents[3]

TASKS = '''
import asyncio, os, re, signal, time

def note(kind, message):
    line = f"{kind} {message.payload.decode()} {message.attempts} {os.getpid()}\\n"
    fd = os.open("journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)

def handle(message):
    """What to do is the payload's first word."""
    note("begun", message)
    match message.payload.decode().split("-")[0]:
        case "gate":
            open("gate").close()  # waits until somebody has opened it for writing
        case "raise":
            raise ValueError("no such address")
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(0)
        case "busy":
            time.sleep(0.3)
        case "ruin":
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        case "hold":
            re.match(r"(a+)+$", "a" * 60 + "b")  # never lets another thread run
    note("done", message)

async def handle_async(message):
    """The same in an event loop."""
    note("begun", message)
    match message.payload.decode().split("-")[0]:
        case "raise":
            raise ValueError("no such address")
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "busy":
            await asyncio.sleep(0.3)
        case "ruin":
            await asyncio.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            await asyncio.Event().wait()
        case "stubborn":
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue
        case "hold":
            open("gate").close()  # blocks its event loop
        case "nack" if message.attempts == 1:
            await message.nack(delay=0)
    note("done", message)
'''


class Line(NamedTuple):
    """What a handler noted: that it began, or was done with, a delivery."""

    kind: str
    payload: str
    attempts: int
    pid: int


class Home:
    """A directory with the module `tasks`, the queues, and what handlers noted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"file://{directory / 'queues'}"
        (directory / "tasks.py").write_text(TASKS)
        os.mkfifo(directory / "gate")

    @property
    def lines(self) -> list[Line]:
        journal = self.directory / "journal"
        if not journal.exists():
            return []
        found = [line.split() for line in journal.read_text().splitlines()]
        return [Line(kind, what, int(attempts), int(pid)) for kind, what, attempts, pid in found]

    def noted(self, kind: str) -> Counter[str]:
        """How often handlers noted this, by payload."""
        return Counter(line.payload for line in self.lines if line.kind == kind)

    def until(self, kind: str, count: int, payload: str = "") -> list[Line]:
        """Wait until handlers noted this so often, of this payload or of all."""

        def those() -> list[Line]:
            found = [line for line in self.lines if line.kind == kind]
            return [line for line in found if not payload or line.payload == payload]

        eventually(f"{count} {kind} {payload}", lambda: len(those()) >= count)
        return those()

    def open_gate(self, count: int) -> None:
        """Let `count` handlers that come to the gate go on, and be done."""
        with (self.directory / "gate").open("w"):
            self.until("done", count)


class WorkerProcess:
    """One run of `cassq worker`; ended with its children at the end of a `with` block. verb: of
    another command that runs processes, in place of `worker` and the handler."""

    def __init__(
        self,
        home: Home,
        *options: str,
        handler: str = "tasks:handle",
        verb: Sequence[str] = (),
        **environ: str,
    ) -> None:
        self.home = home
        number = len(list(home.directory.glob("errors-*")))
        self._errors = home.directory / f"errors-{number}"
        words = verb or ("worker", handler)
        command = [sys.executable, "-m", "cassq", *words, "--url", home.url, *options]
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=home.directory,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environ},
                stderr=errors,
                stdin=subprocess.DEVNULL,
            )
        self.seen: set[int] = set()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def errors(self) -> str:
        """What it wrote on standard error so far."""
        return self._errors.read_text()

    @property
    def logged(self) -> list[dict[str, Any]]:
        """The lines of log that are JSON."""
        lines = [line for line in self.errors.splitlines() if line.startswith("{")]
        return [json.loads(line) for line in lines]

    def children(self) -> list[int]:
        """The process ids of its processes."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        try:
            found = [int(pid) for pid in children.read_text().split()]
        except OSError:
            return []
        self.seen |= set(found)
        return found

    def until_gone(self, pid: int) -> None:
        """Wait until the supervisor has seen that a process of it has ended."""
        eventually(f"{pid} has ended", lambda: pid not in self.children())

    def until_logged(self, text: str, count: int = 1) -> None:
        eventually(f"{text!r} in {self.errors}", lambda: self.errors.count(text) >= count)

    def signal(self, signum: signal.Signals) -> None:
        self._process.send_signal(signum)

    def wait(self) -> int:
        """Its exit code, once it and its processes have ended."""
        self.children()
        code = self._process.wait(DEADLINE_SECONDS)
        eventually("its processes end", lambda: not any(map(is_running, self.seen)))
        return code

    def terminate(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def get(self, path: str) -> tuple[int, str]:
        """What it serves over HTTP: the status and the text."""
        self.until_logged("health at http")
        at = self.errors.split("health at ")[1].split("/health")[0]
        try:
            with urllib.request.urlopen(f"{at}{path}", timeout=DEADLINE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.children()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(DEADLINE_SECONDS)
        for pid in self.seen:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


def check_notices(home: Home, start: Callable[[dict[str, str]], WorkerProcess]) -> None:
    """Check that a command tells a service manager that it serves, goes on and stops. start: the
    command, with more variables of its environment."""
    path = home.directory / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(DEADLINE_SECONDS)
        with start({"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"}) as process:
            heard = {manager.recv(100)}
            while not {b"READY=1", b"WATCHDOG=1"} <= heard:
                heard.add(manager.recv(100))
            assert len(process.children()) == 1
            process.signal(signal.SIGTERM)
            while b"STOPPING=1" not in heard:
                heard.add(manager.recv(100))
            assert process.wait() == 0
    assert heard == {b"READY=1", b"WATCHDOG=1", b"STOPPING=1"}


def is_running(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def counts(queue: cassq.Queue) -> tuple[int, int, int, int]:
    """Committed, waiting, pending and dead."""
    group = queue.stats().groups["default"]
    return group.committed, group.waiting, group.pending, group.dead
