"""The housekeeper calls each task when it is due, by a clock that the test turns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from cassq.base.clock import ManualClock
from cassq.base.housekeeper import Housekeeper, Maintain
from cassq.errors import BackendTimeoutError
from tests.integration.deadlines import DEADLINE_SECONDS

FAR = 3000.0
NAME = "housekeeper-under-test"  # clients of this process have others


class Task:
    """Counts its calls; `answer` tells when it wants the next one."""

    def __init__(self, answer: Callable[[], float]) -> None:
        self.calls = 0
        self._answer = answer

    def maintain(self) -> float:
        self.calls += 1
        return self._answer()


def its_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == f"cassq-{NAME}"]


def every(seconds: float) -> Task:
    return Task(lambda: seconds)


def failing(error: Exception) -> Task:
    def fail() -> float:
        raise error

    return Task(fail)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def keeper(clock: ManualClock) -> Iterator[Housekeeper]:
    housekeeper = Housekeeper(clock, NAME)
    yield housekeeper
    housekeeper.stop()


def look(keeper: Housekeeper) -> None:
    """Have the housekeeper look at everything that is due, and wait until it has.

    Tasks are called in the order they were taken on, so when the last one is called, all the
    others that were due have been.
    """
    looked = threading.Event()

    def probe() -> float:
        looked.set()
        return FAR

    keeper.add(probe, -FAR)  # overdue, so it wakes a housekeeper that sleeps by the real clock
    assert looked.wait(DEADLINE_SECONDS)
    keeper.remove(probe)


def test_a_task_is_called_when_it_is_due_and_not_before(
    keeper: Housekeeper, clock: ManualClock
) -> None:
    task = every(FAR)
    keeper.add(task.maintain, 2.0)
    for advance, calls in ((0.0, 0), (1.999, 0), (0.001, 1), (10.0, 1)):
        clock.advance(advance)
        look(keeper)
        assert task.calls == calls


def test_a_task_is_called_again_after_the_seconds_it_asks_for(
    keeper: Housekeeper, clock: ManualClock
) -> None:
    task = every(5.0)
    keeper.add(task.maintain, 0)
    for advance, calls in ((0.0, 1), (4.999, 1), (0.001, 2), (5.0, 3), (50.0, 4)):
        clock.advance(advance)
        look(keeper)
        assert task.calls == calls


def test_a_task_can_be_hurried_but_not_held_back(keeper: Housekeeper, clock: ManualClock) -> None:
    task = every(FAR)
    keeper.add(task.maintain, 10.0)
    keeper.run_within(task.maintain, 20.0)
    keeper.add(task.maintain, 20.0)
    keeper.run_within(task.maintain, 3.0)
    for advance, calls in ((2.999, 0), (0.001, 1), (20.0, 1)):
        clock.advance(advance)
        look(keeper)
        assert task.calls == calls


def test_a_task_to_run_within_some_seconds_wakes_the_housekeeper(keeper: Housekeeper) -> None:
    called = threading.Event()

    def maintain() -> float:
        called.set()
        return FAR

    keeper.add(maintain, FAR)
    look(keeper)
    assert not called.is_set()
    keeper.run_within(maintain, 0)
    assert called.wait(DEADLINE_SECONDS)


def test_an_unknown_task_to_run_within_some_seconds_does_nothing(keeper: Housekeeper) -> None:
    stranger = every(FAR)
    keeper.run_within(stranger.maintain, 0)
    look(keeper)
    assert stranger.calls == 0


def test_a_removed_task_is_not_called_any_more(keeper: Housekeeper, clock: ManualClock) -> None:
    task = every(1.0)
    keeper.add(task.maintain, 0)
    look(keeper)
    keeper.remove(task.maintain)
    keeper.remove(task.maintain)
    clock.advance(10)
    look(keeper)
    assert task.calls == 1


def test_a_task_may_remove_itself(keeper: Housekeeper, clock: ManualClock) -> None:
    def leave() -> float:
        keeper.remove(task.maintain)
        return 0.0

    task = Task(leave)
    keeper.add(task.maintain, 0)
    for _ in range(3):
        clock.advance(1)
        look(keeper)
    assert task.calls == 1


def test_a_task_may_take_on_another(keeper: Housekeeper) -> None:
    second_called = threading.Event()

    def second() -> float:
        second_called.set()
        return FAR

    def first() -> float:
        keeper.add(second, 0)
        return FAR

    keeper.add(first, 0)
    assert second_called.wait(DEADLINE_SECONDS)


@pytest.mark.parametrize(
    ("error", "seconds", "level"),
    [
        (BackendTimeoutError("locked"), 1.0, logging.WARNING),
        (RuntimeError("a bug"), 10.0, logging.ERROR),
    ],
)
def test_a_task_that_fails_is_reported_and_tried_again_and_the_others_go_on(
    keeper: Housekeeper,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    seconds: float,
    level: int,
) -> None:
    bad, good = failing(error), every(0.5)
    with caplog.at_level(logging.WARNING, logger="cassq"):
        keeper.add(bad.maintain, 0)
        keeper.add(good.maintain, 0)
        look(keeper)
        assert (bad.calls, good.calls) == (1, 1)
        assert [record.levelno for record in caplog.records] == [level]
        clock.advance(seconds - 0.001)
        look(keeper)
        assert (bad.calls, good.calls) == (1, 2)
        clock.advance(0.001)
        look(keeper)
        assert bad.calls == 2
        # What is wrong with the storage is told once; a bug each time.
        again = [level] if level == logging.WARNING else [level, level]
        assert [record.levelno for record in caplog.records] == again


def test_an_error_that_many_tasks_meet_is_warned_of_once_and_then_logged_quietly(
    keeper: Housekeeper, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    what = "locked"

    def fail() -> float:
        raise BackendTimeoutError(what)

    tasks = [Task(fail) for _ in range(3)]
    with caplog.at_level(logging.INFO, logger="cassq"):
        for task in tasks:
            keeper.add(task.maintain, 0)
        for _ in range(3):
            look(keeper)
            clock.advance(1)
        assert [task.calls for task in tasks] == [3] * 3
        what = "away"
        look(keeper)
    levels = [(record.levelno, "away" in record.message) for record in caplog.records]
    assert levels == [(logging.WARNING, False), (logging.INFO, True)]


def test_nothing_is_called_once_it_has_stopped(keeper: Housekeeper, clock: ManualClock) -> None:
    task = every(0.0)
    keeper.add(task.maintain, 0)
    look(keeper)
    keeper.stop()
    calls = task.calls
    clock.advance(100)
    keeper.run_within(task.maintain, 0)
    assert task.calls == calls
    assert its_threads() == []


def test_stopping_waits_for_the_task_that_runs(clock: ManualClock) -> None:
    keeper = Housekeeper(clock, NAME)
    begun, go_on = threading.Event(), threading.Event()
    finished: list[bool] = []

    def maintain() -> float:
        begun.set()
        finished.append(go_on.wait(DEADLINE_SECONDS))
        return FAR

    keeper.add(maintain, 0)
    assert begun.wait(DEADLINE_SECONDS)
    stopper = threading.Thread(target=keeper.stop)
    stopper.start()
    assert stopper.is_alive()
    assert finished == []
    go_on.set()
    stopper.join(DEADLINE_SECONDS)
    assert not stopper.is_alive()
    assert finished == [True]


def test_a_task_may_stop_its_housekeeper(clock: ManualClock) -> None:
    keeper = Housekeeper(clock, NAME)
    stopped = threading.Event()

    def maintain() -> float:
        keeper.stop()
        stopped.set()
        return 0.0

    keeper.add(maintain, 0)
    assert stopped.wait(DEADLINE_SECONDS)
    keeper.stop()


def test_a_housekeeper_without_tasks_has_no_thread(clock: ManualClock) -> None:
    before = set(threading.enumerate())
    keeper = Housekeeper(clock, NAME)
    keeper.stop()
    keeper.stop()
    assert set(threading.enumerate()) <= before


def test_many_threads_may_bring_tasks_at_once_and_one_thread_does_them(clock: ManualClock) -> None:
    keeper = Housekeeper(clock, NAME)
    start = threading.Barrier(8)
    done_by: dict[Maintain, str] = {}
    all_done = threading.Semaphore(0)

    def bring() -> None:
        def maintain() -> float:
            done_by[maintain] = threading.current_thread().name
            all_done.release()
            return FAR

        start.wait(DEADLINE_SECONDS)
        keeper.add(maintain, 0)

    threads = [threading.Thread(target=bring) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    for _ in threads:
        assert all_done.acquire(timeout=DEADLINE_SECONDS)
    keepers = its_threads()
    keeper.stop()
    assert len(keepers) == 1
    assert set(done_by.values()) == {f"cassq-{NAME}"}
