"""Processes that are one server together: started beside one another, and ended together.

`python -m bench.servers.members FILE` runs the commands of a JSON file until it is told to end
(SIGTERM), or until one of them ends by itself. One that somebody killed stays away until all are
asked for again (SIGUSR1): that is how a failover is tried.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from bench.servers.server import LOG_TAIL_CHARS, POLL_SECONDS, Server

ROOT = Path(__file__).parents[2]
# Less than what whoever started this one waits for it.
STOP_SECONDS_MAX = 8.0


def together(server: Server, commands: Mapping[str, Sequence[str]]) -> list[str]:
    """The one command that runs all of these, each with its log in the server's home; a single one
    is run as it is."""
    if len(commands) == 1:
        return list(*commands.values())
    server.environment = {**server.environment, "PYTHONPATH": str(ROOT)}
    file = server.home / "members.json"
    file.write_text(json.dumps(commands))
    return [sys.executable, "-m", "bench.servers.members", str(file)]


class Members:
    """Some commands and their processes; logs go to `home`."""

    def __init__(self, home: Path, commands: Mapping[str, Sequence[str]]) -> None:
        self._home = home
        self._commands = commands
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start those that do not run."""
        for name, command in self._commands.items():
            process = self._processes.get(name)
            if process is None or process.poll() is not None:
                with self._log(name).open("ab") as log:
                    self._processes[name] = subprocess.Popen(
                        command,
                        cwd=self._home,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )

    def ended(self) -> str | None:
        """One that ended by itself, and what it told last; those that were killed do not count."""
        for name, process in self._processes.items():
            code = process.poll()
            if code is not None and code != -signal.SIGKILL:
                found = self._log(name).read_text(errors="replace")[-LOG_TAIL_CHARS:]
                return f"{name} ended with {code}:\n{found}"
        return None

    def stop(self) -> None:
        """End all by their process ids: politely, then for certain."""
        for process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _log(self, name: str) -> Path:
        return self._home / f"{name}.log"


def main(file: Path) -> None:
    members = Members(file.parent, json.loads(file.read_text()))
    asked, over = True, False

    def end(_signal: int, _frame: FrameType | None) -> None:
        # Not by an exception: one that was being started would be nobody's, and live on.
        nonlocal over
        over = True

    def ask(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGUSR1, ask)
    try:
        found = None
        while not over and (found := members.ended()) is None:
            if asked:
                asked = False
                members.start()
            time.sleep(POLL_SECONDS)
        sys.exit(found)
    finally:
        # A second request must not keep the first from being done.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        members.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
