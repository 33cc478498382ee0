"""The relay: forwards the messages of an outbox to their queues, each once, in order.

A pass reads rows by id, from the lowest. It keeps no position, so it does not miss a row with a
lower id that is committed later. It pushes the rows of each queue together. Before they are
written, it notes their places in the outbox's database; afterwards it deletes rows and notes in one
transaction. A relay that takes over, after a crash or an error, first checks the noted places: rows
that are there are deleted, and all others are pushed again.

Invariants:
1. A row is deleted only after its message is durable in its queue.
2. At most one of a row's noted places has its message, and no place gets it after it was checked.
3. Nothing is pushed while there are notes of an earlier epoch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cassq.base.arguments import check_seconds
from cassq.client.client import Client
from cassq.client.queue import Queue
from cassq.errors import (
    BackendError,
    CassqError,
    ClosedError,
    FencedError,
    ForkedClientError,
    InterruptedCallError,
    QueueFullError,
    QueuePausedError,
    UsageError,
)
from cassq.message.batches import Batch
from cassq.model.lanes import lane_of
from cassq.model.priorities import check_allowed
from cassq.model.queues import QueuePolicy
from cassq.model.rows import QueueRow
from cassq.outbox.database import OutboxDatabase, database_of
from cassq.outbox.landing import PlaceNotes, rows_at
from cassq.outbox.table import LandingPlace, Row, stored_headers
from cassq.producer.pusher import Pusher
from cassq.producer.quota import Quota

logger: logging.Logger = logging.getLogger("cassq")

ROWS_MAX = 8_192
BYTES_MAX = 8 * 1024 * 1024
EVERY_SECONDS = 0.1
EVERY_SECONDS_MAX = 3600.0
# Another relay takes over from one that died within this time. Correctness does not depend on it.
LEASE_MS = 10_000
RETRY_SECONDS = 1.0
TROUBLE_SECONDS_MIN, TROUBLE_SECONDS_MAX = 0.25, 8.0
FRESH_MS = 1_000  # how long a queue's policy is used before it is read again

# Errors that say nothing about the queue.
_OF_THE_CLIENT = (ClosedError, ForkedClientError, InterruptedCallError)

# Waits for some seconds; returns whether the relay must end.
Rest = Callable[[float], bool]


@dataclass(slots=True)
class Relayed:
    """The result of a pass. forwarded: how many rows were deleted because they are in their queues.
    found: how many of them an earlier relay had pushed. leads: False if another relay leads. stuck:
    queue → why its rows wait."""

    forwarded: int = 0
    found: int = 0
    leads: bool = True
    stuck: dict[str, str] = field(default_factory=dict)


class _Group(NamedTuple):
    """What the rows of one push have in common."""

    queue: str
    lane: int | None
    priority: int


class _RelayTarget:
    """A queue that rows go to."""

    def __init__(self, client: Client, name: str) -> None:
        self.queue: Queue = client.queue(name)
        self.row: QueueRow = self.queue.row
        self._client = client
        self._looked_ms = client.runtime.clock.boot_ms()
        self.pusher: Pusher = self.queue.forwarding_pusher()
        self.quota: Quota = Quota(client.ports, lambda: self.row, client.runtime.dead_letter)

    def refresh(self) -> bool:
        """Read the policy again if it is old; False if a new queue has the name now."""
        now_ms = self._client.runtime.clock.boot_ms()
        if now_ms - self._looked_ms >= FRESH_MS:
            row = self._client.queue(self.row.name).row
            if row.id != self.row.id:
                return False
            self.row, self._looked_ms = row, now_ms
        return True


class Relay:
    """Forwards an outbox's messages to the queues of a client.

    outbox: a path, `sqlite:///PATH` or `postgresql://...`. every: how many seconds to wait before
    reading an empty outbox again. retry: how many seconds to leave out a queue that refuses
    messages. Not thread-safe, except `stop`; open it in the thread that runs it. Raises UsageError
    for a wrong number, ConfigError for anything but a database, and MissingExtraError.
    """

    def __init__(
        self,
        client: Client,
        outbox: str | OutboxDatabase,
        *,
        every: float = EVERY_SECONDS,
        retry: float = RETRY_SECONDS,
    ) -> None:
        check_seconds("every", every, EVERY_SECONDS_MAX, least=0.001)
        check_seconds("retry", retry, EVERY_SECONDS_MAX, least=0.001)
        self._retry_ms = round(retry * 1000)
        self._client = client
        self._database = outbox if isinstance(outbox, OutboxDatabase) else database_of(outbox)
        self._every = every
        self._outbox = ""
        self._owner = client.ports.ids.version()
        self._epoch: int | None = None  # while it leads
        self._renewed_ms = 0
        self._in_doubt = False  # whether a push that failed may have left notes
        self._targets: dict[str, _RelayTarget] = {}
        self._stuck: dict[str, tuple[str, int]] = {}  # why, and until when it is left out
        self._warned: dict[str, str] = {}
        self._stop = threading.Event()

    # --- running ------------------------------------------------------------------------------

    def run(self, rest: Rest | None = None) -> None:
        """Forward until `stop`. If the outbox or the queues do not answer, that is logged, and
        tried again.

        rest: waits for some seconds, and returns whether to end; the default also ends at `stop`.
        Raises ConfigError for a database without an outbox, or with one of another version.
        """
        clock = self._client.runtime.clock
        wait: Rest = rest or (lambda seconds: clock.wait(self._stop, seconds))
        again, pause = 0.0, 0.0
        while not (self._stop.is_set() or wait(pause)):
            try:
                done = self.forward(lambda: not (self._stop.is_set() or wait(0)))
                pause, again = (self._every if done.leads else LEASE_MS / 3000), 0.0
                self._warned.pop("", None)
            except BackendError as exc:
                again = min(max(2 * again, TROUBLE_SECONDS_MIN), TROUBLE_SECONDS_MAX)
                pause = again
                self._warn_once("", f"the outbox is not forwarded at the moment: {exc}")

    def stop(self) -> None:
        """Make `run` return when the rows in hand are forwarded. Safe in any thread."""
        self._stop.set()

    def forward(self, goes_on: Callable[[], bool] = lambda: True) -> Relayed:
        """Forward what is in the outbox now, except for queues that refuse messages. goes_on:
        called before each batch; whether to go on. Does nothing while another relay leads.

        Raises BackendError if one side does not answer, and ConfigError as `run` does. Cost with
        nothing to do: one query; every three seconds, also a conditional write in the catalog.
        """
        done = Relayed()
        try:
            while goes_on():
                if not self._lead(done):
                    done.leads = False
                    break
                rows = self._database.rows(ROWS_MAX, BYTES_MAX, self._left_out())
                if not rows:
                    break
                self._carry(rows, done)
        except FencedError:
            self._yield()
            done.leads = False
        except BaseException:
            self._yield()
            raise
        done.stuck = {name: why for name, (why, _) in self._stuck.items()}
        return done

    def close(self) -> None:
        """Close the pushers and the connection, and let another relay lead."""
        led = self._epoch is not None
        self._yield()
        if led:
            self._client.ports.catalog.leases.drop(self._lease, self._owner)
        self._database.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- leading ------------------------------------------------------------------------------

    @property
    def _lease(self) -> str:
        return f"outbox:{self._outbox}"

    def _lead(self, done: Relayed) -> bool:
        """Lead, or go on leading; returns whether it does. If it newly leads, what was noted before
        is settled."""
        now_ms = self._client.runtime.clock.boot_ms()
        if self._epoch is not None and now_ms - self._renewed_ms < LEASE_MS // 3:
            return True
        self._outbox = self._outbox or self._database.outbox()
        leases = self._client.ports.catalog.leases
        if leases.take(self._lease, self._owner, LEASE_MS) is None:
            self._yield()
            return False
        self._renewed_ms = now_ms
        if self._epoch is None:
            epoch = self._database.lead()
            self._settle(epoch, done)
            self._epoch = epoch
        return True

    def _settle(self, epoch: int, done: Relayed) -> None:
        """Delete the rows that are at noted places, and the notes."""
        places = self._database.places()
        rows = {row for place in places for row in rows_at(self._client.ports, place)}
        if places:
            self._database.done(epoch, sorted(rows), places)
        done.forwarded += len(rows)
        done.found += len(rows)

    def _yield(self) -> None:
        """Stop leading, until the notes are settled. Closes the pushers, so that no noted place
        gets a message later."""
        self._epoch, self._in_doubt = None, False
        targets, self._targets = self._targets, {}
        for name, target in targets.items():
            try:
                target.pusher.close()
            except CassqError as exc:
                logger.warning("a pipe of queue %s is left for the reaper to seal: %s", name, exc)

    # --- forwarding ---------------------------------------------------------------------------

    def _left_out(self) -> list[str]:
        """The queues to leave out now. Those that were stuck for long enough are tried again."""
        now_ms = self._client.runtime.clock.boot_ms()
        self._stuck = {name: found for name, found in self._stuck.items() if now_ms < found[1]}
        return list(self._stuck)

    def _carry(self, rows: Sequence[Row], done: Relayed) -> None:
        """Push rows, in order for each queue, and delete the rows that were pushed."""
        groups: dict[_Group, list[Row]] = {}
        now_ms = self._client.ports.catalog.now_ms()
        for row in rows:
            delay_ms = 0 if row.due_ms is None else row.due_ms - now_ms
            lane = lane_of(delay_ms) if delay_ms > 0 else None
            groups.setdefault(_Group(row.queue, lane, row.priority), []).append(row)
        assert self._epoch is not None
        epoch, gone, places = self._epoch, list[int](), list[LandingPlace]()
        failed: CassqError | None = None
        refused: set[str] = set()
        for group, some in groups.items():
            if group.queue in refused:
                continue
            try:
                noted = self._push(epoch, group, some)
            except FencedError:
                raise
            except CassqError as exc:
                refused.add(group.queue)
                if not self._is_stuck(group.queue, exc):
                    failed = exc
                    break
                continue
            places += noted
            gone += [row for place in noted for row in place.rows]
        gone = sorted(set(gone))
        if gone:
            self._database.done(epoch, gone, places)
        done.forwarded += len(gone)
        if failed is not None:
            raise failed
        if self._in_doubt:
            self._yield()  # the next batch first settles the notes that it left

    def _push(self, epoch: int, group: _Group, rows: Sequence[Row]) -> list[LandingPlace]:
        """Push rows, up to the first that is refused; returns the places noted for them."""
        target = self._target(group.queue)
        policy = target.row.policy
        check_allowed(group.priority, policy)
        headers, refused = self._headers(rows, policy)
        count = target.quota.admit(len(headers), whole=False)
        if count < len(headers):
            refused = target.quota.full_error()
        some = rows[:count]
        noting = PlaceNotes(
            lambda place: self._database.note(epoch, place),
            target.row.id,
            [row.id for row in some],
        )
        batch = _batch(some, headers[:count], group)
        self._in_doubt = True
        target.pusher.push_intended(batch, noting, group.lane)
        self._in_doubt = False
        if refused is not None:
            self._is_stuck(group.queue, refused)
        else:
            self._warned.pop(group.queue, None)
        return noting.places

    def _headers(
        self, rows: Sequence[Row], policy: QueuePolicy
    ) -> tuple[list[bytes], CassqError | None]:
        """The headers of rows, up to one that the queue cannot take, and the error that says why.
        Raises that error if it is the first row."""
        found: list[bytes] = []
        try:
            for row in rows:
                if policy.strict and row.due_ms is not None:
                    raise UsageError(f"row {row.id} has a delay, and a cp queue delivers in order")
                found.append(stored_headers(row, self._outbox))
        except UsageError as exc:
            if not found:
                raise
            return found, exc
        return found, None

    def _target(self, name: str) -> _RelayTarget:
        target = self._targets.get(name)
        if target is None or not target.refresh():
            if target is not None:
                target.pusher.close()
            self._targets.pop(name, None)
            target = self._targets[name] = _RelayTarget(self._client, name)
        return target

    # --- queues that take nothing -------------------------------------------------------------

    def _is_stuck(self, name: str, exc: CassqError) -> bool:
        """Leave a queue out for a while if it refused the rows; returns whether it did. Otherwise
        the error is not about this queue."""
        refusal = isinstance(exc, (UsageError, QueueFullError, QueuePausedError))
        own = refusal and not isinstance(exc, _OF_THE_CLIENT)
        if own:
            until_ms = self._client.runtime.clock.boot_ms() + self._retry_ms
            self._stuck[name] = (exc.message, until_ms)
            self._warn_once(name, f"messages for queue {name!r} wait in the outbox: {exc}")
        return own

    def _warn_once(self, name: str, why: str) -> None:
        """Warn, unless the last warning for this queue gave the same reason."""
        if self._warned.get(name) != why:
            self._warned[name] = why
            logger.warning("%s", why)


def _batch(rows: Sequence[Row], headers: Sequence[bytes], group: _Group) -> Batch:
    """Rows as messages."""
    keyed = any(row.key is not None for row in rows)
    return Batch(
        [row.payload for row in rows],
        [row.pushed_ms for row in rows],
        headers,
        [row.key for row in rows] if keyed else None,
        dues_ms=None if group.lane is None else [row.due_ms or 0 for row in rows],
        priority=group.priority,
    )
