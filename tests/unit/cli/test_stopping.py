"""Stopping a command: a signal ends its waits, whichever moment and thread it comes to."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cassq.cli.stopping import Stopped, StopSignal

DEADLINE_SECONDS = 20.0
TOO_LATE = b"too late"


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    with StopSignal() as stop:
        yield stop


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The ends to read and to write; in the end the first is ready, whatever happens, and the test
    fails."""
    ends = os.pipe()
    end_it = threading.Timer(DEADLINE_SECONDS, os.write, (ends[1], TOO_LATE))
    end_it.start()
    yield ends
    end_it.cancel()
    end_it.join()
    os.write(ends[1], b"end")
    assert not os.read(ends[0], 100).startswith(TOO_LATE)
    for end in ends:
        os.close(end)


@contextmanager
def signalled_elsewhere() -> Iterator[None]:
    """Another thread gets SIGTERM, so that no system call of this one is interrupted by it: as
    when it comes a moment before the call."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def get() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    thread = threading.Timer(0.05, get)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def test_what_can_be_read_ends_the_wait_for_it(stop: StopSignal, pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"x")
    stop.wait_for_input(pipe[0])
    assert os.read(pipe[0], 9) == b"x"


def test_the_end_of_what_is_read_ends_the_wait(stop: StopSignal) -> None:
    ends = os.pipe()
    os.close(ends[1])
    stop.wait_for_input(ends[0])
    assert os.read(ends[0], 9) == b""
    os.close(ends[0])


@pytest.mark.parametrize(
    "wait",
    [lambda stop, fd: stop.wait_for_input(fd), lambda stop, _: stop.wait(2 * DEADLINE_SECONDS)],
)
def test_a_signal_that_interrupts_no_call_ends_a_wait(
    stop: StopSignal, pipe: tuple[int, int], wait: Callable[[StopSignal, int], bool | None]
) -> None:
    try:
        with signalled_elsewhere():
            done = wait(stop, pipe[0])
    except Stopped:
        done = True
    assert done
    assert stop.exit_code == 128 + signal.SIGTERM


def test_what_comes_after_a_signal_is_not_waited_for(
    stop: StopSignal, pipe: tuple[int, int]
) -> None:
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Stopped):
        stop.wait_for_input(pipe[0])
    assert stop.wait(DEADLINE_SECONDS)


def test_other_signals_end_no_wait(stop: StopSignal, pipe: tuple[int, int]) -> None:
    seen: list[int] = []

    def take(signum: int, _: object) -> None:
        seen.append(signum)
        os.write(pipe[1], b"x")

    former = signal.signal(signal.SIGUSR1, take)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        stop.wait_for_input(pipe[0])
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert seen == [signal.SIGUSR1]
    assert os.read(pipe[0], 9) == b"x"
    assert not stop.wanted


def test_a_second_signal_is_the_former_handlers() -> None:
    taken: list[int] = []
    former: Any = signal.signal(signal.SIGTERM, lambda signum, _: taken.append(signum))
    try:
        with StopSignal():
            os.kill(os.getpid(), signal.SIGTERM)
            assert taken == []
            os.kill(os.getpid(), signal.SIGTERM)
            assert taken == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, former)


def test_all_is_as_before_when_it_is_over() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    fds = len(os.listdir("/proc/self/fd"))
    with StopSignal():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert len(os.listdir("/proc/self/fd")) == fds


def test_another_thread_may_wait_too(stop: StopSignal) -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(stop.wait(DEADLINE_SECONDS)))
    thread.start()
    signal.raise_signal(signal.SIGTERM)
    thread.join(DEADLINE_SECONDS)
    assert found == [True]
