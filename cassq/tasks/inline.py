"""For tests of programs with tasks: runs calls where they are pushed, or only records them.

Both affect all apps of the process, until the end of their `with` block. Calls are encoded and
decoded as on their way through a queue, so a test shows what cannot be written or comes out
changed.
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
# What is done with a call instead of pushing it: the last entry counts. Empty: calls are pushed.
_instead: list[Callable[[Tasks, Call], object]] = []


@contextmanager
def inline(*, signals: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Run each call at once where it is pushed, whatever its delay. An error of the task is raised
    there, and the call is not tried again. A call by name must be of a task of the app. Steps run,
    and sleeps end at once. signals: what waits return, by name; other waits return None."""
    with (
        signalled(signals or {}),
        _instead_of_pushes(lambda tasks, call: tasks[call.task](*call.args, **call.kwargs)),
    ):
        yield


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """Push nothing: calls are added to this list, in order."""
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
    """Whether calls are now run or recorded instead of pushed."""
    return bool(_instead)


def take(tasks: Tasks, calls: Sequence[Pushed], payloads: Sequence[bytes]) -> list[Handle[Any]]:
    """Run or record calls instead of pushing them."""
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
