"""Workers of async handlers: what becomes of a message, by how its task ends, and of the rest when
the worker is stopped or cancelled."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

import cassq
import cassq.aio
from cassq.errors import AbandonedTasksError, QueueNotFoundError, UsageError
from cassq.worker.tasks import AsyncWorker
from tests.integration.aio.loops import in_loop, until
from tests.integration.deadlines import eventually
from tests.integration.stage import numbers, push
from tests.integration.worker.running import Running
from tests.integration.worker.test_loop import all_acked, running


class Gate:
    """An async handler that waits until it is opened; `seen` are those that came."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.seen: list[bytes] = []
        self.opened = threading.Event()
        self._stubborn = stubborn

    async def __call__(self, message: cassq.aio.Message) -> None:
        self.seen.append(message.payload)
        while not self.opened.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                if not self._stubborn:
                    raise


def depths(queue: cassq.Queue) -> tuple[int, int, int, int]:
    """How many messages are committed, wait, are pending, and dead."""
    group = queue.stats().groups["default"]
    return group.committed, group.waiting, group.pending, group.dead


def test_what_an_async_handler_returns_for_is_acked_and_delivered_once(queue: cassq.Queue) -> None:
    seen: list[bytes] = []

    async def handle(message: cassq.aio.Message) -> None:
        await asyncio.sleep(0)
        seen.append(message.payload)

    push(queue, *numbers(500))
    with running(queue.worker(handle)):
        eventually("all are acked", all_acked(queue, 500))
    assert sorted(seen) == sorted(numbers(500))
    assert queue.audit().balanced
    assert not [t for t in threading.enumerate() if t.name.startswith("cassq-aio-")]


def test_what_an_async_handler_raises_for_comes_again_and_what_it_settles_is_respected(
    client: cassq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    queue = client.create_queue("fails", max_deliveries=2, sick_check=False)
    attempts: list[int] = []

    async def handle(message: cassq.aio.Message) -> None:
        match message.payload:
            case b"0":
                await message.ack()
                raise ValueError("after the ack")
            case b"1":
                raise ValueError("no such address")
            case b"2":
                attempts.append(message.attempts)
                if message.attempts == 1:
                    await message.nack(delay=0)
            case b"3":
                raise SystemExit(3)
            case b"4":
                await message.dead("no such user")

    push(queue, *numbers(6))
    with running(queue.worker(handle)):
        eventually("all are settled", lambda: depths(queue) == (3, 0, 0, 3))
    deaths = {letter.payload: letter.death["error"] for letter in queue.dead_letters().peek()}
    assert deaths == {
        b"1": "ValueError: no such address",
        b"3": "SystemExit: 3",
        b"4": "no such user",
    }
    assert attempts == [1, 2]
    failed = [record for record in caplog.records if "failed after" in record.getMessage()]
    assert all(record.exc_info for record in failed)


def test_an_async_worker_claims_only_what_it_has_room_for(queue: cassq.Queue) -> None:
    push(queue, *numbers(20))
    gate = Gate()
    with running(queue.worker(gate, concurrency=5)) as run:
        eventually("five run", lambda: len(gate.seen) == 5)
        assert depths(queue) == (0, 15, 5, 0)
        assert run.worker.facts()["running"] == 5
        gate.opened.set()
        eventually("all are acked", all_acked(queue, 20))


def test_async_tasks_of_a_strict_queue_run_in_order(client: cassq.Client) -> None:
    queue = client.create_queue("strict", consistency="cp")
    seen: list[bytes] = []
    inside: list[int] = [0]

    async def handle(message: cassq.aio.Message) -> None:
        inside[0] += 1
        assert inside[0] == 1
        await asyncio.sleep(0)
        seen.append(message.payload)
        inside[0] -= 1

    push(queue, *numbers(30))
    with running(queue.worker(handle, concurrency=4)):
        eventually("all are acked", all_acked(queue, 30))
    assert seen == numbers(30)


def test_a_stopped_async_worker_finishes_what_it_has_and_takes_no_more(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("stopped")
    push(queue, *numbers(10))
    gate = Gate()
    run = Running(queue.worker(gate, concurrency=4))
    eventually("four run", lambda: len(gate.seen) == 4)
    run.worker.stop()
    gate.opened.set()
    run.join()
    assert run.error is None
    assert depths(queue) == (4, 6, 0, 0)
    assert queue.stats().groups["default"].deliveries == {0: 6}


def test_an_async_worker_stopped_before_it_runs_takes_nothing(queue: cassq.Queue) -> None:
    push(queue, *numbers(1))
    worker = queue.worker(Gate())
    assert isinstance(worker, AsyncWorker)
    worker.stop()
    worker.run()
    assert depths(queue) == (0, 1, 0, 0)
    with pytest.raises(UsageError, match="runs once"):
        worker.run()


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_async_task_beyond_the_grace_is_cancelled_nacked_and_reported(
    client: cassq.Client, stubborn: bool
) -> None:
    queue = client.create_queue("grace", sick_check=False)
    push(queue, *numbers(2))
    gate = Gate(stubborn=stubborn)
    run = Running(queue.worker(gate, concurrency=2, grace=0.05))
    eventually("both run", lambda: len(gate.seen) == 2)
    run.worker.stop()
    run.join()
    assert isinstance(run.error, AbandonedTasksError)
    assert run.error.fields == {"tasks": 2}
    with queue.popper() as popper:
        messages = popper.pop(10, wait=10)
        assert [message.attempts for message in messages] == [2, 2]


def test_an_async_task_over_its_time_limit_is_cancelled_and_nacked(
    client: cassq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    # One that only stood still for so long comes again, and again.
    queue = client.create_queue("limit", max_deliveries=5, retry_schedule=[0], sick_check=False)
    ended: list[type[BaseException]] = []

    async def handle(message: cassq.aio.Message) -> None:
        if message.payload == b"0":
            try:
                await asyncio.Event().wait()
            except BaseException as exc:
                ended.append(type(exc))
                raise

    blocked, *_ = push(queue, *numbers(3))
    with running(queue.worker(handle, concurrency=1, time_limit=0.3)) as run:
        eventually("the others are done", lambda: depths(queue) == (2, 0, 0, 1))
        eventually("it has ended", lambda: run.worker.facts()["stuck"] == 0)
        assert run.worker.facts()["outcomes"]["time_limit"] >= 5
    (letter,) = queue.dead_letters().peek()
    assert letter.payload == b"0"
    assert letter.death["error"] == "time limit: it ran for over 0.3 s"
    assert set(ended) == {asyncio.CancelledError}
    said = [record.getMessage() for record in caplog.records]
    assert not [line for line in said if blocked in line and "too late" in line]


def test_an_async_worker_ends_when_more_tasks_refuse_to_end_than_it_has(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("stuck", sick_check=False, retry_schedule=[0])
    push(queue, *numbers(3))
    run = Running(queue.worker(Gate(stubborn=True), concurrency=1, time_limit=0.05))
    run.join()
    assert isinstance(run.error, AbandonedTasksError)


def test_an_async_worker_ends_by_itself_after_the_tasks_it_may_take(queue: cassq.Queue) -> None:
    push(queue, *numbers(20))
    gate = Gate()
    gate.opened.set()
    queue.run(gate, concurrency=3, max_tasks=7)
    assert len(gate.seen) == 7
    assert depths(queue) == (7, 13, 0, 0)


def test_a_deleted_queue_ends_its_async_worker_with_the_error(client: cassq.Client) -> None:
    queue = client.create_queue("gone")
    run = Running(queue.worker(Gate()))
    eventually(
        "its thread waits",
        lambda: any(t.name.startswith("cassq-aio-popper") for t in threading.enumerate()),
    )
    client.delete_queue("gone")
    run.join()
    assert isinstance(run.error, QueueNotFoundError)


def test_each_async_task_is_one_line_of_log(
    queue: cassq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cassq.worker")
    gate = Gate()
    gate.opened.set()
    push(queue, *numbers(3))
    queue.run(gate, max_tasks=3)
    done = [record for record in caplog.records if "done after" in record.getMessage()]
    assert len({record.__dict__["fields"]["id"] for record in done}) == len(done) == 3


def test_run_in_a_loop_is_cancelled_with_its_tasks(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs", sick_check=False)
        await queue.push_many(numbers(3))
        gate = Gate()
        worker = asyncio.create_task(queue.run(gate, concurrency=2))
        await until("two run", lambda: len(gate.seen) == 2)
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker
        assert await client.call(depths, queue.sync) == (0, 3, 0, 0)
        stats = (await queue.stats()).groups["default"]
        assert stats.deliveries == {0: 1, 1: 2}  # what had begun is counted
        with pytest.raises(UsageError, match="would block the event loop"):
            (await queue.worker(gate)).run()
        with pytest.raises(UsageError, match="must be an async function"):
            await queue.run(print)  # type: ignore[arg-type]

    in_loop(url, main)


def test_a_worker_in_a_loop_is_stopped_by_a_task_of_it(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        await queue.push_many(numbers(3))
        seen: list[bytes] = []

        async def handle(message: cassq.aio.Message) -> None:
            seen.append(message.payload)
            if len(seen) == 3:
                worker.stop()

        worker = await queue.worker(handle, concurrency=1)
        await worker.serve()
        assert await client.call(depths, queue.sync) == (3, 0, 0, 0)

    in_loop(url, main)
