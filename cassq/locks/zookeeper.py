"""The `zookeeper` locker: a lock is the first node of a waiting line on a ZooKeeper ensemble.

    BASE/locks/NAME                     a container: the servers remove it once it is empty
    BASE/locks/NAME/ID.0000000042       the first in line holds the lock; content: its ttl in ms

A node in line is removed when its owner deletes it, when its owner's session expires (because the
process was killed or stopped), or when another client has seen it unchanged at the head for its
whole ttl (because its owner's thread hangs). Renewing changes its version, and the deletion is
conditional on the version seen. So if a client waits for a lock, it gets it after the ttl or the
session's length, whichever is shorter.

A node's `czxid` is the lock's token: the number of the change that created it; ZooKeeper orders
the changes of all nodes. Waiters get the lock in the order of their requests.

Cost, in round trips; a majority syncs each write: acquire a free lock 1 read, 1 write, 1 read (a
new name: 2 more writes); a held one 1 read, and 1 more per ttl; renew and release 1 write. While
any lock is held, 1 read through the leader per sixth of the session.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import Create2
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from cassq.base.clock import Clock, Stopwatch, wait_event
from cassq.errors import BackendUnavailableError, ConfigError
from cassq.locks.address import LockAddress, parse
from cassq.locks.sessions import LockRecord, LockSession, SessionLocker

PORT = 2181
DEFAULT_PATH = "cassq"
SESSION_SECONDS = 10.0
CONNECT_SECONDS_MAX = 10.0

# The servers keep a session for its whole length after its last request. A follower reports
# that to the leader with a delay of at most a tick, which is half of the shortest session or less;
# kazoo itself gives up a silent connection after this part of the session.
_SURE_PART = 2 / 3
_BEATS = 6
_CREATIONS_MAX = 10
_SEEN_MAX = 10_000
# The flag that makes a new node a container.
_CONTAINER = 4
# A node in line that is not cassq's is left alone.
_FOREIGN_TTL_MS = 1 << 62

_driver_log = logging.getLogger("cassq.zookeeper")
# Lost connections are reported by their effect on locks; for the driver's own log, add a handler.
_driver_log.addHandler(logging.NullHandler())


def open_zookeeper(url: str, clock: Clock) -> SessionLocker:
    """The locker at `zookeeper://[user:password@]h1:2181,h2:2181/base/path[?session=10]`.

    session: its length in seconds, 1 to 60, within what the servers allow. With a user, only that
    user may access the nodes (digest authentication); the base path may exist or not.
    Raises ConfigError for an invalid URL or nodes this user may not access, and
    BackendUnavailableError if no server can be connected within ten seconds.
    """
    address = parse(url, port=PORT, options=("session",))
    address = address._replace(path=address.path or DEFAULT_PATH)
    address.seconds("session", SESSION_SECONDS, 1, 60)
    return SessionLocker("zookeeper", lambda ended: ZooKeeperSession(address, clock, ended), clock)


class NodeLockRecord(LockRecord):
    """A node in line. version: of its content."""

    def __init__(self, name: str, path: str, token: int, *, waited: bool) -> None:
        super().__init__(name, token, waited=waited)
        self.path = path
        self.version = 0
        self.mutex: threading.Lock = threading.Lock()


class SeenHead(NamedTuple):
    """The head of a line, when it was first seen, and its ttl."""

    child: str
    version: int
    since_ms: int
    ttl_ms: int


class CreateContainer(Create2):  # type: ignore[misc]
    """A request that the driver lacks; its answer is that of `create2`."""

    type = 19


class ZooKeeperSession(LockSession):
    """A connection with its own session."""

    def __init__(self, address: LockAddress, clock: Clock, ended: Callable[[], None]) -> None:
        super().__init__(clock, ended)
        self._address = address
        self._root = f"/{address.path}/locks"
        self._connected = threading.Event()
        self._mutex = threading.Lock()
        self._waits: set[threading.Event] = set()
        self._seen: dict[str, SeenHead] = {}
        seconds = address.seconds("session", SESSION_SECONDS, 1, 60)
        self._call_seconds = seconds
        user, password = address.user, address.password
        self._acl = [make_digest_acl(user, password, all=True)] if user else OPEN_ACL_UNSAFE
        self._client = KazooClient(
            hosts=",".join(address.hosts),
            timeout=seconds,
            auth_data=[("digest", f"{user}:{password}")] if user else None,
            default_acl=self._acl,
            connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 1.0},
            logger=_driver_log,
        )
        self._client.add_listener(self._on_state)
        try:
            self._start()
        except BaseException:
            self.over = True
            threading.Thread(target=self.retire, daemon=True).start()
            raise

    def _start(self) -> None:
        self._client.start_async()
        if not wait_event(self._connected, CONNECT_SECONDS_MAX):
            raise BackendUnavailableError(
                f"no ZooKeeper server answers at {self._address.shown()}",
                hint="is a majority of the servers running, and are host and port right?",
            )
        # The length that the servers granted; the driver has no public access to it.
        self._session_ms = int(self._client._session_timeout)
        self._sure_ms = int(self._session_ms * _SURE_PART)
        self._call_seconds = self._session_ms / 1000
        self.beat_ms: int = max(1, self._session_ms // _BEATS)
        with self._translated("opening"):
            self._client.ensure_path_async(self._root, self._acl).get(timeout=self._call_seconds)
        # Any user may check that a node exists; only the right user may read it.
        self._ask("opening", self._client.get_async(self._root))

    # --- the port -------------------------------------------------------------------------------

    def take(self, name: str, ttl_ms: int, wait_ms: int) -> LockRecord | None:
        place = f"{self._root}/{escaped(name)}"
        watch = Stopwatch()
        if wait_ms <= 0 and self._is_occupied(place):
            return None
        path, token = self._stand_in_line(place, ttl_ms)
        waited = False
        while True:
            before = self._before(place, path)
            if before is None:
                return None
            if not before:
                return NodeLockRecord(name, path, token, waited=waited)
            left = wait_ms / 1000 - watch.seconds()
            if left <= 0:
                self._delete(path)
                return None
            waited = True
            patience = self._watch_head(place, before[0])
            if patience > 0:
                self._await_deletion(f"{place}/{before[-1]}", min(left, patience))

    def extend(self, record: LockRecord, ttl_ms: int) -> bool:
        assert isinstance(record, NodeLockRecord)
        with record.mutex:
            sent_ms = self.clock.boot_ms()
            call = self._client.set_async(record.path, str(ttl_ms).encode(), record.version)
            try:
                record.version = self._ask("renewing", call).version
            except (NoNodeError, BadVersionError):
                return False
            self.confirm(sent_ms, self._sure_ms)
            return True

    def drop(self, record: LockRecord) -> None:
        assert isinstance(record, NodeLockRecord)
        self._delete(record.path)

    def beat(self, records: list[LockRecord]) -> None:
        sent_ms = self.clock.boot_ms()

        def answered(result: Any) -> None:
            if result.successful():
                self.confirm(sent_ms, self._sure_ms)

        # Through the leader, which decides on sessions: a follower without a leader still answers
        # other reads. This does not wait: without an answer, the session stops being sure.
        self._client.sync_async(self._root).rawlink(answered)

    def retire(self) -> None:
        # Closing a session removes its nodes; one that cannot be closed expires by itself.
        wait_event(self._connected, self._call_seconds)
        with contextlib.suppress(Exception):  # nothing could be done about it
            self._client.stop()
            self._client.close()

    def end(self) -> None:
        super().end()
        with self._mutex:
            for gone in self._waits:
                gone.set()

    def _on_state(self, state: str) -> None:
        """Called by the driver's thread, which must not be blocked."""
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
            self.end()

    # --- the line -------------------------------------------------------------------------------

    def _is_occupied(self, place: str) -> bool:
        """Whether any node is in line, after removing a head whose ttl is over."""
        line = self._line(place)
        return bool(line) and (self._watch_head(place, line[0]) > 0 or bool(self._line(place)))

    def _line(self, place: str) -> list[str]:
        """The names of the nodes in line, in order."""
        try:
            return in_line(self._ask("looking", self._client.get_children_async(place)))
        except NoNodeError:
            return []

    def _before(self, place: str, path: str) -> list[str] | None:
        """The names in line before ours; None if ours was removed because its ttl was over, as
        after a pause of this process."""
        line = self._line(place)
        name = path.rpartition("/")[2]
        return line[: line.index(name)] if name in line else None

    def _stand_in_line(self, place: str, ttl_ms: int) -> tuple[str, int]:
        """The path of a new node at the end of the line, and its token."""
        mark = uuid.uuid4().hex
        for _ in range(_CREATIONS_MAX):
            sent_ms = self.clock.boot_ms()
            call = self._client.create_async(
                f"{place}/{mark}.",
                str(ttl_ms).encode(),
                ephemeral=True,
                sequence=True,
                include_data=True,
            )
            try:
                path, stat = self._ask("locking", call)
            except NoNodeError:
                # A new name, or the servers just removed its empty container.
                self._make_container(place)
                continue
            self.confirm(sent_ms, self._sure_ms)
            return path, stat.czxid
        raise BackendUnavailableError(f"{place} was removed repeatedly")

    def _make_container(self, place: str) -> None:
        result = self._client.handler.async_result()
        self._client._call(CreateContainer(place, b"", self._acl, _CONTAINER), result)
        try:
            self._ask("making a container", result)
        except NodeExistsError:
            return  # another client was faster

    def _watch_head(self, place: str, head: str) -> float:
        """Seconds until the head's ttl is over; 0 after it was removed for that."""
        seen = self._seen.get(place)
        now_ms = self.clock.boot_ms()
        if seen and seen.child == head and now_ms < seen.since_ms + seen.ttl_ms:
            return (seen.since_ms + seen.ttl_ms - now_ms) / 1000
        try:
            content, stat = self._ask("looking", self._client.get_async(f"{place}/{head}"))
        except NoNodeError:
            return 0.0
        if seen and (seen.child, seen.version) == (head, stat.version):
            with contextlib.suppress(BadVersionError):  # it was renewed just now
                self._delete(f"{place}/{head}", seen.version)
            with self._mutex:
                self._seen.pop(place, None)
            return 0.0
        # Its owner's ttl began before this content could be read.
        ttl_ms = int(content) if content.isdigit() else _FOREIGN_TTL_MS
        seen = SeenHead(head, stat.version, self.clock.boot_ms(), ttl_ms)
        with self._mutex:
            while len(self._seen) >= _SEEN_MAX:
                del self._seen[next(iter(self._seen))]
            self._seen[place] = seen
        return max(seen.ttl_ms, 1) / 1000

    def _await_deletion(self, path: str, seconds: float) -> None:
        gone = threading.Event()
        with self._mutex:
            self._waits.add(gone)
        try:
            # Not `exists`: it would watch for the creation of a node that is gone.
            call = self._client.get_async(path, watch=lambda event: gone.set())
            with contextlib.suppress(NoNodeError):
                self._ask("waiting", call)
                wait_event(gone, seconds)
        finally:
            with self._mutex:
                self._waits.discard(gone)
        if self.over:
            raise BackendUnavailableError("the connection to ZooKeeper was lost")

    def _delete(self, path: str, version: int = -1) -> None:
        with contextlib.suppress(NoNodeError):
            self._ask("unlocking", self._client.delete_async(path, version))

    # --- calls ----------------------------------------------------------------------------------

    def _ask(self, what: str, call: Any) -> Any:
        """The answer to an asynchronous call, within the length of a session."""
        with self._translated(what):
            return call.get(timeout=self._call_seconds)

    @contextlib.contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Translate the driver's errors, except those that callers expect as answers."""
        try:
            yield
        except (NoNodeError, NodeExistsError, BadVersionError):
            raise
        except (NoAuthError, AuthFailedError) as exc:
            user = self._address.user
            raise ConfigError(
                f"{self._address.shown()}: {f'user {user!r}' if user else 'a client with no user'}"
                f" may not access {self._root}",
                hint="use the user who created it: zookeeper://user:password@...",
            ) from exc
        except KazooTimeoutError as exc:
            hint = "are its servers overloaded or stopped?"
            raise self.silent("ZooKeeper", what, hint) from exc
        except KazooException as exc:
            raise self.failed("ZooKeeper", what, f"{exc or type(exc).__name__}") from exc


def escaped(name: str) -> str:
    """A lock's name as a node name: without slashes, and neither `.` nor `..`."""
    shown = quote(name, safe=":@+=, ")
    return shown.replace(".", "%2E") if not shown.strip(".") else shown


def in_line(children: list[str]) -> list[str]:
    """The nodes in the order of their numbers, which wrap around to negative after 2³¹."""
    numbers = {child: number for child in children if (number := _number(child)) is not None}
    if not numbers:
        return []
    some = next(iter(numbers.values()))
    half = 1 << 31
    return sorted(numbers, key=lambda child: (numbers[child] - some + half) % (2 * half))


def _number(child: str) -> int | None:
    number = child.rpartition(".")[2]
    return int(number) if number.lstrip("-").isdigit() else None
