"""Rolling: when a pusher goes on in another pipe, and what it prepares and seals by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cassq
from cassq.base.clock import ManualClock
from cassq.message.batches import Batch
from cassq.model.rows import PipeRow, PipeState
from cassq.pipes import PipeWriter
from tests.catalog_parts import WithRoles
from tests.integration.deadlines import eventually, in_threads
from tests.integration.stage import drain, numbers, payloads, reap
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


def pipe_of(message_id: str) -> str:
    return message_id.partition(":")[0]


def live_pipes(queue: cassq.Queue, client: cassq.Client) -> dict[str, PipeState]:
    """State by pipe id, oldest first."""
    catalog = client.ports.catalog
    row = catalog.queues.named(queue.name)
    assert row is not None
    return {pipe.id: pipe.state for pipe in catalog.pipes.live(row.id)}


def test_a_pipe_takes_no_more_than_its_number_of_pushes(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_pushes_per_pipe=10)
    with queue.pusher() as pusher:
        ids = [pusher.push(payload) for payload in numbers(25)]
    pipes = [pipe_of(message_id) for message_id in ids]
    assert [pipes.count(pipe) for pipe in dict.fromkeys(pipes)] == [10, 10, 5]
    assert sorted(payloads(drain(queue.popper()))) == sorted(numbers(25))


def test_threads_that_push_at_a_roll_lose_nothing(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_pushes_per_pipe=7)
    pusher = queue.pusher()
    ids: dict[bytes, str] = {}

    def work(number: int) -> None:
        for n in range(50):
            payload = b"%d/%d" % (number, n)
            ids[payload] = pusher.push(payload)

    in_threads(8, work)
    pusher.close()
    found = drain(queue.popper())
    assert {message.payload: message.id for message in found} == ids
    pipes = [pipe_of(message_id) for message_id in ids.values()]
    assert max(pipes.count(pipe) for pipe in set(pipes)) <= 7


def test_a_pipe_is_left_when_it_holds_its_bytes(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_bytes_per_pipe=100_000)
    with queue.pusher() as pusher:
        ids = [pusher.push(bytes(30_000)) for _ in range(9)]
    pipes = [pipe_of(message_id) for message_id in ids]
    # The push that crosses the limit is the last of its pipe.
    assert [pipes.count(pipe) for pipe in dict.fromkeys(pipes)] == [4, 4, 1]


def test_a_pipe_is_left_when_its_time_is_over(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_push_time_of_pipe=0.05)
    with queue.pusher() as pusher:
        first = pipe_of(pusher.push(b"first"))
        eventually("the pusher rolls", lambda: pipe_of(pusher.push(b"more")) != first)
        assert live_pipes(queue, client)[first] is PipeState.SEALED


def test_the_next_pipe_is_ready_before_it_is_needed(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_pushes_per_pipe=10)
    with queue.pusher() as pusher:
        for payload in numbers(9):
            pusher.push(payload)

        def ready() -> str | None:
            pipes = live_pipes(queue, client).items()
            return next((pipe for pipe, state in pipes if state is PipeState.READY), None)

        waiting = eventually("the next pipe is made ready", ready)
        pusher.push(b"last of the first pipe")
        assert pipe_of(pusher.push(b"first of the next")) == waiting


def test_a_ready_pipe_that_was_never_needed_is_sealed_empty(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_pushes_per_pipe=10)
    with queue.pusher() as pusher:
        for payload in numbers(9):
            pusher.push(payload)
        eventually("the next pipe is ready", lambda: queue.stats().pipes["ready"])
    # The thread that made it ready may still be about to learn that the pusher is closed.
    sealed = {PipeState.SEALED}
    eventually("both are sealed", lambda: set(live_pipes(queue, client).values()) == sealed)
    assert payloads(drain(queue.popper())) == numbers(9)


def test_an_idle_pipe_is_sealed_and_the_next_push_opens_another(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", idle_seal=0.05)
    with queue.pusher() as pusher:
        first = pipe_of(pusher.push(b"a"))
        eventually(
            "the idle pipe is sealed",
            lambda: live_pipes(queue, client)[first] is PipeState.SEALED,
        )
        assert pipe_of(pusher.push(b"b")) != first
    assert payloads(drain(queue.popper())) == [b"a", b"b"]


def test_closing_a_pusher_seals_its_pipe(client: cassq.Client, queue: cassq.Queue) -> None:
    pusher = queue.pusher()
    pusher.push(b"x")
    assert set(live_pipes(queue, client).values()) == {PipeState.OPEN}
    pusher.close()
    assert set(live_pipes(queue, client).values()) == {PipeState.SEALED}


def test_a_changed_limit_is_taken_up_by_a_running_pusher(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", lease=0.5)
    with queue.pusher() as pusher:
        first = pipe_of(pusher.push(b"x"))
        assert pipe_of(pusher.push(b"x")) == first
        client.queue("jobs").update(max_pushes_per_pipe=1)

        def alone() -> bool:
            return pipe_of(pusher.push(b"x")) != pipe_of(pusher.push(b"x"))

        eventually("each push gets a pipe of its own", alone)
        client.queue("jobs").update(max_pushes_per_pipe=1000)
        eventually("pushes share a pipe again", lambda: not alone())


def test_a_changed_width_and_timeout_are_taken_up_by_a_running_popper(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs", lease=0.5, max_claim_messages=5)
    with queue.pusher() as pusher:
        pusher.push_many(numbers(2000))
    popper = queue.popper()
    assert len(popper.pop(100)) == 5
    client.queue("jobs").update(max_claim_messages=7, max_deliveries=3)
    eventually("claims of seven messages", lambda: len(popper.pop(100)) == 7)


class AppendsAtAReadyPipe:
    """A catalog's pipes, in front of others: an append begins when a ready pipe was added, and
    nobody has heard of that yet."""

    def __init__(self, pipes: Any) -> None:
        self._pipes = pipes
        self.append: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipes, name)

    def add(self, row: PipeRow) -> bool:
        added: bool = self._pipes.add(row)
        if row.state is PipeState.READY:
            self.append()
        return added


def test_what_is_pushed_while_a_pipe_is_made_ready_comes_before_what_it_takes(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs", max_pop_width=1, max_pushes_per_pipe=4)
    pipes = AppendsAtAReadyPipe(client.ports.catalog.pipes)
    catalog: Any = WithRoles(client.ports.catalog, pipes=pipes)
    ports = client.ports._replace(catalog=catalog)
    appender = PipeWriter(ports, lambda: queue.row)
    [first] = appender.append(Batch(numbers(3), 0))
    pipes.append = lambda: appender.append(Batch(numbers(5, first=3), 0))
    for job in appender.maintain().jobs:
        job()
    [*_, last] = appender.receipts
    assert last.pipe_id != first.pipe_id  # a pipe of its own, younger than the ready one
    appender.append(Batch(numbers(4, first=8), 0))
    assert [message.payload for message in drain(queue.popper())] == numbers(12)
    pipes.append = lambda: None
    for job in appender.maintain().jobs:
        job()
    states = list(live_pipes(queue, client).values())
    # What was outrun is sealed by its owner, and another is ready.
    assert [state for state in states if state < PipeState.SEALED] == [
        PipeState.OPEN,
        PipeState.READY,
    ]
    appender.append(Batch(numbers(3, first=12), 0))
    assert [message.payload for message in drain(queue.popper())] == numbers(3, first=12)
    appender.close()


def test_a_pipe_that_was_ready_for_too_long_is_not_taken(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue(
        "jobs", max_pushes_per_pipe=10, max_push_time_of_pipe=60, idle_seal=600, retain_consumed=100
    )
    appender = PipeWriter(timed.ports, lambda: queue.row)
    appender.append(Batch(numbers(8), 0))
    for job in appender.maintain().jobs:
        job()
    assert list(live_pipes(queue, timed).values()) == [PipeState.OPEN, PipeState.READY]
    clock.advance(150)
    appender.append(Batch(numbers(1, first=8), 0))
    appender.close()
    assert len(drain(queue.popper())) == 9
    clock.advance(99)
    reap(timed)  # the first pipe goes, what was pushed 99 s ago stays for 100 s
    queue.create_group("late")
    assert payloads(drain(queue.popper("late"))) == numbers(1, first=8)
