"""A client's ports, bundled as one argument for everything above them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar, cast

from cassq.base.clock import Clock
from cassq.base.counters import Requests
from cassq.base.ids import Ids
from cassq.catalog.port import Catalog
from cassq.errors import ClosedError, ForkedClientError, InterruptedCallError
from cassq.extents.port import ExtentStore
from cassq.locks.port import Locker

if TYPE_CHECKING:  # a process without servers needs none of these
    from cassq.base.sharing import Sharing
    from cassq.extents.replicas.upkeep import Upkeep
    from cassq.locks.turns import Turns


class _ThreadState(threading.local):
    """The state of one thread in a client. calling: locked during a call. calls, began_ms: how many
    calls it has begun, and when the last one began; only in a `TimedLife`. waiting: locked while
    the thread waits for messages and holds nothing."""

    def __init__(self) -> None:
        self.calls: int = 0
        self.began_ms: int = 0
        self.calling: threading.Lock = threading.Lock()
        self.waiting: threading.Lock = threading.Lock()


class Lifecycle:
    """Guards a client's life: decides whether a thread may call it now.

    A signal handler interrupts the main thread anywhere, so it may call a client while its own
    thread holds locks of that client. Therefore every public call runs inside `with life.enter()`,
    which refuses a second call in the same thread; `close` is instead deferred until the
    interrupted call ends. This is checked before any lock is taken: after a fork, a lock may be
    held by a thread that does not exist in the child.
    """

    __slots__ = ("_in_catalog", "closed", "forked", "later", "mine")

    # Whether each call must go through `enter`, so that it is counted.
    timed: ClassVar[bool] = False

    def __init__(self, in_catalog: Callable[[], bool] = lambda: False) -> None:
        """in_catalog: returns whether this thread is inside a catalog step that must not be entered
        twice. Some long operations, such as a merge of dead letters, count as calls only during
        such steps."""
        self._in_catalog = in_catalog
        self.closed: bool = False
        self.forked: bool = False
        self.later: list[tuple[int, Callable[[], object]]] = []  # (thread that runs it, act)
        self.mine: Final = _ThreadState()

    def check(self) -> None:
        if self.forked:
            raise ForkedClientError()
        if self.closed:
            raise ClosedError()

    # The locks are returned, not wrapped: a signal handler may raise between any two steps of a
    # context manager written in Python, which would leave it entered for ever.
    def enter(self) -> threading.Lock:
        """The lock held by a call: `with life.enter(): ...`. Raises InterruptedCallError if this
        thread is already inside a call."""
        if self.forked or self.closed:
            self.check()
        calling = self.mine.calling
        if calling.locked():
            raise InterruptedCallError()
        return calling

    def wait(self) -> threading.Lock:
        """The lock held by a wait between two calls. Other calls are allowed meanwhile, but `close`
        is deferred until the wait ends."""
        waiting = self.mine.waiting
        if waiting.locked():
            raise InterruptedCallError()
        return waiting

    def parked(self) -> threading.Lock:
        """A locked lock, on which a thread of the client waits until another thread releases it."""
        lock = threading.Lock()
        lock.acquire()
        return lock

    @property
    def busy(self) -> bool:
        """Whether this thread is inside a call or a wait."""
        mine = self.mine
        return mine.calling.locked() or mine.waiting.locked() or self._in_catalog()

    def defer(self, act: Callable[[], object]) -> None:
        """Call `act` when this thread's current call ends."""
        self.later.append((threading.get_ident(), act))

    def end(
        self, close: Callable[[], None], *, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Run `close` as a call. If this thread is inside another call, run `meanwhile` now, and
        `close` when that call ends. Does nothing if the client is already closed, or in a forked
        child, whose open files and connections belong to the parent."""
        if self.forked or self.closed:
            return
        if self.busy:
            meanwhile()
            self.defer(lambda: self.end(close))
            return
        try:
            with self.enter():
                close()
        finally:
            if self.later:
                self.run_deferred()

    def run_deferred(self) -> None:
        """At the end of a call, run what was deferred."""
        if self.busy:
            return
        for each in list(self.later):
            if each[0] == threading.get_ident() and each in self.later:
                self.later.remove(each)
                each[1]()


class TimedLife(Lifecycle):
    """A `Lifecycle` that knows for how long each thread's current call has been running."""

    __slots__ = ("_clock",)

    timed = True

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def enter(self) -> threading.Lock:
        calling = super().enter()
        self.mine.calls += 1
        self.mine.began_ms = self._clock.boot_ms()
        return calling

    def call(self) -> tuple[int, int]:
        """The number of this thread's current call, from 1 on, and when it began, in boot
        milliseconds; zeros outside of calls."""
        mine = self.mine
        return (mine.calls, mine.began_ms) if mine.calling.locked() else (0, 0)


C = TypeVar("C", bound=Callable[..., Any])


def operation(call: C) -> C:
    """Decorates a client method: each thread runs one such call at a time (see `Lifecycle`, which
    the method's object holds as `_life`)."""

    @wraps(call)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        life: Lifecycle = self._life
        try:
            with life.enter():
                return call(self, *args, **kwargs)
        finally:
            if life.later:
                life.run_deferred()

    return cast(C, guarded)


class Ports(NamedTuple):
    """One client's backends."""

    catalog: Catalog
    store: ExtentStore
    locker: Locker
    clock: Clock
    ids: Ids
    life: Lifecycle
    # Combines the claims of this client's poppers; None where a claim needs no round trip.
    sharing: Sharing[Any, Any, Any] | None = None
    # Counts the outcomes of requests to servers; None without servers.
    requests: Requests | None = None
    # Maintains the replicas of extents; None where the store has none.
    upkeep: Upkeep | None = None
    # Keeps the locks of cp queues and exclusive groups; None where taking one needs no round trip.
    turns: Turns | None = None
