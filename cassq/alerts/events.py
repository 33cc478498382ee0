"""Alerts as events: CloudEvents 1.0 in JSON.

An event that is sent again keeps its id, so a receiver can drop duplicates.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from cassq.alerts.incidents import RECOVERED
from cassq.alerts.rules import Finding

CONTENT_TYPE = "application/cloudevents+json"
STATES = {1: "raised", 2: "recovered"}


def event_maker(to_wall_ms: int) -> Callable[[Finding, int, int, int], dict[str, Any]]:
    """Return a function that makes events. to_wall_ms: wall time minus catalog time."""

    def make(finding: Finding, stage: int, at_ms: int, since_ms: int) -> dict[str, Any]:
        state = STATES[stage]
        message = finding.message
        if stage == RECOVERED:
            message = f"recovered: {message}"
        return {
            "specversion": "1.0",
            "id": f"{finding.key}:{since_ms}:{state}",
            "source": f"/cassq/{finding.queue.lstrip('/') or 'sidecars'}",
            "type": f"cassq.alert.{finding.kind}.{state}",
            "subject": finding.group or finding.values.get("schedule", ""),
            "time": _moment(at_ms + to_wall_ms),
            "datacontenttype": "application/json",
            "data": {
                "kind": finding.kind,
                "state": state,
                "queue": finding.queue,
                "group": finding.group,
                "owner": finding.owner,
                "importance": finding.importance,
                "message": f"{_where(finding)}{message}",
                "since": _moment(since_ms + to_wall_ms),
                **finding.values,
            },
        }

    return make


def _where(finding: Finding) -> str:
    """The prefix that names queue and group; messages about schedules and sidecars name those
    themselves."""
    if not finding.queue:
        return ""
    group = f", group {finding.group}" if finding.group else ""
    return f"queue {finding.queue}{group}: "


def encoded(event: dict[str, Any]) -> bytes:
    """An event as JSON bytes."""
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()


def _moment(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
