"""Incidents: which targets were notified of something wrong, and what is still due.

An incident's row in the catalog holds its *episodes*: the thing came up, and perhaps went away.
For each target an episode has a stage::

    0 nothing told ──> 1 told that it came up ──> 2 told that it is over

Invariants:
1. A row changes only by compare-and-set. The process that writes a claim into it sends what is due;
   another does so only after the claim has lapsed, and then with the same event ids.
2. What could not be sent stays due, in order, with a growing pause between tries; it is given up,
   and logged, only `KEPT_MS` after the episode's end.
3. A row is removed when nothing is wrong any more and all targets were notified.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from cassq.alerts.rules import Finding, Snapshot, found_in
from cassq.model.rows import Incident

EPISODES_MAX = 20
KEPT_MS = 7 * 86_400_000
PAUSE_FIRST_MS = 10_000
PAUSE_MOST_MS = 600_000
RAISED, RECOVERED = 1, 2

# Whether a target wants to know of a finding.
Wants = Callable[[Finding], bool]
# A CloudEvent for a finding: of the stage, at a time, of the episode that began at another.
MakeEvent = Callable[[Finding, int, int, int], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Telling:
    """How much of an episode one target has received. next_ms: not to be tried before."""

    stage: int = 0
    tries: int = 0
    next_ms: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Episode:
    """One time that the thing was wrong. events: of the stages reached so far."""

    since_ms: int
    ended_ms: int | None
    events: tuple[dict[str, Any], ...]
    tellings: Mapping[str, Telling] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether it is over and everybody knows."""
        return self.ended_ms is not None and all(
            telling.stage == RECOVERED for telling in self.tellings.values()
        )


@dataclass(frozen=True, slots=True)
class IncidentState:
    """What an incident's row holds. claim_ms: until then somebody else is telling."""

    finding: Finding
    episodes: tuple[Episode, ...] = ()
    claim_ms: int = 0

    @property
    def active(self) -> bool:
        """Whether it is still wrong."""
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
    """What became of a notice. tried: False when an earlier one to its target failed."""

    told: bool
    error: str = ""
    tried: bool = True


class IncidentStep(NamedTuple):
    """A row to be written, whose writer then tells the notices. lost: given up, to be logged."""

    row: Incident
    state: IncidentState
    notices: list[Notice]
    lost: list[str]


@dataclass(frozen=True, slots=True)
class AlertView:
    """What one pass has seen. gone: ids of groups that are no more. sidecars: what is wrong with
    them; None when they were not looked at."""

    snapshots: Sequence[Snapshot]
    gone: Collection[str] = ()
    sidecars: Sequence[Finding] | None = None


def plan(
    view: AlertView,
    incidents: Iterable[Incident],
    targets: Mapping[str, Wants],
    make_event: MakeEvent,
    now_ms: int,
    claim_ms: int,
) -> list[IncidentStep]:
    """What to tell now, and the rows to be written before it. Pure.

    targets: those this process can tell, by name. claim_ms: how long that may take.
    """
    rows = {row.key: row for row in incidents}
    found = found_in(view.snapshots, now_ms)
    found |= {finding.key: finding for finding in view.sidecars or ()}
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
        told_of = before.finding
        if told_of.queue_id:
            over = finding is None and told_of.group_id in looked_at
        else:
            over = finding is None and view.sidecars is not None
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
    told_of = before.finding
    if finding is not None and not before.active:
        told_of = finding
        event = make_event(finding, RAISED, now_ms, now_ms)
        episodes.append(Episode(now_ms, None, (event,)))
    elif over and before.active:
        last = episodes[-1]
        event = make_event(before.finding, RECOVERED, now_ms, last.since_ms)
        episodes[-1] = replace(last, ended_ms=now_ms, events=(*last.events, event))
    if episodes and episodes[-1].ended_ms is None:
        wanting = {name: Telling() for name, wants in targets.items() if wants(told_of)}
        last = episodes[-1]
        episodes[-1] = replace(last, tellings={**wanting, **last.tellings})
    kept, lost = _kept(episodes, now_ms)
    state = IncidentState(told_of, tuple(kept))
    notices = [
        notice
        for episode in kept
        for notice in _due(row.key, episode, targets, now_ms)
        if not _held_up(notice, kept, now_ms)
    ]
    if row.version == 0 and not notices:
        return None  # nobody wants to know
    if notices:
        state = replace(state, claim_ms=now_ms + claim_ms)
    if state == replace(before, claim_ms=0):
        return None
    return IncidentStep(replace(row, told_ms=now_ms, data=dump(state)), state, notices, lost)


def _kept(episodes: list[Episode], now_ms: int) -> tuple[list[Episode], list[str]]:
    """Episodes that are not over and told; and what of the others was never told."""
    kept = [episode for episode in episodes if not episode.done]
    old = [e for e in kept if e.ended_ms is not None and now_ms - e.ended_ms >= KEPT_MS]
    old += [e for e in kept if e not in old][:-EPISODES_MAX]
    lost = [
        f"{name} was never told: {event['data']['message']} ({telling.error or 'not tried'})"
        for episode in old
        for name, telling in episode.tellings.items()
        for event in episode.events[telling.stage :]
    ]
    return [episode for episode in kept if episode not in old], lost


def _due(key: str, episode: Episode, targets: Mapping[str, Wants], now_ms: int) -> Iterable[Notice]:
    """What of an episode is to be told now, each target's in order."""
    for name, telling in episode.tellings.items():
        if name in targets and telling.next_ms <= now_ms:
            for stage in range(telling.stage + 1, len(episode.events) + 1):
                event = episode.events[stage - 1]
                yield Notice(key, episode.since_ms, name, stage, telling.tries, event)


def _held_up(notice: Notice, episodes: Iterable[Episode], now_ms: int) -> bool:
    """Whether an earlier episode must be told to the target first, and cannot be yet."""
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
    """The state after notices were told, or could not be. Pure."""
    episodes = {episode.since_ms: episode for episode in state.episodes}
    for notice, outcome in outcomes:
        episode = episodes[notice.episode]
        before = episode.tellings[notice.target]
        after = _after(before, notice.stage, outcome, now_ms)
        tellings = {**episode.tellings, notice.target: after}
        episodes[notice.episode] = replace(episode, tellings=tellings)
    left = tuple(episode for episode in episodes.values() if not episode.done)
    return replace(state, episodes=left, claim_ms=0)


def _after(before: Telling, stage: int, outcome: NoticeOutcome, now_ms: int) -> Telling:
    if outcome.told:
        return Telling(stage)
    if not outcome.tried:
        return replace(before, next_ms=max(before.next_ms, now_ms + PAUSE_FIRST_MS))
    tries = before.tries + 1
    pause_ms = min(PAUSE_MOST_MS, PAUSE_FIRST_MS * 2 ** min(tries - 1, 20))
    return Telling(before.stage, tries, now_ms + pause_ms, outcome.error)


# --- as stored --------------------------------------------------------------------------------


def dump(state: IncidentState) -> str:
    """A state as its row's JSON."""
    return json.dumps(asdict(state), separators=(",", ":"))


def load(data: str) -> IncidentState:
    """The inverse of `dump`."""
    stored = json.loads(data)
    episodes = tuple(
        Episode(
            e["since_ms"],
            e["ended_ms"],
            tuple(e["events"]),
            {name: Telling(**telling) for name, telling in e["tellings"].items()},
        )
        for e in stored["episodes"]
    )
    return IncidentState(Finding(**stored["finding"]), episodes, stored["claim_ms"])
