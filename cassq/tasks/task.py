"""A task: a function, and how its calls are pushed."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, overload

from cassq.base.arguments import DELAY_MAX_SECONDS, check_seconds
from cassq.errors import UsageError
from cassq.model.priorities import check_priority
from cassq.producer.pusher import Push
from cassq.tasks.calls import Call, Codec
from cassq.tasks.handles import Handle
from cassq.tasks.steps.context import takes_context
from cassq.tasks.steps.inline_run import inline_context

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
# The arguments of calls, for each in order or by name.
Calls = Iterable[Sequence[Any] | Mapping[str, Any]]

RETRIES_MAX = 1000


class TaskSettings(NamedTuple):
    """The arguments of `App.task`; see there."""

    queue: str
    retries: Sequence[float] | None = None
    timeout: float | None = None
    unique: bool | tuple[str, ...] = False
    key: str | None = None
    priority: int = 0
    results: bool = False


class When(NamedTuple):
    """When a call may run."""

    delay: float | None = None
    due: datetime | None = None


class Pushed(NamedTuple):
    """A call and how it is pushed: to `queue`, with the arguments of `Pusher.push`."""

    queue: str
    call: Call
    when: When = When()
    key: bytes | None = None
    dedup_id: str | None = None
    priority: int = 0
    results: bool = False

    def as_push(self, payload: bytes) -> Push:
        """This call, alone, as a push of its payload."""
        delay, due = self.when
        return Push(payload, None, self.key, delay, due, self.dedup_id, None, self.priority)


class TaskApp(Protocol):
    """What a task needs of its app: see `App`."""

    @property
    def codec(self) -> Codec: ...

    def push_calls(self, calls: Sequence[Pushed]) -> list[Handle[Any]]: ...

    async def push_soon(self, pushed: Pushed) -> Handle[Any]: ...

    def signal(self, message_id: str, name: str, value: object, queue: str | None) -> bool: ...


class Task(Generic[P, R_co]):
    """A function whose calls can be pushed; `App.task` makes it. Calling it runs the plain function
    at once, in the caller."""

    def __init__(
        self, app: TaskApp, function: Callable[..., R_co], name: str, settings: TaskSettings
    ) -> None:
        self._app = app
        self.function: Callable[..., R_co] = function
        self.name: str = name
        self.settings: TaskSettings = settings
        self.is_async: bool = inspect.iscoroutinefunction(function)
        self._signature = _signature(function, name)
        self.takes_context: bool = takes_context(function)
        if self.takes_context:  # callers do not pass it
            _, *parameters = self._signature.parameters.values()
            self._signature = self._signature.replace(parameters=parameters)
        self._counts = _counts_that_fit(self._signature)
        self._when = When()
        _check_settings(name, settings, self._signature)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        if self.takes_context:
            return self.function(inline_context(self.name), *args, **kwargs)
        return self.function(*args, **kwargs)

    @overload
    def push(
        self: Task[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Handle[T]: ...

    @overload
    def push(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]: ...

    def push(self, *args: P.args, **kwargs: P.kwargs) -> Handle[Any]:
        """Push a call; a worker runs it. Durable on return.

        Raises UsageError if the arguments do not fit the function, or cannot be written. Cost: that
        of `Pusher.push`, shared by threads that push at the same time.
        """
        return self._app.push_calls([self._pushed(args, kwargs)])[0]

    @overload
    async def push_async(
        self: Task[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Handle[T]: ...

    @overload
    async def push_async(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]: ...

    async def push_async(self, *args: P.args, **kwargs: P.kwargs) -> Handle[Any]:
        """`push` for an event loop, without blocking it. Calls that are pushed at the same time are
        written together. If the wait is cancelled, the call is pushed nevertheless."""
        return await self._app.push_soon(self._pushed(args, kwargs))

    @overload
    def push_many(self: Task[P, Coroutine[Any, Any, T]], calls: Calls) -> list[Handle[T]]: ...

    @overload
    def push_many(self, calls: Calls) -> list[Handle[R_co]]: ...

    def push_many(self, calls: Calls) -> list[Handle[Any]]:
        """Push many calls together. calls: for each, its arguments in order, as a tuple or list, or
        by name, as a dict. All are checked before any is pushed. Raises as `push`, and
        `Pusher.push_many`."""
        return self._app.push_calls([self._pushed(*_split(each)) for each in calls])

    def signal(self, message_id: str, name: str, value: object = None) -> bool:
        """Send a signal to the call with this id: `Context.wait(name)` returns the value, even if
        the task calls it later. Durable on return; False if the task is over.

        Raises UsageError for a value that cannot be written, MessageNotFoundError. Cost: some
        reads, a synced write; for a task that waits, four more and the push of a message.
        """
        return self._app.signal(message_id, name, value, self.settings.queue)

    def options(
        self,
        *,
        delay: float | None = None,
        due: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
    ) -> Task[P, R_co]:
        """A copy of the task with other options for pushes: `send.options(delay=60).push(7)`.

        delay: seconds before it may run. due: the same as a time, with a time zone. priority: 0 to
        9, the most urgent. queue: another queue. None: as in the task.
        """
        found = copy.copy(self)
        if delay is not None:
            check_seconds("delay", delay, DELAY_MAX_SECONDS)
        if delay is not None or due is not None:
            found._when = When(delay, due)
        settings = self.settings
        if priority is not None:
            check_priority(priority)
            settings = settings._replace(priority=priority)
        if queue is not None:
            settings = settings._replace(queue=queue)
        found.settings = settings
        return found

    # --- for the app --------------------------------------------------------------------------

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """The arguments by name. Raises TypeError if they do not fit."""
        return self._signature.bind(*args, **kwargs)

    def _pushed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Pushed:
        settings = self.settings
        same = settings.key is not None or bool(settings.unique)
        if not (same or kwargs) and len(args) in self._counts:  # binding is slow
            call = Call(self.name, args, kwargs)
            when, results = self._when, settings.results
            return Pushed(settings.queue, call, when, None, None, settings.priority, results)
        try:
            bound = self.bind(args, kwargs)
        except TypeError as exc:
            raise UsageError(
                f"the arguments do not fit task {self.name!r}: {exc}",
                hint=f"it takes {self._signature}",
            ) from exc
        key = dedup_id = None
        if same:
            bound.apply_defaults()
            dedup_id = self._dedup_id(bound.arguments)
            if settings.key is not None:
                key = str(bound.arguments[settings.key]).encode()
        return Pushed(
            settings.queue,
            Call(self.name, args, kwargs),
            self._when,
            key,
            dedup_id,
            settings.priority,
            settings.results,
        )

    def _dedup_id(self, arguments: Mapping[str, Any]) -> str | None:
        """The dedup id that equal calls share; None for a task that is not `unique`."""
        unique = self.settings.unique
        if unique is False:
            return None
        names = arguments if unique is True else unique
        same = self._app.codec.call(Call(self.name, (), {name: arguments[name] for name in names}))
        return f"task-{hashlib.sha256(same).hexdigest()}"

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


def _split(arguments: object) -> tuple[Sequence[Any], Mapping[str, Any]]:
    match arguments:
        case Mapping():
            return (), arguments
        case tuple() | list():
            return arguments, {}
    raise UsageError(
        f"each call of push_many must be a tuple or a dict of arguments, not {arguments!r}",
        hint="for instance task.push_many([(1, 'a'), (2, 'b')])",
    )


# --- checks when a task is declared ---------------------------------------------------------------


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    if not inspect.isfunction(function):
        raise UsageError(f"a task must be a function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"task {name!r} is a generator function: calling it would do none of its work",
            hint="write a function without yield",
        )
    return inspect.signature(function)


def _counts_that_fit(signature: inspect.Signature) -> range:
    """The counts of positional arguments that certainly fit."""
    in_order = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature.parameters.values()
    needed = [each for each in parameters if each.default is inspect.Parameter.empty]
    if any(each.kind is inspect.Parameter.KEYWORD_ONLY for each in needed):
        return range(0)
    least = sum(each.kind in in_order for each in needed)
    return range(least, sum(each.kind in in_order for each in parameters) + 1)


def _check_settings(name: str, settings: TaskSettings, signature: inspect.Signature) -> None:
    if settings.retries is not None:
        if isinstance(settings.retries, str) or not isinstance(settings.retries, Sequence):
            raise UsageError(
                f"retries of task {name!r} must be a list of seconds, not {settings.retries!r}",
                hint="for instance retries=[10, 60, 600]; an empty list means none",
            )
        if len(settings.retries) > RETRIES_MAX:
            raise UsageError(f"retries of task {name!r} has more than {RETRIES_MAX} entries")
        for seconds in settings.retries:
            check_seconds("retries", seconds, DELAY_MAX_SECONDS)
    if settings.timeout is not None:
        check_seconds("timeout", settings.timeout, DELAY_MAX_SECONDS, least=0.001)
    check_priority(settings.priority)
    unique = settings.unique if isinstance(settings.unique, tuple) else ()
    for what, parameter in [("key", settings.key), *(("unique", each) for each in unique)]:
        if parameter is not None and parameter not in signature.parameters:
            raise UsageError(
                f"{what} of task {name!r} names {parameter!r}, which is not one of its parameters",
                hint=f"it takes {signature}",
            )
