"""Finds problems of storage sidecars, which concern no single queue. Pure.

Kinds of findings:

- sidecar_unreachable: a sidecar has sent no heartbeat for longer than a restart takes
- sidecar_damaged: a sidecar reports damaged extents
- under_replicated: the last check found extents with fewer good replicas than they should have
"""

from __future__ import annotations

from typing import Any

from cassq.alerts.rules import Finding
from cassq.extents.replicas.fleet import Fleet
from cassq.inspect.placements.rounds import Round
from cassq.message.importance import NORMAL
from cassq.model.sidecar_rows import SidecarRow, SidecarState

UNREACHABLE_SECONDS = 60
ALL = "sidecars"  # stands for all sidecars


def subject_of(name: str) -> str:
    """The subject of a sidecar's incidents. For incidents of a queue, it is the id of a group."""
    return f"sidecar:{name}"


def sidecar_findings(fleet: Fleet, last: Round | None) -> list[Finding]:
    """Find the problems of sidecars. last: the last round of comparing placements with what they
    hold, if there was one."""
    found = []
    for row in fleet.sidecars.values():
        found += [_unreachable(fleet, row, last), _damaged(fleet, row)]
    return [finding for finding in [*found, _under_replicated(last)] if finding is not None]


def _unreachable(fleet: Fleet, row: SidecarRow, last: Round | None) -> Finding | None:
    silent = (fleet.now_ms - row.seen_ms - row.lease_ms) / 1000
    if row.state is SidecarState.GONE or silent < UNREACHABLE_SECONDS:
        return None
    if row.state is SidecarState.DRAINING and last is not None and not last.left.get(row.name):
        return None  # drained, then stopped
    text = f"sidecar {row.name} at {row.address} has sent no heartbeat for {silent:,.0f} s"
    return _finding("sidecar_unreachable", row.name, text, zone=row.zone, silent=round(silent, 3))


def _damaged(fleet: Fleet, row: SidecarRow) -> Finding | None:
    if not row.damaged or not row.alive(fleet.now_ms):
        return None
    text = f"sidecar {row.name} has damage in {_extents(row.damaged)}: check its disk"
    return _finding("sidecar_damaged", row.name, text, zone=row.zone, damaged=row.damaged)


def _under_replicated(last: Round | None) -> Finding | None:
    if last is None or not last.short:
        return None
    text = f"too few good replicas: {_extents(last.short)} of {last.extents:,}"
    if last.stuck:
        text += f"; cannot be copied now: {last.stuck:,}"
    if last.unreadable:
        text += f"; no good replica known: {last.unreadable:,}"
    counts = {"extents": last.extents, "short": last.short, "stuck": last.stuck}
    return _finding("under_replicated", "", text, **counts, unreadable=last.unreadable)


def _extents(count: int) -> str:
    return f"{count:,} extent{'' if count == 1 else 's'}"


def _finding(kind: str, name: str, message: str, **values: Any) -> Finding:
    return Finding(
        kind=kind,
        queue="",
        group=name,
        queue_id="",
        group_id=subject_of(name) if name else ALL,
        owner="",
        importance=NORMAL,
        message=message,
        values={"sidecar": name, **values},
    )
