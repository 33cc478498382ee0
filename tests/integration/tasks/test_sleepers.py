"""A million calls that wait for their time: a worker holds none of them."""

from __future__ import annotations

import pytest

from cassq.tasks import App
from tests.integration.gateway.test_idle_polls import memory_bytes
from tests.integration.worker.processes import Home, WorkerProcess, home

__all__ = ["home"]

pytestmark = [
    pytest.mark.embedded_only(reason="the command opens a directory"),
    pytest.mark.long(reason="it pushes a million calls"),
]

CALLS, TOGETHER = 1_000_000, 100
GROWTH_BYTES_MAX = 8 * 1024 * 1024

JOBS = """
from cassq.tasks import App, current
from tasks import note

app = App({url!r})

@app.task(name="do")
def do(number):
    note("done", current().message)
"""


def memory(worker: WorkerProcess) -> int:
    """Bytes that its one process has in memory."""
    (pid,) = worker.children()
    return memory_bytes(pid)


def test_a_worker_keeps_its_memory_whatever_sleeps(home: Home) -> None:
    """And the first call that is due runs, before a million that are not."""
    (home.directory / "jobs.py").write_text(JOBS.replace("{url!r}", repr(home.url)))
    with App(home.url) as app:
        do = app.task(name="do")(lambda number: None)
        do.push(-1)
        with WorkerProcess(home, "--processes", "1", handler="jobs:app") as worker:
            home.until("done", 1)
            before = memory(worker)
            worker.terminate()
        for first in range(0, CALLS, TOGETHER):
            later = do.options(delay=3600 + 2 * first)  # up to 23 days
            later.push_many([(number,) for number in range(first, first + TOGETHER)])
        with WorkerProcess(home, "--processes", "1", handler="jobs:app") as worker:
            do.push(-2)
            do.options(delay=1).push(-3)
            home.until("done", 3)
            grown = memory(worker) - before
            assert grown < GROWTH_BYTES_MAX, f"a worker has {grown:,} bytes more"
            worker.terminate()
        stats = app.client.queue("tasks").stats().groups["default"]
        assert (stats.committed, stats.delayed) == (3, CALLS)
