"""What alerts find wrong with sidecars: each threshold just below, at and above it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.alerts.events import event_maker
from cassq.alerts.incidents import RAISED, RECOVERED, AlertView, plan
from cassq.alerts.rules import KINDS, Finding
from cassq.alerts.sidecars import UNREACHABLE_SECONDS, sidecar_findings
from cassq.inspect.placements.rounds import Round
from cassq.model.rows import Incident
from cassq.model.sidecar_rows import SidecarState
from tests.unit.extents.test_fleet import LEASE_MS, NOW_MS, a_sidecar, fleet

ROUND = Round(
    NOW_MS, [], [], extents=9, short=0, open=0, stuck=0, unsealed=0, unreadable=0, left={}
)
LIMIT_MS = LEASE_MS + UNREACHABLE_SECONDS * 1000


def kinds(findings: list[Finding]) -> list[tuple[str, str]]:
    assert all(finding.kind in KINDS for finding in findings)
    return [(finding.kind, finding.group) for finding in findings]


@pytest.mark.parametrize(
    ("silent_ms", "expected"),
    [(LIMIT_MS - 1, []), (LIMIT_MS, [("sidecar_unreachable", "a")])],
)
def test_a_sidecar_is_unreachable_when_it_is_silent_for_longer_than_a_restart_takes(
    silent_ms: int, expected: list[tuple[str, str]]
) -> None:
    row = replace(a_sidecar("a"), seen_ms=NOW_MS - silent_ms)
    assert kinds(sidecar_findings(fleet(row, a_sidecar("b")), ROUND)) == expected


@pytest.mark.parametrize(
    ("state", "left", "expected"),
    [
        (SidecarState.GONE, 3, False),
        (SidecarState.DRAINING, 3, True),
        (SidecarState.DRAINING, 0, False),
        (SidecarState.UP, 0, True),
    ],
)
def test_no_alert_is_sent_for_a_sidecar_that_was_given_up_or_drained(
    state: SidecarState, left: int, expected: bool
) -> None:
    row = replace(a_sidecar("a"), seen_ms=NOW_MS - LIMIT_MS, state=state)
    last = ROUND._replace(left={"a": left} if left else {})
    assert bool(sidecar_findings(fleet(row), last)) is expected


def test_damage_is_reported_by_a_live_sidecar_that_has_it() -> None:
    rows = [replace(a_sidecar("a"), damaged=2), replace(a_sidecar("b", "away"), damaged=1)]
    (finding,) = sidecar_findings(fleet(*rows), None)
    assert (finding.kind, finding.group) == ("sidecar_damaged", "a")
    assert "damage in 2 extents" in finding.message
    assert finding.values["damaged"] == 2


def test_what_lacks_replicas_is_reported_once_for_all() -> None:
    last = ROUND._replace(short=3, stuck=2, unreadable=1)
    (finding,) = sidecar_findings(fleet(a_sidecar("a")), last)
    assert finding.kind == "under_replicated"
    assert finding.message == (
        "too few good replicas: 3 extents of 9; cannot be copied now: 2; no good replica known: 1"
    )
    assert sidecar_findings(fleet(a_sidecar("a")), ROUND) == []


def test_an_incident_of_a_sidecar_begins_and_ends() -> None:
    wants = {"log": lambda finding: True}
    make_event = event_maker(0)
    silent = fleet(replace(a_sidecar("a"), seen_ms=NOW_MS - LIMIT_MS))
    view = AlertView([], sidecars=sidecar_findings(silent, ROUND))
    (begun,) = plan(view, [], wants, make_event, NOW_MS, 1000)
    (notice,) = begun.notices
    assert notice.stage == RAISED
    assert notice.event["source"] == "/cassq/sidecars"
    assert notice.event["subject"] == "a"
    assert notice.event["data"]["message"].startswith("sidecar a at a:7000 has sent no heartbeat")
    row = Incident(begun.row.key, begun.row.told_ms, 1, begun.row.data)
    later_ms = NOW_MS + 10_000
    # Who did not look at sidecars ends nothing of theirs.
    assert all(
        not step.notices or step.notices[-1].stage == RAISED
        for step in plan(AlertView([]), [row], wants, make_event, later_ms, 1000)
    )
    over = AlertView([], sidecars=sidecar_findings(fleet(a_sidecar("a")), ROUND))
    (ended,) = plan(over, [row], wants, make_event, later_ms, 1000)
    assert ended.notices[-1].stage == RECOVERED
