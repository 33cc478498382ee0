"""Drivers as processes of their own, to be told how to run, waited for, and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import cassq
from tests.spark.places import QUICK_JVM

ROOT = Path(__file__).parents[3]
COUNT = 2000
WRITE_ID = "the-write"
SECONDS = 600
# Two executors, each of which runs one task at a time in processes of its own.
CLUSTER = "local-cluster[2,1,1024]"
SHORT_LIVED = {"JAVA_TOOL_OPTIONS": QUICK_JVM}


def driver(
    master: str, queue: cassq.Queue, url: str, waits: str, *conf: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    """A driver that writes numbers."""
    arguments = [master, url, queue.name, WRITE_ID, str(COUNT), waits, *conf]
    return running("tests.spark.processes.driver", *arguments)


@contextmanager
def running(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A driver, with its JVM and Pythons in a process group of its own, killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            **SHORT_LIVED,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill(process)
        assert process.stdout is not None
        process.stdout.close()


def kill(process: subprocess.Popen[str]) -> None:
    """With all that belongs to it, if it is still there."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_to_the_end(master: str, queue: cassq.Queue, url: str, waits: str = "no", *conf: str) -> str:
    """What the driver printed."""
    with driver(master, queue, url, waits, *conf) as process:
        return process.communicate(timeout=SECONDS)[0]
