"""The rollback pass: frees expired claims, and moves spent messages to the dead letters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from cassq.consumer.group_health import GroupHealth, freed
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import DeadLetterFn
from cassq.model import claims
from cassq.model.queues import Rules, rules_of
from cassq.model.rows import Claim, ClaimState, GroupRow, QueueRow
from cassq.reaper.actions import Action, PlannedPass, Scope

LISTED_MAX = 256


class Overdue(NamedTuple):
    """A group's claims that are past their deadline, or may be spent. sick: versions of rows that
    are kept though they may be spent, because nothing in the group succeeds."""

    queue: QueueRow
    group: GroupRow
    rules: Rules
    health: GroupHealth
    claims: Sequence[Claim]
    sick: Collection[str] = ()


class ClaimTask(NamedTuple):
    """An action on a claim: free it, or move its one message to the dead letters."""

    overdue: Overdue
    claim: Claim
    to_dead_letters: bool


def plan(snapshot: Sequence[Overdue], now_ms: int) -> list[Action]:
    """Free claims past their deadline; make dead letters of doomed messages, and of spent ones that
    are not kept because their group is sick.

    now_ms: catalog time.
    """
    found: list[Action] = []
    for overdue in snapshot:
        for claim in overdue.claims:
            if claim.state is ClaimState.DONE or claim.due_ms > now_ms:
                continue
            held = claim.state is ClaimState.HELD
            spent = claims.is_spent(claim, overdue.rules.max_deliveries)
            if held or claims.is_doomed(claim) or (spent and claim.version not in overdue.sick):
                task = ClaimTask(overdue, claim, to_dead_letters=not held)
                subject = f"{claim.pipe_id}:{claim.start}-{claim.end}"
                found.append(Action("rollback", subject, overdue.queue.name, row=task))
    return found


class Rollback(PlannedPass[Sequence[Overdue]]):
    """Frees expired claims, by the group's retry schedule; makes dead letters of spent messages."""

    name = "rollback"
    rounds = 64

    def __init__(self, ports: Ports, dead_letter: DeadLetterFn) -> None:
        super().__init__(ports)
        self._dead_letter = dead_letter

    def look(self, scope: Scope) -> list[Overdue]:
        """Cost: one query for all groups, and one for each group with due claims (on networked
        catalogs, one for all of these groups)."""
        catalog = self._ports.catalog
        groups = catalog.claims.due_groups(catalog.now_ms(), scope.ids)
        queue_ids = sorted({group.queue_id for group in groups})
        queues = dict(zip(queue_ids, catalog.queues.by_ids(queue_ids), strict=True))
        due: list[tuple[QueueRow, GroupRow, Rules]] = []
        for group in groups:
            queue = queues[group.queue_id]
            if queue is not None and not queue.deleted:
                due.append((queue, group, rules_of(queue.policy, group.policy)))
        deliveries = {group.id: rules.max_deliveries for _, group, rules in due}
        rows = catalog.claims.all_overdue(deliveries, catalog.now_ms(), LISTED_MAX)
        return [self._overdue(*each, rows[each[1].id]) for each in due if rows[each[1].id]]

    def _overdue(
        self, queue: QueueRow, group: GroupRow, rules: Rules, rows: Sequence[Claim]
    ) -> Overdue:
        health = GroupHealth(self._ports, group.id, lambda: rules)
        sick = {row.version for row in rows if health.spares(row)}
        return Overdue(queue, group, rules, health, rows, sick)

    def plan(self, snapshot: Sequence[Overdue], now_ms: int) -> list[Action]:
        return plan(snapshot, now_ms)

    def apply(self, action: Action) -> str | None:
        """Cost: one synced catalog transaction; for a dead letter, that of `DeadLetters.add`."""
        task: ClaimTask = action.row
        overdue, claim = task.overdue, task.claim
        if task.to_dead_letters:
            moved = self._dead_letter(overdue.queue, overdue.group, claim)
            return "to the dead letters" if moved else None
        now_ms = self._ports.catalog.now_ms()
        version = self._ports.ids.version
        pieces = freed(claim, now_ms, overdue.rules, overdue.health, version)
        if not self._ports.catalog.claims.replace(claim, pieces):
            return None
        return f"freed, in {sum(p.state is ClaimState.FREE for p in pieces)} parts"
