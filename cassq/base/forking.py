"""Locks that are held while the process forks, and connections that are closed before.

SQLite keeps in memory which locks its process has on a file, and a child inherits that record, but
not the locks. If another thread is in a transaction, the connections that the child opens to this
file find it locked for ever. And while the parent has a connection at all, those of the child take
no lock of their own: when the parent closes its connection, or dies, it or the next process removes
the log of the file, and what the child commits from then on is lost. So no thread is in a
transaction, and no connection is open, while the process forks.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

from cassq.base.clock import Stopwatch

# The longest time that a fork waits for threads that hold such locks.
WAIT_SECONDS = 5.0

_locks: weakref.WeakKeyDictionary[threading.RLock, weakref.WeakMethod[Callable[[], None]] | None]
_locks = weakref.WeakKeyDictionary()
_guard = threading.RLock()  # of the locks; taken while the process forks, as they are
_forking = threading.local()


def take_at_forks(lock: threading.RLock, let_go: Callable[[], None] | None = None) -> None:
    """Have the forking thread hold this lock during a fork; it is free afterwards, in the child
    too. Cost: a fork waits for another thread that holds it, `WAIT_SECONDS` at most for all locks.

    let_go: a method that is called with the lock taken, before the fork; not if that thread had
    the lock already, as when a signal's handler forks. It is kept weakly, as the lock is.
    """
    with _guard:
        _locks[lock] = None if let_go is None else weakref.WeakMethod(let_go)


def _take() -> None:
    _guard.acquire()
    watch = Stopwatch()
    _forking.taken = []
    failures: list[Exception] = []
    for lock, let_go in list(_locks.items()):
        had: bool = lock._is_owned()  # type: ignore[attr-defined]
        if not lock.acquire(timeout=max(0.0, WAIT_SECONDS - watch.seconds())):
            continue
        _forking.taken.append(lock)
        act = let_go and let_go()
        if act is not None and not had:
            try:
                act()
            except Exception as exc:
                failures.append(exc)
    if failures:  # Python prints it, and forks
        raise failures[0]


def _free() -> None:
    for lock in reversed(_forking.taken):
        lock.release()
    _forking.taken = []
    _guard.release()


os.register_at_fork(before=_take, after_in_parent=_free, after_in_child=_free)
