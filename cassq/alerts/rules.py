"""Finds problems of a queue: compares its groups with the thresholds of its policy.

Kinds of findings:

- no_consumer: messages wait, or consumers that are gone hold them, and no consumer was seen within
  the limit
- oldest_age: the oldest uncommitted message is too old
- dead_growth: too many messages became dead letters within the last hour
- stalled: there are consumers and messages, but nothing was committed within the limit
- lost: damaged messages were given up within the last hour (`cassq pipe skip`)
- held_keys: dead letters hold keys of a group made with `on_dead="hold"`
- stuck_keys: in a group made with `order="key"`, messages that have failed for more than a quarter
  of an hour hold their keys, or messages wait for one of their key that a consumer has had for that
  long
- failed: there are dead letters; one finding for each importance among them

Findings about schedules are in `cassq.alerts.schedules`, and those about sidecars in
`cassq.alerts.sidecars`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cassq.inspect.held_keys import HeldKey
from cassq.inspect.stats import STUCK_SECONDS, GroupStats
from cassq.message.importance import NORMAL
from cassq.model.queues import QueuePolicy, is_dead_letter_name
from cassq.plurals import counted

LATE_SCHEDULE = "late_schedule"
KINDS = (
    *("no_consumer", "oldest_age", "dead_growth", "stalled", "lost", "failed"),
    *("held_keys", "stuck_keys", LATE_SCHEDULE),
    *("sidecar_unreachable", "sidecar_damaged", "under_replicated"),
)
OTHER = "other"
IMPORTANCES_MAX = 16
GROWTH_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A group of a queue at one moment. Times are milliseconds of catalog time."""

    queue: str
    group: str
    queue_id: str
    group_id: str
    policy: QueuePolicy
    stats: GroupStats
    created_ms: int = 0
    members: int = 0  # poppers seen within `alert_no_consumer` or `alert_stalled` seconds
    success_ms: int = 0  # when something was last committed
    grown: int = 0  # new dead letters of the last hour
    lost: int = 0  # messages given up within the last hour
    letters: Mapping[str, int] = field(default_factory=dict)  # importance → dead letters seen
    letters_depth: int = 0  # dead letters in all
    worst: HeldKey | None = None  # the key held for too long for which most messages wait


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a group, a schedule or a sidecar. values: facts about it, for the event.

    For schedules, `group` is empty, and `group_id` stands for the schedule. For sidecars, `queue`
    and `queue_id` are empty, and `group` is the sidecar's name, or empty for all of them.
    """

    kind: str
    queue: str
    group: str
    queue_id: str
    group_id: str
    owner: str
    importance: str
    message: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A key that stays the same while the problem lasts."""
        key = f"{self.kind}:{self.group_id}"
        return f"{key}:{self.importance}" if self.kind == "failed" else key


def findings(snapshot: Snapshot, now_ms: int) -> list[Finding]:
    """Find the problems of a group. Pure."""
    found = [
        _no_consumer(snapshot, now_ms),
        _oldest_age(snapshot),
        _dead_growth(snapshot),
        _stalled(snapshot, now_ms),
        _lost(snapshot),
        _held_keys(snapshot),
        _stuck_keys(snapshot),
    ]
    return [finding for finding in found if finding is not None] + _failed(snapshot)


def _no_consumer(seen: Snapshot, now_ms: int) -> Finding | None:
    limit = seen.policy.alert_no_consumer
    age = seen.stats.oldest_age
    # Dead letters wait for a person, who is notified by the kind "failed".
    if limit is None or is_dead_letter_name(seen.queue) or age is None or age < limit:
        return None
    since_ms = max(seen.created_ms, seen.success_ms)
    if seen.members or now_ms - since_ms < limit * 1000:
        return None
    waiting, pending = seen.stats.waiting - seen.stats.delayed, seen.stats.pending
    text = f"{_messages(waiting + pending)} unacked"
    if pending:
        text += f" ({waiting:,} waiting, {pending:,} pending)"
    return _finding(
        seen,
        "no_consumer",
        f"no consumer has been seen for {_span(limit)}, with {text}",
        waiting=waiting,
        pending=pending,
        threshold=limit,
    )


def _oldest_age(seen: Snapshot) -> Finding | None:
    limit, age = seen.policy.alert_oldest_age, seen.stats.oldest_age
    if limit is None or age is None or age < limit:
        return None
    text = f"the oldest message is {_span(age)} old, more than {_span(limit)}"
    return _finding(seen, "oldest_age", text, age=round(age, 3), threshold=limit)


def _dead_growth(seen: Snapshot) -> Finding | None:
    limit = seen.policy.alert_dead_growth
    if limit is None or seen.grown < limit:
        return None
    text = f"{_messages(seen.grown)} became dead letters within the last hour"
    return _finding(
        seen, "dead_growth", text, grown=seen.grown, dead=seen.stats.dead, threshold=limit
    )


def _stalled(seen: Snapshot, now_ms: int) -> Finding | None:
    limit, age = seen.policy.alert_stalled, seen.stats.oldest_age
    if limit is None or seen.policy.pop_paused or age is None or age < limit:
        return None
    if not seen.members and not seen.stats.pending:
        return None
    if now_ms - max(seen.created_ms, seen.success_ms) < limit * 1000:
        return None
    return _finding(
        seen,
        "stalled",
        f"nothing has been committed for {_span(limit)}, though there are consumers and messages",
        waiting=seen.stats.waiting,
        pending=seen.stats.pending,
        threshold=limit,
    )


def _lost(seen: Snapshot) -> Finding | None:
    if not seen.lost:
        return None
    text = f"{_messages(seen.lost)} could not be read and were given up within the last hour"
    return _finding(seen, "lost", text, lost=seen.lost, lost_of_all=seen.stats.lost)


def _held_keys(seen: Snapshot) -> Finding | None:
    held = seen.stats.held_keys
    if not held:
        return None
    text = f"dead letters hold {counted(held, 'key')}, whose later messages wait"
    return _finding(seen, "held_keys", text, held=held)


def _stuck_keys(seen: Snapshot) -> Finding | None:
    stuck, kept, worst = seen.stats.stuck_keys, seen.stats.stuck_in_hand, seen.worst
    behind = worst.behind if worst is not None else 0
    if not stuck and not behind:
        return None  # only long tasks, for which no message waits
    parts = [f"{_messages(stuck)} failed"] if stuck else []
    parts += [f"{_messages(kept)} {'was' if kept == 1 else 'were'} in hand"] if kept else []
    text = f"{' and '.join(parts)} for more than {_span(STUCK_SECONDS)}; later messages of their"
    text = f"{text} keys wait for them"
    values: dict[str, Any] = {"stuck": stuck, "in_hand": kept}
    if worst is not None and behind:
        key = worst.as_dict()["key"]
        text += f", at least {behind:,} for message {worst.message_id}"
        text += f" of key {key!r}" + (f", which {worst.holder} has" if worst.holder else "")
        values |= {"key": key, "message_id": worst.message_id, "behind": behind}
    return _finding(seen, "stuck_keys", text, **values)


def _failed(seen: Snapshot) -> list[Finding]:
    found = []
    for importance, count in sorted(bounded(seen.letters).items()):
        text = f"{_messages(count)} of importance {importance} failed for good"
        values = {"letters": count, "letters_of_all": seen.letters_depth}
        found.append(_finding(seen, "failed", text, importance, **values))
    return found


def bounded(letters: Mapping[str, int]) -> dict[str, int]:
    """At most `IMPORTANCES_MAX` names; the rest are counted as "other"."""
    kept = dict(sorted(letters.items())[:IMPORTANCES_MAX])
    rest = sum(letters.values()) - sum(kept.values())
    return {**kept, OTHER: kept.get(OTHER, 0) + rest} if rest else kept


def _finding(
    seen: Snapshot, kind: str, message: str, importance: str = NORMAL, **values: Any
) -> Finding:
    return Finding(
        kind=kind,
        queue=seen.queue,
        group=seen.group,
        queue_id=seen.queue_id,
        group_id=seen.group_id,
        owner=seen.policy.owner,
        importance=importance,
        message=message,
        values=values,
    )


def found_in(snapshots: Iterable[Snapshot], now_ms: int) -> dict[str, Finding]:
    """Find the problems of all groups, by key."""
    return {f.key: f for snapshot in snapshots for f in findings(snapshot, now_ms)}


def _messages(count: int) -> str:
    return counted(count, "message")


def _span(seconds: float) -> str:
    """A duration in a suitable unit."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} seconds"
