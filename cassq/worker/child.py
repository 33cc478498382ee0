"""A process of a worker, as its supervisor sees it.

Each is a new process, not a fork: it opens its own client, loads the handler's module as it is now,
and shares no thread or lock with the supervisor. It has its own process group, so a terminal's
Ctrl-C reaches only the supervisor, which then ends it.

It reads what to do from its standard input, which stays open as long as the supervisor lives. It
inherits the file descriptors that its orders list under "inherits".
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from cassq.worker.journal import nothing
from cassq.worker.reports import BEAT, DESCRIBED, ENDED, FAILED, LEAVING, READY, ReportReader


class Child:
    """One process. began_ms, reported_ms: boot time of its start, and of its last report.

    orders: what it reads first. popper: the name of its popper, once it takes messages. facts: from
    its last "beat" report. leaving: why another process replaces it. failed: the error that kept it
    from starting. ended: whether it settled or gave back all its messages. files: the sources that
    it loaded. terminated_ms: when it was asked to end. described: its report about its handler.
    """

    def __init__(self, command: Sequence[str], orders: Mapping[str, Any], now_ms: int) -> None:
        read_end, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                pass_fds=(write_end, *orders.get("inherits", ())),
                process_group=0,
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self._reader = ReportReader(read_end)
        self.orders: Mapping[str, Any] = orders
        self.began_ms = self.reported_ms = now_ms
        self.popper: str = ""
        self.facts: Mapping[str, Any] = {**nothing(), "running": 0, "stuck": 0}
        self.leaving: str = ""
        self.described: Mapping[str, Any] | None = None
        self.failed: Mapping[str, Any] | None = None
        self.ended: bool = False
        self.files: dict[str, list[int]] = {}
        self.terminated_ms: int | None = None
        self.killed: str = ""  # why the supervisor killed it
        assert self._process.stdin is not None
        try:
            line = json.dumps({**orders, "report_fd": write_end}).encode() + b"\n"
            self._process.stdin.write(line)  # it is short, and the pipe is empty
        except BrokenPipeError:
            return  # it has ended already; the supervisor sees that next

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def fd(self) -> int | None:
        """The descriptor to wait on for its reports; None when it is closed."""
        return self._reader.fd

    @property
    def is_ready(self) -> bool:
        """Whether it takes messages."""
        return bool(self.popper) and not self.leaving

    def read_reports(self, now_ms: int) -> None:
        """Read what it has reported since the last call."""
        for report in self._reader.read():
            self.reported_ms = now_ms
            self.files.update(report.get("files", {}))
            match report["report"]:
                case kind if kind == READY:
                    self.popper = report["popper"]
                case kind if kind == BEAT:
                    self.facts = report["facts"]
                case kind if kind == LEAVING:
                    self.leaving = report["why"]
                case kind if kind == DESCRIBED:
                    self.described = report
                case kind if kind == FAILED:
                    self.failed = report
                case kind if kind == ENDED:
                    self.facts, self.ended = report["facts"], True

    def exit_code(self) -> int | None:
        """Its exit code, as `subprocess.Popen.returncode`; None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait until it has ended; returns its exit code."""
        return self._process.wait()

    def terminate(self, now_ms: int) -> None:
        """Ask it to end: SIGTERM, once."""
        if self.terminated_ms is None:
            self.terminated_ms = now_ms
            self._process.terminate()

    def kill(self, why: str) -> None:
        """End it at once."""
        self.killed = self.killed or why
        self._process.kill()

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        self._reader.close()
        if self._process.stdin is not None:
            self._process.stdin.close()


def how(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
