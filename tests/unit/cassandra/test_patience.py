"""FailureBudget: how long a call of several requests is held up by servers that fail."""

from __future__ import annotations

import pytest

from cassq.base.clock import ManualClock
from cassq.cassandra.errors import OverloadedError
from cassq.cassandra.tries import OVERLOAD_PATIENCE, FailureBudget, Tries
from cassq.errors import BackendError, BackendTimeoutError, BackendUnavailableError
from cassq.lifecycle.ports import TimedLife

SECONDS = 10.0
TIMEOUT = 5.0
DOWN = BackendUnavailableError("1 of 2 replicas are up", hint="start the others")
SLOW = BackendTimeoutError("no answer in time")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def life(clock: ManualClock) -> TimedLife:
    return TimedLife(clock)


@pytest.fixture
def patience(clock: ManualClock, life: TimedLife) -> FailureBudget:
    return FailureBudget(clock, SECONDS, life.call)


def step(clock: ManualClock, patience: FailureBudget) -> BackendError:
    """One step of a call: a statement that no server answers, sent until patience is over. Its
    error."""
    tries = Tries(clock, patience)
    while True:
        try:
            clock.advance(patience.timeout(TIMEOUT))
        except BackendUnavailableError as exc:
            return exc
        patience.lose(SLOW)
        try:
            tries.wait_after(SLOW)
        except BackendError as exc:
            return exc


def refused(clock: ManualClock, patience: FailureBudget, exc: BackendError) -> float:
    """How many seconds a statement is repeated that is refused at once."""
    before_ms = clock.boot_ms()
    tries = Tries(clock, patience)
    with pytest.raises(type(exc)):
        while True:
            patience.lose(exc)
            tries.wait_after(exc)
    return (clock.boot_ms() - before_ms) / 1000


def test_all_steps_of_a_call_together_take_its_patience(
    clock: ManualClock, life: TimedLife, patience: FailureBudget
) -> None:
    before_ms = clock.boot_ms()
    with life.enter():
        errors = [step(clock, patience) for _ in range(4)]
    assert clock.boot_ms() - before_ms <= SECONDS * 1000
    assert {error.message for error in errors} == {SLOW.message}


def test_a_step_that_is_not_sent_raises_the_error_of_the_one_before(
    clock: ManualClock, life: TimedLife, patience: FailureBudget
) -> None:
    with life.enter():
        refused(clock, patience, DOWN)
        clock.advance(1)
        patience.lose(DOWN)
        with pytest.raises(BackendUnavailableError, match="start the others") as caught:
            patience.timeout(TIMEOUT)
    assert caught.value.message == DOWN.message
    assert not caught.value.outcome_unknown, "nothing was sent"


def test_the_next_call_has_its_own_patience(
    clock: ManualClock, life: TimedLife, patience: FailureBudget
) -> None:
    for _ in range(2):
        with life.enter():
            assert SECONDS / 2 < refused(clock, patience, DOWN) <= SECONDS


def test_a_request_may_take_no_longer_than_what_is_left(
    clock: ManualClock, life: TimedLife, patience: FailureBudget
) -> None:
    with life.enter():
        clock.advance(7)
        patience.lose(SLOW)
        assert patience.timeout(TIMEOUT) == pytest.approx(3)


def test_the_wait_for_another_thread_that_fails_counts_too(
    clock: ManualClock, life: TimedLife, patience: FailureBudget
) -> None:
    with life.enter():
        clock.advance(4)  # for a lock that is held by a thread whose requests fail
        clock.advance(patience.timeout(TIMEOUT))
        patience.lose(SLOW)
        assert patience.left() == pytest.approx(1)


def test_a_long_wait_before_a_request_leaves_time_to_repeat_it(
    clock: ManualClock, life: TimedLife, patience: FailureBudget
) -> None:
    with life.enter():
        patience.timeout(TIMEOUT)
        patience.succeeded()
        clock.advance(40)  # for a limit of the rate
        patience.timeout(TIMEOUT)
        assert SECONDS / 20 < refused(clock, patience, DOWN) <= SECONDS / 10


def test_a_long_call_regains_its_patience_while_requests_succeed(
    clock: ManualClock, life: TimedLife, patience: FailureBudget
) -> None:
    with life.enter():
        for _ in range(10):  # half a minute of trouble in all
            clock.advance(3)
            patience.lose(SLOW)
            for _ in range(30):
                clock.advance(0.1)
                patience.succeeded()
        assert patience.left() > 9


def test_a_thread_outside_of_calls_keeps_others_waiting_for_half_of_it(
    clock: ManualClock, patience: FailureBudget
) -> None:
    """A call may wait for it, and then needs the other half."""
    for _ in range(2):  # each statement for itself
        assert SECONDS / 4 < refused(clock, patience, DOWN) <= SECONDS / 2


def test_without_calls_each_statement_has_all_of_it(clock: ManualClock) -> None:
    patience = FailureBudget(clock, SECONDS)
    for _ in range(2):
        assert SECONDS / 2 < refused(clock, patience, DOWN) <= SECONDS


def test_a_server_that_asks_for_a_pause_gets_more_time(
    clock: ManualClock, life: TimedLife, patience: FailureBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = 0.0
    monkeypatch.setattr(
        "cassq.cassandra.tries.Stopwatch.seconds", lambda _watch: clock.boot_ms() / 1000 - began
    )
    began = clock.boot_ms() / 1000
    with life.enter():
        tries = Tries(clock, patience)
        with pytest.raises(OverloadedError):
            while True:
                waited = clock.boot_ms() / 1000 - began
                tries.wait_after(OverloadedError("busy"))
        assert patience.left() == SECONDS, "it has not failed"
    assert SECONDS * OVERLOAD_PATIENCE - 1 < waited <= SECONDS * OVERLOAD_PATIENCE


def test_what_cannot_succeed_is_not_repeated(clock: ManualClock, patience: FailureBudget) -> None:
    tries = Tries(clock, patience)
    before_ms = clock.boot_ms()
    with pytest.raises(BackendUnavailableError):
        tries.wait_after(BackendUnavailableError("no such table", retryable=False))
    assert clock.boot_ms() == before_ms
