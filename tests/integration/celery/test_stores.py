"""Celery on each store: brokers, results, beat and a killed worker, also in a keyspace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError

from cassq.celery import Scheduler
from cassq.kombu.brokers import broker_of
from tests.integration.celery import tasks
from tests.integration.celery.tasks import add, app, echo, total
from tests.integration.celery.workers import WorkerProcess, connected, get
from tests.integration.deadlines import DEADLINE_SECONDS, eventually

pytestmark = pytest.mark.long(reason="workers of Celery take seconds to start")


@pytest.fixture
def home(url: str) -> Iterator[str]:
    """The URL of the queues, with the tests' app connected to it."""
    with connected(url):
        yield url


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_tasks_results_and_control(home: str, tmp_path: Path, pool: str) -> None:
    options = ["--pool", pool, "--concurrency", "2", "--task-events"]
    with WorkerProcess(home, tmp_path / "log", *options) as worker:
        worker.ready()
        assert get(chain(add.s(1, 2), add.s(3))()) == 6
        assert get(group(add.s(n, n) for n in range(10))()) == [2 * n for n in range(10)]
        assert get(chord((add.s(n, n) for n in range(10)), total.s())()) == 90
        assert get(tasks.third_time.delay()) == 2
        with pytest.raises(ValueError, match="no such address"):
            get(tasks.fail.delay())
        later = echo.apply_async((1,), countdown=3600)
        queue = broker_of(home).client.queue("celery")
        eventually("it waits", lambda: queue.stats().groups["default"].delayed == 1)
        later.revoke()
        eventually("it is cancelled", lambda: queue.stats().groups["default"].delayed == 0)
        expired = echo.apply_async((1,), expires=-1)
        with pytest.raises(TaskRevokedError):
            get(expired)
        expired.forget()
        assert expired.state == "PENDING"
        inspect = app.control.inspect(["one@test"], timeout=DEADLINE_SECONDS)
        assert inspect.ping() == {"one@test": {"ok": "pong"}}
        assert worker.stop() == 0


def test_a_killed_worker_s_task_comes_again(home: str, tmp_path: Path) -> None:
    broker_of(home).client.create_queue("celery", claim_timeout=3)
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    with WorkerProcess(home, tmp_path / "one", "--concurrency", "1") as one:
        one.ready()
        result = tasks.waits.delay(str(journal), str(gate))
        eventually("it begins", journal.exists)
        one.kill(whole=True)
    gate.touch()
    with WorkerProcess(home, tmp_path / "two", "--concurrency", "1", name="two") as two:
        two.ready()
        assert get(result)
        assert two.stop() == 0
    assert [line.split()[1] for line in journal.read_text().splitlines()] == ["False", "True"]


def test_beats_share_what_was_sent(home: str) -> None:
    first, second = Scheduler(app=app), Scheduler(app=app)
    entry = f"{tasks.__name__}.echo"
    queue = broker_of(home).queue("celery", {})

    def ticks(beat: Scheduler) -> int:
        beat.tick()
        return queue.stats().pushed

    eventually("one sends", lambda: ticks(first) >= 3)
    first.close()
    before = queue.stats().pushed
    eventually("the other goes on", lambda: ticks(second) > before)
    assert second.schedule["often"].task == entry
    second.close()
