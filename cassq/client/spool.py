"""The spool of a client: a queue directory on this machine that takes pushes while no quorum of
the cluster answers, and a thread that forwards them once one answers again.

Invariants:
1. A spilled push is acknowledged only once it is durable in the directory.
2. Its messages are committed there only once they are durable in the cluster.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from cassq.base.clock import AutoResetEvent
from cassq.client.forwarding import (
    NOTES_SECONDS,
    SPOOL_POLICY,
    Forwarded,
    Forwarder,
    ForwardTarget,
    notes,
    spoolable,
    target_of,
)
from cassq.client.queue import Queue, own_queue
from cassq.client.runtime import Runtime
from cassq.errors import BackendError, CassqError, is_outage
from cassq.lifecycle.ports import Ports
from cassq.message.batches import AppendReceipt, Batch, SpilledReceipt
from cassq.model.queues import QueuePolicy
from cassq.model.rows import QueueRow
from cassq.producer.pusher import Pusher
from cassq.producer.spilling import Overflow, UncertainPlaces

logger: logging.Logger = logging.getLogger("cassq")

# How often the cluster is tried while it does not answer, and how often the directory is checked
# for messages that other processes left there.
TRY_SECONDS_MIN, TRY_SECONDS_MAX = 0.25, 8.0
LOOK_SECONDS = 5.0


class Spilled(NamedTuple):
    """The messages that a spool got for a queue. spilled: how many in all; waiting: how many of
    them are not yet forwarded."""

    queue: str
    queue_id: str
    spilled: int
    waiting: int

    @property
    def forwarded(self) -> int:
        return self.spilled - self.waiting

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "forwarded": self.forwarded}


class Spool:
    """One client's spool. Thread-safe. place: the runtime of another client, whose queues are in
    the spool's directory; close: closes that client."""

    def __init__(self, place: Runtime, close: Callable[[], object]) -> None:
        self._place = place
        self._close = close
        self._mutex = threading.Lock()
        self._pushers: dict[str, tuple[str, Pusher]] = {}  # by the queue's id: spool queue, pusher
        self._rows: dict[str, QueueRow] = {}  # by name, as of when they were last opened
        self._forwarder: Forwarder | None = None
        self._reach: Callable[[], Ports]  # `start` sets these two
        self._open_pusher: Callable[[QueueRow], Pusher]
        self._event = AutoResetEvent()
        self.overflow: Overflow = Overflow(self._keep, self._expect, self._event.set)
        self._thread: threading.Thread | None = None
        self._forwarding = threading.Lock()
        self._working = True
        self._stopped = False  # whether to interrupt forwarding in progress
        self._warned: dict[str, str] = {}
        self.found: int = 0

    # --- spilling -------------------------------------------------------------------------------

    def _expect(self, queue: QueueRow) -> None:
        if not queue.policy.strict:
            self._rows[queue.name] = queue
            self._pusher_of(queue)

    def named(self, name: str, load: Callable[[str], QueueRow | None]) -> QueueRow | None:
        """The queue of this name, as `load` reads it. While the cluster does not answer, a queue is
        assumed to exist if this client has pushed to it, or any client on this machine has spilled
        messages for it."""
        seen = self._seen(name) if self.overflow.down else None
        if seen is not None:
            return seen
        try:
            return load(name)
        except BackendError as exc:
            seen = self._seen(name) if is_outage(exc) else None
            if seen is None:
                raise
            self.overflow.trouble(exc)
            return seen

    def _seen(self, name: str) -> QueueRow | None:
        if name not in self._rows:
            targets = (target_of(queue.name) for queue in self._queues(f"{name}~"))
            ids = [target.id for target in targets if target is not None and target.name == name]
            if ids:
                # Its policy is unknown, but only ap queues have messages here.
                policy = QueuePolicy(dedup_window=NOTES_SECONDS)
                self._rows[name] = QueueRow(max(ids), name, policy, 1, 1)
        return self._rows.get(name)

    def _keep(
        self, queue: QueueRow, batch: Batch, doubt: UncertainPlaces | None
    ) -> list[AppendReceipt]:
        spool_id, pusher = self._pusher_of(queue)
        intend = None if doubt is None else notes(self._place.ports, spool_id, *doubt)
        ids = pusher.push_intended(spoolable(batch), intend)
        return [SpilledReceipt(*run) for run in ids.runs]

    def _pusher_of(self, queue: QueueRow) -> tuple[str, Pusher]:
        with self._mutex:
            found = self._pushers.get(queue.id)
            if found is None:
                name = ForwardTarget(queue.name, queue.id).spool_name
                made = own_queue(self._place, name, **SPOOL_POLICY)
                found = self._pushers[queue.id] = made.row.id, made.pusher()
            return found

    # --- forwarding -----------------------------------------------------------------------------

    def start(self, reach: Callable[[], Ports], open_pusher: Callable[[QueueRow], Pusher]) -> None:
        """Start the thread that forwards messages. reach: returns the cluster's ports; raises
        BackendError while no server has answered yet."""
        self._reach, self._open_pusher = reach, open_pusher
        self._thread = threading.Thread(target=self._work, name="cassq-spool", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        pause = again = 0.0
        while self._working:
            self._event.wait(pause)
            if not self._working:
                return
            try:
                self.forward()
                pause, again = LOOK_SECONDS, 0.0
            except CassqError as exc:
                if not is_outage(exc):
                    self._warn("", str(exc))
                pause = again = min(max(2 * again, TRY_SECONDS_MIN), TRY_SECONDS_MAX)
            except Exception:
                logger.exception("forwarding failed unexpectedly, trying again later")
                pause = TRY_SECONDS_MAX

    def forward(self) -> Forwarded:
        """Forward everything in the spool. Raises BackendError if the cluster does not answer. Cost
        with nothing to do: two local queries, and during an outage one read of the cluster."""
        with self._forwarding:
            ports = self._reach()
            if self._forwarder is None:
                spool = self._place.ports
                self._forwarder = Forwarder(spool, self._queues, ports, self._open_pusher)
            done = self._forwarder.forward(self._on_progress)
        if self.overflow.down:
            ports.catalog.queues.by_id("none")  # raises while the cluster does not answer
            self.overflow.well()
        for name, why in done.stuck.items():
            self._warn(name, why)
        return done

    def _on_progress(self, count: int, found: int) -> bool:
        if count:
            self.found += found
            self.overflow.well()
        return not self._stopped

    def _warn(self, name: str, why: str) -> None:
        """Log a warning, unless the last one about this queue gave the same reason."""
        if self._warned.get(name) != why:
            self._warned[name] = why
            logger.warning("spilled messages are not forwarded: %s", why)

    # --- inspecting and closing -----------------------------------------------------------------

    def contents(self) -> list[Spilled]:
        """What the spool holds and has held, for each queue. Cost: that of `Queue.stats` for
        each."""
        found: list[Spilled] = []
        for queue in self._queues():
            target = target_of(queue.name)
            if target is not None:
                stats = queue.stats()
                group = stats.groups["default"]
                waiting = group.waiting + group.pending
                found.append(Spilled(target.name, target.id, stats.pushed, waiting))
        return found

    def _queues(self, prefix: str = "") -> list[Queue]:
        with self._place.life.enter():
            return [
                Queue(self._place, row) for row in self._place.ports.catalog.queues.listed(prefix)
            ]

    def stop(self) -> None:
        """Stop the thread: from now on only calls of `forward` forward messages."""
        with self._mutex:
            thread, self._thread = self._thread, None
        self._working = False
        self._event.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def close(self, *, quietly: bool = False) -> None:
        """Stop forwarding. Messages that wait are left to the next client, or to `cassq spill
        forward`. quietly: do not warn of them."""
        self.stop()
        self._stopped = True
        waiting = 0 if quietly else sum(each.waiting for each in self.contents())
        if waiting:
            logger.warning(
                "%d spilled messages wait to be forwarded: `cassq spill forward`", waiting
            )
        self._close()
