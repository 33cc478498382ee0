"""Signals: handlers that stop, close, push, raise and exit in the middle of whatever runs.

A handler runs in the main thread between any two steps of it, so it may call a client whose locks
that thread holds. Here signals come at chosen moments, in the middle of a sync or of a commit, and
then five hundred of them at random ones.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import cassq
from cassq.errors import ClosedError, InterruptedCallError
from cassq.extents.files.disk import Disk
from cassq.inspect.history import HOUR_MS
from tests.faults.actors import Act
from tests.faults.client.test_interrupt import Interruption, is_lost_in
from tests.integration.deadlines import eventually, joined
from tests.integration.stage import (
    Connect,
    LaterClock,
    alone,
    client_on,
    drain,
    numbers,
    payloads,
    push,
)

SIGNALS = 500
# How many of the 142 exceptions that handlers raise may get lost in callbacks of other packages.
DROPPED_MOST = 5

Handler = Callable[[], object]


class Ringing(Disk):
    """A disk in whose next sync of data a signal comes, if one is wanted."""

    def __init__(self) -> None:
        self.wanted = False

    def sync_data(self, fd: int) -> None:
        super().sync_data(fd)
        self.ring()

    def ring(self, _synced: bool = True) -> None:
        if self.wanted and threading.current_thread() is threading.main_thread():
            self.wanted = False
            signal.raise_signal(signal.SIGUSR1)


@contextmanager
def handled(act: Handler, signum: signal.Signals = signal.SIGUSR1) -> Iterator[None]:
    """Have a signal handled by `act`."""

    def handle(_: int, __: FrameType | None) -> None:
        act()

    before = signal.signal(signum, handle)
    try:
        yield
    finally:
        signal.signal(signum, before)


@pytest.fixture
def ringing() -> Ringing:
    return Ringing()


@pytest.fixture
def client(tmp_path: Path, ringing: Ringing) -> Iterator[cassq.Client]:
    """A client in whose syncs and commits a signal may come."""
    client = client_on(tmp_path / "queues", ringing, committed=ringing.ring)
    yield client
    client.close()


@pytest.fixture
def queue(client: cassq.Client) -> cassq.Queue:
    return client.create_queue("jobs", claim_timeout=60)


# --- in the middle of a push ------------------------------------------------------------------


def test_a_push_in_a_handler_that_interrupts_a_push_is_refused_at_once(
    queue: cassq.Queue, ringing: Ringing
) -> None:
    refused: list[str] = []

    def push_too() -> None:
        with pytest.raises(InterruptedCallError) as error:
            pusher.push(b"from the handler")
        refused.append(str(error.value))

    with queue.pusher() as pusher, handled(push_too):
        pusher.push(b"before")
        ringing.wanted = True
        pusher.push(b"mine")
        pusher.push(b"after")
    assert len(refused) == 1
    assert "signal handler" in refused[0]
    assert payloads(drain(queue.popper())) == [b"before", b"mine", b"after"]


@pytest.mark.parametrize("what", ["pusher", "client"])
def test_a_close_in_a_handler_that_interrupts_a_push_waits_for_it(
    client: cassq.Client, queue: cassq.Queue, ringing: Ringing, what: str
) -> None:
    pusher = queue.pusher()
    pusher.push(b"before")
    with handled(client.close if what == "client" else pusher.close):
        ringing.wanted = True
        pushed = pusher.push(b"mine")
    assert pushed
    assert pusher.closed
    with pytest.raises(ClosedError):
        pusher.push(b"after")
    client.close()
    again = cassq.connect(client.url)
    try:
        assert payloads(drain(again.queue("jobs").popper())) == [b"before", b"mine"]
        assert again.queue("jobs").stats().pipes["open"] == 0  # it was sealed
    finally:
        again.close()


# --- in the middle of a pop, or an ack ---------------------------------------------------------


@pytest.mark.parametrize("what", ["popper", "client"])
def test_a_close_in_a_handler_that_interrupts_a_pop_gives_back_what_it_claimed(
    client: cassq.Client, queue: cassq.Queue, ringing: Ringing, what: str
) -> None:
    push(queue, *numbers(10))
    popper = queue.popper()
    with handled(client.close if what == "client" else popper.close):
        ringing.wanted = True
        assert not popper.pop(10)
    assert popper.closed
    again = cassq.connect(client.url)
    try:
        found = drain(again.queue("jobs").popper())
        assert payloads(found) == numbers(10)
        assert {message.attempts for message in found} == {1}
        assert again.queue("jobs").audit().findings == []
    finally:
        again.close()


def test_a_close_in_a_handler_that_interrupts_a_commit_waits_for_it(
    queue: cassq.Queue, ringing: Ringing
) -> None:
    push(queue, *numbers(10))
    popper = queue.popper()
    messages = popper.pop(4)
    with handled(popper.close):
        ringing.wanted = True
        popper.commit(messages)
    assert popper.closed
    assert queue.stats().groups["default"].committed == 4
    assert len(drain(queue.popper())) == 6


def test_what_a_handler_raises_in_a_commit_does_not_undo_it(
    queue: cassq.Queue, ringing: Ringing
) -> None:
    """Between the catalog's commit and the note of it."""

    def fail() -> None:
        raise Interruption

    push(queue, *numbers(10))
    with queue.popper() as popper:
        messages = popper.pop(4)
        with handled(fail):
            ringing.wanted = True
            with pytest.raises(Interruption):
                popper.commit(messages)
        popper.commit(messages)
        assert popper.lost == 0
        assert len(drain(popper)) == 6
    assert queue.stats().groups["default"].committed == 10
    assert queue.audit().findings == []


@pytest.mark.parametrize("by", ["handler", "thread"])
def test_an_iteration_that_is_stopped_ends_after_the_message_in_hand(
    queue: cassq.Queue, by: str
) -> None:
    push(queue, *numbers(100))
    popper = queue.popper()
    done: list[bytes] = []
    with handled(popper.stop):
        for message in popper:
            done.append(message.payload)
            if len(done) == 3 and by == "handler":
                signal.raise_signal(signal.SIGUSR1)
            elif len(done) == 3:
                thread = threading.Thread(target=popper.stop, daemon=True)
                thread.start()
                joined("who stops it", thread)
            message.ack()
    assert done == numbers(3)
    popper.flush()
    assert queue.stats().groups["default"].committed == 3
    # What was claimed ahead is free at once, and untried, though the popper is still open.
    other = queue.popper()
    found: list[cassq.Message] = []

    def all_found() -> bool:
        found.extend(drain(other))
        return len(found) == 97

    eventually("the rest comes to another", all_found)
    assert {message.attempts for message in found} == {1}
    popper.close()
    assert queue.audit().findings == []


@pytest.mark.parametrize("ends", ["stop", "close"])
def test_a_pop_that_waits_ends_when_a_handler_stops_or_closes_it(
    queue: cassq.Queue, ends: str
) -> None:
    popper = queue.popper()
    with handled(getattr(popper, ends), signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert not popper.pop(1, wait=3600)
    assert popper.stopped
    assert popper.closed == (ends == "close")
    with pytest.raises(ClosedError):
        popper.pop(1)
    assert list(popper) == []


def test_a_pop_that_waits_ends_when_another_thread_stops_it(queue: cassq.Queue) -> None:
    popper = queue.popper()
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(popper.pop(1, wait=3600)), daemon=True)
    thread.start()
    popper.stop()
    joined("the waiting thread", thread)
    assert found
    assert not found[0]


def test_a_stopped_popper_returns_nothing_once_and_then_says_so(queue: cassq.Queue) -> None:
    """A loop that looks at `stopped` never meets the error; one that does not never spins."""
    push(queue, b"x")
    popper = queue.popper()
    popper.stop()
    assert not popper.pop(1)
    with pytest.raises(ClosedError, match="was stopped"):
        popper.pop(1)
    popper.close()
    assert payloads(drain(queue.popper())) == [b"x"]


def test_a_handler_may_push_while_the_main_thread_waits_for_messages(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher, queue.popper() as popper:
        with handled(lambda: pusher.push(b"from the handler"), signal.SIGALRM):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            assert payloads(popper.pop(1, wait=3600)) == [b"from the handler"]
        popper.flush()


# --- every call ---------------------------------------------------------------------------------


# What takes no lock, or is long and made of steps, of which the catalog's are guarded.
FREE = {
    "Client": {"close", "runtime_class"},
    "Queue": {
        "audit", "dead_letters", "drain", "forwarding_pusher", "new_pusher", "pusher_for", "run",
        "settle", "tick_pusher",
    },
    "Popper": {
        "ack_held", "close", "close_inside", "commit", "dead", "extend_held", "give_held",
        "interrupt", "release", "rollback", "stop", "maintain", "transaction",
    },
    "Pusher": {"close", "close_inside", "push_intended", "maintain"},
    "Schedule": {"drop"},
}  # fmt: skip


def test_every_call_is_refused_inside_another_of_its_thread(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    push(queue, *numbers(4))
    schedule = client.create_schedule("tidy", "jobs", cron="@daily")
    with queue.pusher() as pusher, queue.popper() as popper:
        (message,) = popper.pop(1)
        settlement = queue.settle(message.receipt)
        calls: list[Callable[..., object]] = [
            message.ack, message.nack, message.release, lambda: message.extend(1),
            lambda: popper.commit([message]), lambda: popper.rollback([message]),
            lambda: popper.release([message]), lambda: popper.dead([message]),
            lambda: popper.transaction().__enter__(), lambda: next(iter(popper)),
            settlement.ack, settlement.nack, settlement.release, settlement.dead,
            lambda: settlement.extend(1),
        ]  # fmt: skip
        for thing in (client, queue, popper, pusher, schedule):
            names = {name for name in vars(type(thing)) if not name.startswith("_")}
            verbs = {name for name in names if callable(getattr(type(thing), name))}
            free = FREE[type(thing).__name__]
            assert free <= verbs
            calls += [getattr(thing, name) for name in sorted(verbs - free)]
        with client.ports.life.enter():
            for call in calls:
                with pytest.raises(InterruptedCallError):
                    call()
        message.ack()


def test_no_thread_enters_the_catalog_twice(client: cassq.Client, queue: cassq.Queue) -> None:
    catalog = client.ports.catalog
    with catalog._db.lock:  # type: ignore[attr-defined]
        assert client.ports.life.busy
        with pytest.raises(InterruptedCallError):
            catalog.queues.listed()
    assert not client.ports.life.busy
    assert [row.name for row in catalog.queues.listed()] == ["jobs"]


# --- at random moments --------------------------------------------------------------------------


class Round:
    """A process's life in small: it pushes, iterates and acks until a signal ends it."""

    def __init__(self, storm: Storm, way: str) -> None:
        self.storm = storm
        self.way = way
        self.client = cassq.connect(storm.url)
        self.queue = self.client.queue("jobs")
        self.pusher = self.queue.pusher()
        self.popper = self.queue.popper()
        self.struck = False

    def handle(self, _: int, frame: FrameType | None) -> None:
        if is_lost_in(frame):
            signal.setitimer(signal.ITIMER_REAL, 0.0001)
            return
        self.struck = True
        match self.way:
            case "stop":
                self.popper.stop()
            case "close popper":
                self.popper.close()
            case "close pusher":
                self.pusher.close()
            case "close client":
                self.client.close()
            case "push":
                try:
                    self.storm.pushed.add(self.pusher.push(b"from the handler"))
                except InterruptedCallError:
                    self.storm.refused += 1
                self.popper.stop()
            case "raise":
                raise Interruption
            case "exit":
                sys.exit()

    def run(self, after: float) -> None:
        """Work until the signal, which comes `after` so many seconds, has ended it."""
        before = signal.signal(signal.SIGALRM, self.handle)
        try:
            signal.setitimer(signal.ITIMER_REAL, after)
            try:
                while not (self.struck and self.over):
                    if self.struck and self.way in ("raise", "exit"):
                        self.strike_again()
                    self.work()
            finally:
                # In this order: a handler that ran last may have set the timer again, and without a
                # handler the signal would kill the process.
                signal.signal(signal.SIGALRM, signal.SIG_IGN)
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (Interruption, SystemExit):
            assert self.way in ("raise", "exit")
        except ClosedError:
            assert self.way.startswith("close")
        finally:
            signal.signal(signal.SIGALRM, before)
            self.client.close()

    def strike_again(self) -> None:
        """What the handler raised went no further: Python drops it in some callbacks that
        `is_lost_in` does not know, as those of weak references in other packages."""
        self.storm.dropped += 1
        self.struck = False
        signal.setitimer(signal.ITIMER_REAL, 0.0001)

    @property
    def over(self) -> bool:
        return self.way == "stop" or self.popper.stopped or self.pusher.closed

    def work(self) -> None:
        storm = self.storm
        storm.pushed.add(self.pusher.push(b"x"))
        storm.pushed.update(self.pusher.push_many([b"y"] * 20))
        for count, message in enumerate(self.popper, 1):
            storm.taken(message.id)
            message.ack()
            storm.acked.add(message.id)
            if count == 10:
                break
        messages = self.popper.pop(5, wait=0.001)
        for message in messages:
            storm.taken(message.id)
        self.popper.commit(messages)
        storm.acked.update(message.id for message in messages)


class Storm:
    """What the rounds were promised."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.pushed: set[str] = set()
        self.acked: set[str] = set()
        self.seen: set[str] = set()
        self.refused = 0
        self.dropped = 0

    def taken(self, message_id: str) -> None:
        assert message_id not in self.acked, "what was acked came again"
        self.seen.add(message_id)


WAYS = ("stop", "close popper", "close pusher", "close client", "push", "raise", "exit")


@pytest.mark.waits(reason="each of 500 rounds opens and closes a client, with some syncs")
def test_signals_at_random_moments_leave_everything_in_order(
    url: str, directory: Path, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """500 of them, with handlers that stop, close, push, raise and exit."""
    caplog.set_level(logging.WARNING, "cassq")
    connect().create_queue("jobs", claim_timeout=60, max_deliveries=1000)
    storm, chance = Storm(url), random.Random(11)
    for number in range(SIGNALS):
        Round(storm, WAYS[number % len(WAYS)]).run(chance.uniform(0.0001, 0.012))
    assert storm.refused > 0
    assert storm.dropped <= DROPPED_MOST
    broken = [record for record in caplog.records if record.exc_info]
    assert broken == []
    late = client_on(directory, clock=LaterClock(HOUR_MS))
    alone(late)  # hundreds of pipes are ready to be retired, while the audit looks
    queue = late.queue("jobs")
    popper = queue.popper()

    def all_came() -> bool:
        for message in drain(popper):
            storm.taken(message.id)
            storm.acked.add(message.id)
        group = queue.stats().groups["default"]
        return group.waiting + group.pending == 0

    try:
        eventually("the rest comes", all_came)
        assert storm.seen >= storm.pushed
        audit = queue.audit()
        assert audit.findings == []
        assert audit.balanced
    finally:
        late.close()


def test_a_worker_ends_when_its_supervisor_stops_it(connect: Connect, act: Act, url: str) -> None:
    queue = connect().create_queue("jobs", claim_timeout=60)
    done: list[bytes] = []
    for number in range(10):
        push(queue, *numbers(200, first=200 * number))
        worker = act("work_until_told", url)
        worker.expect("done")
        os.kill(worker.pid, signal.SIGTERM)
        worker.expect("ended")
        done += [payload for _, payload in worker.reports("done")]
    assert len(done) == len(set(done))  # nothing came twice: all of it was acked, or never tried
    done += payloads(rest := drain(queue.popper()))
    assert sorted(done) == sorted(numbers(2000))
    assert {message.attempts for message in rest} <= {1}
    assert queue.audit().findings == []
