"""A worker whose handler is an async function: runs it in tasks of one event loop.

    returned                    acked
    raised                      nacked, with the error
    settled it itself           left as it is
    ran for too long            cancelled, and nacked ("time limit")
    still ran after the grace   cancelled, and nacked

The worker never asks for more messages than it has room for. A task that ends makes room; the
popper's thread settles its message, together with those of other tasks that ended meanwhile.

A task can be cancelled, but it may refuse to end. One that still runs a second after it was
cancelled goes on beside its replacement. When more than `stuck_max` tasks do, the worker stops.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from cassq.errors import (
    BackendError,
    CassqError,
    ClosedError,
    CorruptionError,
    UsageError,
)
from cassq.worker.eventloop.calls import Calls
from cassq.worker.eventloop.fetcher import Fetcher
from cassq.worker.eventloop.message import Message
from cassq.worker.feed import Backoff
from cassq.worker.handler import AsyncHandler, check_handler
from cassq.worker.journal import HandlerCall, Journal, Outcome, Terms
from cassq.worker.loop import (
    MAX_TASKS,
    TIME_LIMIT,
    Hooks,
    LoopSettings,
    WorkSource,
    abandoned,
)
from cassq.worker.settling import give_up, set_running, settle
from cassq.worker.wakeup import ENDING, Stopper

TASKS = 100
CANCEL_SECONDS = 1.0  # how long a task that was cancelled may take to end


class AsyncWorker:
    """Runs an async handler for the messages of a group; get one from `Queue.worker`."""

    def __init__(self, source: WorkSource, handler: AsyncHandler, settings: LoopSettings) -> None:
        self._source = source
        self._handler = check_handler(handler)
        self.settings: LoopSettings = settings.checked()
        self._room_most = 1 if source.in_order else settings.concurrency or TASKS
        self.hooks: Hooks = Hooks()
        self.journal: Journal = Journal(source.queue, source.group)
        self._running: dict[HandlerCall, asyncio.Task[None]] = {}
        self._stuck: dict[HandlerCall, asyncio.Task[None]] = {}  # cancelled, and not ended yet
        self._settling = 0  # tasks that ended, and are not settled yet
        self._left = settings.max_tasks
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fetcher: Fetcher | None = None
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None  # of the oldest task's time limit
        self._began = False
        self._stopping = False
        self._leaving = False
        self._abandoned = 0
        self._pinged = self._answered = 0

    # --- from outside ---------------------------------------------------------------------------

    def run(self) -> None:
        """Run in an event loop of its own until it is stopped, by `stop`, or by SIGTERM or SIGINT
        if this is the main thread: as `Worker.run`, with the same errors."""
        if asyncio._get_running_loop() is not None:
            raise UsageError(
                "run() would block the event loop that runs here",
                hint="await queue.run(...) of a client of cassq.aio.connect",
            )
        runner = asyncio.Runner()
        try:
            runner.run(self._serve_signals())
        finally:
            if self._stuck:
                runner.get_loop().close()  # the runner would wait for them
            else:
                runner.close()

    async def _serve_signals(self) -> None:
        with self._handling_signals():
            await self.serve()

    async def serve(self) -> None:
        """Take messages and run the handler for each, until the worker is stopped; in the running
        event loop. Handles no signals. Raises as `run` does.

        If it is cancelled, it cancels its tasks, and nacks their messages.
        """
        if self._began:
            raise UsageError("a worker runs once", hint="get another from queue.worker(...)")
        self._began = True
        loop = self._loop = asyncio.get_running_loop()
        keep_alive = self.settings.keep_alive(self._handler)
        calls = Calls(loop)
        try:
            popper = await calls.make(self._source.open_popper, keep_alive)
        finally:
            await calls.end()
        fetcher = self._fetcher = Fetcher(loop, popper, self._source.ports())
        cut_off = f"it still ran {self.settings.grace:g} s after its worker was stopped"
        try:
            if self._stopping:
                fetcher.stop()  # it was stopped before there was a popper
            self.hooks.ready(popper.name)
            await self._feed(fetcher)
            await self._wait_for_tasks()
        except asyncio.CancelledError:
            cut_off = "its worker was cancelled"
            raise
        finally:
            self._stopping = True
            await self._end(fetcher, cut_off)
        if self._abandoned:
            self.journal.still_running(self._abandoned)
            raise abandoned(self._source, self._abandoned)

    def stop(self) -> None:
        """Make `serve` and `run` return when the running tasks have ended, or after the grace. Safe
        in a signal handler, and from any thread; returns at once."""
        self._stopping = True
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._stop_now)

    def _stop_now(self) -> None:
        if self._fetcher is not None:
            self._fetcher.stop()
        self._changed.set()

    def facts(self) -> Mapping[str, Any]:
        """What it is doing now, and the totals so far."""
        running, stuck = len(self._running), len(self._stuck)
        return {**self.journal.totals(), "running": running, "stuck": stuck}

    def is_responsive(self) -> bool:
        """Whether its event loop has turned since the last call; for another thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return True
        if self._pinged != self._answered:
            return False
        self._pinged += 1
        loop.call_soon_threadsafe(self._answer)
        return True

    def _answer(self) -> None:
        self._answered = self._pinged

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        """Inside, SIGTERM and SIGINT stop the worker, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        stopper = Stopper(self.stop)
        former = {each: signal.getsignal(each) for each in ENDING}
        for each in ENDING:
            loop.add_signal_handler(each, stopper, each)
        try:
            yield
        finally:
            for each, handler in former.items():
                loop.remove_signal_handler(each)
                signal.signal(each, signal.SIG_DFL if handler is None else handler)

    # --- taking ---------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """How many more tasks may run now."""
        room = self._room_most - len(self._running)
        if self._source.in_order:
            room -= self._settling
        return room if self._left is None else min(room, self._left)

    async def _feed(self, fetcher: Fetcher) -> None:
        """Start a task for each message, when there is room, until the worker is stopped."""
        backoff = Backoff()
        while not (self._stopping or self._leaving):
            if self._left == 0:
                self._leave(MAX_TASKS)
                return
            if self._room <= 0:
                await self._change()
                continue
            try:
                found = await fetcher.take(self._room, None)
            except ClosedError:
                return
            except (BackendError, CorruptionError) as exc:
                seconds = backoff.after(exc)
                if seconds:
                    await self._change(seconds)
                continue
            backoff = Backoff()
            if self._stopping or self._leaving:
                fetcher.give_back([message.delivered for message in found])
                return
            for message in found:
                self._start(message)

    async def _change(self, seconds: float | None = None) -> None:
        """Wait until a task has ended, or the worker was stopped; at most for these seconds."""
        self._changed.clear()
        if not self._stopping:
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                return

    def _start(self, message: Message) -> None:
        assert self._loop is not None
        if self._left is not None:
            self._left -= 1
        task = HandlerCall(message.delivered, threading.current_thread(), Terms())
        self._running[task] = self._loop.create_task(self._do(task, message))
        if self.settings.time_limit is not None and self._timer is None:
            self._timer = self._loop.call_later(self.settings.time_limit, self._check_time_limit)

    async def _do(self, task: HandlerCall, message: Message) -> None:
        """Run the handler, and have the popper's thread settle the message."""
        failure: BaseException | None = None
        set_running(task, _adopt)
        try:
            await self._handler(message)
        except BaseException as exc:  # also SystemExit, which would end the loop, and a cancel
            failure = exc
        if self._running.pop(task, None) is None:
            if not isinstance(failure, asyncio.CancelledError):
                self.journal.late(task)
            self._stuck.pop(task, None)
        else:
            self._settle_soon(task, partial(settle, task, failure))
        self._changed.set()

    def _settle_soon(
        self, task: HandlerCall, act: Callable[[], tuple[Outcome, BaseException | None]]
    ) -> None:
        """Have the popper's thread settle the message of a task, and note the outcome."""
        assert self._fetcher is not None
        self._settling += 1

        def note_outcome(result: object, error: BaseException | None) -> None:
            self._settling -= 1
            if isinstance(result, tuple):
                self.journal.ended(task, *result)
            else:
                self.journal.ended(task, Outcome.UNWRITTEN, error)
            self._changed.set()

        self._fetcher.call_soon(act, note_outcome)

    # --- ending tasks ---------------------------------------------------------------------------

    def _check_time_limit(self) -> None:
        """Give up the tasks that ran for too long. `_running` has the oldest first."""
        limit, loop = self.settings.time_limit, self._loop
        assert limit is not None
        assert loop is not None
        self._timer = None
        for task in list(self._running):
            left = limit - task.watch.seconds()
            if left > 0:
                self._timer = loop.call_later(left, self._check_time_limit)
                return
            late = f"time limit: it ran for over {limit:g} s"
            self._give_up(task, Outcome.TIME_LIMIT, late)
            loop.call_later(CANCEL_SECONDS, self._check_stuck, task)

    def _check_stuck(self, task: HandlerCall) -> None:
        most = self.settings.stuck_max
        most = self._room_most if most is None else most
        running = self._stuck.get(task)
        if running is None or running.done() or self._stopping:
            return
        if len(self._stuck) > most:
            self._abandoned = max(self._abandoned, len(self._stuck))
            self._leave(TIME_LIMIT)

    def _give_up(self, task: HandlerCall, outcome: Outcome, error: str) -> None:
        """Nack the message of a task that runs, and cancel the task."""
        running = self._stuck[task] = self._running.pop(task)
        running.cancel()
        self._settle_soon(task, partial(give_up, task, outcome, error))

    def _leave(self, why: str) -> None:
        """Take no more messages, because another process should take over."""
        first, self._leaving = not self._leaving, True
        if first and not self._stopping:
            self.hooks.leaving(why)
        if self._fetcher is not None and why != MAX_TASKS:  # then nothing is taken anyway
            self._fetcher.stop()

    async def _wait_for_tasks(self) -> None:
        """Wait until no task runs, or the grace is over; it begins when the worker is stopped."""
        while self._running and not self._stopping:
            await self._change()
        if self._stopping:
            self.journal.stopping(len(self._running))
            if self._running:
                await asyncio.wait(list(self._running.values()), timeout=self.settings.grace)

    async def _end(self, fetcher: Fetcher, cut_off: str) -> None:
        """Give up what still runs, and write everything."""
        self._abandoned += len(self._running)
        for task in list(self._running):
            self._give_up(task, Outcome.ABANDONED, cut_off)
        if self._stuck:
            await asyncio.wait(list(self._stuck.values()), timeout=CANCEL_SECONDS)
            # A task that was cancelled before it began is still in `_stuck`.
            self._stuck = {task: each for task, each in self._stuck.items() if not each.done()}
        try:
            await fetcher.close()
        except CassqError:
            if not self._abandoned:
                raise


def _adopt(task: HandlerCall, terms: Terms) -> None:
    task.terms = terms
