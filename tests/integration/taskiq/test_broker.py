"""The broker for taskiq: tasks are kicked, delayed, run by taskiq's own receiver, and acked."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.errors import ClosedError, UsageError
from tests.integration.commands import command, end_once_acked
from tests.integration.deadlines import DEADLINE_SECONDS, eventually

pytestmark = pytest.mark.needs("module:taskiq")
ROOT = Path(__file__).resolve().parents[3]


def receiving(url: str, act: Callable[[Any], Awaitable[None]]) -> None:
    """Run `act` beside taskiq's receiver, with a broker."""
    from taskiq.api import run_receiver_task

    from cassq.taskiq import Broker

    async def main() -> None:
        broker = Broker(url)
        await broker.startup()
        receiver = asyncio.create_task(run_receiver_task(broker))
        try:
            await asyncio.wait_for(act(broker), DEADLINE_SECONDS)
        finally:
            receiver.cancel()
            await asyncio.gather(receiver, return_exceptions=True)
            await broker.shutdown()

    asyncio.run(main())


def test_tasks_run_and_are_acked(url: str, client: cassq.Client) -> None:
    found: list[int] = []

    async def act(broker: Any) -> None:
        done = asyncio.Event()

        @broker.task(task_name="add")
        async def add(one: int, two: int = 0) -> None:
            found.append(one + two)
            if len(found) == 20:
                done.set()

        await asyncio.gather(*(add.kiq(n, two=1) for n in range(20)))
        await done.wait()

    receiving(url, act)
    assert sorted(found) == list(range(1, 21))
    stats = client.queue("taskiq").stats().groups["default"]
    assert (stats.committed, stats.pending, stats.waiting) == (20, 0, 0)


def test_a_delay_waits_in_the_queue_and_a_priority_is_kept(url: str, client: cassq.Client) -> None:
    from taskiq.exceptions import SendTaskError

    from cassq.taskiq import Broker

    async def main() -> None:
        broker = Broker(url, "mails", settings={"claim_timeout": 60})

        @broker.task(task_name="send")
        async def send() -> None:
            """Do nothing."""

        with pytest.raises(ClosedError, match="not started"):
            await broker.kick(broker.formatter.dumps(message(send)))
        await broker.startup()
        await send.kicker().with_labels(delay=3600).kiq()
        await send.kicker().with_labels(priority="7").kiq()
        for labels in ({"delay": "soon"}, {"priority": 10}):
            with pytest.raises(SendTaskError) as caught:
                await send.kicker().with_labels(**labels).kiq()
            assert isinstance(caught.value.__cause__, UsageError)
        await broker.shutdown()

    def message(task: Any) -> Any:
        return task.kicker()._prepare_message()

    asyncio.run(main())
    queue = client.queue("mails")
    assert queue.policy.claim_timeout == 60
    assert queue.stats().groups["default"].delayed == 1
    with queue.popper() as popper:
        (popped,) = popper.pop(10)
    assert (popped.priority, popped.headers["taskiq-task"]) == (7, "send")


def test_what_is_not_acked_is_given_back_at_once(url: str, client: cassq.Client) -> None:
    from cassq.taskiq import Broker

    async def main() -> None:
        broker = Broker(url)

        @broker.task(task_name="nothing")
        async def nothing() -> None:
            """Do nothing."""

        await broker.startup()
        await nothing.kiq()
        listening = broker.listen()
        first = await anext(listening)
        assert first.data
        await listening.aclose()
        await broker.shutdown()

    asyncio.run(main())
    with client.queue("taskiq").popper() as popper:
        (message,) = popper.pop(1)
        assert message.attempts == 2


def test_what_a_worker_cannot_run_is_not_lost(url: str, client: cassq.Client) -> None:
    from taskiq.kicker import AsyncKicker

    found: list[int] = []
    client.create_queue("taskiq", max_deliveries=2, sick_check=False)

    async def act(broker: Any) -> None:
        done = asyncio.Event()

        @broker.task(task_name="last")
        async def last(number: int) -> None:
            found.append(number)
            if len(found) == 2:
                done.set()

        await AsyncKicker("of another version", broker, {}).kiq(1)
        with client.queue("taskiq").pusher() as pusher:
            pusher.push(b"rubbish")
            pusher.push(broker.formatter.dumps(last.kicker()._prepare_message(1)).message)
        await last.kiq(2)
        await done.wait()
        while len(letters.peek()) < 2:
            await asyncio.sleep(0.01)

    letters = client.queue("taskiq").dead_letters()
    receiving(url, act)
    assert sorted(found) == [1, 2]
    errors = {letter.payload: letter.death["error"] for letter in letters.peek()}
    assert "taskiq did not write it" in errors.pop(b"rubbish")
    assert list(errors.values()) == ["no task 'of another version' in this worker"]


@pytest.mark.parametrize(("ack_type", "committed"), [("when_received", 2), ("when_executed", 1)])
def test_a_task_is_acked_when_its_ack_type_says(
    url: str, client: cassq.Client, ack_type: str, committed: int
) -> None:

    seen: list[int] = []

    async def act(broker: Any) -> None:
        running, looked = asyncio.Event(), asyncio.Event()

        @broker.task(task_name="slow", ack_type=ack_type)
        async def slow() -> None:
            running.set()
            await looked.wait()

        @broker.task(task_name="quick", ack_type="when_received")
        async def quick() -> None:
            """Do nothing."""

        def look() -> int:
            return client.queue("taskiq").stats().groups["default"].committed

        await slow.kiq()
        await running.wait()
        await quick.kiq()
        while look() < committed:  # acks may be written one after the other
            await asyncio.sleep(0.01)
        seen.append(look())
        looked.set()

    receiving(url, act)
    assert seen == [committed]


def test_a_task_that_failed_is_tried_again_by_taskiq_s_middleware(
    url: str, client: cassq.Client
) -> None:
    from taskiq import SimpleRetryMiddleware

    tries: list[int] = []

    async def act(broker: Any) -> None:
        done = asyncio.Event()
        broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=5))

        @broker.task(task_name="flaky", retry_on_error=True)
        async def flaky(number: int) -> None:
            tries.append(number)
            if len(tries) < 3:
                raise ValueError("not yet")
            done.set()

        await flaky.kiq(7)
        await done.wait()

    receiving(url, act)
    assert tries == [7, 7, 7]
    assert client.queue("taskiq").stats().groups["default"].committed == 3


MODULE = """
import os, time
from cassq.taskiq import Broker
broker = Broker({url!r}, settings={"claim_timeout": 2})

@broker.task
async def touch(path: str) -> None:
    open(path, "w").close()

@broker.task
async def hold(path: str, gate: str) -> None:
    with open(path, "a") as file:
        file.write("x")
    while not os.path.exists(gate):
        time.sleep(0.01)
"""


def project(url: str, directory: Path, kicks: str) -> tuple[list[str], dict[str, str]]:
    """A module of tasks, of which some are kicked; the command of a worker, and its environment."""
    (directory / "jobs.py").write_text(MODULE.replace("{url!r}", repr(url)))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), "."])}
    script = (
        "import asyncio, jobs\n"
        "async def main():\n"
        "    await jobs.broker.startup()\n"
        f"    await {kicks}\n"
        "    await jobs.broker.shutdown()\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=directory, env=env, check=True)
    return [sys.executable, "-m", "taskiq", "worker", "jobs:broker", "--workers", "1"], env


@pytest.mark.long(reason="processes of taskiq start and are killed")
def test_a_task_of_a_killed_worker_is_run_again(
    url: str, client: cassq.Client, tmp_path: Path
) -> None:
    words, env = project(url, tmp_path, "jobs.hold.kiq('held', 'gate')")
    held = tmp_path / "held"
    how: dict[str, Any] = {"cwd": tmp_path, "env": env, "stderr": subprocess.DEVNULL}
    with command(words, **how) as worker:
        eventually("it runs", held.exists)
        os.killpg(worker.pid, signal.SIGKILL)
    (tmp_path / "gate").touch()
    with command(words, **how) as worker:
        end_once_acked(worker, client, "taskiq")
    assert held.read_text() == "xx"


@pytest.mark.long(reason="processes of taskiq start and end")
def test_its_own_worker_runs_them(url: str, client: cassq.Client, tmp_path: Path) -> None:
    words, env = project(url, tmp_path, "jobs.touch.kiq('touched')")
    with command(words, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL) as worker:
        eventually("it ran", (tmp_path / "touched").exists)
        end_once_acked(worker, client, "taskiq")
