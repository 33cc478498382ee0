"""The ports put together: what everything above them gets as one argument."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, NamedTuple, TypeVar, cast

from cassq.base.clock import Clock
from cassq.base.counters import Requests
from cassq.base.ids import Ids
from cassq.base.sharing import Sharing
from cassq.catalog.port import Catalog
from cassq.errors import ClosedError, ForkedClientError, InterruptedCallError
from cassq.extents.port import ExtentStore
from cassq.extents.replicas.upkeep import Upkeep
from cassq.locks.port import Locker


class _Mine(threading.local):
    """What one thread does with a client. calling: locked inside a call. waiting: locked while the
    thread waits for messages, when it holds nothing."""

    def __init__(self) -> None:
        self.calling: threading.Lock = threading.Lock()
        self.waiting: threading.Lock = threading.Lock()


class Life:
    """Whether a client can still be used, by this thread, at this moment.

    A signal's handler runs in the middle of whatever the main thread does, so it may call a client
    whose locks this very thread holds. Every public call therefore runs inside `with life.enter()`,
    which refuses a second one of the same thread; `close` is put off instead, until the call
    that was interrupted ends. Looked at before any lock is taken: after a fork a lock may be held
    by a thread that does not exist in the child.
    """

    __slots__ = ("_in_catalog", "closed", "forked", "later", "mine")

    def __init__(self, in_catalog: Callable[[], bool] = lambda: False) -> None:
        """in_catalog: whether this thread is inside a step of the catalog that must not be entered
        twice; some long calls, such as merging dead letters, are calls only then."""
        self._in_catalog = in_catalog
        self.closed: bool = False
        self.forked: bool = False
        self.later: list[tuple[int, Callable[[], object]]] = []  # with the thread that shall do it
        self.mine: Final = _Mine()

    def check(self) -> None:
        if self.forked:
            raise ForkedClientError()
        if self.closed:
            raise ClosedError()

    # The locks are returned, not wrapped: an exception that a handler raises can come between any
    # two steps of a context manager written in Python, and would leave it entered for ever.
    def enter(self) -> threading.Lock:
        """What a call holds: `with life.enter(): ...`. Raises InterruptedCallError when this thread
        is inside another one."""
        if self.forked or self.closed:
            self.check()
        calling = self.mine.calling
        if calling.locked():
            raise InterruptedCallError()
        return calling

    def wait(self) -> threading.Lock:
        """What a wait between two calls holds: other calls are possible meanwhile, `close` is put
        off until the wait ends."""
        waiting = self.mine.waiting
        if waiting.locked():
            raise InterruptedCallError()
        return waiting

    def parked(self) -> threading.Lock:
        """A lock that is taken: where a thread of the client waits until another wakes it."""
        lock = threading.Lock()
        lock.acquire()
        return lock

    @property
    def busy(self) -> bool:
        """Whether this thread is inside a call, or a wait."""
        mine = self.mine
        return mine.calling.locked() or mine.waiting.locked() or self._in_catalog()

    def put_off(self, act: Callable[[], object]) -> None:
        """Have `act` called when this thread's call ends."""
        self.later.append((threading.get_ident(), act))

    def end(
        self, close: Callable[[], None], *, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """`close` as a call of its own. In the middle of another one of this thread it is done when
        that one ends, and only `meanwhile` at once. Nothing is done where the client is closed:
        it has closed all it had; nor in a forked child: what is open there is the parent's."""
        if self.forked or self.closed:
            return
        if self.busy:
            meanwhile()
            self.put_off(lambda: self.end(close))
            return
        try:
            with self.enter():
                close()
        finally:
            if self.later:
                self.catch_up()

    def catch_up(self) -> None:
        """At the end of a call: do what was put off."""
        if self.busy:
            return
        for each in list(self.later):
            if each[0] == threading.get_ident() and each in self.later:
                self.later.remove(each)
                each[1]()


C = TypeVar("C", bound=Callable[..., Any])


def operation(call: C) -> C:
    """A method that is one call of a client, of which a thread makes one at a time (see `Life`,
    which the method's object has as `_life`)."""

    @wraps(call)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        life: Life = self._life
        try:
            with life.enter():
                return call(self, *args, **kwargs)
        finally:
            if life.later:
                life.catch_up()

    return cast(C, guarded)


class Ports(NamedTuple):
    """One client's backends."""

    catalog: Catalog
    store: ExtentStore
    locker: Locker
    clock: Clock
    ids: Ids
    life: Life
    # How poppers of this client claim together; None where a claim is no round trip.
    sharing: Sharing[Any, Any, Any] | None = None
    # What became of requests to servers; None where there are none.
    requests: Requests | None = None
    # Looks after the replicas of extents; None where a store has none.
    upkeep: Upkeep | None = None
