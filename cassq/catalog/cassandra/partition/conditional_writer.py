"""Changing partitions of claims: plan over what is known, write, and find out what became of it.

A plan that was refused is made again over what is read there then: every refusal means that
somebody else came first, so all together get on. A batch without an answer is never guessed at:
every batch leaves its token in the writer's own mark, which is read back. One thread of a process
at a time changes a partition, so a mark tells of the newest write.
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

TRIES_MAX = 200  # who reads before each try may lose many times to one who need not
UNSURE_MAX = 3  # tries without an answer
CHANGES_MAX = 500  # in one batch
REFUSALS_MAX = 8
STAND_BACK_MAX = 1.0  # seconds

Plan = Callable[[PartitionCache, bool], PlannedBatch | None]


class ConditionalWriter:
    """What the verbs on cursors and claims have in common. memory: what is known of partitions."""

    def __init__(self, keyspace: Keyspace) -> None:
        self.cql = keyspace.cql
        self.ids = keyspace.ids
        self.clock = keyspace.clock
        self.memory = PartitionCaches()

    def change(self, key: Key, plan: Plan) -> PlannedBatch:
        """Plan and write until it is written, or there is nothing to write; the last plan.

        plan: takes whether what is known was just read; its None asks for that. Raises
        BackendError: with `outcome_unknown` when it cannot even be read back. Cost: one
        conditional batch; after a refusal one linearized read, and again.
        """
        known = self.memory.of(key)
        with known.lock:
            return self._change_known(known, plan)

    def _change_known(self, known: PartitionCache, plan: Plan) -> PlannedBatch:
        """The same, by who holds the lock."""
        change = _Change(self, known)
        try:
            return change.run(plan)
        except BackendError as exc:
            known.forget()
            exc.outcome_unknown |= change.unsure > 0
            known.doubtful |= exc.outcome_unknown
            raise

    def replace_together(self, key: Key, changes: Sequence[Change]) -> list[bool]:
        """Make changes of threads of this process that wait for one another in one batch, as
        `replace_many` without an epoch. Cost: one conditional batch for all of them."""
        known = self.memory.of(key)
        mine = PendingChanges(changes)
        known.requests.append(mine)
        with known.lock:
            if not mine.over:
                self._serve(known, mine)
        return mine.answer()

    def _serve(self, known: PartitionCache, first: PendingChanges) -> None:
        """Make the changes of one who waits, and of others as far as there is room."""
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

        failure: CassqError = BackendTimeoutError("the write was given up", outcome_unknown=True)
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
        """After others were faster with a claim: wait for a while that nobody can foresee, longer
        from time to time, so that of many who claim at once most are not refused."""
        known.refused = min(known.refused + 1, REFUSALS_MAX)
        self.clock.sleep(min(random() * known.refused * known.write_ms / 1000, STAND_BACK_MAX))

    def read_of(
        self, known: PartitionCache, text: str, values: Sequence[Any], *, serial: bool = False
    ) -> list[Row]:
        """Rows of a partition. Linearized while a write is in doubt: one that a minority of servers
        has taken would be finished by the next write, after a plain read had not seen it."""
        rows = self.cql.read(text, values, serial=serial or known.doubtful)
        known.doubtful = False
        return rows

    def load(self, known: PartitionCache, *, serial: bool) -> None:
        """Read a partition anew, from the ack offset on. serial: after a refusal, or an unknown
        outcome: with all that was begun before."""
        text, values = cql.read_statement(known.key, known.ack_seq)
        cursor, rows = cql.parted(known.key, self.read_of(known, text, values, serial=serial))
        known.load(cursor, rows, self.clock.boot_ms())


class _Change:
    """One change, through all its tries. unsure: how many of them had no answer."""

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
            f"others change the claims of pipe {self._known.key[1]} all the time",
            hint="try again; fewer poppers on one pipe, or larger claims, get further",
        )

    def _check_cover(self) -> None:
        """Nothing can be planned over rows that were just read: see that they are whole."""
        known = self._known
        rows = cql.joined(known.rows[start] for start in known.starts)
        if known.cursor is not None and (why := fault(known.cursor, rows)):
            raise wedged(known.key[1], why)

    def _write(self, step: PlannedBatch) -> bool:
        """Whether it was applied, as far as the answer tells."""
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
        """The try that was written after all, by the writer's own mark. What was read before that
        may be from before it."""
        values = (*self._known.key, self._writer)
        rows = self._partitions.cql.read(cql.MARK, values, serial=True)
        found = self._tries.get(rows[0][0]) if rows else None
        if found is not None:
            self._known.forget()
        elif self._known.cursor is None:
            raise BackendTimeoutError(
                f"pipe {self._known.key[1]} went while its claims were changed",
                outcome_unknown=True,
            )
        return found
