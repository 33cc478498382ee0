"""A stopped process inside a catalog transaction: others wait a bounded time, then are told."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import SystemClock
from cassq.catalog.sqlite.database import LOCK_WAIT_SECONDS
from cassq.errors import BackendTimeoutError
from cassq.extents.files.disk import Disk
from tests.faults.actors import Act, Actor
from tests.integration.deadlines import DEADLINE_SECONDS, eventually, in_threads
from tests.integration.stage import client_on, drain, numbers, payloads, push


@pytest.fixture
def impatient(directory: Path) -> Iterator[cassq.Client]:
    """A client that waits for the catalog's lock only a moment."""
    client = client_on(directory, Disk(), lock_wait=0.2)
    yield client
    client.close()


@pytest.fixture
def keeper(impatient: cassq.Client, act: Act, directory: Path) -> Actor:
    """A process that is stopped in the middle of a transaction."""
    impatient.create_queue("jobs")
    actor = act("catalog_keeper", str(directory / "catalog.sqlite"))
    actor.expect("inside")
    actor.stop()
    return actor


def test_the_wait_is_bounded_for_everyone() -> None:
    assert 0 < LOCK_WAIT_SECONDS < math.inf


def test_writers_are_warned_of_a_stop_in_time_and_continue_afterwards(
    impatient: cassq.Client, keeper: Actor
) -> None:
    queue = impatient.queue("jobs")
    for verb in (
        lambda: impatient.create_queue("more"),
        lambda: queue.update(claim_timeout=3),
        lambda: queue.create_group("g"),
        lambda: queue.pusher().push(b"needs a pipe"),
    ):
        with pytest.raises(BackendTimeoutError, match="locked by another process") as caught:
            verb()
        assert caught.value.retryable
    keeper.go_on()
    keeper.say("go on")
    keeper.expect("done")
    push(queue, b"x")
    assert payloads(drain(queue.popper())) == [b"x"]


def test_reading_goes_on_meanwhile(impatient: cassq.Client, keeper: Actor) -> None:
    queue = impatient.queue("jobs")
    assert queue.stats().pushed == 0
    assert [group.name for group in queue.groups()] == ["default"]
    assert queue.audit().findings == []
    assert keeper.alive


def test_pushing_into_an_open_pipe_goes_on_meanwhile(
    impatient: cassq.Client, act: Act, directory: Path
) -> None:
    queue = impatient.create_queue("jobs")
    pusher = queue.pusher()
    pusher.push(b"opens the pipe")
    keeper = act("catalog_keeper", str(directory / "catalog.sqlite"))
    keeper.expect("inside")
    keeper.stop()
    ids = pusher.push_many(numbers(1000))
    assert len(ids) == 1000
    popper = queue.popper()
    with pytest.raises(BackendTimeoutError):
        popper.pop()
    keeper.go_on()
    keeper.say("go on")
    keeper.expect("done")
    assert len(drain(popper)) == 1001


class TellingClock(SystemClock):
    """Tells when a thread waits, by that thread's name, and how often it has tried since."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def sleep(self, seconds: float) -> None:
        self.waits[threading.current_thread().name] += 1
        super().sleep(seconds)

    def pause(self, seconds: float) -> None:
        """Wait, and tell nobody."""
        super().sleep(seconds)


@pytest.mark.parametrize("policy", [{}, {"max_length": 100_000}, {"max_bytes_per_pipe": 2**20}])
def test_pushing_goes_on_while_the_housekeeper_waits(
    act: Act, directory: Path, policy: dict[str, int]
) -> None:
    """Through beats and settings that are due, and the pipe that is to be opened next."""
    clock = TellingClock()
    with client_on(directory, Disk(), lock_wait=5 * DEADLINE_SECONDS, clock=clock) as client:
        queue = client.create_queue("jobs", lease=0.5, **policy)
        pusher = queue.pusher()
        pusher.push(bytes(800_000))  # with a limit of bytes it is nearly full
        keeper = act("catalog_keeper", str(directory / "catalog.sqlite"))
        keeper.expect("inside")
        keeper.stop()
        eventually("it waits", lambda: clock.waits["cassq-housekeeper"])
        until_ms = clock.boot_ms() + 1500

        def work(_: int) -> None:
            count = 0
            while clock.boot_ms() < until_ms or not count:
                pusher.push(b"x")
                count += 1
                clock.pause(0.01)  # a fast disk would fill the pipe, and the next one be needed

        try:
            in_threads(1, work)
            assert set(clock.waits) == {"cassq-housekeeper"}
            assert queue.stats().pushed > 1
        finally:
            keeper.go_on()
            keeper.say("go on")
        keeper.expect("done")


def test_threads_that_wait_behind_one_another_all_get_the_error(
    impatient: cassq.Client, keeper: Actor
) -> None:
    queue = impatient.queue("jobs")
    errors: list[BackendTimeoutError] = []

    def work(number: int) -> None:
        with pytest.raises(BackendTimeoutError) as caught:
            queue.create_group(f"g{number}")
        errors.append(caught.value)

    in_threads(4, work)
    assert len(errors) == 4
    assert keeper.alive


def test_delivered_messages_can_be_committed_when_the_lock_is_free_again(
    impatient: cassq.Client, act: Act, directory: Path
) -> None:
    queue = impatient.create_queue("jobs")
    push(queue, *numbers(3))
    popper = queue.popper()
    messages = popper.pop(3)
    keeper = act("catalog_keeper", str(directory / "catalog.sqlite"))
    keeper.expect("inside")
    keeper.stop()
    with pytest.raises(BackendTimeoutError):
        popper.commit(messages)
    keeper.go_on()
    keeper.say("go on")
    keeper.expect("done")
    popper.commit(messages)
    assert queue.stats().groups["default"].committed == 3
