"""Celery's workers killed in every role: no task is lost, and poison ends as a dead letter."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cassq.kombu.brokers import broker_of
from tests.integration.celery import tasks
from tests.integration.celery.tasks import app
from tests.integration.celery.workers import WorkerProcess, connected
from tests.integration.deadlines import DEADLINE_SECONDS, eventually

pytestmark = [
    pytest.mark.embedded_only(reason="the worker's command opens a directory"),
    pytest.mark.long(reason="workers of Celery take seconds to start"),
]


@pytest.fixture
def home(url: str) -> Iterator[str]:
    """The URL of the queues, with the tests' app connected to it."""
    with connected(url):
        yield url


def lines(journal: Path) -> list[str]:
    return journal.read_text().splitlines() if journal.exists() else []


class Held:
    """A task that runs until its gate is opened."""

    def __init__(self, folder: Path) -> None:
        self.journal, self.gate = folder / "journal", folder / "gate"
        self.result: Any = tasks.waits.delay(str(self.journal), str(self.gate))

    def begun(self, times: int = 1) -> int:
        """Wait until it has begun that often; the process that runs it."""
        eventually("it begins", lambda: len(lines(self.journal)) >= times)
        return int(lines(self.journal)[-1].split()[0])

    def finish(self) -> None:
        self.gate.touch()
        assert self.result.get(timeout=DEADLINE_SECONDS)
        assert lines(self.journal)[-1].endswith("True")


@pytest.mark.parametrize("whole", [False, True])
def test_a_task_comes_again_when_its_worker_is_killed(
    home: str, tmp_path: Path, whole: bool
) -> None:
    with WorkerProcess(home, tmp_path / "one", "--concurrency", "1") as one:
        one.ready()
        held = Held(tmp_path)
        held.begun()
        with WorkerProcess(home, tmp_path / "two", "--concurrency", "1", name="two") as two:
            two.ready()
            one.kill(whole=whole)
            held.begun(2)  # long before the claim timeout of 30 seconds: nobody kept it alive
            held.finish()
            assert two.stop() == 0


def test_a_task_comes_again_when_its_child_is_killed(home: str, tmp_path: Path) -> None:
    with WorkerProcess(home, tmp_path / "one", "--concurrency", "1") as worker:
        worker.ready()
        held = Held(tmp_path)
        os.kill(held.begun(), signal.SIGKILL)
        held.begun(2)
        held.finish()
        assert worker.stop() == 0


def test_a_task_that_kills_its_worker_ends_as_a_dead_letter(home: str, tmp_path: Path) -> None:
    broker_of(home).client.create_queue("celery", max_deliveries=3)
    with WorkerProcess(home, tmp_path / "one", "--concurrency", "2") as worker:
        worker.ready()
        journal = tmp_path / "poison"
        tasks.poison.delay(str(journal))
        letters = broker_of(home).client.queue("celery").dead_letters()

        def is_dead() -> bool:
            tasks.echo.delay(1)  # others succeed, so the queue is not sick
            return bool(letters.peek())

        eventually("it is a dead letter", is_dead)
        assert len(lines(journal)) == 3
        assert tasks.add.delay(1, 2).get(timeout=DEADLINE_SECONDS) == 3


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_other_pools_run_tasks(home: str, tmp_path: Path, pool: str) -> None:
    with WorkerProcess(home, tmp_path / "one", "--concurrency", "4", "--pool", pool) as worker:
        worker.ready()
        numbers = [tasks.add.delay(each, 1) for each in range(40)]
        got = [each.get(timeout=DEADLINE_SECONDS) for each in numbers]
        assert got == list(range(1, 41))
        assert tasks.echo.apply_async((1,), countdown=0.2).get(timeout=DEADLINE_SECONDS) == 1
        inspect = app.control.inspect(["one@test"], timeout=DEADLINE_SECONDS)
        assert inspect.ping() == {"one@test": {"ok": "pong"}}
        assert worker.stop() == 0
