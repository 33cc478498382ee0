"""Conditional writes to partitions of claims: plan from the cache, write, find out the outcome.

A refused plan is made again from a new read: each refusal means that another client's write
succeeded, so the clients together make progress. The outcome of a batch without an answer is never
guessed: every batch leaves its token in the writer's own mark, which is read back. Only one thread
of a process at a time changes a partition, so the mark is that of the latest write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from random import random
from typing import Any

from cassq.base.clock import contended
from cassq.cassandra.session import IN_FLIGHT, Row, Statement
from cassq.catalog.cassandra.partition import claim_rows as cql
from cassq.catalog.cassandra.partition.claim_plans import (
    CHANGES_MAX,
    Change,
    PlannedBatch,
    plan_replace,
)
from cassq.catalog.cassandra.partition.claim_rows import Key
from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.catalog.cassandra.partition.partition_cache import (
    PartitionCache,
    PartitionCaches,
    PendingChanges,
)
from cassq.catalog.cover import fault, wedged
from cassq.errors import BackendError, BackendTimeoutError, CassqError
from cassq.model.rows import Claim

# A writer that must read first often loses to one that need not, so it does not pause in addition.
WRITES_MAX = 200
UNSURE_MAX = 3  # attempts without an answer
REFUSALS_MAX = 8
BACK_OFF_MAX = 0.25  # seconds

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

    def change_all(self, plans: Mapping[Key, Plan]) -> list[PlannedBatch | CassqError]:
        """`change` several partitions; return the last plan of each, or its error, in their order.
        Cost: one round of conditional batches; those that are refused go on one after the other, as
        in `change`."""
        ended: dict[Key, PlannedBatch | CassqError] = {}
        keys = iter(sorted(plans))  # the order in which all threads take their locks
        while some := list(islice(keys, IN_FLIGHT)):
            with ExitStack() as held:
                changes = {key: _Change(self, self.memory.of(key), plans[key]) for key in some}
                for change in changes.values():
                    held.enter_context(change.known.lock)
                try:
                    self._make_first_attempts(list(changes.values()))
                    for key, change in changes.items():
                        try:
                            ended[key] = self._run(change)
                        except CassqError as exc:
                            ended[key] = exc
                except BaseException:
                    for change in changes.values():  # any of them may be written
                        change.known.forget()
                        change.known.doubtful = True
                    raise
        return [ended[key] for key in plans]

    def _make_first_attempts(self, changes: Sequence[_Change]) -> None:
        begun = [(change, batch) for change in changes if (batch := change.begin()) is not None]
        begun_ms = self.clock.boot_ms()
        answers = self.cql.answers_of([batch for _, batch in begun])
        took_ms = self.clock.boot_ms() - begun_ms
        for (change, _), answer in zip(begun, answers, strict=True):
            change.answered(answer, took_ms)

    def _change_known(self, known: PartitionCache, plan: Plan) -> PlannedBatch:
        """`change`, for a caller that holds the lock."""
        return self._run(_Change(self, known, plan))

    def _run(self, change: _Change) -> PlannedBatch:
        try:
            return change.run()
        except BackendError as exc:
            change.known.forget()
            exc.outcome_unknown |= change.unsure > 0
            change.known.doubtful |= exc.outcome_unknown
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

    def back_off(self, known: PartitionCache) -> None:
        """Back off after losing a claim: wait a random, growing time, so that most of many
        concurrent claims are applied."""
        known.refused = min(known.refused + 1, REFUSALS_MAX)
        self.clock.sleep(min(random() * known.refused * known.write_ms / 1000, BACK_OFF_MAX))

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

    def read_all(self, keys: Sequence[Key]) -> list[list[Claim]]:
        """The claims of several partitions, read again. Cost: a round of reads; one more while
        writes are in doubt."""
        found = {key: self.memory.of(key) for key in keys}
        with ExitStack() as held:
            for _, known in sorted(found.items()):
                held.enter_context(known.lock)
            for serial in (False, True):
                some = [known for known in found.values() if known.doubtful is serial]
                asked = [cql.read_statement(known.key, known.ack_seq) for known in some]
                answers = self.cql.read_many(asked, serial=serial) if asked else []
                for known, answer in zip(some, answers, strict=True):
                    known.doubtful = False
                    known.load(*cql.parted(known.key, answer), self.clock.boot_ms())
            return [
                cql.joined(known.rows[start] for start in known.starts) for known in found.values()
            ]


class _Change:
    """One change, through all its attempts. unsure: how many of them got no answer."""

    def __init__(self, partitions: ConditionalWriter, known: PartitionCache, plan: Plan) -> None:
        self.known = known
        self.unsure = 0
        self._partitions = partitions
        self._plan = plan
        self._writer = int(partitions.ids.client, 16)
        self._tries: dict[str, PlannedBatch] = {}
        self._begun: PlannedBatch | None = None  # the first attempt, which is made elsewhere, ...
        self._answer: bool | BackendError = False  # ... and its answer

    def begin(self) -> list[Statement] | None:
        """The statements of the first attempt; None if it must read first, or need not write."""
        step = self._plan(self.known, False)
        if step is None or step.batch is None:
            return None
        self._begun = step
        return self._statements(step)

    def answered(self, answer: bool | BackendError, took_ms: float) -> None:
        """Note the answer of the first attempt."""
        self._answer = answer
        self._took(took_ms)

    def run(self) -> PlannedBatch:
        """Make all attempts, except the first if that was already made; return the last plan."""
        known, partitions = self.known, self._partitions
        fresh, begun = False, self._begun
        for _ in range(WRITES_MAX):
            step = begun or self._plan(known, fresh)
            if step is not None and step.batch is None:
                return step
            if step is not None:
                if self._is_applied(step, self._answer if begun else self._write(step)):
                    return step
                if step.final and not self.unsure:
                    return PlannedBatch(None, [False] * len(step.results), sure=False)
            elif fresh and not self.unsure:
                self._check_cover()
            partitions.load(known, serial=fresh or bool(self._tries))
            fresh, begun = True, None
            written = self._looked_up() if self.unsure else None
            if written is not None:
                return written
        hint = "try again; use fewer poppers on one pipe, or larger claims"
        raise contended(f"the claims of pipe {known.key[1]}", hint=hint)

    def _check_cover(self) -> None:
        """Check rows that were just read, and from which no plan can be made, for damage."""
        known = self.known
        rows = cql.joined(known.rows[start] for start in known.starts)
        if known.cursor is not None and (why := fault(known.cursor, rows)):
            raise wedged(known.key[1], why)

    def _statements(self, step: PlannedBatch) -> list[Statement]:
        assert step.batch is not None
        token = self._partitions.ids.version()
        self._tries[token] = step
        return step.batch.statements(self._writer, token)

    def _write(self, step: PlannedBatch) -> bool | BackendError:
        statements = self._statements(step)
        begun_ms = self._partitions.clock.boot_ms()
        try:
            return self._partitions.cql.apply_batch(statements)
        except BackendError as exc:
            return exc
        finally:
            self._took(self._partitions.clock.boot_ms() - begun_ms)

    def _took(self, ms: float) -> None:
        self.known.write_ms = 0.75 * self.known.write_ms + 0.25 * ms

    def _is_applied(self, step: PlannedBatch, answer: bool | BackendError) -> bool:
        """Whether an attempt was applied, judging by the answer."""
        if isinstance(answer, BackendError):
            self.unsure += answer.outcome_unknown
            if not answer.outcome_unknown or self.unsure > UNSURE_MAX:
                raise answer
            return False
        if answer and step.cursor is not None:
            self.known.change(step.cursor, step.gone, step.put)
            self.known.changed_ms = self._partitions.clock.boot_ms()
        return answer

    def _looked_up(self) -> PlannedBatch | None:
        """The attempt that was applied after all, found by the writer's own mark. Earlier reads may
        be older than it."""
        values = (*self.known.key, self._writer)
        rows = self._partitions.cql.read(cql.MARK, values, serial=True)
        found = self._tries.get(rows[0][0]) if rows else None
        if found is not None:
            self.known.forget()
        elif self.known.cursor is None:
            raise BackendTimeoutError(
                f"pipe {self.known.key[1]} was removed while its claims were being changed",
                outcome_unknown=True,
            )
        return found
