"""Locks that are taken while the process forks, so that no thread is in the middle of something.

SQLite keeps in memory which locks its process has on a file, and a child inherits that. If another
thread was in a transaction when the process forked, the connections that the child opens to this
file find it locked for ever.
"""

from __future__ import annotations

import os
import threading
import weakref

from cassq.base.clock import Stopwatch

# For how long a fork waits at most for threads that have such locks.
WAIT_SECONDS = 5.0

_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_guard = threading.RLock()  # of the set; taken while the process forks, as they are
_forking = threading.local()


def take_at_forks(lock: threading.RLock) -> None:
    """Have this lock taken while the process forks, in the thread that does; it is free afterwards,
    in the child too. Cost: a fork waits for the thread that has it, for `WAIT_SECONDS` at most."""
    with _guard:
        _locks.add(lock)


def _take() -> None:
    _guard.acquire()
    watch = Stopwatch()
    _forking.taken = [
        lock
        for lock in list(_locks)
        if lock.acquire(timeout=max(0.0, WAIT_SECONDS - watch.seconds()))
    ]


def _let_go() -> None:
    for lock in reversed(_forking.taken):
        lock.release()
    _forking.taken = []
    _guard.release()


os.register_at_fork(before=_take, after_in_parent=_let_go, after_in_child=_let_go)
