"""Workers in one process: what becomes of a message, by how its handler ends, and of the rest when
the worker is stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

import cassq
from cassq.errors import AbandonedTasksError, ClaimLostError, QueueNotFoundError, UsageError
from cassq.worker.wakeup import Wakeup
from tests.integration.deadlines import eventually
from tests.integration.stage import Connect, numbers, push
from tests.integration.worker.running import Running, W


@contextmanager
def running(worker: W) -> Iterator[Running[W]]:
    """The worker runs until the block ends."""
    run = Running(worker)
    try:
        yield run
    except BaseException:
        worker.stop()
        raise
    run.stop()


def all_acked(queue: cassq.Queue, count: int) -> Callable[[], bool]:
    return lambda: queue.stats().groups["default"].committed == count


class Gate:
    """A handler that waits until it is opened; `entered` counts those that came."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()
        self.seen: list[bytes] = []

    def __call__(self, message: cassq.Message) -> None:
        self.seen.append(message.payload)
        self.entered.release()
        assert self.opened.wait(100)


def test_what_a_handler_returns_for_is_acked_and_delivered_once(queue: cassq.Queue) -> None:
    seen: list[bytes] = []
    push(queue, *numbers(500))
    with running(queue.worker(lambda message: seen.append(message.payload))):
        eventually("all are acked", all_acked(queue, 500))
    assert sorted(seen) == sorted(numbers(500))
    assert queue.audit().balanced


def test_what_a_handler_raises_for_comes_again_with_the_error_on_record(
    client: cassq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    queue = client.create_queue("fails", max_deliveries=2, sick_check=False)

    def handle(message: cassq.Message) -> None:
        if message.payload == b"1":
            raise ValueError("no such address")

    push(queue, *numbers(3))
    with running(queue.worker(handle)):
        eventually("it is dead", lambda: queue.stats().groups["default"].dead == 1)
    (letter,) = queue.dead_letters().peek()
    assert letter.payload == b"1"
    assert letter.death["error"] == "ValueError: no such address"
    failed = [record for record in caplog.records if "failed after" in record.getMessage()]
    assert len(failed) == 2
    assert all(record.exc_info and record.exc_info[0] is ValueError for record in failed)


def test_a_handler_that_settles_the_message_itself_is_respected(client: cassq.Client) -> None:
    queue = client.create_queue("own", sick_check=False)
    attempts: list[int] = []

    def handle(message: cassq.Message) -> None:
        match message.payload:
            case b"0":
                message.ack()
                raise ValueError("after the ack")
            case b"1":
                message.dead("no such user")
            case b"2":
                attempts.append(message.attempts)
                if message.attempts == 1:
                    message.nack(delay=0)

    push(queue, *numbers(3))
    worker = queue.worker(handle, concurrency=2)
    with running(worker):
        eventually("the rest is acked", all_acked(queue, 2))
    stats = queue.stats().groups["default"]
    assert (stats.committed, stats.dead, stats.waiting, stats.pending) == (2, 1, 0, 0)
    assert attempts == [1, 2]
    assert worker.facts()["outcomes"] == {"settled": 3, "done": 1}


def test_a_lost_message_is_logged_with_the_reason_and_without_a_traceback(
    client: cassq.Client, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    queue = client.create_queue("gone")

    def handle(message: cassq.Message) -> None:
        connect().delete_queue("gone")
        with pytest.raises(ClaimLostError):
            message.extend(60)

    push(queue, b"1")
    worker = queue.worker(handle, concurrency=1)
    with running(worker), suppress(QueueNotFoundError):
        eventually("it is lost", lambda: worker.facts()["outcomes"] == {"lost": 1})
    (lost,) = [record for record in caplog.records if "lost after" in record.getMessage()]
    assert (lost.levelno, lost.exc_info) == (logging.WARNING, None)
    assert str(ClaimLostError()) in lost.getMessage()


def test_a_handler_may_leave_a_message_to_another_process(client: cassq.Client) -> None:
    queue = client.create_queue("left")
    receipts: list[str] = []

    def handle(message: cassq.Message) -> None:
        if message.payload == b"1":
            receipts.append(message.receipt)
            queue.settle(message.receipt).extend(3600)

    push(queue, *numbers(3))
    queue.run(handle, concurrency=2, max_tasks=3)
    stats = queue.stats().groups["default"]
    assert (stats.committed, stats.waiting, stats.pending) == (2, 0, 1)
    queue.settle(receipts).ack()
    assert queue.stats().groups["default"].committed == 3


def test_exits_and_results_that_were_not_run_are_failures(
    client: cassq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    queue = client.create_queue("exits", max_deliveries=1, sick_check=False)

    async def later() -> None: ...

    def handle(message: cassq.Message) -> object:
        if message.payload == b"0":
            raise SystemExit(3)
        return later()

    push(queue, *numbers(2))
    with running(queue.worker(handle)):
        eventually("both are dead", lambda: queue.stats().groups["default"].dead == 2)
    deaths = " ".join(letter.death["error"] for letter in queue.dead_letters().peek())
    assert "SystemExit: 3" in deaths
    assert "returned a coroutine" in deaths


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_worker_claims_only_what_its_free_threads_can_run(
    client: cassq.Client, connect: Connect, concurrency: int
) -> None:
    queue = client.create_queue("few")
    push(queue, *numbers(100))
    gate = Gate()
    slow: list[bytes] = []

    def handle(message: cassq.Message) -> None:
        if int(message.payload) >= 50:  # it has been quick so far
            slow.append(message.payload)
            gate(message)

    with running(queue.worker(handle, concurrency=concurrency)):
        for _ in range(concurrency):
            assert gate.entered.acquire(timeout=100)
        with connect().queue("few").popper() as other:
            assert len(other.pop(100)) == 50 - concurrency
        gate.opened.set()
    assert len(slow) >= concurrency


def test_tasks_of_all_threads_run_at_the_same_time(queue: cassq.Queue) -> None:
    together = threading.Barrier(6, timeout=100)
    push(queue, *numbers(6))
    with running(queue.worker(lambda _: together.wait(), concurrency=6)):
        eventually("all are acked", all_acked(queue, 6))


def test_a_strict_queue_is_worked_on_in_order(client: cassq.Client) -> None:
    queue = client.create_queue("strict", consistency="cp")
    seen: list[bytes] = []
    push(queue, *numbers(40))
    with running(queue.worker(lambda message: seen.append(message.payload), concurrency=4)):
        eventually("all are acked", all_acked(queue, 40))
    assert seen == numbers(40)


def test_a_stopped_worker_finishes_what_it_has_and_takes_no_more(
    client: cassq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = client.create_queue("stopped")
    push(queue, *numbers(10))
    gate = Gate()
    worker = queue.worker(gate, concurrency=4)
    wait, waits = Wakeup.wait, list[float]()

    def noted(wakeup: Wakeup, seconds: float, others: Sequence[int] = ()) -> list[int]:
        if worker._stopping:
            waits.append(seconds)
        return wait(wakeup, seconds, others)

    monkeypatch.setattr(Wakeup, "wait", noted)
    run = Running(worker)
    for _ in range(4):
        assert gate.entered.acquire(timeout=100)
    worker.stop()
    eventually("it waits for them, or gives up", lambda: waits or run.error is not None)
    gate.opened.set()
    run.join()
    assert run.error is None
    assert len(gate.seen) == 4
    stats = queue.stats().groups["default"]
    assert (stats.committed, stats.waiting, stats.pending) == (4, 6, 0)
    assert stats.deliveries == {0: 6}  # nothing was counted for the others


def test_a_worker_stopped_before_it_runs_takes_nothing(queue: cassq.Queue) -> None:
    push(queue, *numbers(1))
    worker = queue.worker(lambda _: None)
    worker.stop()
    worker.run()
    assert queue.stats().groups["default"].waiting == 1
    with pytest.raises(UsageError, match="runs once"):
        worker.run()


def test_what_still_runs_after_the_grace_is_nacked_and_reported(client: cassq.Client) -> None:
    queue = client.create_queue("grace", sick_check=False)
    push(queue, *numbers(2))
    gate = Gate()
    worker = queue.worker(gate, concurrency=2, grace=0.05)
    run = Running(worker)
    for _ in range(2):
        assert gate.entered.acquire(timeout=100)
    worker.stop()
    run.join()
    assert isinstance(run.error, AbandonedTasksError)
    assert run.error.fields == {"tasks": 2}
    with queue.popper() as popper:
        messages = popper.pop(10, wait=10)
        assert [message.attempts for message in messages] == [2, 2]
        gate.opened.set()
        eventually("the threads end", lambda: not worker_threads("grace"))
        popper.commit(messages)  # what the late threads did has settled nothing
    assert queue.stats().groups["default"].committed == 2


def worker_threads(queue: str) -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(f"cassq-worker-{queue}-")]


def test_a_task_over_its_time_limit_is_nacked_and_its_thread_replaced(
    client: cassq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    # One that only stood still for so long comes again, and again.
    queue = client.create_queue("limit", max_deliveries=5, retry_schedule=[0], sick_check=False)
    gate = Gate()

    def handle(message: cassq.Message) -> None:
        if message.payload == b"0":
            gate(message)

    push(queue, *numbers(3))
    worker = queue.worker(handle, concurrency=1, time_limit=0.2)
    worker.settings = worker.settings._replace(stuck_max=100)
    with running(worker):
        eventually("the others are done", all_acked(queue, 2))
        eventually("it is dead", lambda: queue.stats().groups["default"].dead == 1)
        assert worker.facts()["stuck"] >= 1
        assert worker.facts()["outcomes"]["time_limit"] >= 5
        gate.opened.set()
        eventually("the stuck threads end", lambda: worker.facts()["stuck"] == 0)
    (letter,) = queue.dead_letters().peek()
    assert letter.payload == b"0"
    assert letter.death["error"] == "time limit: it ran for over 0.2 s"
    assert any("too late" in record.getMessage() for record in caplog.records)


def test_a_worker_ends_when_more_threads_ignore_their_limit_than_it_has(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("stuck", sick_check=False, retry_schedule=[0])
    push(queue, *numbers(3))
    gate = Gate()
    run = Running(queue.worker(gate, concurrency=1, time_limit=0.05))
    run.join()
    assert isinstance(run.error, AbandonedTasksError)
    assert run.error.fields == {"tasks": 2}
    gate.opened.set()
    eventually("the threads end", lambda: not worker_threads("stuck"))


def test_a_worker_ends_by_itself_after_the_tasks_it_may_take(queue: cassq.Queue) -> None:
    push(queue, *numbers(20))
    seen: list[bytes] = []
    queue.run(lambda message: seen.append(message.payload), concurrency=3, max_tasks=7)
    assert len(seen) == 7
    stats = queue.stats().groups["default"]
    assert (stats.committed, stats.waiting, stats.pending) == (7, 13, 0)


def test_a_deleted_queue_ends_its_worker_with_the_error(client: cassq.Client) -> None:
    queue = client.create_queue("gone")
    run = Running(queue.worker(lambda _: None, concurrency=3))
    eventually("its threads wait", lambda: len(worker_threads("gone")) == 3)
    client.delete_queue("gone")
    run.join()
    assert isinstance(run.error, QueueNotFoundError)


def test_each_task_is_one_line_of_log(queue: cassq.Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cassq.worker")
    push(queue, *numbers(3))
    queue.run(lambda _: None, concurrency=1, max_tasks=3)
    lines = [record for record in caplog.records if record.name == "cassq.worker"]
    assert len(lines) == 3
    for record in lines:
        fields = vars(record)["fields"]
        assert (fields["queue"], fields["outcome"], fields["attempts"]) == ("jobs", "done", 1)
        assert fields["id"] in record.getMessage()
        assert fields["seconds"] >= 0


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"concurrency": 0}, "concurrency must be between 1"),
        ({"concurrency": 1.5}, "concurrency must be a whole number"),
        ({"grace": -1}, "grace must be between 0"),
        ({"time_limit": 0}, "time_limit must be between 0.001"),
        ({"max_tasks": 0}, "max_tasks must be between 1"),
    ],
)
def test_a_setting_that_is_not_valid_is_named(
    queue: cassq.Queue, wrong: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        queue.worker(lambda _: None, **wrong)  # type: ignore[arg-type]


def test_keys_run_beside_each_other_and_each_in_order(client: cassq.Client) -> None:
    queue = client.create_queue("keyed")
    queue.create_group("keys", order="key")
    together = threading.Barrier(3, timeout=100)
    seen: dict[bytes, list[bytes]] = {b"a": [], b"b": [], b"c": []}

    def handle(message: cassq.Message) -> None:
        assert message.key is not None
        together.wait()  # one message of each key
        seen[message.key].append(message.payload)

    with queue.pusher() as pusher:
        for number in numbers(4):
            for key in seen:
                pusher.push(number, key=key)
    with running(queue.worker(handle, group="keys", concurrency=6)):
        eventually("all are acked", lambda: queue.stats().groups["keys"].committed == 12)
    assert list(seen.values()) == [numbers(4)] * 3
