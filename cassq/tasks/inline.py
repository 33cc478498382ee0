"""Running calls where they are pushed, or only recording them: for tests of programs with tasks.

Either holds for all apps of the process while its `with` block lasts. Calls are written and read
as on their way through a queue, so what cannot be written shows, and what comes out changed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cassq.message.message_ids import MessageId
from cassq.tasks.calls import Call, decode
from cassq.tasks.handles import Handle, Result
from cassq.tasks.steps.inline_run import signalled
from cassq.tasks.task import Pushed, Task

Tasks = Mapping[str, Task[Any, Any]]
_numbers = itertools.count(1)
# What becomes of a call instead of its push; None: it is pushed.
_instead: list[Callable[[Tasks, Call], object]] = []


@contextmanager
def inline(*, signals: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Run each call at once, where it is pushed, whatever its delay. An error of the task is raised
    there, and it is not tried again; calls by name need a task of the app. Steps are called, and
    sleeps are over at once. signals: what waits return, by name; others return None."""
    with (
        signalled(signals or {}),
        _instead_of_pushes(lambda tasks, call: tasks[call.task](*call.args, **call.kwargs)),
    ):
        yield


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """Push nothing: the calls are in this list, in their order."""
    calls: list[Call] = []
    with _instead_of_pushes(lambda _, call: calls.append(call)):
        yield calls


@contextmanager
def _instead_of_pushes(what: Callable[[Tasks, Call], object]) -> Iterator[None]:
    _instead.append(what)
    try:
        yield
    finally:
        _instead.remove(what)


def is_inline() -> bool:
    """Whether calls are not pushed at present."""
    return bool(_instead)


def take(tasks: Tasks, calls: Sequence[Pushed], payloads: Sequence[bytes]) -> list[Handle[Any]]:
    """Do with calls what is done instead of pushing them."""
    found = []
    for each, payload in zip(calls, payloads, strict=True):
        result = _instead[-1](tasks, decode(payload))
        if asyncio.iscoroutine(result):
            result = _finish(result)
        found.append(_handle(each, result))
    return found


async def take_soon(tasks: Tasks, call: Pushed, payload: bytes) -> Handle[Any]:
    """`take` for one call, in a running event loop."""
    result = _instead[-1](tasks, decode(payload))
    if asyncio.iscoroutine(result):
        result = await result
    return _handle(call, result)


def _finish(coroutine: Any) -> object:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    coroutine.close()
    raise RuntimeError("an async task cannot run inline in a running loop: use push_async there")


def _handle(call: Pushed, value: object) -> Handle[Any]:
    result = Result(value) if call.results else None
    return Handle(MessageId(f"inline:{next(_numbers)}"), call.queue, result=result)
