"""Handlers: what may be one, and how one is found by its name, as in `mail.tasks:send`.

A handler is called with a message. If it returns, the message is acked; if it raises, the message
is nacked with the error. An async function runs in an event loop, and gets a message with methods
that it can await. A generator function is refused, and so is a plain function that returns a
coroutine: its message would be acked before any of its work was done.
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
    """A handler raises it to have its message delivered again although its work did not fail: after
    `delay` seconds, or by the group's `retry_schedule`. It counts as an attempt."""

    def __init__(self, reason: str = "", *, delay: float | None = None) -> None:
        if delay is not None:
            check_seconds("delay", delay, DELAY_MAX_SECONDS)
        self.delay: float | None = delay
        super().__init__(reason)


class Reject(Exception):  # noqa: N818 - as Retry
    """A handler raises it to make its message a dead letter, without further attempts."""


_HINT = "for instance: def handle(message): ..."


def is_async(handler: object) -> bool:
    """Whether a handler is an async function, which an event loop has to run."""
    called = getattr(handler, "func", handler)  # of a functools.partial
    each = (called, getattr(called, "__call__", None))  # noqa: B004 - its code, not whether
    return any(inspect.iscoroutinefunction(code) for code in each)


def check_handler(handler: H, name: str = "handler") -> H:
    """The handler, if it can be called with one message and does its work when called, or when its
    coroutine is awaited. name: its name in errors. Raises UsageError otherwise."""
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
        return handler  # the signature of some built-in functions is not known
    try:
        signature.bind(None)
    except TypeError as exc:
        raise UsageError(
            f"{name} must take one argument, the message, but its parameters are {signature}",
            hint=_HINT,
        ) from exc
    return handler


def check_result(result: object) -> None:
    """Raise TypeError if a handler returned its work, such as a coroutine, instead of doing it."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # else Python warns that it was never awaited
        raise TypeError(
            f"the handler returned a {type(result).__name__} instead of running it:"
            " write a plain function, or an async one"
        )


def load_handler(spec: str) -> Handler | AsyncHandler:
    """The handler with this name, `MODULE:OBJECT`, where the object may be an attribute of another:
    `mail.tasks:sender.send`.

    Raises UsageError if the module or object does not exist, or is not a handler. Errors that the
    module raises while it is imported pass unchanged.
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
            raise  # the module exists, but imports one that does not
        raise UsageError(
            f"there is no module {name!r}",
            hint="Python looks for it in the current directory, and in the rest of sys.path",
        ) from exc


def _functions_of(module: object) -> str:
    """A hint that names the functions that a module defines."""
    own = getattr(module, "__name__", "")
    names = [
        name
        for name, each in vars(module).items()
        if inspect.isfunction(each) and each.__module__ == own and not name.startswith("_")
    ]
    return f"it has: {', '.join(sorted(names)[:10])}" if names else "it defines no functions"
