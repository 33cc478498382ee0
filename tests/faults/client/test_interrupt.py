"""Interrupts: Ctrl-C in the middle of a push or pop leaves pusher and popper in order."""

from __future__ import annotations

import dis
import gc
import random
import signal
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import cassq
from cassq.base.clock import SystemClock
from cassq.catalog.sqlite.database import Database
from cassq.errors import BackendError
from cassq.extents.files.disk import Disk
from tests.integration.deadlines import eventually, joined
from tests.integration.stage import Connect, client_on, drain, numbers, payloads, push

ROUNDS = 60

Alarm = Callable[[float], AbstractContextManager[None]]


class Interruption(BaseException):
    """What the signal raises."""


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    """Sets the alarm clock for a block: so many seconds after its start `Interruption` comes out
    of a signal, if the block is not over; on a busy machine it may ring at once."""

    def strike(_: int, frame: FrameType | None) -> None:
        if is_lost_in(frame):
            signal.setitimer(signal.ITIMER_REAL, 0.0001)
        else:
            raise Interruption

    @contextmanager
    def alarmed(seconds: float) -> Iterator[None]:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, strike)
    yield alarmed
    signal.signal(signal.SIGALRM, before)


def is_lost_in(frame: FrameType | None) -> bool:
    """Whether Python drops what is raised there: in a callback of the garbage collector
    (Hypothesis registers one) or of a weak reference (Spark's py4j has some), and in `__del__`; or
    whether it would leave a lock locked for ever, as Python 3.14 does between a `with` statement's
    `__enter__` and its block (python/cpython#148874)."""
    if frame is not None and "LOAD_SPECIAL" in dis.opmap:
        before = frame.f_code.co_code[frame.f_lasti - 2]
        if before == dis.opmap["LOAD_SPECIAL"]:
            return True
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        code = frame.f_code
        module = str(frame.f_globals.get("__name__"))
        weak = module in ("_weakrefset", "weakref") or module.startswith("py4j.")
        if weak or code in callbacks or code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def test_an_interrupted_push_leaves_the_pusher_to_the_other_threads(
    queue: cassq.Queue, alarm: Alarm
) -> None:
    pusher = queue.pusher()
    over = threading.Event()
    acked: set[str] = set()
    chance = random.Random(5)

    def work() -> None:
        while not over.is_set():
            try:
                acked.add(pusher.push(b"theirs"))
            except BackendError as exc:  # the one that wrote for us all was interrupted
                assert exc.outcome_unknown

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(ROUNDS):
        with pytest.raises(Interruption), alarm(chance.uniform(0.0005, 0.006)):
            while True:
                acked.add(pusher.push(b"mine"))
    over.set()
    for thread in threads:
        joined("a pushing thread", thread)
    closing = threading.Thread(target=pusher.close, daemon=True)
    closing.start()
    joined("closing", closing)
    found = {message.id for message in drain(queue.popper())}
    assert found >= acked
    assert queue.audit().findings == []


def test_an_interrupted_pop_loses_nothing(client: cassq.Client, alarm: Alarm) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.5, max_deliveries=1000)
    push(queue, *numbers(2000))
    popper = queue.popper(keep_alive=0)
    chance = random.Random(6)
    done: set[bytes] = set()
    for _ in range(ROUNDS):
        with pytest.raises(Interruption), alarm(chance.uniform(0.0005, 0.004)):
            while True:
                messages = popper.pop(10, wait=1)
                done |= set(payloads(messages))
                popper.commit(messages)
    popper.close()
    queue.update(claim_timeout=60)
    again = queue.popper()

    def all_done() -> bool:
        done.update(payloads(drain(again)))
        return queue.stats().groups["default"].committed == 2000

    eventually("the rest comes", all_done)
    assert done == set(numbers(2000))
    assert queue.audit().findings == []


def test_an_interrupted_wait_ends_at_once_and_can_be_repeated(
    queue: cassq.Queue, alarm: Alarm, connect: Connect
) -> None:
    popper = queue.popper()
    for _ in range(3):
        with pytest.raises(Interruption), alarm(0.02):
            popper.pop(1, wait=60)
    push(connect().queue("jobs"), b"x")
    assert payloads(popper.pop(1, wait=30)) == [b"x"]


class InterruptedLine(deque[Any]):
    """What waits to be appended; the thread `victim` is interrupted just after it came into it,
    and before it goes on the one that leads is done."""

    def __init__(self) -> None:
        super().__init__()
        self.victim: threading.Thread | None = None

    def append(self, entry: Any) -> None:
        super().append(entry)
        if threading.current_thread() is self.victim:
            self.victim = None
            raise Interruption


class HeldUp:
    """Appends of a pusher that take until they are let go."""

    def __init__(self, pusher: cassq.Pusher, patch: pytest.MonkeyPatch) -> None:
        self.began, self.over = threading.Event(), threading.Event()
        append = pusher._append

        def held_up(entries: list[Any]) -> None:
            self.began.set()
            assert self.over.wait(30)
            append(entries)

        patch.setattr(pusher, "_append", held_up)


def test_a_thread_interrupted_in_line_does_not_keep_the_lead(
    queue: cassq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did when the leader handed on in this very moment: nobody could push again, or close."""
    pusher = queue.pusher()
    line, held_up = InterruptedLine(), HeldUp(pusher, monkeypatch)
    monkeypatch.setattr(pusher, "_queue", line)
    first = threading.Thread(target=pusher.push, args=(b"first",), daemon=True)
    first.start()
    assert held_up.began.wait(30)
    withdraw = pusher._withdraw

    def withdraw_late(entry: Any) -> None:
        held_up.over.set()
        joined("the leader", first)
        withdraw(entry)

    monkeypatch.setattr(pusher, "_withdraw", withdraw_late)
    line.victim = threading.current_thread()
    with pytest.raises(Interruption):
        pusher.push(b"interrupted")
    last = threading.Thread(target=pusher.push, args=(b"last",), daemon=True)
    last.start()
    joined("the next push", last)
    pusher.close()
    assert payloads(drain(queue.popper())) == [b"first", b"last"]


def test_an_interrupted_push_soon_is_pushed_nevertheless(
    queue: cassq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = queue.pusher()
    line = InterruptedLine()
    monkeypatch.setattr(pusher, "_queue", line)
    line.victim = threading.current_thread()
    with pytest.raises(Interruption):
        pusher.push_soon(b"interrupted")
    flush = threading.Thread(target=pusher.flush, daemon=True)
    flush.start()
    joined("flushing", flush)
    pusher.close()
    assert payloads(drain(queue.popper())) == [b"interrupted"]


class InterruptedDisk(Disk):
    """A disk on which whoever closes a file is interrupted just after, once."""

    armed = False

    def close(self, fd: int) -> None:
        super().close(fd)
        if self.armed:
            self.armed = False
            raise Interruption


def test_a_file_whose_closing_was_interrupted_is_not_closed_again(directory: Path) -> None:
    """Its number may be another file's by then; and of its own the pushers got an OSError."""
    disk = InterruptedDisk()
    client = client_on(directory, disk)
    client.runtime.housekeeper.stop()  # it closes files, too
    queue = client.create_queue("jobs", max_pushes_per_pipe=1)
    with queue.pusher() as pusher:
        pusher.push(b"1")
        disk.armed = True
        with pytest.raises(Interruption):
            pusher.push(b"interrupted")
        pusher.push(b"2")
    assert payloads(drain(queue.popper())) == [b"1", b"2"]
    client.close()


class InterruptedConnection(sqlite3.Connection):
    """One in which a statement is interrupted just after it was run, once."""

    interrupted = ""

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        cursor = super().execute(statement, *parameters)
        if statement == self.interrupted:
            self.interrupted = ""
            raise Interruption
        return cursor


@pytest.fixture
def interrupted(tmp_path: Path) -> Iterator[tuple[Database, InterruptedConnection]]:
    """A database, and the connection it uses."""
    made: list[InterruptedConnection] = []
    kind = InterruptedConnection

    def connect() -> sqlite3.Connection:
        options: dict[str, Any] = {"timeout": 0, "isolation_level": None, "factory": kind}
        made.append(sqlite3.connect(tmp_path / "catalog", check_same_thread=False, **options))
        return made[0]

    database = Database(connect, SystemClock(), name="catalog")
    yield database, made[0]
    database.close()


INSERT = "INSERT INTO meta (key, value) VALUES ('a', 'b')"


def seen_by_another(database: Database) -> tuple[int, bool]:
    """What another thread's transaction finds: how it is to be synced, whether the row is there."""
    found: list[tuple[int, bool]] = []

    def look() -> None:
        with database.lock, database.write(synced=False) as tx:
            rows = tx.execute("SELECT value FROM meta WHERE key = 'a'").fetchall()
            found.append((tx.execute("PRAGMA synchronous").fetchone()[0], rows == [("b",)]))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    joined("another thread's transaction", thread)
    return found[0]


NORMAL = 1


@pytest.mark.parametrize("at", ["BEGIN IMMEDIATE", INSERT, "COMMIT"])
def test_an_interrupted_transaction_keeps_no_other_thread_out(
    interrupted: tuple[Database, InterruptedConnection], at: str
) -> None:
    database, connection = interrupted
    connection.interrupted = at
    with pytest.raises(Interruption):
        with database.lock, database.write(synced=True) as tx:
            tx.execute(INSERT)
    assert seen_by_another(database) == (NORMAL, at == "COMMIT")


def test_a_transaction_whose_end_never_began_is_undone_by_the_next(
    interrupted: tuple[Database, InterruptedConnection],
) -> None:
    database, _ = interrupted
    with pytest.raises(Interruption), database.lock:
        database.write(synced=True).__enter__().execute(INSERT)
        raise Interruption  # as it would come out at the start of `__exit__`
    assert seen_by_another(database) == (NORMAL, False)
