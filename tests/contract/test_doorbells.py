"""The doorbell: a ring wakes who waits, in any thread or process, and hangs on nobody."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cassq import doorbell
from cassq.base.clock import ManualClock, Stopwatch
from cassq.doorbell import SLOTS, Doorbell, FifoDoorbell, Waiter
from tests.contract.backends import BellPlace, FifoBells

PATIENCE = 30.0
ROUNDS = 20


@pytest.fixture
def rings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter looks again by itself after a while: now only when it is too late, so that a ring
    that is not heard fails the test."""
    monkeypatch.setattr(doorbell, "LOOK_AGAIN_SECONDS", 2 * PATIENCE)


def never() -> bool:
    return False


def wait_until(
    waiter: Waiter, ready: Callable[[], bool], asleep: Callable[[], None] = lambda: None
) -> None:
    """Wait as poppers do: again and again until there is what they wait for.

    asleep: called when the waiter looks a last time before it sleeps; a ring after that is needed.
    """

    def last_look() -> bool:
        found = ready()
        if not found:
            asleep()
        return found

    watch = Stopwatch()
    while not ready():
        assert watch.seconds() < PATIENCE
        waiter.wait(PATIENCE, last_look)


class Answering:
    """A thread that waits for each number and answers with it."""

    def __init__(self, place: BellPlace, *, fresh: bool = False) -> None:
        self.asked = self.answered = 0
        self._there, self._back = place.open("there"), place.open("back")
        self._fresh = fresh
        self._asleep = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def ask(self, number: int) -> None:
        """Give it the next number once it sleeps; who asks has to ring."""
        assert self._asleep.acquire(timeout=PATIENCE)
        self.asked = number

    def _answer(self) -> None:
        waiter = self._there.listen()
        for number in range(1, ROUNDS + 1):
            if self._fresh:
                waiter.close()
                waiter = self._there.listen()
            calls: list[int] = []

            def asleep(calls: list[int] = calls) -> None:
                if not calls:
                    calls.append(1)
                    self._asleep.release()

            wait_until(waiter, lambda number=number: self.asked >= number, asleep)
            self.answered = number
            self._back.ring()
        waiter.close()

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@pytest.mark.usefixtures("rings_alone")
@pytest.mark.parametrize("fresh", [False, True], ids=["one waiter", "a new waiter each time"])
def test_a_ring_wakes_a_waiter_in_another_thread(bell_place: BellPlace, fresh: bool) -> None:
    answering = Answering(bell_place, fresh=fresh)
    there, waiter = bell_place.open("there"), bell_place.open("back").listen()
    for number in range(1, ROUNDS + 1):
        answering.ask(number)
        there.ring()
        wait_until(waiter, lambda number=number: answering.answered >= number)
    answering.join()
    waiter.close()


def ring_and_hear(
    bell: Doorbell,
    waiter: Waiter,
    asked: list[int],
    answers: list[int],
    threads: list[threading.Thread],
) -> None:
    """Ask for one number after another, with one ring each, until every thread has answered all."""
    for number in range(1, ROUNDS + 1):
        asked[0] = number
        bell.ring()
        wait_until(waiter, lambda number=number: min(answers) >= number)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.mark.usefixtures("rings_alone")
def test_one_ring_wakes_all_waiters(bell_place: BellPlace) -> None:
    bell, back = bell_place.open("there"), bell_place.open("back")
    asked, answers = [0], [0] * 4
    listening = threading.Barrier(5)

    def answer(index: int) -> None:
        waiter = bell.listen()
        listening.wait(PATIENCE)
        for number in range(1, ROUNDS + 1):
            wait_until(waiter, lambda number=number: asked[0] >= number)
            answers[index] = number
            back.ring()
        waiter.close()

    threads = [threading.Thread(target=answer, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    waiter = back.listen()
    listening.wait(PATIENCE)
    ring_and_hear(bell, waiter, asked, answers, threads)
    waiter.close()


@pytest.mark.usefixtures("rings_alone")
def test_one_ring_wakes_all_threads_that_share_a_waiter(bell_place: BellPlace) -> None:
    bell, back = bell_place.open("there"), bell_place.open("back")
    shared, waiter = bell.listen(), back.listen()
    asked, answers = [0], [0] * 4

    def answer(index: int) -> None:
        for number in range(1, ROUNDS + 1):
            wait_until(shared, lambda number=number: asked[0] >= number)
            answers[index] = number
            back.ring()

    threads = [threading.Thread(target=answer, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    ring_and_hear(bell, waiter, asked, answers, threads)
    shared.close()
    waiter.close()


# --- across processes -------------------------------------------------------------------------


def shared_numbers(path: Path) -> mmap.mmap:
    """Numbers that processes share: asked, answered, and for which one the other sleeps."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(fd, 4096)
        return mmap.mmap(fd, 4096)
    finally:
        os.close(fd)


ASKED, ANSWERED, ASLEEP = range(3)


def put(numbers: mmap.mmap, index: int, number: int) -> None:
    struct.pack_into("=Q", numbers, 8 * index, number)


def number_at(numbers: mmap.mmap, index: int) -> int:
    found: int = struct.unpack_from("=Q", numbers, 8 * index)[0]
    return found


def answer_in_a_process(directory: Path) -> None:
    """What `Answering` does, in a process of its own."""
    doorbell.LOOK_AGAIN_SECONDS = 2 * PATIENCE
    numbers = shared_numbers(directory / "numbers")
    place = FifoBells(directory, ManualClock())
    there, back = place.open("there"), place.open("back")
    waiter = there.listen()
    for number in range(1, ROUNDS + 1):
        wait_until(
            waiter,
            lambda number=number: number_at(numbers, ASKED) >= number,
            lambda number=number: put(numbers, ASLEEP, number),
        )
        put(numbers, ANSWERED, number)
        back.ring()
    waiter.close()


@pytest.mark.usefixtures("rings_alone")
def test_a_ring_wakes_a_waiter_in_another_process(tmp_path: Path) -> None:
    numbers = shared_numbers(tmp_path / "numbers")
    place = FifoBells(tmp_path, ManualClock())
    there, waiter = place.open("there"), place.open("back").listen()
    child = multiprocessing.get_context("spawn").Process(
        target=answer_in_a_process, args=(tmp_path,)
    )
    child.start()
    starting = Stopwatch()

    def await_sleep(number: int) -> None:
        while number_at(numbers, ASLEEP) < number:
            assert starting.seconds() < PATIENCE

    await_sleep(1)  # a process takes its time to start
    for number in range(1, ROUNDS + 1):
        await_sleep(number)
        put(numbers, ASKED, number)
        there.ring()
        wait_until(waiter, lambda number=number: number_at(numbers, ANSWERED) >= number)
    child.join(PATIENCE)
    assert child.exitcode == 0
    waiter.close()


WAIT_FOR_EVER = """
import sys
from pathlib import Path
from cassq.base.clock import ManualClock
from cassq.doorbell import FifoDoorbell
def ready():
    print("waiting", flush=True)
    return False
waiter = FifoDoorbell(Path(sys.argv[1]), "q", ManualClock()).listen()
while True:
    waiter.wait(1e9, ready)
"""


@pytest.fixture
def killed_waiter(tmp_path: Path) -> Callable[[], None]:
    """Have a process wait at the bell `q`, and kill it while it does."""

    def wait_and_die() -> None:
        root = Path(__file__).resolve().parents[2]
        command = [sys.executable, "-c", WAIT_FOR_EVER, str(tmp_path)]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "waiting\n"
            child.kill()

    return wait_and_die


def fifos(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_fifo())


@pytest.mark.usefixtures("rings_alone")
def test_the_place_of_a_dead_waiter_is_taken_by_the_next(
    tmp_path: Path, killed_waiter: Callable[[], None]
) -> None:
    bell = FifoDoorbell(tmp_path, "q", ManualClock())
    for _ in range(3):
        killed_waiter()
        assert len(fifos(tmp_path)) == 1
        bell.ring()
        bell.ring()
    place = FifoBells(tmp_path, ManualClock())
    first, second = bell.listen(), bell.listen()
    assert len(fifos(tmp_path)) == 2
    for waiter in (first, second):
        waiter.close()
    assert fifos(tmp_path) == [], "who leaves takes its place along"
    bell.close()
    answering = Answering(place)
    there = place.open("there")
    for number in range(1, ROUNDS + 1):
        answering.ask(number)  # once it has heard the ring before
        there.ring()
    answering.join()


# --- a bell hangs on nobody -------------------------------------------------------------------


def test_a_ring_with_nobody_waiting_does_nothing(bell_place: BellPlace) -> None:
    bell = bell_place.open("q")
    for _ in range(1000):
        bell.ring()
    waiter = bell.listen()
    for _ in range(100_000):
        bell.ring()
    waiter.wait(0.001, never)
    waiter.close()
    bell.ring()
    bell.close()


@pytest.mark.usefixtures("rings_alone")
def test_what_is_there_already_is_not_waited_for(bell_place: BellPlace) -> None:
    waiter = bell_place.open("q").listen()
    watch = Stopwatch()
    waiter.wait(PATIENCE, lambda: True)
    assert watch.seconds() < PATIENCE
    waiter.close()


def test_a_wait_ends_by_itself(bell_place: BellPlace) -> None:
    """Rings may be lost, so whoever waits looks again, however long he said."""
    waiter = bell_place.open("q").listen()
    waiter.wait(1e9, never)
    waiter.wait(0, never)
    waiter.wait(0.001, never)
    waiter.close()


def test_a_waiter_that_is_closed_while_it_waits_comes_back(bell_place: BellPlace) -> None:
    waiter = bell_place.open("q").listen()
    waiting = threading.Event()

    def ready() -> bool:
        waiting.set()
        return False

    thread = threading.Thread(target=waiter.wait, args=(1e9, ready))
    thread.start()
    assert waiting.wait(PATIENCE)
    waiter.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    waiter.close()
    waiter.wait(0.001, never)


# --- more than there are places -----------------------------------------------------------------


@pytest.fixture
def full_bell(tmp_path: Path) -> Iterator[FifoDoorbell]:
    """A bell at which every place is taken."""
    bell = FifoDoorbell(tmp_path, "q", ManualClock())
    waiters = [bell.listen() for _ in range(SLOTS)]
    yield bell
    for waiter in waiters:
        waiter.close()
    bell.close()


def test_a_waiter_without_a_slot_polls(full_bell: FifoDoorbell) -> None:
    waiter = full_bell.listen()
    looks = 0

    def third_time() -> bool:
        nonlocal looks
        looks += 1
        return looks >= 3

    waiter.wait(PATIENCE, third_time)
    assert looks == 3
    full_bell.ring()
    waiter.close()


# --- many at once -----------------------------------------------------------------------------


def test_rings_of_many_threads_reach_waiters_that_come_and_go_and_no_other_file(
    tmp_path: Path,
) -> None:
    """A file handle kept for a waiter that left may have become another file's."""
    (tmp_path / "bells").mkdir()
    bell = FifoDoorbell(tmp_path / "bells", "q", ManualClock())
    over = threading.Event()
    failures: list[BaseException] = []

    def until_over(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                while not over.is_set():
                    work()
            except BaseException as exc:
                failures.append(exc)

        return run

    def come_and_go() -> None:
        waiter = bell.listen()
        waiter.wait(0.001, never)
        waiter.close()

    def use_files() -> None:
        fd = os.open(tmp_path / f"file of {threading.get_ident()}", os.O_RDWR | os.O_CREAT)
        try:
            assert os.fstat(fd).st_size == 0, "a ring was written into another file"
        finally:
            os.close(fd)

    works = [bell.ring] * 6 + [come_and_go] * 8 + [use_files] * 2
    threads = [threading.Thread(target=until_over(work)) for work in works]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns as often as they can
    try:
        for thread in threads:
            thread.start()
        for _ in range(50):
            come_and_go()
    finally:
        over.set()
        sys.setswitchinterval(before)
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    bell.close()
    assert failures == []
