"""The `cassq` command as a process: for tests of what only processes do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_SECONDS = 120.0


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: bytes
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Runs commands in a directory of their own; `url` is where their queues are."""

    def __init__(self, directory: Path, url: str = "") -> None:
        self.directory = directory
        self.data = directory / "data"
        self.url = url or f"file://{self.data}"
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return {**os.environ, "PYTHONPATH": path, "CASSQ_URL": self.url, "LC_ALL": "C.UTF-8"}

    def run(
        self, *words: str | Path, stdin: bytes = b"", code: int | None = 0, **more: Any
    ) -> Done:
        """Run a command to its end; it must end with `code`, unless that is None."""
        process = self.start(*words, stderr=subprocess.PIPE, **more)
        out, err = process.communicate(stdin, timeout=PATIENCE_SECONDS)
        done = Done(process.returncode, out or b"", (err or b"").decode())
        assert code is None or done.code == code, done
        return done

    def start(
        self,
        *words: str | Path,
        stdin: int | IO[bytes] = subprocess.PIPE,
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a command; it is killed with the test at the latest."""
        process = subprocess.Popen(
            [sys.executable, "-m", "cassq", *map(str, words)],
            cwd=self.directory,
            env={**self.environment, **(environment or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            bufsize=0,
            **more,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
