"""One server process: started, awaited, killed, paused, resumed and restarted, always by its id."""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from cassq.base.clock import Stopwatch
from tests.servers.parts.errors import ServerFailedError

START_SECONDS_MAX = 180.0
STOP_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.05
_LOG_TAIL_LINES = 40
_KEEPER = Path(__file__).with_name("keeper.py")
# These would change the servers behind our back; Java also tells of the first in every log.
_NOT_INHERITED = {"JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH"}


class Node(abc.ABC):
    """One server at an address of its own, with its files below `home`.

    The data outlives the process: a node that was killed or stopped starts with it again.
    """

    def __init__(self, name: str, address: str, home: Path) -> None:
        self.name = name
        self.address = address
        self.home = home
        # What its command begins with, such as `nsenter` where it has a network of its own.
        self.entry: list[str] = []
        self._keeper: subprocess.Popen[bytes] | None = None
        self._pid = 0

    # --- what each kind of server says ----------------------------------------------------------

    @abc.abstractmethod
    def configure(self) -> None:
        """Write the configuration below `home`; done before each start."""

    @abc.abstractmethod
    def command(self) -> list[str]:
        """The server's command line."""

    @abc.abstractmethod
    def ready(self) -> bool:
        """Whether a client's real request is answered by now."""

    def log_files(self) -> list[Path]:
        """The files that the server writes its log to."""
        return [self.home / "output.log"]

    # --- starting -------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start the process without waiting for it. Raises ServerFailedError if it runs."""
        if self.alive:
            raise ServerFailedError(f"{self.name} runs already, as process {self.pid}")
        self.home.mkdir(parents=True, exist_ok=True)
        self.configure()
        with (self.home / "output.log").open("ab") as log:
            self._keeper, self._pid = keep([*self.entry, *self.command()], self.home, log)
        if not self._pid:
            raise ServerFailedError(f"{self.name} was not started:\n{self.log_tail()}")

    def await_ready(self, seconds: float = START_SECONDS_MAX) -> None:
        """Return when it answers a client. Raises ServerFailedError with the end of its log."""
        self.await_that("answers", self.ready, seconds)

    def await_that(self, what: str, condition: Callable[[], bool], seconds: float) -> None:
        """Ask until the condition holds, as long as the process lives and there is time."""
        watch = Stopwatch()
        while True:
            # Life is looked at last: what answered must have been this process.
            if condition() and self.alive:
                return
            if not self.alive:
                raise ServerFailedError(f"{self.name} ended:\n{self.log_tail()}")
            if watch.seconds() > seconds:
                raise ServerFailedError(
                    f"not within {seconds:.0f} s: {self.name} {what}\n{self.log_tail()}"
                )
            pause(_POLL_SECONDS)

    def start(self, seconds: float = START_SECONDS_MAX) -> None:
        """Start it with the data it has, and wait until it answers."""
        self.spawn()
        self.await_ready(seconds)

    def restart(self, seconds: float = START_SECONDS_MAX) -> None:
        """Start it with the same data, after a polite stop if it runs, and wait for it."""
        self.stop()
        self.start(seconds)

    # --- ending, pausing ------------------------------------------------------------------------

    def kill(self) -> None:
        """End it at once (SIGKILL), as when its machine loses power but for what the kernel holds.

        Harmless when it does not run.
        """
        self._signal(signal.SIGKILL)
        self._gone(STOP_SECONDS_MAX)

    def stop(self) -> None:
        """End it politely (SIGTERM), then for certain. Harmless when it does not run."""
        self._signal(signal.SIGCONT)  # a paused one would not hear of it
        self._signal(signal.SIGTERM)
        try:
            self._gone(STOP_SECONDS_MAX)
        except ServerFailedError:
            self.kill()

    def pause(self) -> None:
        """Stop its clock (SIGSTOP): connections stay open and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)
        # The kernel stops one thread after the other; only now is it certain that all stand.
        self.await_that("stands still", lambda: self.state == "paused", STOP_SECONDS_MAX)

    def resume(self) -> None:
        """Let it run on (SIGCONT); harmless when it was not paused."""
        os.kill(self.pid, signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process is gone."""
        with contextlib.suppress(ProcessLookupError):  # it may end between the two
            if self.alive:
                os.kill(self._pid, number)

    def _gone(self, seconds: float) -> None:
        if self._keeper is None:
            return
        try:
            self._keeper.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise ServerFailedError(f"{self.name} did not end within {seconds:.0f} s") from error

    # --- looking --------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the process is there, be it paused or not."""
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def pid(self) -> int:
        """The server's process id. Raises ServerFailedError when it does not run."""
        if not self.alive:
            raise ServerFailedError(f"{self.name} does not run")
        return self._pid

    @property
    def state(self) -> str:
        """`running`, `paused` or `down`."""
        if not self.alive:
            return "down"
        return "paused" if self._process("State").startswith(("T", "t")) else "running"

    @property
    def memory_mib(self) -> int:
        """Resident memory in MiB; 0 when it does not run."""
        return int((self._process("VmRSS") or "0").split()[0]) // 1024

    def _process(self, field: str) -> str:
        """A line of what the kernel tells of the process; "" when it is gone."""
        try:
            found = Path(f"/proc/{self.pid}/status").read_text()
        except (OSError, ServerFailedError):
            return ""
        lines = dict(line.split(":", 1) for line in found.splitlines() if ":" in line)
        return lines.get(field, "").strip()

    def logs(self) -> str:
        """All that it logged since its first start."""
        found = [path for path in self.log_files() if path.exists()]
        return "".join(path.read_text(errors="replace") for path in found)

    def log_tail(self) -> str:
        """The last lines of each log, for a message."""
        tail: list[str] = []
        for path in self.log_files():
            if path.exists():
                lines = path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
                tail += [f"--- {path.name} of {self.name}", *lines]
        return "\n".join(tail)

    def status(self) -> dict[str, Any]:
        """What `status` shows of it."""
        shown: dict[str, Any] = {"name": self.name, "address": self.address, "state": self.state}
        if self.alive:
            shown |= {"pid": self._pid, "memory_mib": self.memory_mib}
        return shown


def keep(command: list[str], home: Path, log: IO[bytes]) -> tuple[subprocess.Popen[bytes], int]:
    """Run a command that ends with this process: its keeper, and its own id, 0 if it did not start.

    The command's output goes to `log`.
    """
    # A session of its own: Ctrl-C reaches whoever started it alone, who ends it.
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_KEEPER), str(os.getpid()), *command],
        cwd=home,
        env={k: v for k, v in os.environ.items() if k not in _NOT_INHERITED},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
    )
    assert keeper.stdout is not None
    with keeper.stdout as pipe:
        return keeper, int(pipe.readline() or 0)


def pause(seconds: float) -> None:
    """The time between two looks at a server."""
    threading.Event().wait(seconds)
