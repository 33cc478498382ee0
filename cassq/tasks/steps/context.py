"""What a task knows about its call, and its methods for steps: step, sleep, wait."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar, Unpack

from cassq.base.arguments import DELAY_MAX_SECONDS, check_seconds
from cassq.consumer.delivery import Message
from cassq.errors import UsageError
from cassq.tasks.steps.records import SLEEP, STEP, WAIT

Q = ParamSpec("Q")
T = TypeVar("T")


class Length(TypedDict, total=False):
    """How long a sleep is: the sum of these."""

    seconds: float
    minutes: float
    hours: float
    days: float


class RunRecords(Protocol):
    """The records of a task in one run; see `cassq.tasks.steps.run.Run`. Each method may block, for
    a synced write."""

    def come_to(self, kind: str, name: str) -> tuple[str, int]: ...

    def find(self, label: str) -> tuple[Any] | None: ...

    def returned(self, label: str, at: int, began_ms: int, value: object) -> Any: ...

    def raised(self, label: str) -> None: ...

    def now_ms(self) -> int: ...

    def sleep(self, label: str, at: int, seconds: float) -> None: ...

    def wait(self, label: str, at: int, name: str, seconds: float) -> Any: ...


class Context:
    """The call that a task runs. A task gets it if its first parameter is annotated `Context`.

    task: the task's name. attempt: from 1; counted from 1 again after each sleep or wait.
    """

    __slots__ = ("_message", "_records", "attempt", "task")

    def __init__(
        self, task: str, attempt: int, message: Message | None, records: RunRecords | None = None
    ) -> None:
        self.task: str = task
        self.attempt: int = attempt
        self._message = message
        self._records = records

    @property
    def message(self) -> Message:
        """The message that was delivered. Raises LookupError where a task runs inline."""
        if self._message is None:
            raise LookupError("a task that runs inline has no message")
        return self._message

    @property
    def id(self) -> str:
        """The id of its message, which the handle that `push` returned has too."""
        return self.message.id

    # --- steps ----------------------------------------------------------------------------------

    def step(self, name: str, function: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T:
        """Call `function(*args, **kwargs)`, and record and return its result, as JSON or msgpack
        decode it. When the task runs again, this returns the recorded result, and does not call the
        function.

        Raises what the function raises; UsageError if its result cannot be written, now and
        whenever the task runs again; StepMismatchError if the task reached another step here
        before; ClaimLostError if another worker has the call. Cost: a synced write.
        """
        if inspect.iscoroutinefunction(function):
            raise UsageError(
                f"step {name!r} has an async function", hint="await ctx.step_async(...)"
            )
        records = self._steps()
        label, at = records.come_to(STEP, name)
        found = records.find(label)
        if found is not None:
            known: T = found[0]
            return known
        began_ms = records.now_ms()
        try:
            value = function(*args, **kwargs)
        except BaseException:
            records.raised(label)
            raise
        kept: T = records.returned(label, at, began_ms, value)
        return kept

    async def step_async(
        self, name: str, function: Callable[Q, Awaitable[T]], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> T:
        """`step` for an async function, in an async task; does not block the event loop."""
        records = self._steps()
        label, at = records.come_to(STEP, name)
        found = await asyncio.to_thread(records.find, label)
        if found is not None:
            known: T = found[0]
            return known
        began_ms = records.now_ms()
        try:
            value = await function(*args, **kwargs)
        except BaseException:
            records.raised(label)
            raise
        kept: T = await asyncio.to_thread(records.returned, label, at, began_ms, value)
        return kept

    # --- sleeping and waiting -------------------------------------------------------------------

    def sleep(self, name: str, **length: Unpack[Length]) -> None:
        """End this run, and go on from here after the sum of `seconds`, `minutes`, `hours` and
        `days`: the task runs again from its start, and its recorded steps return at once. A task
        that sleeps holds no worker, and no memory.

        Raises UsageError in a cp queue, whose messages cannot be delayed. Cost: four synced writes,
        and the push of a message.
        """
        records = self._steps()
        label, at = records.come_to(SLEEP, name)
        records.sleep(label, at, _seconds(**length))

    async def sleep_async(self, name: str, **length: Unpack[Length]) -> None:
        """`sleep` in an async task."""
        records = self._steps()
        label, at = records.come_to(SLEEP, name)
        await asyncio.to_thread(records.sleep, label, at, _seconds(**length))

    def wait(self, name: str, *, timeout: float | None = None) -> Any:
        """The value of the next signal of this name that no other wait has taken; None if none
        comes within `timeout` seconds, by default ten years. A signal that came before counts.

        Until then the task sleeps: see `sleep`, also for errors and cost.
        """
        records = self._steps()
        label, at = records.come_to(WAIT, name)
        return records.wait(label, at, name, _timeout(timeout))

    async def wait_async(self, name: str, *, timeout: float | None = None) -> Any:
        """`wait` in an async task."""
        records = self._steps()
        label, at = records.come_to(WAIT, name)
        return await asyncio.to_thread(records.wait, label, at, name, _timeout(timeout))

    def _steps(self) -> RunRecords:
        if self._records is None:
            raise UsageError(
                f"task {self.task!r} has no steps",
                hint="let it take a context: def task(ctx: cassq.tasks.Context, ...)",
            )
        return self._records

    def __repr__(self) -> str:
        return f"<Context of {self.task}, attempt {self.attempt}>"


def _seconds(seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> float:
    found = seconds + 60 * minutes + 3600 * hours + 86_400 * days
    check_seconds("sleep", found, DELAY_MAX_SECONDS)
    return found


def _timeout(timeout: float | None) -> float:
    if timeout is None:
        return DELAY_MAX_SECONDS
    check_seconds("timeout", timeout, DELAY_MAX_SECONDS)
    return timeout


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether a function's first parameter is annotated `Context`."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        return False
    noted = parameters[0].annotation
    if isinstance(noted, str):  # as under `from __future__ import annotations`
        known = getattr(function, "__globals__", {})
        first, *rest = noted.split(".")
        found: Any = known.get(first)
        for each in rest:
            found = getattr(found, each, None)
        noted = found
    return noted is Context
