"""Handles: what a push of a call returns, to wait for its result, and to signal or cancel it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from cassq.base.arguments import check_seconds
from cassq.base.clock import Stopwatch, SystemClock
from cassq.client.client import Client
from cassq.errors import MessageNotFoundError, TaskFailedError, UsageError
from cassq.message.message_ids import MessageId
from cassq.popper import WAIT_MAX_SECONDS
from cassq.tasks.calls import decode_result, result_key
from cassq.tasks.steps.overview import ENDED, whereabouts
from cassq.tasks.steps.records import CANCELLED

T = TypeVar("T")

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.001, 0.05
# How often to check whether the call can still have a result.
ASK_SECONDS = 0.5


class Result(NamedTuple):
    """What a task returned."""

    value: Any


class HandleApp(Protocol):
    """What a handle needs of its app: see `App`."""

    @property
    def client(self) -> Client: ...

    def signal(self, message_id: str, name: str, value: object, queue: str | None) -> bool: ...

    def cancel(self, message_id: str, queue: str | None) -> bool: ...


class Handle(Generic[T]):
    """A call that was pushed. id: the id of its message. queue: the name of its queue. T: the type
    of its result; for an async task, what awaiting it returns."""

    __slots__ = ("_app", "_kept", "_result", "_watch", "id", "queue")

    def __init__(
        self,
        id: MessageId,
        queue: str,
        app: HandleApp | None = None,
        result: Result | None = None,
        *,
        kept: bool = True,
    ) -> None:
        """kept: whether its result is kept."""
        self.id: MessageId = id
        self.queue: str = queue
        self._app = app
        self._result = result
        self._kept = kept
        self._watch = Stopwatch()  # since the message was last looked for

    def result(self, timeout: float | None = None) -> T:
        """Wait for what the task returns, at most `timeout` seconds, and return it.

        Raises TimeoutError; TaskFailedError if there will be no result, because the call is a dead
        letter or was cancelled, its result cannot be written, or its result has expired; UsageError
        for a task without `results=True`. Cost: a read about every 50 ms, and some more twice a
        second.
        """
        clock = SystemClock()
        for pause in self._waiting(timeout):
            found = self._look()
            if found is not None:
                value: T = found.value
                return value
            clock.sleep(pause)
        raise TimeoutError(f"no result of {self.id} within {timeout} s")

    async def result_async(self, timeout: float | None = None) -> T:
        """`result` for an event loop, without blocking it."""
        for pause in self._waiting(timeout):
            found = self._result or await asyncio.to_thread(self._look)
            if found is not None:
                value: T = found.value
                return value
            await asyncio.sleep(pause)
        raise TimeoutError(f"no result of {self.id} within {timeout} s")

    def signal(self, name: str, value: object = None) -> bool:
        """Send a signal to the task: see `Task.signal`."""
        if self._app is None:
            raise UsageError(
                "a call that ran inline takes no signals", hint="inline(signals={...})"
            )
        return self._app.signal(self.id, name, value, self.queue)

    def cancel(self) -> bool:
        """Cancel the call: see `App.cancel`."""
        if self._app is None:
            raise UsageError("a call that ran inline cannot be cancelled")
        return self._app.cancel(self.id, self.queue)

    def _waiting(self, timeout: float | None) -> Iterator[float]:
        """The pauses between two looks, until the timeout."""
        if timeout is not None:
            check_seconds("timeout", timeout, WAIT_MAX_SECONDS)
        watch, pause = Stopwatch(), PAUSE_SECONDS
        while True:
            left = pause if timeout is None else timeout - watch.seconds()
            yield max(0.0, min(pause, left))
            if left <= 0:
                return
            pause = min(1.5 * pause, PAUSE_SECONDS_MAX)

    def _look(self) -> Result | None:
        if self._result is not None:
            return self._result
        if self._app is None or not self._kept:
            raise UsageError(
                f"the task of {self.id} keeps no results", hint="declare it with results=True"
            )
        client = self._app.client
        self._result = self._find(client)
        if self._result is None and self._watch.seconds() >= ASK_SECONDS:
            self._watch = Stopwatch()
            why = self._ended(client)
            if why:
                self._result = self._find(client)  # it may have come meanwhile
                if self._result is None:
                    raise TaskFailedError(f"task {self.id} has no result: {why}")
        return self._result

    def _find(self, client: Client) -> Result | None:
        raw = client.ports.catalog.results.get(result_key(self.id))
        if raw is None:
            return None
        value, error = decode_result(raw)
        if error:
            raise TaskFailedError(error)
        return Result(value)

    def _ended(self, client: Client) -> str:
        """Why the task will not run any more; "" if it may."""
        try:
            found = whereabouts(client, self.queue, self.id)
        except MessageNotFoundError:
            return "its message is not stored any more"
        if found.now.state not in ENDED:
            return "it was cancelled" if found.state == CANCELLED else ""
        error = found.now.failure.get("error") or ""
        return f"its message is {found.now.state}{f' ({error})' if error else ''}"

    def __repr__(self) -> str:
        return f"<Handle {self.id} in {self.queue}>"
