"""A push to several lanes where appends wait for servers: they are made at the same time, and an
error says what became of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import cassq
from cassq.errors import (
    BackendError,
    BackendTimeoutError,
    BackendUnavailableError,
    CorruptionError,
    QueueFullError,
)
from cassq.extents.port import ExtentStore
from cassq.message.batches import Batch
from cassq.model.scaling import key_lane_of
from cassq.pipes import PipeWriter
from tests.integration.deadlines import DEADLINE_SECONDS
from tests.integration.stage import alone, drain, payloads

LANES = 4
KEYS = [b"%d" % n for n in range(40)]
APPEND = PipeWriter.append

OnLane = Callable[[int], object]


@pytest.fixture(autouse=True)
def networked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExtentStore, "networked", True)


@pytest.fixture
def queue(client: cassq.Client) -> cassq.Queue:
    alone(client)
    return client.create_queue("jobs", key_lanes=LANES)


@pytest.fixture
def on_append(monkeypatch: pytest.MonkeyPatch) -> Callable[[OnLane], None]:
    """Sets what is done with the number of its lane before anything is appended to one: once all of
    them are about to be."""

    def set_act(act: OnLane) -> None:
        all_at_it = threading.Barrier(LANES)

        def append(self: PipeWriter, batch: Batch, *given: Any) -> object:
            all_at_it.wait(DEADLINE_SECONDS)
            assert batch.keys is not None
            act(key_lane_of(batch.keys[0], LANES))
            return APPEND(self, batch, *given)

        monkeypatch.setattr(PipeWriter, "append", append)

    return set_act


def keys_of(*lanes: int) -> list[bytes]:
    return [key for key in KEYS if key_lane_of(key, LANES) in lanes]


def first_of(*lanes: int) -> int:
    return KEYS.index(keys_of(*lanes)[0])


def test_the_lanes_of_one_push_are_appended_at_the_same_time(
    queue: cassq.Queue, on_append: Callable[[OnLane], None]
) -> None:
    on_append(lambda _: None)
    with queue.pusher() as pusher:
        ids = pusher.push_many(KEYS, keys=KEYS)
    found = {message.id: message.payload for message in drain(queue.popper())}
    assert found == dict(zip(ids, KEYS, strict=True))


def test_if_a_lane_fails_the_error_says_what_is_pushed(
    queue: cassq.Queue, on_append: Callable[[OnLane], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(lane: int) -> None:
        if lane == 1:
            raise BackendUnavailableError("away")

    on_append(fail)
    with queue.pusher() as pusher:
        with pytest.raises(BackendUnavailableError, match="away") as caught:
            pusher.push_many(KEYS, keys=KEYS)
        assert caught.value.fields["pushed"] == first_of(1)
        assert caught.value.outcome_unknown
        monkeypatch.setattr(PipeWriter, "append", APPEND)
        assert sorted(payloads(drain(queue.popper()))) == sorted(keys_of(0, 2, 3))
        assert len(pusher.push_many(KEYS, keys=KEYS)) == len(KEYS)


def test_an_error_that_nothing_is_in_doubt_of_says_so_of_the_other_lanes(
    queue: cassq.Queue, on_append: Callable[[OnLane], None]
) -> None:
    def fail(lane: int) -> None:
        if lane == 1:
            raise CorruptionError("broken")

    on_append(fail)
    with queue.pusher() as pusher, pytest.raises(BackendError, match="broken") as caught:
        pusher.push_many(KEYS, keys=KEYS)
    assert caught.value.fields["pushed"] == first_of(1)
    assert caught.value.outcome_unknown
    assert isinstance(caught.value.__cause__, CorruptionError)


def test_of_two_errors_the_one_that_leaves_a_doubt_counts(
    queue: cassq.Queue, on_append: Callable[[OnLane], None]
) -> None:
    def fail(lane: int) -> None:
        if lane == 0:
            raise CorruptionError("broken")
        if lane == 1:
            raise BackendTimeoutError("late", outcome_unknown=True)

    on_append(fail)
    with queue.pusher() as pusher, pytest.raises(BackendTimeoutError, match="late") as caught:
        pusher.push_many(KEYS, keys=KEYS)
    assert caught.value.fields["pushed"] == first_of(0, 1)
    assert caught.value.outcome_unknown


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_is_ended_from_outside_is_an_error(
    queue: cassq.Queue, on_append: Callable[[OnLane], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []

    def end(lane: int) -> None:
        if threading.current_thread().name == "cassq-append":
            ended.append(lane)
            raise SystemExit(3)

    on_append(end)
    with queue.pusher() as pusher:
        with pytest.raises(BackendError, match="was interrupted") as caught:
            pusher.push_many(KEYS, keys=KEYS)
        assert caught.value.outcome_unknown
        assert caught.value.fields["pushed"] <= first_of(*ended)
        monkeypatch.setattr(PipeWriter, "append", APPEND)
        assert len(pusher.push_many(KEYS, keys=KEYS)) == len(KEYS)


@pytest.mark.parametrize("handled", [False, True])
def test_without_threads_they_are_appended_in_turn(
    queue: cassq.Queue, monkeypatch: pytest.MonkeyPatch, handled: bool
) -> None:
    """handled: while the program handles an error of its own."""
    start = threading.Thread.start

    def start_no_more(self: threading.Thread) -> None:
        if self.name == "cassq-append":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_no_more)
    with queue.pusher() as pusher:
        try:
            if handled:
                raise ValueError("the program's own")
            ids = pusher.push_many(KEYS, keys=KEYS)
        except ValueError:
            ids = pusher.push_many(KEYS, keys=KEYS)
    assert len(set(ids)) == len(KEYS)
    assert sorted(payloads(drain(queue.popper()))) == sorted(KEYS)


def test_a_limit_counts_what_the_other_lanes_have_pushed(
    client: cassq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So they are appended in turn."""
    threads: set[str] = set()

    def append(self: PipeWriter, *given: Any) -> object:
        threads.add(threading.current_thread().name)
        return APPEND(self, *given)

    monkeypatch.setattr(PipeWriter, "append", append)
    queue = client.create_queue("limited", key_lanes=LANES, max_length=20)
    with queue.pusher() as pusher, pytest.raises(QueueFullError):
        pusher.push_many(KEYS, keys=KEYS)
    assert len(drain(queue.popper())) <= 20
    assert "cassq-append" not in threads
