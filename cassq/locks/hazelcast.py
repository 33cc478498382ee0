"""The `hazelcast` locker: FencedLocks of the CP subsystem, or without one, locks of a map.

**With CP** (three members or more, which agree on every step): a lock's token is its fence. The
members do not know its ttl. The holder releases it in time; if the holder hangs or dies, the lock
is free once the holder's CP session has expired. That takes as long as the members' setting
`session-time-to-live-seconds` (300 unless set; 10 is a good value). A lock of each name ever used
stays in the members' memory, some hundred bytes: for exclusive groups on many pipes prefer
ZooKeeper or map locks.

**Without CP** (`?cp=no`): `IMap.lock` with a lease of the ttl plus three seconds, timed by the
members' wall clocks to within a second or two. It is lost with a member that has no backup, and
may be held twice when the cluster splits. It has no fence: tokens come from the catalog, by
`next_token`.

Both kinds belong to a thread of a client, so one thread sends all requests of a session, without
waiting for answers. The owner can take a lock again, which renews it.

Cost, in round trips. CP: acquire 1 (a new name: 1 more), renew 1, release 1 or 2, each agreed on by
a majority; while any lock is held, 1 per quarter of the session. Map: acquire 1 plus the cost of
`next_token`, renew 2, release 1. A lock that was waited for is renewed once.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from hazelcast import HazelcastClient
from hazelcast.config import ReconnectMode
from hazelcast.errors import HazelcastError, IllegalMonitorStateError, LockOwnershipLostError
from hazelcast.lifecycle import LifecycleState

from cassq.base.clock import Clock, Stopwatch, wait_event
from cassq.errors import BackendUnavailableError, ConfigError
from cassq.locks.address import LockAddress, any_reachable, parse
from cassq.locks.owner import OwnerThread
from cassq.locks.sessions import LockRecord, LockSession, SessionLocker
from cassq.locks.tokens import NextToken

PORT = 5701
DEFAULT_CLUSTER = "dev"
CONNECT_SECONDS_MAX = 8.0
CALL_SECONDS_MAX = 5.0

_NO_FENCE = 0
_CP_GROUP = "default"
_MAP = "cassq-locks"
_PROBE = "cassq:probe"
_BEATS = 4
_LOCKS_MAX = 1000
# A map lock has no session: it is sure until its own deadline.
_ALWAYS_MS = 1 << 62
# A member ends leases up to a second early. If a lease ends while its lock is being released, the
# member may end the next holder's lease instead, as the number that distinguishes leases restarts
# with each holder. So locks are released by their deadline, and leases end well after it.
_LEASE_MORE_MS = 3000

# Lost connections are reported by their effect on locks; for the driver's own log, add a handler.
logging.getLogger("hazelcast").addHandler(logging.NullHandler())


def open_hazelcast(url: str, clock: Clock, next_token: NextToken | None) -> SessionLocker:
    """The locker at `hazelcast://[user:password@]h1:5701,h2:5701/cluster-name[?cp=no]`.

    next_token: needed with `cp=no`. All clients of a queue must agree on `cp`.
    Raises ConfigError for an invalid URL, wrong cluster name or credentials, and for a
    cluster without CP; BackendUnavailableError if no member answers in about ten seconds.
    """
    address = parse(url, port=PORT, options=("cp",))
    address = address._replace(path=address.path or DEFAULT_CLUSTER)
    cp = address.options.get("cp", "yes")
    if cp not in ("yes", "no"):
        raise ConfigError(f"{address.shown()}: cp must be yes or no, not {cp}")
    if cp == "yes":
        return SessionLocker("hazelcast", lambda ended: CpSession(address, clock, ended), clock)
    if next_token is None:
        raise ConfigError(
            f"{address.shown()}: map locks provide no fencing tokens, and need another source of"
            " them",
            hint="pass next_token to open_locker, such as lease_tokens(catalog, owner)",
        )
    tokens = next_token
    return SessionLocker(
        "hazelcast", lambda ended: MapSession(address, clock, ended, tokens), clock
    )


class HeldLockRecord(LockRecord):
    """A lock that this session's thread holds. depth: how many times, 0 once it was released.
    due_ms: its deadline; a map's lease lasts longer."""

    def __init__(self, name: str, token: int, *, waited: bool) -> None:
        super().__init__(name, token, waited=waited)
        self.depth = 1
        self.due_ms = 0
        self.mutex: threading.Lock = threading.Lock()


class HazelcastSession(LockSession):
    """A client with its own thread."""

    def __init__(self, address: LockAddress, clock: Clock, ended: Callable[[], None]) -> None:
        super().__init__(clock, ended)
        self._address = address
        # Names held, or being acquired or released: the members would let this thread lock twice.
        self._busy: set[str] = set()
        self._freed = threading.Condition()
        self._owner = OwnerThread("cassq hazelcast owner")
        # Set once it is connected, or has failed to connect.
        self._decided = threading.Event()
        self._connected = False
        self._client = self._driver()
        try:
            self._await_connection()
            self.check()
        except BaseException:
            self.over = True
            threading.Thread(target=self.retire, daemon=True).start()
            raise

    def _driver(self) -> Any:
        address = self._address
        return HazelcastClient(
            cluster_name=address.path,
            cluster_members=list(address.hosts),
            creds_username=address.user or None,
            creds_password=address.password or None,
            # Otherwise it would wait for ever for a member that connects but never answers.
            async_start=True,
            cluster_connect_timeout=CONNECT_SECONDS_MAX,
            connection_timeout=CALL_SECONDS_MAX,
            # A client that lost its members is given up; the next session has another.
            reconnect_mode=ReconnectMode.OFF,
            retry_max_backoff=1.0,
            heartbeat_interval=1.0,
            heartbeat_timeout=CALL_SECONDS_MAX,
            invocation_timeout=CALL_SECONDS_MAX,
            lifecycle_listeners=[self._on_state],
        )

    def _await_connection(self) -> None:
        # The driver should give up first.
        wait_event(self._decided, CONNECT_SECONDS_MAX + 1)
        if self._connected and not self.over:
            return
        address = self._address
        if self.over and any_reachable(address.hosts):
            raise ConfigError(
                f"the server at {address.shown()} refuses this client",
                hint=f"is the cluster's name {address.path!r}, and are user and password right?",
            )
        raise BackendUnavailableError(
            f"no Hazelcast member answers at {address.shown()}",
            hint="are they running, and are host and port right?",
        )

    @abc.abstractmethod
    def check(self) -> None:
        """Raise ConfigError if the cluster does not offer this kind of lock."""

    @abc.abstractmethod
    def take_free(self, name: str, ttl_ms: int, wait_seconds: float) -> LockRecord | None:
        """Take a lock that is not held in this session; None if another session holds it."""

    @abc.abstractmethod
    def give_back(self, record: HeldLockRecord) -> None:
        """Release it as many times as it was taken."""

    # --- the port -------------------------------------------------------------------------------

    def take(self, name: str, ttl_ms: int, wait_ms: int) -> LockRecord | None:
        watch = Stopwatch()
        with self._freed:
            while name in self._busy:
                left = wait_ms / 1000 - watch.seconds()
                if left <= 0 or self.over:
                    return None
                self._freed.wait(left)
            self._busy.add(name)
        record = None
        try:
            record = self.take_free(name, ttl_ms, max(0.0, wait_ms / 1000 - watch.seconds()))
        finally:
            if record is None:
                self._free(name)
        return record

    def drop(self, record: LockRecord) -> None:
        assert isinstance(record, HeldLockRecord)
        try:
            with record.mutex:
                self.give_back(record)
        finally:
            self._free(record.name)

    def retire(self) -> None:
        # Closes the CP session, so that its locks are free at once; blocks while no member answers.
        with contextlib.suppress(Exception):  # nothing could be done about it
            self._client.shutdown()
        self._owner.stop()

    def end(self) -> None:
        super().end()
        with self._freed:
            self._freed.notify_all()

    def _free(self, name: str) -> None:
        with self._freed:
            self._busy.discard(name)
            self._freed.notify_all()

    def _on_state(self, state: str) -> None:
        """Called by a thread of the driver, which must not be blocked."""
        if state == LifecycleState.CONNECTED:
            self._connected = True
            self._decided.set()
        elif state in (LifecycleState.DISCONNECTED, LifecycleState.SHUTTING_DOWN):
            self.end()
            self._decided.set()

    def ask(self, what: str, call: Callable[[], Any], seconds: float = 0.0) -> Any:
        """The answer to a driver call, sent by the owning thread. Waits five seconds, plus the
        time that the call itself may wait."""
        if self.over:
            raise BackendUnavailableError("the connection to Hazelcast was lost")
        try:
            return self._owner.ask(call, seconds + CALL_SECONDS_MAX)
        except (IllegalMonitorStateError, LockOwnershipLostError):
            raise
        except TimeoutError as exc:
            hint = "are its members overloaded or stopped, or is a majority down?"
            raise self.silent("Hazelcast", what, hint) from exc
        except HazelcastError as exc:
            raise self.failed("Hazelcast", what, f"{type(exc).__name__}: {exc}") from exc


class CpSession(HazelcastSession):
    """Locks that a majority of the members agrees on, while the CP session lasts."""

    def check(self) -> None:
        self._locks: dict[str, Any] = {}
        # Trying a lock creates the CP session, whose length the members decide.
        lock = self._lock(_PROBE)
        group = lock.get_group_id()
        if group.name != _CP_GROUP:
            raise ConfigError(
                f"the cluster at {self._address.shown()} has no CP subsystem",
                hint="set cp-member-count to 3 or more on its members, or use map locks: ?cp=no",
            )
        sent_ms = self.clock.boot_ms()
        if self.ask("opening", lock.try_lock) != _NO_FENCE:
            self.ask("opening", lock.unlock)
        # The driver has no public access to it.
        session = self._client._proxy_session_manager._sessions[group]
        self._session_ms = int(session.ttl * 1000)
        self.beat_ms: int = max(1, self._session_ms // _BEATS)
        self.confirm(sent_ms, self._session_ms)

    def _lock(self, name: str) -> Any:
        """The driver's object; creating it asks the members, so the owning thread does that."""
        lock = self._locks.get(name)
        if lock is None:
            plain = quote(name, safe=":=+, /")
            lock = self.ask("naming", lambda: self._client.cp_subsystem.get_lock(plain))
            if len(self._locks) >= _LOCKS_MAX:
                self._locks = {}
            self._locks[name] = lock
        return lock

    def take_free(self, name: str, ttl_ms: int, wait_seconds: float) -> LockRecord | None:
        lock = self._lock(name)
        sent_ms = self.clock.boot_ms()
        fence = self.ask("locking", lambda: lock.try_lock(wait_seconds), wait_seconds)
        if fence == _NO_FENCE:
            return None
        # Every lock request counts as a heartbeat of the session, for both sides.
        self.confirm(sent_ms, self._session_ms)
        return HeldLockRecord(name, fence, waited=wait_seconds > 0)

    def extend(self, record: LockRecord, ttl_ms: int) -> bool:
        assert isinstance(record, HeldLockRecord)
        with record.mutex:
            if record.depth == 0:
                return False
            lock = self._lock(record.name)
            sent_ms = self.clock.boot_ms()
            # Lock once more, or unlock once: either fails if it is not ours.
            try:
                if record.depth == 1:
                    if self.ask("renewing", lock.try_lock) != record.token:
                        self.end()
                        return False
                    record.depth = 2
                else:
                    self.ask("renewing", lock.unlock)
                    record.depth = 1
            except (IllegalMonitorStateError, LockOwnershipLostError):
                self.end()
                return False
            self.confirm(sent_ms, self._session_ms)
            return True

    def give_back(self, record: HeldLockRecord) -> None:
        lock = self._lock(record.name)
        with contextlib.suppress(IllegalMonitorStateError, LockOwnershipLostError):
            while record.depth:
                record.depth -= 1
                self.ask("unlocking", lock.unlock)

    def beat(self, records: list[LockRecord]) -> None:
        # All locks share one session, so one heartbeat serves all.
        self.extend(records[0], 0)


class MapSession(HazelcastSession):
    """Locks of a map, each with a lease that outlasts the lock's ttl."""

    def __init__(
        self,
        address: LockAddress,
        clock: Clock,
        ended: Callable[[], None],
        next_token: NextToken,
    ) -> None:
        self._next_token = next_token
        super().__init__(address, clock, ended)

    def check(self) -> None:
        self._map = self._client.get_map(_MAP)
        self.beat_ms = _ALWAYS_MS
        self.sure_until_ms = _ALWAYS_MS

    def take_free(self, name: str, ttl_ms: int, wait_seconds: float) -> LockRecord | None:
        # The lease may begin before the wait ends: add the wait, until `extend` sets the ttl.
        lease_ms = ttl_ms + round(wait_seconds * 1000)
        sent_ms = self.clock.boot_ms()
        if not self._lock_it(name, lease_ms, wait_seconds):
            return None
        record = HeldLockRecord(name, 0, waited=wait_seconds > 0)
        record.due_ms = sent_ms + lease_ms
        token = None
        try:
            token = self._next_token(name)
        finally:
            if token is None:
                self.give_back(record)
        if token is None:
            return None
        record.token = token
        return record

    def extend(self, record: LockRecord, ttl_ms: int) -> bool:
        assert isinstance(record, HeldLockRecord)
        with record.mutex:
            sent_ms = self.clock.boot_ms()
            if record.depth == 0 or not self._lock_it(record.name, ttl_ms, 0.0):
                return False
            record.depth = 2
            # An answer before the deadline shows that it was ours when renewed. If later, another
            # session may have held it meanwhile.
            if self.clock.boot_ms() >= record.due_ms:
                return False
            record.depth = 1
            self._unlock_it(record.name)
            record.due_ms = sent_ms + ttl_ms
            return True

    def give_back(self, record: HeldLockRecord) -> None:
        with contextlib.suppress(
            IllegalMonitorStateError
        ):  # it lapsed; another session may hold it
            while record.depth:
                record.depth -= 1
                self._unlock_it(record.name)

    def beat(self, records: list[LockRecord]) -> None:
        """Do nothing: there is no session."""

    def _lock_it(self, name: str, ttl_ms: int, wait_seconds: float) -> bool:
        lease_seconds = (ttl_ms + _LEASE_MORE_MS) / 1000
        return bool(
            self.ask(
                "locking",
                lambda: self._map.try_lock(name, lease_time=lease_seconds, timeout=wait_seconds),
                wait_seconds,
            )
        )

    def _unlock_it(self, name: str) -> None:
        self.ask("unlocking", lambda: self._map.unlock(name))
