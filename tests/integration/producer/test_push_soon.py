"""Pushing soon: futures, callbacks, and the bound on what waits in memory."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

import cassq
from cassq.errors import QueueNotFoundError
from cassq.extents.port import ExtentStore
from cassq.message.frames import Place as At
from cassq.producer.pusher import BUFFER_BYTES_MAX
from tests.integration.deadlines import eventually, joined
from tests.integration.fronts import Append, FrontStore, client_with
from tests.integration.places import Place
from tests.integration.stage import Connect, drain, numbers, payloads

MIB = 1024 * 1024


class Gate:
    """Where appends wait."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.waiting = threading.Event()

    def store(self, store: ExtentStore) -> FrontStore:
        """The same, whose appends wait here."""
        return FrontStore(store, self._append)

    def _append(self, append: Append) -> At:
        self.waiting.set()
        self.gate.wait()
        return append()


def test_futures_give_the_ids_in_the_order_of_pushing(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        futures = [pusher.push_soon(payload) for payload in numbers(2000)]
        ids = [future.result(30) for future in futures]
    found = drain(queue.popper())
    assert payloads(found) == numbers(2000)
    assert [message.id for message in found] == ids


def test_headers_and_keys_go_along(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        pusher.push_soon(b"a", headers={"h": "1"}, key=b"k").result(30)
    (message,) = queue.popper().pop()
    assert (message.headers, message.key) == ({"h": "1"}, b"k")


def test_flush_returns_when_all_pushed_before_is_durable(
    queue: cassq.Queue, connect: Connect
) -> None:
    pusher = queue.pusher()
    futures = [pusher.push_soon(payload) for payload in numbers(500)]
    pusher.flush()
    assert all(future.done() for future in futures)
    assert connect().queue("jobs").stats().pushed == 500


def test_flush_of_nothing_returns(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        pusher.flush()
        pusher.push_soon(b"x").result(30)
        pusher.flush()


def test_closing_waits_for_what_was_pushed_soon(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        futures = [pusher.push_soon(payload) for payload in numbers(500)]
    assert all(future.done() for future in futures)
    assert queue.stats().pushed == 500


@pytest.mark.parametrize("verb", ["push", "push_many", "push_soon"])
def test_a_callback_may_push_again(queue: cassq.Queue, verb: str) -> None:
    pusher = queue.pusher()
    done = threading.Event()

    def again(_: Future[str]) -> None:
        if verb == "push":
            pusher.push(b"second")
        elif verb == "push_many":
            pusher.push_many([b"second"])
        else:
            pusher.push_soon(b"second").add_done_callback(lambda _: done.set())
            return
        done.set()

    pusher.push_soon(b"first").add_done_callback(again)
    assert done.wait(30), "the callback did not get through"
    pusher.close()
    assert payloads(drain(queue.popper())) == [b"first", b"second"]


def test_a_callback_that_fails_harms_no_other_push(
    queue: cassq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Future[str]) -> None:
        raise LookupError("the callback's own")

    with queue.pusher() as pusher:
        pusher.push_soon(b"a").add_done_callback(fail)
        assert pusher.push_soon(b"b").result(30)
    assert payloads(drain(queue.popper())) == [b"a", b"b"]


def test_a_future_cannot_be_cancelled_once_it_was_pushed(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        future = pusher.push_soon(b"x")
        assert not future.cancel()
        assert future.result(30)
    assert payloads(drain(queue.popper())) == [b"x"]


def test_what_waits_in_memory_is_bounded(place: Place) -> None:
    gate = Gate()
    client = client_with(place, store=gate.store)
    queue = client.create_queue("jobs")
    pusher = queue.pusher()
    futures: list[Future[str]] = []
    total = 3 * BUFFER_BYTES_MAX // MIB

    def push_all() -> None:
        for _ in range(total):
            futures.append(pusher.push_soon(bytes(MIB)))

    thread = threading.Thread(target=push_all, daemon=True)
    thread.start()
    assert gate.waiting.wait(30)
    eventually("push_soon waits for room", lambda: pusher._waiting_locks)
    assert len(futures) * MIB <= BUFFER_BYTES_MAX
    gate.gate.set()
    joined("the pushing thread", thread)
    assert len({future.result(30) for future in futures}) == total
    client.close()


def test_pushes_that_arrive_during_an_append_share_the_next(place: Place) -> None:
    gate = Gate()
    client = client_with(place, store=gate.store)
    queue = client.create_queue("jobs")
    pusher = queue.pusher()
    first = pusher.push_soon(b"0")
    assert gate.waiting.wait(30)
    rest = [pusher.push_soon(payload) for payload in numbers(500, first=1)]
    gate.gate.set()
    first.result(30)
    pusher.flush()
    frames = {message._bundle.base_seq for message in drain(queue.popper())}
    assert frames == {0, 1}  # one alone, then all the others together
    assert all(future.done() for future in rest)
    client.close()


def test_an_error_reaches_the_future(queue: cassq.Queue, connect: Connect) -> None:
    pusher = queue.pusher()
    connect().delete_queue("jobs")

    def error() -> BaseException | None:
        return pusher.push_soon(b"x").exception(30)

    found = eventually("the deletion is noticed", error)
    assert isinstance(found, QueueNotFoundError)
    assert isinstance(pusher.push_soon(b"y").exception(30), QueueNotFoundError)
