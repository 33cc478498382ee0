"""Incidents: which targets were notified of a problem, and which notices are still due.

An incident's row in the catalog holds its *episodes*: in each, the problem arose and may have
ended since. For each target an episode has a stage::

    0 not notified ──> 1 notified that it arose ──> 2 notified that it recovered

Invariants:
1. A row changes only by compare-and-set. The process that writes a claim into it sends the due
   notices; another process does so only after that claim has lapsed, and with the same event ids.
2. Notices that could not be sent stay due, in order, with growing pauses between attempts. They
   are given up, and logged, only `KEPT_MS` after the end of the episode.
3. A row is removed when the problem is over and all targets were notified.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from cassq.alerts.rules import LATE_SCHEDULE, Finding, Snapshot, found_in
from cassq.model.rows import Incident

EPISODES_MAX = 20
KEPT_MS = 7 * 86_400_000
PAUSE_FIRST_MS = 10_000
PAUSE_MOST_MS = 600_000
RAISED, RECOVERED = 1, 2

# Does a target want to be notified of a finding?
Wants = Callable[[Finding], bool]
# Makes a CloudEvent for a finding: (finding, stage, time, start of the episode).
MakeEvent = Callable[[Finding, int, int, int], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class NoticeProgress:
    """The stage that one target has reached in an episode. next_ms: no attempt before this time."""

    stage: int = 0
    tries: int = 0
    next_ms: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Episode:
    """One occurrence of a problem. events: one for each stage reached so far."""

    since_ms: int
    ended_ms: int | None
    events: tuple[dict[str, Any], ...]
    tellings: Mapping[str, NoticeProgress] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether it has ended and all targets were notified of that."""
        return self.ended_ms is not None and all(
            progress.stage == RECOVERED for progress in self.tellings.values()
        )


@dataclass(frozen=True, slots=True)
class IncidentState:
    """The content of an incident's row. claim_ms: until then, the process that wrote it sends the
    notices."""

    finding: Finding
    episodes: tuple[Episode, ...] = ()
    claim_ms: int = 0

    @property
    def active(self) -> bool:
        """Whether the problem persists."""
        return bool(self.episodes) and self.episodes[-1].ended_ms is None


class Notice(NamedTuple):
    """One event for one target."""

    key: str
    episode: int  # its since_ms
    target: str
    stage: int
    tries: int
    event: dict[str, Any]


class NoticeOutcome(NamedTuple):
    """The result for one notice. tried: False if an earlier notice to its target failed."""

    sent: bool
    error: str = ""
    tried: bool = True


class IncidentStep(NamedTuple):
    """A row to write, and the notices to send after that. lost: log lines for notices that are
    given up."""

    row: Incident
    state: IncidentState
    notices: list[Notice]
    lost: list[str]


@dataclass(frozen=True, slots=True)
class AlertView:
    """What one pass observed. gone: ids of groups that no longer exist. sidecars, schedules: the
    findings about these; None if they were not checked."""

    snapshots: Sequence[Snapshot]
    gone: Collection[str] = ()
    sidecars: Sequence[Finding] | None = None
    schedules: Sequence[Finding] | None = None

    def would_have_found(self, finding: Finding, looked_at: Collection[str]) -> bool:
        """Whether this pass would have found a problem that persists. looked_at: ids of the groups
        that were checked or are gone."""
        if finding.kind == LATE_SCHEDULE:
            return self.schedules is not None
        return finding.group_id in looked_at if finding.queue_id else self.sidecars is not None


def plan(
    view: AlertView,
    incidents: Iterable[Incident],
    targets: Mapping[str, Wants],
    make_event: MakeEvent,
    now_ms: int,
    claim_ms: int,
) -> list[IncidentStep]:
    """Decide which notices to send now, and which rows to write before that. Pure.

    targets: what each target that this process can notify wants, by name. claim_ms: how long
    sending may take.
    """
    rows = {row.key: row for row in incidents}
    found = found_in(view.snapshots, now_ms)
    beside = (*(view.sidecars or ()), *(view.schedules or ()))
    found |= {finding.key: finding for finding in beside}
    looked_at = {snapshot.group_id for snapshot in view.snapshots} | set(view.gone)
    steps = []
    for key in sorted({*rows, *found}):
        row = rows.get(key)
        finding = found.get(key)
        if row is None and finding is not None:
            row, before = Incident(key, now_ms, 0, ""), IncidentState(finding)
        elif row is not None:
            before = load(row.data)
        else:
            continue
        if before.claim_ms > now_ms:
            continue
        over = finding is None and view.would_have_found(before.finding, looked_at)
        step = _step(row, before, finding, over, targets, make_event, now_ms, claim_ms)
        if step is not None:
            steps.append(step)
    return steps


def _step(
    row: Incident,
    before: IncidentState,
    finding: Finding | None,
    over: bool,
    targets: Mapping[str, Wants],
    make_event: MakeEvent,
    now_ms: int,
    claim_ms: int,
) -> IncidentStep | None:
    episodes = list(before.episodes)
    subject = before.finding
    if finding is not None and not before.active:
        subject = finding
        event = make_event(finding, RAISED, now_ms, now_ms)
        episodes.append(Episode(now_ms, None, (event,)))
    elif over and before.active:
        last = episodes[-1]
        event = make_event(before.finding, RECOVERED, now_ms, last.since_ms)
        episodes[-1] = replace(last, ended_ms=now_ms, events=(*last.events, event))
    if episodes and episodes[-1].ended_ms is None:
        wanting = {name: NoticeProgress() for name, wants in targets.items() if wants(subject)}
        last = episodes[-1]
        episodes[-1] = replace(last, tellings={**wanting, **last.tellings})
    kept, lost = _kept(episodes, now_ms)
    state = IncidentState(subject, tuple(kept))
    notices = [
        notice
        for episode in kept
        for notice in _due(row.key, episode, targets, now_ms)
        if not _held_up(notice, kept, now_ms)
    ]
    if row.version == 0 and not notices:
        return None  # no target wants it
    if notices:
        state = replace(state, claim_ms=now_ms + claim_ms)
    if state == replace(before, claim_ms=0):
        return None
    return IncidentStep(replace(row, told_ms=now_ms, data=dump(state)), state, notices, lost)


def _kept(episodes: list[Episode], now_ms: int) -> tuple[list[Episode], list[str]]:
    """The episodes to keep, and log lines for the notices that are given up."""
    kept = [episode for episode in episodes if not episode.done]
    old = [e for e in kept if e.ended_ms is not None and now_ms - e.ended_ms >= KEPT_MS]
    old += [e for e in kept if e not in old][:-EPISODES_MAX]
    lost = [
        f"target {name}: {event['data']['message']} ({progress.error or 'not tried'})"
        for episode in old
        for name, progress in episode.tellings.items()
        for event in episode.events[progress.stage :]
    ]
    return [episode for episode in kept if episode not in old], lost


def _due(key: str, episode: Episode, targets: Mapping[str, Wants], now_ms: int) -> Iterable[Notice]:
    """The notices of an episode that are due now, in order for each target."""
    for name, progress in episode.tellings.items():
        if name in targets and progress.next_ms <= now_ms:
            for stage in range(progress.stage + 1, len(episode.events) + 1):
                event = episode.events[stage - 1]
                yield Notice(key, episode.since_ms, name, stage, progress.tries, event)


def _held_up(notice: Notice, episodes: Iterable[Episode], now_ms: int) -> bool:
    """Whether the target must first be notified of an earlier episode whose notice is not due
    yet."""
    return any(
        episode.since_ms < notice.episode
        and notice.target in episode.tellings
        and episode.tellings[notice.target].stage < len(episode.events)
        and episode.tellings[notice.target].next_ms > now_ms
        for episode in episodes
    )


def settled(
    state: IncidentState, outcomes: Iterable[tuple[Notice, NoticeOutcome]], now_ms: int
) -> IncidentState:
    """The state after notices were sent or failed. Pure."""
    episodes = {episode.since_ms: episode for episode in state.episodes}
    for notice, outcome in outcomes:
        episode = episodes[notice.episode]
        before = episode.tellings[notice.target]
        after = _after(before, notice.stage, outcome, now_ms)
        progress = {**episode.tellings, notice.target: after}
        episodes[notice.episode] = replace(episode, tellings=progress)
    left = tuple(episode for episode in episodes.values() if not episode.done)
    return replace(state, episodes=left, claim_ms=0)


def _after(
    before: NoticeProgress, stage: int, outcome: NoticeOutcome, now_ms: int
) -> NoticeProgress:
    if outcome.sent:
        return NoticeProgress(stage)
    if not outcome.tried:
        return replace(before, next_ms=max(before.next_ms, now_ms + PAUSE_FIRST_MS))
    tries = before.tries + 1
    pause_ms = min(PAUSE_MOST_MS, PAUSE_FIRST_MS * 2 ** min(tries - 1, 20))
    return NoticeProgress(before.stage, tries, now_ms + pause_ms, outcome.error)


# --- as stored --------------------------------------------------------------------------------


def dump(state: IncidentState) -> str:
    """A state as JSON, for its row."""
    return json.dumps(asdict(state), separators=(",", ":"))


def load(data: str) -> IncidentState:
    """The inverse of `dump`."""
    stored = json.loads(data)
    episodes = tuple(
        Episode(
            e["since_ms"],
            e["ended_ms"],
            tuple(e["events"]),
            {name: NoticeProgress(**progress) for name, progress in e["tellings"].items()},
        )
        for e in stored["episodes"]
    )
    return IncidentState(Finding(**stored["finding"]), episodes, stored["claim_ms"])
