"""Celery's workers and beats killed in every role: no task is lost, and poison ends as a dead
letter."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kombu.common import Broadcast

import cassq
from cassq.kombu.batches import batch
from cassq.kombu.brokers import broker_of
from cassq.kombu.envelopes import unpacked
from cassq.kombu.options import options_of
from tests.integration.celery import tasks
from tests.integration.celery.tasks import app
from tests.integration.celery.workers import WorkerProcess, connected
from tests.integration.deadlines import DEADLINE_SECONDS, eventually
from tests.integration.stage import last_due_ms

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


@pytest.fixture
def long_claims(home: str) -> cassq.Queue:
    """The queue of the tasks; what comes again does so because its worker is seen to be gone."""
    return broker_of(home).client.create_queue("celery", claim_timeout=3600)


@pytest.mark.parametrize(
    ("pool", "whole"),
    [("prefork", False), ("prefork", True), ("threads", True), ("solo", True), ("gevent", True)],
)
def test_a_task_comes_again_at_once_when_its_worker_is_killed(
    home: str, long_claims: cassq.Queue, tmp_path: Path, pool: str, whole: bool
) -> None:
    options = ["--concurrency", "1", "--pool", pool]
    with WorkerProcess(home, tmp_path / "one", *options) as one:
        one.ready()
        held = Held(tmp_path)
        held.begun()
        with WorkerProcess(home, tmp_path / "two", *options, name="two") as two:
            two.ready()
            one.kill(whole=whole)
            held.begun(2)
            held.finish()
            assert two.stop() == 0


def test_no_task_is_lost_when_workers_are_killed_at_work(
    home: str, long_claims: cassq.Queue, tmp_path: Path
) -> None:
    count, journal = 600, tmp_path / "journal"
    with WorkerProcess(home, tmp_path / "stays", "--concurrency", "1", name="stays") as stays:
        stays.ready()
        for number in range(count):
            tasks.marks.delay(str(journal), number)
            if number % 200 == 50:
                with WorkerProcess(home, tmp_path / "dies", name=f"dies{number}") as dies:
                    dies.ready()
                    for more in range(3):
                        tasks.marks.delay(str(journal), count + number + more)
                    dies.kill(whole=True)
        eventually("all have run", lambda: {*range(count)} <= {*map(int, lines(journal))})
        assert stays.stop() == 0
    assert long_claims.audit().findings == []


def test_a_claim_lives_as_long_as_its_worker(home: str, tmp_path: Path) -> None:
    queue = broker_of(home).client.create_queue("celery", claim_timeout=1)
    options = ["--concurrency", "1"]
    with (
        WorkerProcess(home, tmp_path / "one", *options) as one,
        WorkerProcess(home, tmp_path / "two", *options, name="two") as two,
    ):
        one.ready()
        two.ready()
        held = Held(tmp_path)
        held.begun()
        client = broker_of(home).client
        begun_ms, due_ms = client.ports.catalog.now_ms(), partial(last_due_ms, client, queue)
        eventually("it was kept past several claim timeouts", lambda: due_ms() > begun_ms + 4000)
        held.gate.touch()
        assert held.result.get(timeout=DEADLINE_SECONDS)
        assert len(lines(held.journal)) == 1
        assert (one.stop(), two.stop()) == (0, 0)


def test_the_most_urgent_tasks_run_first(home: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    for priority in (0, 9, 4):
        tasks.marks.apply_async((str(journal), priority), priority=priority)
    with WorkerProcess(home, tmp_path / "one", "--pool", "solo", "-Ofair") as worker:
        worker.ready()
        eventually("all have run", lambda: len(lines(journal)) == 3)
        assert worker.stop() == 0
    assert lines(journal) == ["9", "4", "0"]


def test_each_worker_runs_what_is_broadcast_and_ends_on_command(home: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    options = {"CASSQ_TEST_BROADCAST": "1"}
    with (
        WorkerProcess(home, tmp_path / "one", "--pool", "solo", **options) as one,
        WorkerProcess(home, tmp_path / "two", "--pool", "solo", name="two", **options) as two,
    ):
        one.ready()
        two.ready()
        everyone = Broadcast("everyone")
        tasks.marks.apply_async((str(journal), 1), exchange=everyone.exchange, routing_key="x")
        eventually("both have run it", lambda: lines(journal) == ["1", "1"])
        app.control.shutdown(destination=["one@test"])
        assert one.process.wait(DEADLINE_SECONDS) == 0
        assert two.stop() == 0


def test_a_rate_limit_holds_tasks_back(home: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with WorkerProcess(home, tmp_path / "one", "--concurrency", "1") as worker:
        worker.ready()
        app.control.rate_limit(
            tasks.slowly.name, "1/h", destination=["one@test"], reply=True, timeout=DEADLINE_SECONDS
        )
        for _ in range(3):
            tasks.slowly.delay(str(journal))
        assert tasks.echo.delay("after them").get(timeout=DEADLINE_SECONDS) == "after them"
        queue = broker_of(home).client.queue("celery")
        eventually("two are held back", lambda: queue.stats().groups["default"].pending == 2)
        assert len(lines(journal)) == 1
        assert worker.stop() == 0


class Beat(WorkerProcess):
    """`celery beat` as a process of a test."""

    command = ("beat", "--scheduler", "cassq.celery:Scheduler", "--pidfile", "")


def test_a_beat_goes_on_where_a_killed_one_ended(home: str, tmp_path: Path) -> None:
    queue = broker_of(home).client.create_queue("celery")
    for name in ("first", "second"):
        before = queue.stats().pushed
        with Beat(home, tmp_path / name) as beat:
            eventually("it sends", lambda before=before: queue.stats().pushed >= before + 5)
            beat.kill()
    with queue.popper() as popper:
        found = [unpacked(m.payload, m.headers, 0, False) for m in popper.pop(100)]
    sent = {message["headers"]["task"] for message in found}
    assert sent == {tasks.echo.name}, "the other entry is not due"


class Monitor(WorkerProcess):
    """`celery events` as a process of a test."""

    command = ("events", "--dump")


def test_the_inbox_of_a_killed_monitor_is_removed(home: str, tmp_path: Path) -> None:
    queue = broker_of(home).exchange_queue("celeryev", options_of({}))
    options = {"CASSQ_TEST_TRANSPORT": '{"group_expires": 15}'}
    with WorkerProcess(home, tmp_path / "worker", "--task-events") as worker:
        worker.ready()
        others = len(queue.groups())  # workers listen to one another, too
        with Monitor(home, tmp_path / "monitor", **options) as monitor:
            eventually("it listens", lambda: len(queue.groups()) > others)
            monitor.kill()
        # After its 15 seconds a group is watched for as long again.
        removed = lambda: len(queue.groups()) == others  # noqa: E731
        eventually("its inbox is removed", removed, seconds=3 * DEADLINE_SECONDS)
        assert worker.stop() == 0


ETA_TASKS = 100_000
MEMORY_MAX = 24 * 1024 * 1024  # that it may grow by; what Celery keeps of so many is ten times that


def test_the_memory_of_a_worker_stays_flat_beside_tasks_with_an_eta(
    home: str, tmp_path: Path
) -> None:
    with WorkerProcess(home, tmp_path / "log", "--concurrency", "1") as worker:
        worker.ready()
        memory = Path(f"/proc/{worker.process.pid}/statm")

        def used() -> int:
            return int(memory.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        assert tasks.add.delay(1, 1).get(timeout=DEADLINE_SECONDS) == 2
        before = used()
        with batch():
            for number in range(ETA_TASKS):
                tasks.echo.apply_async((number,), countdown=3600, ignore_result=True)
        assert tasks.add.delay(1, 2).get(timeout=DEADLINE_SECONDS) == 3
        queue = broker_of(home).client.queue("celery")
        assert queue.stats().groups["default"].delayed == ETA_TASKS
        assert used() < before + MEMORY_MAX
        assert worker.stop() == 0


def test_a_task_comes_again_when_its_child_is_killed(
    home: str, long_claims: cassq.Queue, tmp_path: Path
) -> None:
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
