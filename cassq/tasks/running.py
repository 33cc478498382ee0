"""Running a task's call: what a worker does with a message of a task."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

from cassq.consumer.delivery import Message
from cassq.tasks.calls import Call, NotACallError, decode
from cassq.tasks.steps.context import Context
from cassq.tasks.steps.moving import MoveContext
from cassq.tasks.steps.run import Run, Suspended
from cassq.tasks.task import Task
from cassq.worker.handler import Reject
from cassq.worker.journal import Terms
from cassq.worker.settling import note_end, set_terms


class TaskHost(Protocol):
    """What running a call needs of its app: see `App`."""

    @property
    def tasks(self) -> Mapping[str, Task[Any, Any]]: ...

    @property
    def results_kept(self) -> float: ...

    def move_context(self) -> MoveContext: ...

    def keep(self, task: Task[Any, Any], message_id: str, value: object) -> None:
        """Keep what a task returned."""


_current: ContextVar[Context] = ContextVar("cassq_task")


def current() -> Context:
    """The call that runs here. Raises LookupError outside of a task that a worker runs."""
    return _current.get()


class UnknownTaskError(Exception):
    """A message is for a task that this worker does not have."""


class ArgumentsError(Exception):
    """The arguments in a message do not fit the task: another version of the program may have
    pushed it."""


def run(message: Message, host: TaskHost) -> None:
    """Run the call in a message, in a thread.

    Raises what the task raises, UnknownTaskError, ArgumentsError, or Reject for a payload that is
    not a call, and for a call that crashed too often.
    """
    task, call = _call_in(message, host.tasks)
    steps: Run | None = None
    if task.takes_context:
        steps = Run.of(host.move_context(), message, task.name, host.results_kept)
        if steps is None:
            return  # the task is over, or its call has gone on in another message
    context = Context(task.name, message.attempts, message, steps)
    token = _current.set(context)
    try:
        result = _begun(task, call, context)
        if task.is_async:
            result = _loops.run(result, task.settings.timeout)
        _end(host, task, message, steps, result)
    except Suspended:
        assert steps is not None
        steps.move()
        note_end(steps.goes_on)
    finally:
        _current.reset(token)


async def run_async(message: Message, host: TaskHost) -> None:
    """`run` in the running event loop, for a queue whose tasks are all async."""
    task, call = _call_in(message, host.tasks)
    steps: Run | None = None
    if task.takes_context:
        move_context = await asyncio.to_thread(host.move_context)
        steps = await asyncio.to_thread(Run.of, move_context, message, task.name, host.results_kept)
        if steps is None:
            return
    context = Context(task.name, message.attempts, message, steps)
    _current.set(context)
    try:
        coroutine, timeout = _begun(task, call, context), task.settings.timeout
        result = await (coroutine if timeout is None else _limited(coroutine, timeout))
        if task.settings.results or steps is not None:
            await asyncio.to_thread(_end, host, task, message, steps, result)
    except Suspended:
        assert steps is not None
        await asyncio.to_thread(steps.move)
        note_end(steps.goes_on)


def _end(
    host: TaskHost, task: Task[Any, Any], message: Message, steps: Run | None, result: object
) -> None:
    """Keep the result of a task that returned, and end its steps. Raises Suspended if the task
    sleeps or waits, but caught the Suspended that was to end its run."""
    if steps is not None and steps.suspended:
        raise Suspended()
    if task.settings.results:
        host.keep(task, message.id, result)
    if steps is not None:
        steps.end()


def _call_in(message: Message, tasks: Mapping[str, Task[Any, Any]]) -> tuple[Task[Any, Any], Call]:
    """The call in a message, and its task."""
    try:
        call = decode(message.payload)
    except NotACallError as exc:
        raise Reject(f"not a call of a task: {exc}") from exc
    task = tasks.get(call.task)
    if task is None:
        known = ", ".join(sorted(tasks)[:10]) or "none"
        raise UnknownTaskError(f"no such task: {call.task!r}; this worker has {known}")
    _set_terms(task, message)
    return task, call


def _begun(task: Task[Any, Any], call: Call, context: Context) -> Any:
    """Call the task's function; returns what it returns, for an async task a coroutine."""
    given = (context,) if task.takes_context else ()
    try:
        return task.function(*given, *call.args, **call.kwargs)
    except TypeError as exc:
        try:
            task.bind(call.args, call.kwargs)  # slow, so it only explains an error
        except TypeError as unfit:
            text = f"the arguments do not fit task {task.name!r}: {unfit}"
            raise ArgumentsError(text) from exc
        raise


def _set_terms(task: Task[Any, Any], message: Message) -> None:
    """Set what follows if this attempt fails, as the task's `retries` say, and its time limit.
    Raises Reject if all attempts were used up."""
    retries, timeout = task.settings.retries, task.settings.timeout
    delay, last = None, False
    if retries is not None:
        tried = message.attempts
        if tried > len(retries) + 1:  # the last attempt cannot have ended as a failure does
            raise Reject(f"all {tried - 1} attempts failed, the last perhaps with its process")
        last = tried > len(retries)
        delay = None if last else retries[tried - 1]
    set_terms(Terms(task.name, None if task.is_async else timeout, delay, last))


class _Loops:
    """The process's event loop, in its own thread, for async tasks of queues that have other tasks
    too. Tasks can share what they open in it, such as a connection pool."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, coroutine: Coroutine[Any, Any, object], timeout: float | None) -> object:
        """Run a coroutine to its end; the calling thread waits for it."""
        # The coroutine gets the context variables of the calling thread.
        return asyncio.run_coroutine_threadsafe(
            _limited(coroutine, timeout), self._running()
        ).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                name = "cassq-async-tasks"
                threading.Thread(target=self._loop.run_forever, name=name, daemon=True).start()
            return self._loop


async def _limited(coroutine: Coroutine[Any, Any, object], timeout: float | None) -> object:
    if timeout is None:
        return await coroutine
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            return await coroutine
    except TimeoutError as exc:
        if limit.expired():
            raise TimeoutError(f"timeout: it ran for over {timeout:g} s") from exc
        raise


_loops = _Loops()
