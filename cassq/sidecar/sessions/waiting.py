"""Long polls: requests that wait until an extent grows or their time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence


class WaitingRequest:
    """One request that waits. answer: tries to answer it, and returns whether it did; called with
    True when the time is over, it must. blocked: whether its client reads nothing at the moment."""

    __slots__ = ("_answer", "_blocked", "_late", "_pipes", "_timer", "_waiters", "done")

    def __init__(
        self,
        waiters: WaitingRequests,
        pipes: Sequence[str],
        answer: Callable[[bool], bool],
        blocked: Callable[[], bool],
    ) -> None:
        self._waiters = waiters
        self._pipes = pipes
        self._answer = answer
        self._blocked = blocked
        self._late = False
        self._timer: asyncio.TimerHandle | None = None
        self.done: bool = False

    def start(self, timer: asyncio.TimerHandle) -> None:
        """Set the timer that ends its time."""
        self._timer = timer

    def look(self) -> None:
        """Answer if there is something to answer."""
        if not self.done and not self._blocked() and self._answer(self._late):
            self.cancel()

    def late(self) -> None:
        """Answer, because its time is over; if the client is blocked, as soon as it reads again."""
        self._late = True
        self.look()

    def cancel(self) -> None:
        """Stop waiting."""
        self.done = True
        if self._timer is not None:
            self._timer.cancel()
        self._waiters.remove(self, self._pipes)


class Requester:
    """A connection that sends requests. blocked: whether it reads no answers at the moment.
    waiters: its requests that wait."""

    __slots__ = ("blocked", "waiters")

    def __init__(self, blocked: Callable[[], bool]) -> None:
        self.blocked: Callable[[], bool] = blocked
        self.waiters: set[WaitingRequest] = set()


class WaitingRequests:
    """All waiting requests, by extent."""

    def __init__(self) -> None:
        self._by_pipe: dict[str, set[WaitingRequest]] = {}
        self._grown: set[str] = set()

    def wait(
        self,
        pipes: Sequence[str],
        seconds: float,
        answer: Callable[[bool], bool],
        blocked: Callable[[], bool],
    ) -> WaitingRequest:
        """Make a request wait until one of these extents grows, up to a time limit."""
        waiter = WaitingRequest(self, pipes, answer, blocked)
        for pipe_id in pipes:
            self._by_pipe.setdefault(pipe_id, set()).add(waiter)
        waiter.start(asyncio.get_running_loop().call_later(seconds, waiter.late))
        return waiter

    def wake(self, pipe_id: str) -> None:
        """An extent has grown: the requests that wait for it look, once for all growth that came
        together."""
        if pipe_id not in self._by_pipe:
            return
        if not self._grown:
            asyncio.get_running_loop().call_soon(self._look)
        self._grown.add(pipe_id)

    def remove(self, waiter: WaitingRequest, pipes: Sequence[str]) -> None:
        """Remove a request that waits no longer."""
        for pipe_id in pipes:
            those = self._by_pipe.get(pipe_id)
            if those is not None:
                those.discard(waiter)
                if not those:
                    del self._by_pipe[pipe_id]

    def _look(self) -> None:
        grown, self._grown = self._grown, set()
        for pipe_id in grown:
            for waiter in list(self._by_pipe.get(pipe_id, ())):
                waiter.look()
