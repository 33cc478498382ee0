"""The feed and the loop over a popper that fails: a full disk, damage, a deleted queue."""

from __future__ import annotations

import logging
import threading
from typing import Any, cast

import pytest

from cassq.errors import (
    BackendUnavailableError,
    ClosedError,
    CorruptionError,
    QueueNotFoundError,
    StorageFullError,
)
from cassq.lifecycle.ports import Ports
from cassq.popper import Popper
from cassq.worker.feed import Feed
from cassq.worker.loop import LoopSettings, Worker, WorkSource


class FailingMessage:
    """A message whose ack, and nack, may fail."""

    id, attempts, settled = "pipe:0", 1, False

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.acked = False

    def ack(self) -> None:
        if self._error is not None:
            raise self._error
        self.acked = True

    def nack(self, error: object) -> None:
        self.ack()


class Run:
    """Messages of one claim, and the claim itself."""

    def __init__(self, messages: list[FailingMessage]) -> None:
        self._messages = messages
        self.delivery = self
        self.takers: list[threading.Thread] = []

    def messages(self) -> list[FailingMessage]:
        return self._messages

    def taken_by(self, thread: threading.Thread) -> None:
        self.takers.append(thread)


class Found(list[FailingMessage]):
    """The result of a pop."""

    @property
    def runs(self) -> list[Run]:
        return [Run(list(self))]


class ScriptedPopper:
    """Answers pops in turn, each with messages or an error; then it is stopped."""

    name = "scripted"

    def __init__(self, *answers: Found | Exception) -> None:
        self._answers = list(answers)
        self.stopped = False
        self.asked: list[int] = []
        self.released: list[FailingMessage] = []
        self.closed = False

    def pop(self, max_messages: int, wait: float) -> Found:
        self.asked.append(max_messages)
        if not self._answers:
            self.stopped = True
            return Found()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self) -> None:
        self.stopped = True

    def release(self, messages: list[FailingMessage]) -> None:
        self.released += messages

    def close(self) -> None:
        self.closed = True


def feed_of(popper: ScriptedPopper, **options: Any) -> Feed:
    return Feed(cast(Popper, popper), **{"one_at_a_time": False, "most": None, **options})


def _no_ports() -> Ports:
    raise AssertionError("a worker of threads needs none")


def worker_of(popper: ScriptedPopper, **settings: Any) -> Worker:
    source = WorkSource("jobs", "default", False, lambda _: cast(Popper, popper), _no_ports)
    return Worker(source, lambda _: None, LoopSettings(concurrency=1)._replace(**settings))


def test_it_goes_on_after_a_full_disk_and_after_damage(caplog: pytest.LogCaptureFixture) -> None:
    message = FailingMessage()
    popper = ScriptedPopper(StorageFullError(), CorruptionError(), Found([message]))
    assert feed_of(popper).take() is cast(Any, message)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert popper.asked == [1, 1, 1]


def test_a_rest_after_a_failure_ends_when_the_worker_is_stopped() -> None:
    popper = ScriptedPopper(*[StorageFullError() for _ in range(1000)])
    feed = feed_of(popper)
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(feed.take()))
    thread.start()
    popper.stop()
    feed.wake()
    thread.join(100)
    assert answers == [None]


@pytest.mark.parametrize(
    "error", [QueueNotFoundError(), BackendUnavailableError(retryable=False)], ids=str
)
def test_what_will_never_work_ends_the_worker_with_the_error(error: Exception) -> None:
    popper = ScriptedPopper(error)
    with pytest.raises(type(error)):
        worker_of(popper).run()
    assert popper.closed


def test_a_popper_that_was_closed_elsewhere_ends_the_worker() -> None:
    worker_of(ScriptedPopper(ClosedError())).run()


def test_an_ack_that_a_full_disk_refuses_is_counted_as_unwritten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    full, fine = FailingMessage(StorageFullError()), FailingMessage()
    worker = worker_of(ScriptedPopper(Found([full]), Found([fine])))
    worker.run()
    assert worker.facts()["outcomes"] == {"unwritten": 1, "done": 1}
    assert fine.acked
    assert "unwritten after" in caplog.text


@pytest.mark.parametrize(("one_at_a_time", "asked"), [(True, 1), (False, 4)])
def test_it_asks_for_all_free_threads_unless_order_demands_one(
    one_at_a_time: bool, asked: int
) -> None:
    popper = ScriptedPopper(Found([FailingMessage()]))
    feed = feed_of(popper, one_at_a_time=one_at_a_time)
    feed._free |= {-1, -2, -3}  # three others wait
    assert feed.take() is not None
    assert popper.asked == [asked]


def test_it_takes_no_more_than_it_may_and_then_nothing() -> None:
    popper = ScriptedPopper(Found([FailingMessage()]), Found([FailingMessage()]))
    feed = feed_of(popper, most=1)
    assert feed.take() is not None
    assert feed.is_spent
    assert feed.take() is None
    assert popper.asked == [1]


def test_what_was_not_begun_when_it_was_stopped_is_released() -> None:
    first, second = FailingMessage(), FailingMessage()
    popper = ScriptedPopper(Found([first, second]))
    feed = feed_of(popper)
    assert feed.take() is cast(Any, first)
    popper.stop()
    assert feed.take() is None
    feed.give_back(wait=False)
    feed.give_back(wait=True)
    assert popper.released == [second]
