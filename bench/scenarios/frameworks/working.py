"""Workers beside the calling process, and what their tasks do: nothing, and count their calls.

A worker's process learns by its environment where its broker is, how many tasks it will run, and in
which file it notes then when the first and the last of them ran.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.results.figures import rate

BROKER, RESULTS, NOTE, COUNT = "BENCH_BROKER", "BENCH_RESULTS", "BENCH_NOTE", "BENCH_COUNT"
STOP_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.02


class NoteMissingError(Exception):
    """A worker ended, or was not done in time."""


class Calls:
    """Counts the calls of this process, for its environment's note. Thread-safe."""

    def __init__(self) -> None:
        self._left = self._count = int(os.environ.get(COUNT, "0"))
        self._lock = threading.Lock()
        self._first = 0.0

    def one(self) -> None:
        with self._lock:
            if self._left == self._count:
                self._first = time.monotonic()
            self._left -= 1
            if self._left:
                return
        note = Path(os.environ[NOTE])
        new = note.with_suffix(".new")
        new.write_text(f"{self._first} {time.monotonic()}")
        new.rename(note)


def at(broker: str, **more: str) -> dict[str, str]:
    """The environment of a worker's process at a broker."""
    # Celery refuses to be run by root unless it is told that this is meant.
    return {**os.environ, "C_FORCE_ROOT": "1", BROKER: broker, **more}


@contextmanager
def working(
    log: Path, command: Sequence[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker, which is ended at the end of the block."""
    with log.open("wb") as output:
        worker = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        yield worker
    finally:
        worker.terminate()
        try:
            worker.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def ran(
    directory: Path, command: Sequence[str], broker: str, count: int, seconds_max: float
) -> float:
    """The tasks that a worker runs a second, from the first to the last."""
    note, log = directory / "note", directory / "worker.log"
    environment = at(broker, **{NOTE: str(note), COUNT: str(count)})
    with working(log, command, environment) as worker:
        started = time.monotonic()
        while not note.exists():
            if worker.poll() is not None or time.monotonic() - started > seconds_max:
                text = log.read_text(errors="replace")[-2000:]
                raise NoteMissingError(f"{command[0]} did not run {count} tasks:\n{text}")
            time.sleep(LOOK_SECONDS)
    first, last = map(float, note.read_text().split())
    return rate(count - 1, last - first)


def pushed(push: Callable[[int], object], count: int, threads: int) -> float:
    """The tasks pushed a second, one at a time in each thread."""
    each = [
        threading.Thread(target=lambda: [push(number) for number in range(count // threads)])
        for _ in range(threads)
    ]
    started = time.perf_counter()
    for thread in each:
        thread.start()
    for thread in each:
        thread.join()
    return rate(count, time.perf_counter() - started)
