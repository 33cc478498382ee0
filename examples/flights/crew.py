"""The processes: pushers, the poppers of two groups, and the parent that watches them.

Each process has a pipe of its own to the parent: a process that is killed can then break nothing
that the others use, as it could with a shared `multiprocessing.Queue`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import cassq
from archive import Archive
from delays import Delays
from kill import Doomed, Holding, Moment, Order, Orders, half_way
from popping import Batch, Results, pop_flights
from progress import Progress
from pushing import push_flights

QUEUE = "flights"
BATCH = 2_000
# A dead popper's messages are given to others after so many seconds. Pick a time that is long
# for one batch of work; it is short here because a batch takes some tens of milliseconds.
CLAIM_TIMEOUT = 5.0

GROUPS: dict[str, Callable[[Path], Results]] = {"delays": Delays, "archive": Archive}
MOMENTS = {"delays": Moment.BEFORE_COMMIT, "archive": Moment.BEFORE_WRITING}


class Plan(NamedTuple):
    """What is to be done: so many flights, by so many pushers, and poppers in each group."""

    directory: Path
    flights: int
    pushers: int
    poppers: int
    kill: bool

    @property
    def url(self) -> str:
        return queue_url(self.directory)


class Worker(NamedTuple):
    """One process, as the parent sees it; `group` is None for a pusher."""

    name: str
    process: BaseProcess
    link: Connection
    group: str | None


class Death(NamedTuple):
    """One popper that was killed, and how many uncommitted messages it held."""

    popper: str
    group: str
    moment: str
    held: int


class WorkerError(Exception):
    """A process ended that should not have; its own traceback is above."""


# --- in the processes -----------------------------------------------------------------------


def pusher_process(plan: Plan, number: int, link: Connection) -> None:
    """Push every row of this pusher's share."""
    from data import encode, read_flights  # here, so that poppers need not load pandas

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    start = plan.flights * number // plan.pushers
    stop = plan.flights * (number + 1) // plan.pushers
    messages = encode(read_flights(plan.flights).iloc[start:stop])
    # A client is opened in the process that uses it, never before a fork.
    with cassq.connect(plan.url) as client, client.queue(QUEUE).pusher() as pusher:
        push_flights(pusher, messages, report=link.send)


def popper_process(plan: Plan, group: str, doomed: bool, link: Connection) -> None:
    """Pop for one group until told to stop, or killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    middle = half_way(plan.flights, plan.poppers)
    results = GROUPS[group](plan.directory)
    if doomed:
        results = Doomed(results, MOMENTS[group], middle, link)
    orders = Orders(link, wait_at=middle if plan.kill and not doomed else None)

    def report(batch: Batch) -> None:
        orders.handled += batch.popped
        link.send(batch)

    batch = min(BATCH, middle)
    with cassq.connect(plan.url) as client, client.queue(QUEUE).popper(group=group) as popper:
        pop_flights(popper, results, batch=batch, go_on=orders.go_on, report=report)


# --- in the parent --------------------------------------------------------------------------


class Crew:
    """All processes of a run, from their start to their end."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self.deaths: list[Death] = []
        self._plan = plan
        self._progress = progress
        self._workers: list[Worker] = []

    def work(self) -> None:
        """Push and pop everything; returns when every group has committed every message."""
        plan = self._plan
        try:
            for number in range(plan.pushers):
                self._start(f"pusher-{number + 1}", pusher_process, number)
            for group in GROUPS:
                for number in range(plan.poppers):
                    doomed = plan.kill and number == 0
                    self._start(f"{group}-{number + 1}", popper_process, group, doomed, group=group)
            self._watch()
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()

    def _start(
        self,
        name: str,
        target: Callable[..., None],
        *arguments: Any,
        group: str | None = None,
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        link, far_end = spawn.Pipe()
        process = spawn.Process(target=target, args=(self._plan, *arguments, far_end), name=name)
        process.daemon = True
        process.start()
        far_end.close()  # the process has its own copy: when it ends, `link` does
        self._workers.append(Worker(name, process, link, group))

    def _watch(self) -> None:
        """Take in what the processes say until all have ended."""
        stopping = False
        with cassq.connect(self._plan.url) as client:
            queue = client.queue(QUEUE)
            while self._workers:
                ready = connection.wait([worker.link for worker in self._workers], timeout=0.2)
                for worker in [worker for worker in self._workers if worker.link in ready]:
                    self._listen(worker)
                self._progress.show()
                if ready or stopping or any(worker.group is None for worker in self._workers):
                    continue
                if is_all_committed(queue):
                    stopping = True
                    self._order(self._workers, Order.STOP)

    def _listen(self, worker: Worker) -> None:
        try:
            said = worker.link.recv()
        except (EOFError, ConnectionResetError):
            self._see_off(worker)
            return
        match said:
            case int():
                self._progress.pushed += said
            case Batch():
                assert worker.group is not None
                self._progress.add(worker.group, said)
            case Holding():
                self._kill(worker, said)

    def _see_off(self, worker: Worker) -> None:
        worker.process.join()
        self._workers.remove(worker)
        if worker.process.exitcode != 0:
            code = worker.process.exitcode
            raise WorkerError(f"{worker.name} ended with exit code {code}")

    def _kill(self, worker: Worker, holding: Holding) -> None:
        assert worker.group is not None
        worker.process.kill()  # SIGKILL: nothing of the popper's own code runs after this
        worker.process.join()
        self._workers.remove(worker)
        moment = MOMENTS[worker.group]
        self.deaths.append(Death(worker.name, worker.group, moment, holding.messages))
        self._progress.add(worker.group, Batch(holding.messages, 0, 0, 0))
        self._progress.say(
            f"killed {worker.name} {moment}; "
            f"others get the {holding.messages:,} messages it held in {CLAIM_TIMEOUT:.0f} s"
        )
        self._order([other for other in self._workers if other.group == worker.group], Order.GO_ON)

    def _order(self, workers: list[Worker], order: Order) -> None:
        for worker in workers:
            with contextlib.suppress(BrokenPipeError):  # it has ended: `_listen` will see why
                worker.link.send(order)


def create_queue(plan: Plan) -> None:
    """Make the queue with its groups, before any process starts."""
    with cassq.connect(plan.url) as client:
        queue = client.create_queue(QUEUE, claim_timeout=CLAIM_TIMEOUT)
        for group in GROUPS:
            queue.create_group(group, start="beginning")
        # Nobody reads the group that every queue begins with, so it would hold every message.
        queue.delete_group("default")


def is_all_committed(queue: cassq.Queue) -> bool:
    """Whether no group has anything waiting or pending."""
    groups = queue.stats().groups
    return all(groups[name].waiting == groups[name].pending == 0 for name in GROUPS)


def queue_url(directory: Path) -> str:
    """Where the queue lives in a run's directory."""
    return f"file://{(directory / 'queue').resolve()}"
