"""The broker and the results backend for Dramatiq, under Dramatiq's own worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import cassq
from tests.integration.deadlines import DEADLINE_SECONDS, eventually

pytestmark = pytest.mark.needs("module:dramatiq")


@pytest.fixture
def broker(url: str) -> Iterator[Any]:
    """A broker that keeps results, and tries nothing again."""
    import dramatiq
    from dramatiq.middleware import Retries
    from dramatiq.results import Results as Middleware

    from cassq.dramatiq import Broker, Results

    backend = Results(url)
    kept = Middleware(backend=backend, store_results=True)
    broker = Broker(url, middleware=[Retries(max_retries=0), kept])
    dramatiq.set_broker(broker)
    yield broker
    broker.close()
    backend.close()


@pytest.fixture
def worker(broker: Any) -> Iterator[Any]:
    """A worker of this process, to be started by the test."""
    import dramatiq

    worker = dramatiq.Worker(broker, worker_timeout=20, worker_threads=2)
    yield worker
    worker.stop()


def test_actors_run_and_return_results(broker: Any, worker: Any, client: cassq.Client) -> None:
    import dramatiq

    @dramatiq.actor(broker=broker)
    def add(one: int, two: int) -> int:
        return one + two

    messages = [add.send(number, 1) for number in range(20)]
    worker.start()
    found = [message.get_result(backend=broker.get_results_backend(), block=True)
             for message in messages]  # fmt: skip
    assert found == list(range(1, 21))
    broker.join("default", timeout=round(DEADLINE_SECONDS * 1000))
    assert client.queue("default").stats().groups["default"].committed == 20


def test_a_delay_waits_in_the_queue_and_no_other_is_made(broker: Any, client: cassq.Client) -> None:
    import dramatiq
    from dramatiq.errors import QueueJoinTimeout

    @dramatiq.actor(broker=broker, queue_name="mails")
    def send() -> None:
        """Do nothing."""

    send.send_with_options(delay=3_600_000)
    assert [queue.name for queue in client.queues()] == ["mails"]
    assert client.queue("mails").stats().groups["default"].delayed == 1
    assert (broker.get_declared_queues(), broker.get_declared_delay_queues()) == ({"mails"}, set())
    with pytest.raises(QueueJoinTimeout):
        broker.join("mails", timeout=1)
    broker.flush_all()
    broker.join("mails", timeout=round(DEADLINE_SECONDS * 1000))


def test_what_fails_is_a_dead_letter_with_its_error(
    broker: Any, worker: Any, client: cassq.Client
) -> None:
    import dramatiq

    @dramatiq.actor(broker=broker)
    def fail() -> None:
        raise ValueError("no such address")

    fail.send()
    with client.queue("default").pusher() as pusher:
        pusher.push(b"not of Dramatiq")
    worker.start()
    letters = client.queue("default").dead_letters()
    found = eventually("both are there", lambda: len(each := letters.peek()) == 2 and each)
    deaths = " ".join(str(letter.death) for letter in found)
    assert "not a message of Dramatiq" in deaths
    assert "ValueError: no such address" in deaths


def test_what_a_worker_has_not_begun_goes_back_when_it_stops(
    broker: Any, worker: Any, client: cassq.Client
) -> None:
    import dramatiq

    begun, gate = threading.Event(), threading.Event()

    @dramatiq.actor(broker=broker)
    def wait() -> None:
        begun.set()
        gate.wait(DEADLINE_SECONDS)

    for _ in range(6):
        wait.send()
    worker.start()
    assert begun.wait(DEADLINE_SECONDS)
    threading.Timer(0.05, gate.set).start()
    worker.stop()
    group = client.queue("default").stats().groups["default"]
    assert (group.pending, group.waiting + group.committed) == (0, 6)


def test_a_queue_that_was_not_declared_is_refused(broker: Any) -> None:
    import dramatiq
    from dramatiq.errors import QueueNotFound

    message = dramatiq.Message(queue_name="none", actor_name="a", args=(), kwargs={}, options={})
    for act in (lambda: broker.enqueue(message), lambda: broker.consume("none"),
                lambda: broker.flush("none"), lambda: broker.join("none")):  # fmt: skip
        with pytest.raises(QueueNotFound):
            act()
