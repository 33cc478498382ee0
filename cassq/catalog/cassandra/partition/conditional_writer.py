"""Conditional writes to partitions of claims: plan from the cache, write, find out the outcome.

A refused plan is made again from a new read: each refusal means that another client's write
succeeded, so the clients together make progress. The outcome of a batch without an answer is never
guessed: every batch leaves its token in the writer's own mark, which is read back. Only one thread
of a process at a time changes a partition, so the mark is that of the latest write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from random import random
from typing import Any

from cassq.cassandra.session import Row
from cassq.catalog.cassandra.partition import claim_rows as cql
from cassq.catalog.cassandra.partition.claim_plans import Change, PlannedBatch, plan_replace
from cassq.catalog.cassandra.partition.claim_rows import Key
from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.catalog.cassandra.partition.partition_cache import (
    PartitionCache,
    PartitionCaches,
    PendingChanges,
)
from cassq.catalog.cover import fault, wedged
from cassq.errors import BackendError, BackendTimeoutError, CassqError

TRIES_MAX = 200  # a writer that must read first may often lose to one that need not
UNSURE_MAX = 3  # attempts without an answer
CHANGES_MAX = 500  # in one batch
REFUSALS_MAX = 8
STAND_BACK_MAX = 1.0  # seconds

Plan = Callable[[PartitionCache, bool], PlannedBatch | None]


class ConditionalWriter:
    """The write path of all operations on cursors and claims. memory: cached partitions."""

    def __init__(self, keyspace: Keyspace) -> None:
        self.cql = keyspace.cql
        self.ids = keyspace.ids
        self.clock = keyspace.clock
        self.memory = PartitionCaches()

    def change(self, key: Key, plan: Plan) -> PlannedBatch:
        """Plan and write until the write succeeds, or is not needed; return the last plan.

        plan: takes the cache, and whether it was just read; may return None to have it read.
        Raises BackendError, with `outcome_unknown` if the outcome cannot be read back either.
        Cost: one conditional batch; after each refusal a linearized read and another batch.
        """
        known = self.memory.of(key)
        with known.lock:
            return self._change_known(known, plan)

    def _change_known(self, known: PartitionCache, plan: Plan) -> PlannedBatch:
        """`change`, for a caller that holds the lock."""
        change = _Change(self, known)
        try:
            return change.run(plan)
        except BackendError as exc:
            known.forget()
            exc.outcome_unknown |= change.unsure > 0
            known.doubtful |= exc.outcome_unknown
            raise

    def replace_together(self, key: Key, changes: Sequence[Change]) -> list[bool]:
        """Combine the changes of waiting threads of this process in one batch, as `replace_many`
        without an epoch. Cost: one conditional batch for all of them."""
        known = self.memory.of(key)
        mine = PendingChanges(changes)
        known.requests.append(mine)
        with known.lock:
            if not mine.over:
                self._serve(known, mine)
        return mine.answer()

    def _serve(self, known: PartitionCache, first: PendingChanges) -> None:
        """Make the changes of one waiting thread, and of others as far as there is room."""
        together, count = [first], len(first.changes)
        for request in list(known.requests):
            if request is not first and count + len(request.changes) <= CHANGES_MAX:
                together.append(request)
                count += len(request.changes)
        known.requests = [request for request in known.requests if request not in together]
        changes = [change for request in together for change in request.changes]

        def plan(known: PartitionCache, fresh: bool) -> PlannedBatch | None:
            step = plan_replace(known, changes, None)
            return step if step is None or fresh or step.sure else None

        failure: CassqError = BackendTimeoutError("the write was abandoned", outcome_unknown=True)
        try:
            results = iter(self._change_known(known, plan).results)
            for request in together:
                request.results = list(islice(results, len(request.changes)))
        except CassqError as exc:
            failure = exc
        finally:
            for request in together:
                if request.results is None:
                    request.error = failure

    def stand_back(self, known: PartitionCache) -> None:
        """Back off after losing a claim: wait a random, growing time, so that of many concurrent
        claims most are not refused."""
        known.refused = min(known.refused + 1, REFUSALS_MAX)
        self.clock.sleep(min(random() * known.refused * known.write_ms / 1000, STAND_BACK_MAX))

    def read_of(
        self, known: PartitionCache, text: str, values: Sequence[Any], *, serial: bool = False
    ) -> list[Row]:
        """Rows of a partition. Linearized while a write is in doubt: a plain read may miss a write
        that a minority of servers has, and that the next conditional write would complete."""
        rows = self.cql.read(text, values, serial=serial or known.doubtful)
        known.doubtful = False
        return rows

    def load(self, known: PartitionCache, *, serial: bool) -> None:
        """Read a partition again, from the ack offset on. serial: linearized after all writes begun
        before; for use after a refusal or an unknown outcome."""
        text, values = cql.read_statement(known.key, known.ack_seq)
        cursor, rows = cql.parted(known.key, self.read_of(known, text, values, serial=serial))
        known.load(cursor, rows, self.clock.boot_ms())


class _Change:
    """One change, through all its attempts. unsure: how many of them got no answer."""

    def __init__(self, partitions: ConditionalWriter, known: PartitionCache) -> None:
        self._partitions = partitions
        self._known = known
        self._writer = int(partitions.ids.client, 16)
        self._tries: dict[str, PlannedBatch] = {}
        self.unsure = 0

    def run(self, plan: Plan) -> PlannedBatch:
        fresh = False
        for _ in range(TRIES_MAX):
            step = plan(self._known, fresh)
            if step is not None and step.batch is None:
                return step
            if step is not None:
                if self._write(step):
                    return step
                if step.final and not self.unsure:
                    return PlannedBatch(None, [False] * len(step.results), sure=False)
            elif fresh and not self.unsure:
                self._check_cover()
            self._partitions.load(self._known, serial=fresh or bool(self._tries))
            fresh = True
            written = self._looked_up() if self.unsure else None
            if written is not None:
                return written
        raise BackendTimeoutError(
            f"other clients keep changing the claims of pipe {self._known.key[1]}",
            hint="try again; use fewer poppers on one pipe, or larger claims",
        )

    def _check_cover(self) -> None:
        """Check rows that were just read, and from which no plan can be made, for damage."""
        known = self._known
        rows = cql.joined(known.rows[start] for start in known.starts)
        if known.cursor is not None and (why := fault(known.cursor, rows)):
            raise wedged(known.key[1], why)

    def _write(self, step: PlannedBatch) -> bool:
        """Whether it was applied, judging by the answer."""
        assert step.batch is not None
        token = self._partitions.ids.version()
        self._tries[token] = step
        begun_ms = self._partitions.clock.boot_ms()
        try:
            if not self._partitions.cql.apply_batch(step.batch.statements(self._writer, token)):
                return False
        except BackendError as exc:
            if not exc.outcome_unknown:
                raise
            self.unsure += 1
            if self.unsure > UNSURE_MAX:
                raise
            return False
        finally:
            took_ms = self._partitions.clock.boot_ms() - begun_ms
            self._known.write_ms = 0.75 * self._known.write_ms + 0.25 * took_ms
        if step.cursor is not None:
            self._known.change(step.cursor, step.gone, step.put)
            self._known.changed_ms = self._partitions.clock.boot_ms()
        return True

    def _looked_up(self) -> PlannedBatch | None:
        """The attempt that was applied after all, found by the writer's own mark. Earlier reads may
        be older than it."""
        values = (*self._known.key, self._writer)
        rows = self._partitions.cql.read(cql.MARK, values, serial=True)
        found = self._tries.get(rows[0][0]) if rows else None
        if found is not None:
            self._known.forget()
        elif self._known.cursor is None:
            raise BackendTimeoutError(
                f"pipe {self._known.key[1]} was removed while its claims were being changed",
                outcome_unknown=True,
            )
        return found
