"""More of what Dramatiq's guide shows: retries, pipelines, groups, results, its command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cassq
from tests.integration.commands import command, end_once_acked
from tests.integration.deadlines import DEADLINE_SECONDS, eventually

pytestmark = pytest.mark.needs("module:dramatiq")
ROOT = Path(__file__).resolve().parents[3]
DEADLINE_MS = round(DEADLINE_SECONDS * 1000)


@pytest.fixture
def broker(url: str) -> Iterator[Any]:
    """A broker with Dramatiq's own middleware, that keeps results, and a worker."""
    import dramatiq
    from dramatiq.middleware import default_middleware
    from dramatiq.results import Results as Middleware

    from cassq.dramatiq import Broker, Results

    backend = Results(url)
    usual = [
        each(max_retries=2, min_backoff=1, max_backoff=20) if each.__name__ == "Retries" else each()
        for each in default_middleware
        if each.__name__ != "Prometheus"
    ]
    broker = Broker(url, middleware=[*usual, Middleware(backend=backend, store_results=True)])
    dramatiq.set_broker(broker)
    worker = dramatiq.Worker(broker, worker_timeout=20, worker_threads=2)
    worker.start()
    yield broker
    worker.stop()
    broker.close()
    backend.close()


def test_a_message_that_failed_is_tried_again_and_then_a_dead_letter(
    broker: Any, client: cassq.Client
) -> None:
    import dramatiq

    tries: list[str] = []

    @dramatiq.actor(broker=broker, queue_name="flaky")
    def flaky(what: str) -> str:
        tries.append(what)
        if what == "never" or tries.count(what) < 3:
            raise ValueError("no such address")
        return what

    assert flaky.send("third time").get_result(block=True, timeout=DEADLINE_MS) == "third time"
    flaky.send("never")
    letters = client.queue("flaky").dead_letters()
    eventually("it is a dead letter", letters.peek)
    assert tries.count("never") == 3
    assert "no such address" in letters.peek()[0].death["error"]


def test_pipelines_and_groups(broker: Any) -> None:
    import dramatiq

    @dramatiq.actor(broker=broker)
    def add(*numbers: int) -> int:
        return sum(numbers)

    piped = dramatiq.pipeline([add.message(1, 2), add.message(3), add.message(4)]).run()
    assert piped.get_result(block=True, timeout=DEADLINE_MS) == 10
    together = dramatiq.group([add.message(number, 1) for number in range(5)]).run()
    assert list(together.get_results(block=True, timeout=DEADLINE_MS)) == [1, 2, 3, 4, 5]


def test_a_message_of_an_unknown_actor_is_a_dead_letter(broker: Any, client: cassq.Client) -> None:
    import dramatiq

    broker.declare_queue("default")

    @dramatiq.actor(broker=broker)
    def known() -> None:
        """Do nothing."""

    unknown = dramatiq.Message("default", "of_another_version", (), {}, {})
    broker.enqueue(unknown)
    letters = client.queue("default").dead_letters()
    eventually("it is a dead letter", letters.peek)
    assert "of_another_version" in letters.peek()[0].death["error"]


def test_results_end_when_their_time_is_over(broker: Any) -> None:
    import dramatiq
    from dramatiq.results import ResultMissing

    @dramatiq.actor(broker=broker, result_ttl=50)
    def brief() -> int:
        return 1

    @dramatiq.actor(broker=broker)
    def lasting() -> int:
        return 2

    message, other = brief.send(), lasting.send()
    broker.join("default", timeout=DEADLINE_MS)

    def has_ended() -> bool:
        try:
            message.get_result()
        except ResultMissing:
            return True
        return False

    eventually("it has ended", has_ended)
    assert other.get_result() == 2


MODULE = """
import os, time, dramatiq
from cassq.dramatiq import Broker
dramatiq.set_broker(Broker({url!r}, settings={"claim_timeout": 2}))

@dramatiq.actor
def hold(path, gate):
    with open(path, "a") as file:
        file.write("x")
    while not os.path.exists(gate):
        time.sleep(0.01)
"""


@pytest.mark.long(reason="processes of Dramatiq start and are killed")
@pytest.mark.parametrize("killed", [False, True])
def test_its_own_command_runs_actors_and_a_killed_one_s_message_comes_again(
    url: str, client: cassq.Client, tmp_path: Path, killed: bool
) -> None:
    (tmp_path / "jobs.py").write_text(MODULE.replace("{url!r}", repr(url)))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), "."])}
    how: dict[str, Any] = {"cwd": tmp_path, "env": env, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-c", "import jobs; jobs.hold.send('held', 'gate')"], **how)
    words = [sys.executable, "-m", "dramatiq", "jobs", "--processes", "1", "--threads", "2"]
    held = tmp_path / "held"
    if killed:
        with command(words, **how) as worker:
            eventually("it runs", held.exists)
            os.killpg(worker.pid, signal.SIGKILL)
    (tmp_path / "gate").touch()
    with command(words, **how) as worker:
        end_once_acked(worker, client, "default")
    assert held.read_text() == "x" * (1 + killed)
