"""Handlers: what may be one, and how one is found by its name, as in `mail.tasks:send`.

A handler is called with a message. When it returns, the message is acked, and if it raises, the
message is nacked with the error. An async function is run by an event loop, and gets a message with
verbs that it can await. What merely returns something still to be run, as a generator does, or a
plain function that returns a coroutine, is refused: its message would be acked before any of it
ran.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from cassq.base.arguments import DELAY_MAX_SECONDS, check_seconds
from cassq.consumer.delivery import Message
from cassq.errors import UsageError
from cassq.worker.eventloop.message import Message as AsyncMessage

Handler = Callable[[Message], object]
AsyncHandler = Callable[[AsyncMessage], Awaitable[object]]
H = TypeVar("H")


class Retry(Exception):  # noqa: N818 - not an error
    """A handler raises it to give its message back without an error in its work: for `delay`
    seconds, or by the group's schedule. It counts as an attempt."""

    def __init__(self, reason: str = "", *, delay: float | None = None) -> None:
        if delay is not None:
            check_seconds("delay", delay, DELAY_MAX_SECONDS)
        self.delay: float | None = delay
        super().__init__(reason)


class Reject(Exception):  # noqa: N818 - as Retry
    """A handler raises it to make its message a dead letter at once."""


_HINT = "for instance: def handle(message): ..."


def is_async(handler: object) -> bool:
    """Whether calling a handler makes a coroutine, which an event loop has to run."""
    called = getattr(handler, "func", handler)  # of a functools.partial
    each = (called, getattr(called, "__call__", None))  # noqa: B004 - its code, not whether
    return any(inspect.iscoroutinefunction(code) for code in each)


def check_handler(handler: H, name: str = "handler") -> H:
    """The handler, if it can be called with one message and does its work when called, or when the
    coroutine that it makes is run. name: what it is called in errors. Raises UsageError."""
    if not callable(handler):
        raise UsageError(
            f"{name} must be a function of one message, not {type(handler).__name__}", hint=_HINT
        )
    called = getattr(handler, "func", handler)  # of a functools.partial
    for each in (called, getattr(called, "__call__", None)):  # noqa: B004 - its code, not whether
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise UsageError(
                f"{name} is a generator function: calling it would do none of its work",
                hint="write a function without yield",
            )
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return handler  # of some built-in functions it is not known
    try:
        signature.bind(None)
    except TypeError as exc:
        raise UsageError(
            f"{name} must take one argument, the message, but its parameters are {signature}",
            hint=_HINT,
        ) from exc
    return handler


def check_result(result: object) -> None:
    """Raise TypeError for what a handler returned instead of doing it."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # else Python warns that it was never awaited
        raise TypeError(
            f"the handler returned a {type(result).__name__}, and did not run it:"
            " write a plain function, or an async one"
        )


def load_handler(spec: str) -> Handler | AsyncHandler:
    """The handler of this name, `MODULE:OBJECT`, where the object may be an attribute of another:
    `mail.tasks:sender.send`.

    Raises UsageError if there is no such module or object, or it is not a handler. What the module
    itself raises while it is imported is passed on.
    """
    module_name, colon, path = spec.partition(":")
    if not (module_name and colon and path):
        raise UsageError(
            f"{spec!r} does not name a handler", hint="write MODULE:OBJECT, as in mail.tasks:send"
        )
    found: Any = _module(module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as exc:
            raise UsageError(
                f"module {module_name!r} has no {path!r}",
                hint=_functions_of(sys.modules[module_name]),
            ) from exc
    loaded: Handler | AsyncHandler = check_handler(found, repr(spec))
    return loaded


def _module(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        missing = exc.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise  # the module is there, and imports something that is not
        raise UsageError(
            f"there is no module {name!r}",
            hint="it is looked for in the current directory, and where Python looks for modules",
        ) from exc


def _functions_of(module: object) -> str:
    """Which functions a module defines, for a hint."""
    own = getattr(module, "__name__", "")
    names = [
        name
        for name, each in vars(module).items()
        if inspect.isfunction(each) and each.__module__ == own and not name.startswith("_")
    ]
    return f"it has: {', '.join(sorted(names)[:10])}" if names else "it defines no functions"
