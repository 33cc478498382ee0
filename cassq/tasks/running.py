"""Running a task's call: what a worker does with a message of a task."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from cassq.consumer.delivery import Message
from cassq.tasks.calls import Call, NotACallError, decode
from cassq.tasks.task import Task
from cassq.worker.handler import Reject
from cassq.worker.journal import Terms
from cassq.worker.settling import set_terms


@dataclass(frozen=True, slots=True)
class Context:
    """What a task can ask about the call that it runs. attempt: 1 the first time. message: the
    message that was delivered."""

    task: str
    attempt: int
    message: Message

    @property
    def id(self) -> str:
        """The id of its message, as of the handle that `push` returned."""
        return self.message.id


# Keeps what a task returned: the task, the id of the message, the value.
Keep = Callable[[Task[Any, Any], str, object], None]

_current: ContextVar[Context] = ContextVar("cassq_task")


def current() -> Context:
    """The call that runs here. Raises LookupError outside of a task that a worker runs."""
    return _current.get()


class UnknownTaskError(Exception):
    """A message is for a task that this worker does not have."""


class ArgumentsError(Exception):
    """A message has arguments that do not fit the task, as of another version of the program."""


def run(message: Message, tasks: Mapping[str, Task[Any, Any]], keep: Keep) -> None:
    """Run the call in a message, in a thread. keep: called with what a task returned, if it keeps
    results.

    Raises what the task raises, UnknownTaskError, ArgumentsError, or Reject for a payload that is
    not a call, and for a call that crashed too often.
    """
    task, call = _call_in(message, tasks)
    token = _current.set(Context(task.name, message.attempts, message))
    try:
        result = _begun(task, call)
        if task.is_async:
            result = _loops.run(result, task.settings.timeout)
        if task.settings.results:
            keep(task, message.id, result)
    finally:
        _current.reset(token)


async def run_async(message: Message, tasks: Mapping[str, Task[Any, Any]], keep: Keep) -> None:
    """`run` for a queue of async tasks alone, in the event loop that runs."""
    task, call = _call_in(message, tasks)
    _current.set(Context(task.name, message.attempts, message))
    result = await _limited(_begun(task, call), task.settings.timeout)
    if task.settings.results:
        await asyncio.to_thread(keep, task, message.id, result)


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


def _begun(task: Task[Any, Any], call: Call) -> Any:
    """What calling the task's function returns."""
    try:
        return task.function(*call.args, **call.kwargs)
    except TypeError as exc:
        try:
            task.bind(call.args, call.kwargs)  # it takes long, so it is only done to tell why
        except TypeError as unfit:
            text = f"the arguments do not fit task {task.name!r}: {unfit}"
            raise ArgumentsError(text) from exc
        raise


def _set_terms(task: Task[Any, Any], message: Message) -> None:
    """Have a failure come to what the task's `retries` say, and its time limit watched."""
    retries, timeout = task.settings.retries, task.settings.timeout
    delay, last = None, False
    if retries is not None:
        tried = message.attempts
        if tried > len(retries) + 1:  # else the attempt before would have been the last
            raise Reject(f"each of {tried - 1} attempts ended with its process")
        last = tried > len(retries)
        delay = None if last else retries[tried - 1]
    set_terms(Terms(task.name, None if task.is_async else timeout, delay, last))


class _Loops:
    """The event loop of this process for async tasks in queues that have others too, in a thread of
    its own. What one task keeps in it, such as a connection pool, is there for the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, coroutine: Coroutine[Any, Any, object], timeout: float | None) -> object:
        """Run it to its end, while the calling thread waits."""
        # Context variables of the calling thread are those of the coroutine.
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
