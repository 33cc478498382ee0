"""The alert pass: checks queues, decides what to send, sends it, and records the outcome."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cassq.alerts.events import STATES, event_maker
from cassq.alerts.incidents import (
    AlertView,
    IncidentStep,
    Notice,
    NoticeOutcome,
    dump,
    load,
    plan,
    settled,
)
from cassq.alerts.rules import GROWTH_SECONDS, LATE_SCHEDULE, Finding, Snapshot
from cassq.alerts.schedules import late, schedule_findings
from cassq.alerts.sidecars import sidecar_findings
from cassq.alerts.targets import AlertTarget
from cassq.errors import CassqError
from cassq.inspect.held_keys import worst_stuck
from cassq.inspect.peeking import unfinished_headers
from cassq.inspect.placements.rounds import last_round
from cassq.inspect.stats import STUCK_SECONDS, GroupStats, group_stats, queue_stats
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import letter_groups
from cassq.message.importance import importance_of
from cassq.model.queues import is_dead_letter_name, origin_of
from cassq.model.rows import NOTED_MS, NOTES_KEPT_MS, GroupRow, Incident, QueueRow, Sample

logger: logging.Logger = logging.getLogger("cassq")

LETTERS_LOOKED = 1000
CLAIM_MARGIN_MS = 30_000
MEMBER_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class AlertReport:
    """One action of the pass. `outcome`: planned, done or failed."""

    verb: str
    subject: str
    queue: str
    outcome: str = "planned"
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run(
    ports: Ports,
    queues: Iterable[QueueRow],
    targets: Sequence[AlertTarget],
    *,
    sidecars: bool = False,
    schedules: bool = False,
    dry_run: bool = False,
) -> list[AlertReport]:
    """Run one alert pass over these queues, and on request over the sidecars and all schedules;
    return what was sent and what failed.

    Of several concurrent passes, exactly one sends the notices of an incident. Cost: the statistics
    of each queue; reads of the headers of the oldest 1,000 dead letters of each group, and of at
    most 11,000 claimed messages if some hold their keys for too long; two synced writes for each
    incident that changes. Sending takes at most a second more than the longest time limit of a
    target.
    """
    if not targets:
        return []
    looked = look(ports, queues, sidecars=sidecars, schedules=schedules)
    steps = decide(looked, targets, looked.now_ms)
    if dry_run:
        return looked.failures + planned(steps)
    return looked.failures + notify(ports, steps, targets, looked.marks)


@dataclass(frozen=True, slots=True)
class Observations:
    """The observations of a pass, and what is needed to act on them. to_wall_ms: wall time minus
    catalog time."""

    view: AlertView
    incidents: list[Incident]
    now_ms: int
    to_wall_ms: int
    marks: list[Sample]  # counts of dead letters to record
    failures: list[AlertReport]


def look(
    ports: Ports, queues: Iterable[QueueRow], *, sidecars: bool = False, schedules: bool = False
) -> Observations:
    """Read the state of these queues; nothing is written. Cost: see `run`."""
    now_ms = ports.catalog.now_ms()
    failures: list[AlertReport] = []
    marks: list[Sample] = []
    snapshots = _snapshots(ports, queues, now_ms, failures, marks)
    incidents = ports.catalog.records.incidents()
    looked_at = {snapshot.group_id for snapshot in snapshots}
    gone = _gone(ports, incidents, looked_at)
    view = AlertView(
        snapshots,
        gone,
        _of_sidecars(ports) if sidecars else None,
        _of_schedules(ports) if schedules else None,
    )
    return Observations(view, incidents, now_ms, ports.clock.wall_ms() - now_ms, marks, failures)


def decide(looked: Observations, targets: Sequence[AlertTarget], now_ms: int) -> list[IncidentStep]:
    """Decide which notices to send to which targets. Pure."""
    return plan(
        looked.view,
        looked.incidents,
        {target.name: target.wants for target in targets},
        event_maker(looked.to_wall_ms),
        now_ms,
        round(max(target.timeout for target in targets) * 1000) + CLAIM_MARGIN_MS,
    )


def planned(steps: Iterable[IncidentStep]) -> list[AlertReport]:
    """The notices that would be sent."""
    return [_report(notice) for step in steps for notice in step.notices]


def notify(
    ports: Ports,
    steps: Iterable[IncidentStep],
    targets: Sequence[AlertTarget],
    marks: Sequence[Sample] = (),
) -> list[AlertReport]:
    """Write the rows of these steps, send the notices of those that could be written, and record
    the outcomes."""
    catalog = ports.catalog
    if marks:
        catalog.records.add_samples(marks)
        catalog.records.forget_samples(NOTED_MS, catalog.now_ms() - NOTES_KEPT_MS)
    mine = [step for step in steps if catalog.records.put_incident(step.row)]
    for step in mine:
        for line in step.lost:
            logger.error("giving up on an alert: %s", line)
    notices = [notice for step in mine for notice in step.notices]
    outcomes: list[tuple[Notice, NoticeOutcome]] = []
    if notices:
        from cassq.alerts.delivery import deliver  # most importers do not need it

        outcomes = deliver(notices, {target.name: target for target in targets})
    for step in mine:
        of_step = [pair for pair in outcomes if pair[0].key == step.row.key]
        state = settled(step.state, of_step, catalog.now_ms())
        row = replace(step.row, version=step.row.version + 1, data=dump(state))
        if not state.episodes:
            catalog.records.drop_incident(row)
        elif state != step.state:
            catalog.records.put_incident(row)
    return [_report(notice, outcome) for notice, outcome in outcomes]


def _report(notice: Notice, outcome: NoticeOutcome | None = None) -> AlertReport:
    data = notice.event["data"]
    subject = f"{data['kind']} {STATES[notice.stage]}"
    detail = f"to {notice.target}: {data['message']}"
    if outcome is None:
        return AlertReport("alert", subject, data["queue"], detail=detail)
    if outcome.sent:
        return AlertReport("alert", subject, data["queue"], "done", detail)
    why = outcome.error or "left for the next pass"
    return AlertReport("alert", subject, data["queue"], "failed", f"{detail} ({why})")


# --- looking ----------------------------------------------------------------------------------


def _snapshots(
    ports: Ports,
    queues: Iterable[QueueRow],
    now_ms: int,
    failures: list[AlertReport],
    marks: list[Sample],
) -> list[Snapshot]:
    """A snapshot of each group of each queue. A queue that cannot be read is reported and
    skipped."""
    snapshots: list[Snapshot] = []
    for queue in queues:
        try:
            stats = queue_stats(ports, queue)
            for group in ports.catalog.queues.groups(queue.id):
                if group.name in stats.groups:
                    of_group = stats.groups[group.name]
                    snapshots.append(_snapshot(ports, queue, group, of_group, now_ms, marks))
        except CassqError as exc:
            logger.warning(
                "cannot check queue %s for alerts; the next pass tries again: %s", queue.name, exc
            )
            failures.append(AlertReport("alert", "look", queue.name, "failed", str(exc)))
    return snapshots


def _snapshot(
    ports: Ports,
    queue: QueueRow,
    group: GroupRow,
    stats: GroupStats,
    now_ms: int,
    marks: list[Sample],
) -> Snapshot:
    catalog, policy = ports.catalog, queue.policy
    if is_dead_letter_name(queue.name) and not policy.owner:
        parent = catalog.queues.named(origin_of(queue.name)[0])
        policy = replace(policy, owner=parent.policy.owner if parent else "")
    since_ms = now_ms - round((policy.alert_no_consumer or MEMBER_SECONDS) * 1000)
    grown = 0
    if policy.alert_dead_growth is not None:
        grown = _grown(ports, group, stats.dead, now_ms, marks)
    stuck = stats.stuck_keys or stats.stuck_in_hand
    letters, depth = _letters(ports, queue, group) if stats.dead else ({}, 0)
    return Snapshot(
        queue=queue.name,
        group=group.name,
        queue_id=queue.id,
        group_id=group.id,
        policy=policy,
        stats=stats,
        created_ms=group.created_ms,
        members=len(catalog.records.members(group.id, since_ms)),
        success_ms=catalog.records.success_ms(group.id),
        grown=grown,
        lost=_lost(ports, group, now_ms) if stats.lost else 0,
        letters=letters,
        letters_depth=depth,
        worst=worst_stuck(ports, group, now_ms - STUCK_SECONDS * 1000) if stuck else None,
    )


def _grown(ports: Ports, group: GroupRow, dead: int, now_ms: int, marks: list[Sample]) -> int:
    """How many dead letters are new in the last hour, by the samples. Cost: reads 13 rows."""
    subject = f"dead:{group.id}"
    found = ports.catalog.records.samples(subject, NOTED_MS, now_ms - GROWTH_SECONDS * 1000)
    mark_ms = now_ms // NOTED_MS * NOTED_MS
    if not any(sample.at_ms == mark_ms for sample in found):
        marks.append(Sample(subject, NOTED_MS, mark_ms, json.dumps({"dead": dead})))
    before = min((int(json.loads(sample.data)["dead"]) for sample in found), default=dead)
    return max(0, dead - before)


def _lost(ports: Ports, group: GroupRow, now_ms: int) -> int:
    """How many messages were given up within the last hour. Cost: reads a row for each time."""
    since_ms = now_ms - GROWTH_SECONDS * 1000
    found = ports.catalog.records.samples(f"lost:{group.id}", NOTED_MS, since_ms)
    return sum(int(json.loads(sample.data)["lost"]) for sample in found)


def _letters(ports: Ports, queue: QueueRow, group: GroupRow) -> tuple[dict[str, int], int]:
    """The number of dead letters of a group by importance, among the oldest 1,000 in each place;
    and their total. In a place that other groups share, the total includes only those 1,000."""
    found: Counter[str] = Counter()
    depth = 0
    for place in letter_groups(ports, queue, group.name):
        letters = unfinished_headers(ports, place.row, LETTERS_LOOKED)
        meant = [headers for headers in letters if place.has(headers)]
        found.update(map(importance_of, meant))
        if place.died_in is None:
            stats = group_stats(ports, place.queue, place.row)
            depth += stats.waiting + stats.pending
        else:
            depth += len(meant)
    return dict(found), depth


def _of_sidecars(ports: Ports) -> list[Finding] | None:
    """The problems of sidecars; None if the store has none. Cost: two reads."""
    upkeep = ports.upkeep
    if upkeep is None:
        return None
    return sidecar_findings(upkeep.fleet(), last_round(ports.catalog))


def _of_schedules(ports: Ports) -> list[Finding]:
    """The problems of schedules. Cost: a read, and one for the queues of late schedules."""
    rows, now_ms = ports.catalog.records.schedules(), ports.catalog.wall_ms()
    wanted = list(dict.fromkeys(row.queue_id for row in late(rows, now_ms)))
    found = ports.catalog.queues.by_ids(wanted) if wanted else []
    queues = {row.id: row for row in found if row is not None and not row.deleted}
    return schedule_findings(rows, queues, now_ms)


def _gone(ports: Ports, incidents: Iterable[Incident], looked_at: set[str]) -> set[str]:
    """The groups with incidents that no longer exist. Cost: two reads for each group that was not
    checked."""
    gone = set()
    for row in incidents:
        finding = load(row.data).finding
        if not finding.queue_id or finding.group_id in looked_at or finding.group_id in gone:
            continue
        if finding.kind == LATE_SCHEDULE:
            continue
        queue = ports.catalog.queues.by_id(finding.queue_id)
        ids = {g.id for g in ports.catalog.queues.groups(finding.queue_id)}
        if queue is None or queue.deleted or finding.group_id not in ids:
            gone.add(finding.group_id)
    return gone
