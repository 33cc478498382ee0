"""Shared by lockers on servers: a thread keeps deadlines, and doubtful sessions are replaced.

A locker has one *session* with its service. These rules apply to each lock:

- It is ours until its own deadline, and only while the session is *sure*: until the service could
  give the lock to another holder. That time is counted on the boot clock, from just before the last
  request that was answered. So a process that was paused finds its locks lost before it sends
  anything.
- A session in doubt (the connection was lost, or an answer did not come in time) is over: all its
  locks are lost at once. It is closed as soon as possible, which releases everything it held on the
  service, including by requests with unknown outcomes, and the next lock opens another session.
"""

from __future__ import annotations

import abc
import functools
import logging
import threading
from collections.abc import Callable

from cassq.base.clock import Clock
from cassq.errors import BackendError, BackendTimeoutError, BackendUnavailableError, ClosedError
from cassq.locks.port import Lock, Locker

logger: logging.Logger = logging.getLogger("cassq")

OnLoss = Callable[[Lock], None]

# The pause after a session could not be opened, since an attempt may take seconds.
_REST_MS = 1000
_CLOSE_SECONDS_MAX = 10.0


class LockRecord:
    """A session's record of one lock. waited: whether it had to wait for it."""

    def __init__(self, name: str, token: int, *, waited: bool = False) -> None:
        self.name = name
        self.token = token
        self.waited = waited


class LockSession(abc.ABC):
    """One session with a lock service; once over, it stays over. All calls return in bounded time,
    and end the session if no answer comes in time."""

    # How often `beat` is called while anything is locked.
    beat_ms: int

    def __init__(self, clock: Clock, ended: Callable[[], None]) -> None:
        """ended: called when the session is over, from any thread; must return at once."""
        self.clock = clock
        self.over: bool = False
        self.sure_until_ms: int = clock.boot_ms()
        self._ended = ended

    @abc.abstractmethod
    def take(self, name: str, ttl_ms: int, wait_ms: int) -> LockRecord | None:
        """Take the lock; None while another holder has it."""

    @abc.abstractmethod
    def extend(self, record: LockRecord, ttl_ms: int) -> bool:
        """Restart the lock's ttl; False if it is free or another holder has it."""

    @abc.abstractmethod
    def drop(self, record: LockRecord) -> None:
        """Release the lock, if it is still ours."""

    @abc.abstractmethod
    def beat(self, records: list[LockRecord]) -> None:
        """Confirm the session by a request. records: its locks, at least one."""

    @abc.abstractmethod
    def retire(self) -> None:
        """Close it on the service, once it is over; may take long, never raises."""

    def confirm(self, sent_ms: int, sure_ms: int) -> None:
        """Note that the service answered a request sent at `sent_ms`: the session is sure for
        `sure_ms` from then."""
        self.sure_until_ms = max(self.sure_until_ms, sent_ms + sure_ms)

    def end(self) -> None:
        """End it, because it is in doubt or no longer needed."""
        self.over = True
        self._ended()

    def silent(self, service: str, what: str, hint: str) -> BackendTimeoutError:
        """End it because no answer came; returns the error for that."""
        self.end()
        return BackendTimeoutError(
            f"{service} did not answer in time ({what})", hint=hint, outcome_unknown=True
        )

    def failed(self, service: str, what: str, why: str) -> BackendUnavailableError:
        """End it because of an unusable answer; returns the error for that."""
        self.end()
        return BackendUnavailableError(f"{service} failed ({what}): {why}", outcome_unknown=True)


class SessionLock(Lock):
    """A lock that is ours until a deadline, while its session is sure."""

    def __init__(
        self,
        locker: SessionLocker,
        session: LockSession,
        record: LockRecord,
        due_ms: int,
        on_loss: OnLoss | None,
    ) -> None:
        self.name: str = record.name
        self.token: int = record.token
        self.session = session
        self.record = record
        self.due_ms: int = due_ms
        self._locker = locker
        self._on_loss = on_loss
        self._over = False

    def held(self) -> bool:
        session, now_ms = self.session, self.session.clock.boot_ms()
        if not self._over and now_ms >= session.sure_until_ms:
            session.end()
        if not self._over and (session.over or now_ms >= self.due_ms):
            self._lose()
        return not self._over

    def renew(self, ttl_ms: int) -> bool:
        if not self.held():
            return False
        sent_ms = self.session.clock.boot_ms()
        try:
            kept = self.session.extend(self.record, ttl_ms)
        except BackendError as exc:
            logger.info("lock %s is lost, because it could not be renewed: %s", self.name, exc)
            kept = False
        if kept:
            self.due_ms = sent_ms + ttl_ms
            return self.held()
        self._lose()
        return False

    def release(self) -> None:
        if not self._finish() or self.session.over:
            return
        try:
            self.session.drop(self.record)
        except BackendError as exc:
            # That ended its session, which will be closed: others get the lock a little later.
            logger.info("lock %s could not be released in time: %s", self.name, exc)

    def _lose(self) -> None:
        if not self._finish():
            return
        self._locker.drop_soon(self)
        if self._on_loss is not None:
            self._on_loss(self)

    def _finish(self) -> bool:
        """Whether this call ends it."""
        with self._locker.mutex:
            mine = not self._over
            self._over = True
            self._locker.locks.discard(self)
            return mine


class SessionLocker(Locker):
    """Locks of a service, and the thread that releases them in time."""

    def __init__(
        self, kind: str, open_session: Callable[[Callable[[], None]], LockSession], clock: Clock
    ):
        """Open a session. Raises ConfigError and BackendUnavailableError as `open_session` does."""
        self.mutex: threading.Lock = threading.Lock()
        self.locks: set[SessionLock] = set()
        self._clock = clock
        self._open_session = open_session
        self._opening = threading.Lock()
        self._failure: BackendError | None = None
        self._rest_until_ms = 0
        self._dropping: list[SessionLock] = []
        self._beat_due_ms = 0
        self._woken = threading.Event()
        self._closed = False
        self._current = open_session(self._woken.set)
        self._unretired = [self._current]
        self._retiring: list[threading.Thread] = []
        self._keeper = threading.Thread(target=self._keep, name=f"cassq {kind} locks", daemon=True)
        self._keeper.start()

    # --- locks ----------------------------------------------------------------------------------

    def acquire(
        self, name: str, ttl_ms: int, on_loss: OnLoss | None = None, *, wait_ms: int = 0
    ) -> Lock | None:
        session = self._session()
        sent_ms = self._clock.boot_ms()
        record = session.take(name, ttl_ms, wait_ms)
        if record is None:
            return None
        if record.waited:
            # It is unknown when the service granted the lock: its ttl is restarted now.
            sent_ms = self._clock.boot_ms()
            if not session.extend(record, ttl_ms):
                session.drop(record)
                return None
        lock = SessionLock(self, session, record, sent_ms + ttl_ms, on_loss)
        with self.mutex:
            if not self.locks:
                self._beat_due_ms = self._clock.boot_ms() + session.beat_ms
            self.locks.add(lock)
        self._woken.set()
        if self._closed or not lock.held():
            lock.release()
            return None
        return lock

    def _session(self) -> LockSession:
        with self._opening:
            if self._closed:
                raise ClosedError("the locker is closed")
            if self._current.over:
                if self._failure is not None and self._clock.boot_ms() < self._rest_until_ms:
                    raise BackendUnavailableError(self._failure.message, hint=self._failure.hint)
                try:
                    self._current = self._open_session(self._woken.set)
                except BackendError as exc:
                    self._failure = exc
                    self._rest_until_ms = self._clock.boot_ms() + _REST_MS
                    raise
                self._failure = None
                with self.mutex:
                    self._unretired.append(self._current)
            return self._current

    def drop_soon(self, lock: SessionLock) -> None:
        """Have the keeper thread release a lost lock: the caller may be unable to wait."""
        with self.mutex:
            self._dropping.append(lock)
        self._woken.set()

    def close(self) -> None:
        with self._opening:
            if self._closed:
                return
            self._closed = True
        for lock in list(self.locks):
            lock.release()
        self._current.end()
        self._keeper.join(_CLOSE_SECONDS_MAX)
        self._retire()
        for thread in self._retiring:
            thread.join(_CLOSE_SECONDS_MAX)

    # --- the keeper -----------------------------------------------------------------------------

    def _keep(self) -> None:
        while not self._closed:
            self._woken.wait(self._seconds_until_due())
            self._woken.clear()
            try:
                self._look()
            except Exception:
                logger.exception("a callback on the loss of a lock failed")

    def _look(self) -> None:
        self._retire()
        with self.mutex:
            locks, (dropping, self._dropping) = list(self.locks), (self._dropping, [])
        for lock in dropping:
            if not lock.session.over:
                self._attempt(functools.partial(lock.session.drop, lock.record))
        for lock in locks:
            lock.held()
        session = self._current
        records = [lock.record for lock in locks if lock.session is session and not session.over]
        now_ms = self._clock.boot_ms()
        if records and now_ms >= self._beat_due_ms:
            self._beat_due_ms = now_ms + session.beat_ms
            self._attempt(lambda: session.beat(records))

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BackendError as exc:
            # That ended the session, and with it the locks.
            logger.info("a lock service did not answer: %s", exc)
            self._woken.set()

    def _seconds_until_due(self) -> float | None:
        with self.mutex:
            if not self.locks:
                return None
            dues = [min(lock.due_ms, lock.session.sure_until_ms) for lock in self.locks]
        return max(0, min(*dues, self._beat_due_ms) - self._clock.boot_ms()) / 1000

    def _retire(self) -> None:
        """Close sessions that are over, each in a thread of its own."""
        with self.mutex:
            over = [session for session in self._unretired if session.over]
            self._unretired = [session for session in self._unretired if not session.over]
            self._retiring = [thread for thread in self._retiring if thread.is_alive()]
            for session in over:
                self._retiring.append(threading.Thread(target=session.retire, daemon=True))
                self._retiring[-1].start()
