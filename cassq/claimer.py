"""The claimer: finds something for a group to do, and claims it. No threads, no waiting.

What came back (expired or given back) goes first, then what was never claimed, from the
window's pipes in turn. On exclusive groups a pipe's lock is taken before anything of it is
claimed, and everything of a pipe is done in its order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from cassq import claims
from cassq.catalog.port import Claim, ClaimState, Cursor, GroupRow, PipeState, QueueRow
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError, Slice
from cassq.frames import Place
from cassq.holdings import Holder, Holding
from cassq.locks.port import Lock
from cassq.ports import Ports
from cassq.retries import Bury, bury_or_leave
from cassq.window import View, Window

logger = logging.getLogger("cassq")

CLAIM_BYTES_MAX = 32 * 1024 * 1024
TRIES_MAX = 32
DUE_LISTED = 8
LOOK_MS = 20  # how often what came back is looked for while there is something new


class Claimer:
    """Claims for one popper of one group.

    bury: puts a spent message among the group's dead letters.
    """

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        group: Callable[[], GroupRow],
        bury: Bury,
    ) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._version = ports.ids.version
        self._queue = queue
        self._group = group
        self._bury = bury
        self._looked_ms = -LOOK_MS
        self.name = ports.ids.version()
        self.exclusive = group().policy.exclusive or queue().policy.strict
        self.window = Window(ports, queue, group(), in_order=self.exclusive)

    @property
    def timeout_ms(self) -> int:
        policy = self._group().policy
        return round((policy.claim_timeout or self._queue().policy.claim_timeout) * 1000)

    @property
    def max_deliveries(self) -> int:
        policy = self._group().policy
        return policy.max_deliveries or self._queue().policy.max_deliveries

    def claim(self, limit: int, holder: Holder) -> tuple[Holding, list[Slice]] | None:
        """A new holding of at most `limit` messages, or None when there is nothing to claim."""
        limit = min(limit, self._queue().policy.max_claim_messages)
        now_ms = self._ports.clock.boot_ms()
        looked = not self.exclusive and now_ms - self._looked_ms >= LOOK_MS
        if looked:
            found = self._retake(limit, holder)
            if found:
                return found
            self._looked_ms = now_ms
        fresh = self.window.is_stale()
        if fresh:
            self.window.refresh()
        while True:
            for view in self.window.candidates():
                found = self._claim_from(view, limit, holder)
                if found:
                    self.window.claimed(view)
                    return found
            if not fresh:
                self.window.refresh()
                fresh = True
            elif self.window.truncated:
                self.window.look_further()
            elif self.exclusive or looked:
                return None
            else:
                return self._retake(limit, holder)

    def given_back(self) -> None:
        """There may be something that came back: look for it first."""
        self._looked_ms = -LOOK_MS

    def _claim_from(
        self, view: View, limit: int, holder: Holder
    ) -> tuple[Holding, list[Slice]] | None:
        try:
            if self.exclusive:
                return self._claim_exclusively(view, limit, holder)
            return self._claim_next(view, limit, holder, None)
        except (ExtentMissingError, CorruptionError) as exc:
            self.window.set_aside(view.row.id, exc)
            return None
        except BaseException:
            view.cursor = None  # whatever happened to it, look again
            raise

    # --- what was never claimed -------------------------------------------------------------

    def _claim_next(
        self, view: View, limit: int, holder: Holder, lock: Lock | None
    ) -> tuple[Holding, list[Slice]] | None:
        """Claim a run from the chain's end on, by compare-and-set."""
        for _ in range(TRIES_MAX):
            cursor = view.cursor or self._catalog.cursor(self._group().id, view.row.id)
            view.cursor = cursor
            if cursor is None:
                self.window.forget(view)
                return None
            end_seq = self.window.end_seq(view)
            if cursor.chain.seq >= end_seq:
                return None
            reader = self.window.reader(view)
            slices = reader.read(cursor.chain, end_seq, limit, CLAIM_BYTES_MAX)
            chain = reader.place_after(cursor.chain, slices)
            now_ms = self._catalog.now_ms()
            row = claims.first(cursor, chain, self.name, now_ms + self.timeout_ms, self._version)
            # What felled the machine, again and again, is to be counted.
            if self._catalog.claim(cursor, chain, row, synced=reader.earlier_boot):
                view.cursor = replace(cursor, chain=chain)
                epoch = cursor.epoch if lock else None
                return Holding(holder, row, now_ms, lock, epoch), slices
            if lock is not None:
                return None  # fenced
            view.cursor = None
        return None

    # --- what came back ----------------------------------------------------------------------

    def _retake(self, limit: int, holder: Holder) -> tuple[Holding, list[Slice]] | None:
        """Take over an expired claim, or take one that was given back."""
        for _ in range(TRIES_MAX):
            now_ms = self._catalog.now_ms()
            group_id, broken = self._group().id, tuple(self.window.broken)
            due = self._catalog.due(group_id, now_ms, DUE_LISTED, without=broken)
            if not due:
                return None
            for row in due:
                found = self._retake_one(row, now_ms, limit, holder)
                if found:
                    return found
        return None

    def _retake_one(
        self, row: Claim, now_ms: int, limit: int, holder: Holder
    ) -> tuple[Holding, list[Slice]] | None:
        if row.state is ClaimState.HELD:
            logger.info("taking over an expired claim of pipe %s from %s", row.pipe_id, row.holder)
            pieces = claims.freed(row, now_ms, self.max_deliveries, self._version)
            self._catalog.replace(row, pieces)
            return None
        try:
            if claims.is_spent(row, self.max_deliveries):
                bury_or_leave(self._bury, self._queue(), self._group(), row)
                return None
            return self._take(row, limit, holder, None, None)
        except (ExtentMissingError, CorruptionError) as exc:
            self.window.set_aside(row.pipe_id, exc)
            return None

    def _take(
        self, row: Claim, limit: int, holder: Holder, lock: Lock | None, epoch: int | None
    ) -> tuple[Holding, list[Slice]] | None:
        """Take a free claim, read before it is taken, so that damage is found first."""
        reader = self.window.readers.get(row.pipe_id)
        start = Place(row.start, row.pos)
        slices = reader.read(start, row.end, limit, CLAIM_BYTES_MAX)
        count = sum(last - first for _, first, last in slices)
        now_ms = self._catalog.now_ms()
        mine, rows = claims.taken([row], count, self.name, now_ms + self.timeout_ms, self._version)
        if not self._catalog.replace(row, rows, epoch=epoch):
            return None
        return Holding(holder, mine, now_ms, lock, epoch), slices

    # --- exclusive groups ---------------------------------------------------------------------

    def _claim_exclusively(
        self, view: View, limit: int, holder: Holder
    ) -> tuple[Holding, list[Slice]] | None:
        """Lock the pipe, take over what the lock's last holder left, go on in order."""
        if not self._follows(view):
            return None
        group = self._group()
        before = self._catalog.cursor(group.id, view.row.id)
        if before is None:
            self.window.forget(view)
            return None
        if before.ack.seq >= self.window.end_seq(view):
            view.cursor = before
            return None
        lock = self._ports.locker.acquire(f"pop:{group.id}:{view.row.id}", self.timeout_ms)
        if lock is None:
            return None
        found = None
        try:
            cursor = self._catalog.cursor(group.id, view.row.id)
            # Asked after the cursor was read: whoever took the lock since has fenced before, and
            # then it is not ours, or will after, and then the compare-and-set fails.
            fenced = cursor and lock.held() and self._catalog.fence(cursor, self.name)
            if fenced:
                view.cursor = fenced
                found = self._claim_in_order(view, fenced, limit, holder, lock)
            elif cursor is None:
                self.window.forget(view)
        finally:
            if found is None:
                view.cursor = None
                lock.release()
        return found

    def _claim_in_order(
        self, view: View, cursor: Cursor, limit: int, holder: Holder, lock: Lock
    ) -> tuple[Holding, list[Slice]] | None:
        for _ in range(TRIES_MAX):
            rows = self._catalog.claims(cursor.group_id, cursor.pipe_id)
            row = next((row for row in rows if row.state is not ClaimState.DONE), None)
            now_ms = self._catalog.now_ms()
            if row is None:
                return self._claim_next(view, limit, holder, lock)
            if row.state is ClaimState.HELD:
                # Its holder's lock is ours now, so the claim is, whatever its deadline.
                pieces = claims.freed(row, now_ms, self.max_deliveries, self._version)
                if not self._catalog.replace(row, pieces, epoch=cursor.epoch):
                    return None
            elif row.due_ms > now_ms:
                return None  # the head is held back: nothing may pass it
            elif claims.is_spent(row, self.max_deliveries):
                if not bury_or_leave(self._bury, self._queue(), self._group(), row):
                    return None
            else:
                return self._take(row, limit, holder, lock, cursor.epoch)
        return None

    def _follows(self, view: View) -> bool:
        """Whether the group has acked all of the pipe before this one (strict queues)."""
        before = None if view.follows else self._catalog.pipe(view.row.predecessor)
        while before is not None and before.state < PipeState.CONSUMED:
            if before.end is None:
                return False
            cursor = self._catalog.cursor(self._group().id, before.id)
            if cursor is not None and cursor.ack.seq < before.end.seq:
                return False
            if before.end.seq > 0:
                break  # it was delivered only after what came before it
            before = self._catalog.pipe(before.predecessor)
        view.follows = True
        return True

    def close(self) -> None:
        self.window.close()
