"""Leases of streams: one query at a time reads for a group.

A query renews the leases of all its groups in one thread.
"""

from __future__ import annotations

import logging
import threading

from cassq.base.processes import is_gone, process_name
from cassq.errors import BackendError, LeaseLostError, UsageError
from cassq.lifecycle.ports import Ports
from cassq.model.rows import GroupRow

logger: logging.Logger = logging.getLogger("cassq")

LEASE_MS = 20_000
RENEW_SECONDS = 5.0
LOOK_SECONDS = 0.5
_IN = "@"  # between the id of a lease's owner and its process


class GroupLease:
    """The lease of one group, for one query. Another thread may call `keep_on`."""

    def __init__(self, ports: Ports, group: GroupRow, queue: str) -> None:
        self._clock = ports.clock
        self._leases = ports.catalog.leases
        self._name = f"stream:{group.id}"
        self._what = f"group {group.name!r} of queue {queue!r}"
        self._owner = f"{ports.ids.version()}{_IN}{process_name(ports.clock)}"
        self._mutex = threading.Lock()
        self._lost = False
        self._released = False

    def take(self) -> None:
        """Take the lease. If another query has it whose process is known to be gone, that lease is
        released; if this is not known, this waits for it to expire. Raises UsageError if another
        query keeps renewing it. Cost: while another query has it, a try and a read twice a
        second."""
        started_ms = self._clock.boot_ms()
        while not self._renew():
            if self._clock.boot_ms() - started_ms > LEASE_MS * 1.25:
                raise UsageError(
                    f"another query reads {self._what}",
                    hint="stop it, or give this one a group of its own, which gets every message:"
                    ' .option("group", …)',
                )
            holder = self._leases.owner(self._name)
            if holder and is_gone(holder.partition(_IN)[2], self._clock):
                self._leases.drop(self._name, holder)
            else:
                self._clock.sleep(LOOK_SECONDS)

    def _renew(self) -> bool:
        """Renew the lease; returns whether it is ours now, for its whole length."""
        return self._leases.take(self._name, self._owner, LEASE_MS) is not None

    def keep_on(self) -> None:
        """Renew the lease, unless it was released."""
        with self._mutex:
            if not self._released:
                self._lost = not self._renew() or self._lost

    def check(self) -> None:
        """Raise LeaseLostError if another query had the lease since it was taken."""
        if self._lost:
            raise LeaseLostError(
                f"another query began to read {self._what} while this one was paused",
                hint="let one of them run, or give each a group of its own",
            )

    def release(self) -> None:
        """Let others read for the group."""
        with self._mutex:
            if not self._released:
                self._released = True
                self._leases.drop(self._name, self._owner)


class Renewals:
    """Renews the leases of a query every few seconds, in a thread."""

    def __init__(self) -> None:
        self._leases: list[GroupLease] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cassq-follower", daemon=True)
        self._thread.start()

    def add(self, lease: GroupLease) -> None:
        """Renew a lease from now on, until `remove`."""
        self._leases = [*self._leases, lease]

    def remove(self, lease: GroupLease) -> None:
        """Stop renewing a lease."""
        self._leases = [each for each in self._leases if each is not lease]

    def _run(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            for lease in self._leases:
                try:
                    lease.keep_on()
                except BackendError as exc:
                    logger.warning("the lease of a stream could not be renewed: %s", exc)

    def close(self) -> None:
        """Stop; a lease that was not released expires."""
        self._ended.set()
        self._thread.join(timeout=RENEW_SECONDS)
