"""A Spark cluster on this machine: a master and two workers, each on an address of its own, so that
a task can run on both at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from tests.integration.deadlines import eventually

SECONDS = 600
_HOME = Path(pyspark.__file__).parent
_DEPLOY = "org.apache.spark.deploy"


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The cluster's URL. folder: for its logs, and what its executors need."""
    log = folder / "master.log"
    # It takes a port that is free when it listens, which one that was looked for may not be then.
    processes = [_start(log, "master.Master", "--host", "127.0.0.1", "--port", "0")]
    try:
        eventually("a master", lambda: "New state: ALIVE" in _text(log), seconds=SECONDS)
        (url,) = _logged(log, r"Starting Spark master at (spark://\S+)")
        for number in (2, 3):
            where = ["--host", f"127.0.0.{number}", "--work-dir", str(folder / f"worker{number}")]
            size = ["--cores", "1", "--memory", "1g"]
            worker = folder / f"worker{number}.log"
            processes.append(_start(worker, "worker.Worker", *where, *size, url))
        # One that had no answer for a while asks again.
        eventually(
            "two workers",
            lambda: len(_logged(log, r"Registering worker ([\d.]+):")) == 2,
            seconds=SECONDS,
        )
        yield url
    finally:
        for process in reversed(processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _start(log: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A process of the cluster, in a group of its own, with its executors."""
    command = [str(_HOME / "bin/spark-class"), f"{_DEPLOY}.{name}", *arguments, "--webui-port", "0"]
    environment = {**os.environ, "SPARK_HOME": str(_HOME)}
    with log.open("wb") as out:
        return subprocess.Popen(
            command, env=environment, stdout=out, stderr=out, start_new_session=True
        )


def _logged(log: Path, pattern: str) -> set[str]:
    return set(re.findall(pattern, _text(log)))


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")
