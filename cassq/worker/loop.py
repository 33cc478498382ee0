"""A worker in one process: threads that run a handler, and settle messages by how that ends.

A thread takes a message from the feed, calls the handler and settles the message:

    returned                    acked
    raised                      nacked, with the error
    settled it itself           left as it is
    ran for too long            nacked ("time limit"); the thread is left, another takes its place
    still ran after the grace   nacked; the thread is left

The thread that called `run` watches the others. A task is removed from `_running` either by its
own thread or by the one that watches, and that thread settles its message. So each message is
settled once.

A thread cannot be ended from outside. One that ignores its time limit goes on beside its
replacement. When more than `stuck_max` threads do, the worker stops, and raises
`AbandonedTasksError`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cassq.base.arguments import check_count, check_seconds
from cassq.base.clock import Stopwatch
from cassq.errors import (
    AbandonedTasksError,
    CassqError,
    UsageError,
)
from cassq.lifecycle.ports import Ports
from cassq.plurals import counted
from cassq.popper import KEEP_ALIVE_SECONDS, WAIT_MAX_SECONDS, Popper
from cassq.worker.feed import Feed
from cassq.worker.handler import Handler, check_handler, check_result
from cassq.worker.journal import HandlerCall, Journal, Outcome, Terms
from cassq.worker.settling import give_up, set_running, settle
from cassq.worker.wakeup import Stopper, Wakeup, handled

logger: logging.Logger = logging.getLogger("cassq")

THREADS = 8
CONCURRENCY_MAX = 10_000
TASKS_MAX = 10**12
GRACE_SECONDS = 30.0
TIME_LIMIT_SECONDS_MIN = 0.001
LOOK_SECONDS = 60.0
# Why a worker stops without being asked to.
MAX_TASKS, TIME_LIMIT = "max_tasks", "time_limit"

# Opens the popper of a worker. Its argument: how many seconds claims are kept alive.
OpenPopper = Callable[[float], Popper]


class LoopSettings(NamedTuple):
    """How a worker runs. concurrency: how many tasks run at the same time; None: 8 in threads, 100
    in an event loop. grace: how many seconds tasks may go on after the worker was stopped.
    time_limit: how many seconds a task may take. max_tasks: after how many tasks the worker ends.
    stuck_max: how many tasks may ignore their time limit; None: as many as `concurrency`."""

    concurrency: int | None = None
    grace: float = GRACE_SECONDS
    time_limit: float | None = None
    max_tasks: int | None = None
    stuck_max: int | None = None

    def as_arguments(self) -> dict[str, Any]:
        """As keyword arguments of `Queue.worker`, without `concurrency`."""
        given = self._asdict().items()
        return {name: value for name, value in given if name not in ("stuck_max", "concurrency")}

    def keep_alive(self, handler: object) -> float:
        """How many seconds claims are kept alive. A handler may have the attribute `timeout_max`:
        how many seconds one of its calls may take at most."""
        longest: float = getattr(handler, "timeout_max", 0.0)
        return max(KEEP_ALIVE_SECONDS, self.time_limit or 0.0, longest)

    def checked(self) -> LoopSettings:
        """These settings. Raises UsageError if one is not valid, and names it."""
        if self.concurrency is not None:
            check_count("concurrency", self.concurrency, CONCURRENCY_MAX)
        check_seconds("grace", self.grace, WAIT_MAX_SECONDS)
        if self.time_limit is not None:
            least = TIME_LIMIT_SECONDS_MIN
            check_seconds("time_limit", self.time_limit, WAIT_MAX_SECONDS, least=least)
        if self.max_tasks is not None:
            check_count("max_tasks", self.max_tasks, TASKS_MAX)
        return self


class WorkSource(NamedTuple):
    """Where a worker takes messages. in_order: one at a time, because the group keeps an order.
    ports: the client's."""

    queue: str
    group: str
    in_order: bool
    open_popper: OpenPopper
    ports: Callable[[], Ports]


class Hooks(NamedTuple):
    """Callbacks for changes of a worker's state. ready: it now takes messages, through the popper
    with this name. leaving: it takes no more, for this reason."""

    ready: Callable[[str], object] = lambda _name: None
    leaving: Callable[[str], object] = lambda _why: None


class Worker:
    """Runs a handler for the messages of a group; get one from `Queue.worker`."""

    def __init__(self, source: WorkSource, handler: Handler, settings: LoopSettings) -> None:
        self._source = source
        self._handler = check_handler(handler)
        self.settings: LoopSettings = settings.checked()
        self._concurrency = settings.concurrency or THREADS
        self.hooks: Hooks = Hooks()
        self.journal: Journal = Journal(source.queue, source.group)
        self._lock = threading.Lock()
        self._running: dict[HandlerCall, None] = {}
        self._threads: set[threading.Thread] = set()
        self._stuck: set[threading.Thread] = set()
        self._numbers = 0
        self._popper: Popper | None = None
        self._feed: Feed | None = None
        self._wakeup: Wakeup | None = None
        self._began = False
        self._stopping = False
        self._leaving = False
        self._terms = Terms(time_limit=self.settings.time_limit)
        self._limited = self.settings.time_limit is not None  # whether any task had a time limit
        self._failure: BaseException | None = None

    # --- from outside ---------------------------------------------------------------------------

    def run(self) -> None:
        """Take messages and run the handler for each, until the worker is stopped: by `stop`, or by
        SIGTERM or SIGINT if this is the main thread. A second SIGINT ends the process at once.

        After it was stopped it takes no more messages. Running tasks may go on for `grace` seconds;
        messages that were not begun go back uncounted. Returns when all messages are settled,
        durably. A worker runs once.

        Raises AbandonedTasksError if tasks still ran after the grace, or too many ignored their
        time limit; their messages were nacked. Raises the error that keeps it from taking messages,
        such as QueueNotFoundError when the queue is deleted.
        """
        if self._began:
            raise UsageError("a worker runs once", hint="get another from queue.worker(...)")
        self._began = True
        with Wakeup() as self._wakeup, handled(self._wakeup, Stopper(self.stop)):
            keep_alive = self.settings.keep_alive(self._handler)
            popper = self._popper = self._source.open_popper(keep_alive)
            feed = self._feed = Feed(
                popper, one_at_a_time=self._source.in_order, most=self.settings.max_tasks
            )
            if self._stopping:
                popper.stop()  # it was stopped before there was a popper
            try:
                self.hooks.ready(popper.name)
                for _ in range(self._concurrency):
                    self._start_thread(feed)
                self._watch(feed)
            finally:
                self._end(popper, feed)
        self._raise()

    def stop(self) -> None:
        """Make `run` return when the running tasks have ended, or after the grace. Safe in a signal
        handler, and from any thread; returns at once."""
        self._stopping = True
        popper, feed, wakeup = self._popper, self._feed, self._wakeup
        if popper is not None:
            popper.stop()
        if feed is not None:
            feed.wake()
        if wakeup is not None:
            wakeup.give()

    def facts(self) -> Mapping[str, Any]:
        """What it is doing now, and the totals so far."""
        with self._lock:
            running, stuck = len(self._running), len(self._stuck)
        return {**self.journal.totals(), "running": running, "stuck": stuck}

    def is_responsive(self) -> bool:
        """Always True: the calling thread runs, so the worker's threads can run too."""
        return True

    def _adopt(self, task: HandlerCall, terms: Terms) -> None:
        """Set the terms of a running task; the worker's time limit still applies."""
        limits = [
            limit for limit in (terms.time_limit, self._terms.time_limit) if limit is not None
        ]
        task.terms = terms._replace(time_limit=min(limits, default=None))
        if terms.time_limit is not None:
            self._limited = True
            if self._wakeup is not None:
                self._wakeup.give()

    # --- the threads ----------------------------------------------------------------------------

    def _start_thread(self, feed: Feed) -> None:
        self._numbers += 1
        name = f"cassq-worker-{self._source.queue}-{self._numbers}"
        # A daemon, so that a stuck thread does not keep the process from ending.
        thread = threading.Thread(target=self._serve, args=(feed,), name=name, daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _serve(self, feed: Feed) -> None:
        thread = threading.current_thread()
        try:
            while (message := feed.take()) is not None:
                if not self._do(HandlerCall(message, thread, self._terms)):
                    return  # another thread has its place
            if feed.is_spent:
                self._leave(MAX_TASKS)
        except BaseException as exc:
            self._fail(exc)
        finally:
            with self._lock:
                self._threads.discard(thread)
                self._stuck.discard(thread)
            if self._wakeup is not None:
                self._wakeup.give()

    def _do(self, task: HandlerCall) -> bool:
        """Run the handler, and settle the message. False if it was given back meanwhile."""
        with self._lock:
            self._running[task] = None
        failure: BaseException | None = None
        set_running(task, self._adopt)
        try:
            check_result(self._handler(task.message))
        except BaseException as exc:  # also SystemExit, which would only end this thread
            failure = exc
        if not self._take_over(task):
            self.journal.late(task)
            return False
        self._settle(task, failure)
        return True

    def _take_over(self, task: HandlerCall) -> bool:
        """Whether the caller must settle the task: True for the first caller only."""
        with self._lock:
            return self._running.pop(task, task) is None

    def _settle(self, task: HandlerCall, failure: BaseException | None) -> None:
        self.journal.ended(task, *settle(task, failure))

    def _give_up(self, task: HandlerCall, outcome: Outcome, error: str) -> None:
        """Nack the message of a task that is still running."""
        self.journal.ended(task, *give_up(task, outcome, error))

    def _fail(self, exc: BaseException) -> None:
        """Messages cannot be taken: `run` raises this."""
        self._failure = self._failure or exc
        self.stop()

    def _leave(self, why: str) -> None:
        """Take no more messages, because another process should take over. Running tasks may end in
        their own time."""
        with self._lock:
            first, self._leaving = not self._leaving, True
        if first and not self._stopping:
            self.hooks.leaving(why)
        if self._popper is not None and why != MAX_TASKS:  # then nothing is taken anyway
            self._popper.stop()

    # --- watching them --------------------------------------------------------------------------

    def _watch(self, feed: Feed) -> None:
        """Watch time limits and stops, until all threads have ended or the grace is over."""
        grace: Stopwatch | None = None
        while True:
            self._check_time_limits(feed)
            if self._stopping:
                if grace is None:
                    grace = Stopwatch()
                    self.journal.stopping(len(self._running))
                feed.give_back(wait=False)
            with self._lock:
                if not self._threads:
                    return
            left = self._until_next()
            if grace is not None:
                left_of_grace = self.settings.grace - grace.seconds()
                if left_of_grace <= 0:
                    return
                left = min(left, left_of_grace)
            assert self._wakeup is not None
            self._wakeup.wait(left)

    def _until_next(self) -> float:
        """Seconds until the next time limit, or `LOOK_SECONDS`."""
        seconds = LOOK_SECONDS
        if self._limited:
            with self._lock:
                left = [task.left() for task in self._running]
            seconds = min([seconds, *(each for each in left if each is not None)])
        # A task that begins now has the whole limit left.
        return min(seconds, self.settings.time_limit or seconds)

    def _check_time_limits(self, feed: Feed) -> None:
        if not self._limited:
            return
        with self._lock:
            late = [
                task for task in self._running if (left := task.left()) is not None and left <= 0
            ]
        for task in late:
            if not self._take_over(task):
                continue
            with self._lock:
                self._threads.discard(task.thread)
                self._stuck.add(task.thread)
                stuck = len(self._stuck)
            self._give_up(
                task, Outcome.TIME_LIMIT, f"time limit: it ran for over {task.terms.time_limit:g} s"
            )
            if self._stopping or self._leaving:
                continue
            if stuck > self._stuck_max:
                self._leave(TIME_LIMIT)
            else:
                self._start_thread(feed)

    @property
    def _stuck_max(self) -> int:
        most = self.settings.stuck_max
        return self._concurrency if most is None else most

    # --- the end --------------------------------------------------------------------------------

    def _end(self, popper: Popper, feed: Feed) -> None:
        """Give up what still runs, and write everything."""
        self.stop()
        with self._lock:
            left = list(self._running)
        grace = f"it still ran {self.settings.grace:g} s after its worker was stopped"
        for task in left:
            if self._take_over(task):
                with self._lock:
                    self._stuck.add(task.thread)
                self._give_up(task, Outcome.ABANDONED, grace)
        try:
            feed.give_back(wait=True)
            popper.close()
        except CassqError as exc:
            self._failure = self._failure or exc

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure
        with self._lock:
            stuck = len(self._stuck)
        if stuck:
            self.journal.still_running(stuck)
            raise abandoned(self._source, stuck)


def abandoned(source: WorkSource, tasks: int) -> AbandonedTasksError:
    """The error of a worker that left tasks behind."""
    return AbandonedTasksError(
        f"{counted(tasks, 'task')} of queue {source.queue!r} still running:"
        " nacked, and left behind",
        tasks=tasks,
    )
