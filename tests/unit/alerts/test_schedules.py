"""What alerts find wrong with schedules: the threshold just below, at and above it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.alerts.events import event_maker
from cassq.alerts.incidents import AlertView, dump, plan
from cassq.alerts.schedules import LATE_SECONDS, late, schedule_findings
from cassq.model.queues import QueuePolicy
from cassq.model.rows import QueueRow
from cassq.model.schedules import ScheduleRow, TickPlace

TICK_MS = 1_700_000_000_000
LATE_MS = TICK_MS + LATE_SECONDS * 1000
ROW = ScheduleRow("s1", "tidy", "q1", "jobs", "@every 1h", "UTC", 0, TICK_MS)
QUEUES = {"q1": QueueRow("q1", "jobs", QueuePolicy(owner="ops"), 1, 1)}


@pytest.mark.parametrize(
    ("row", "now_ms", "is_late"),
    [
        (ROW, LATE_MS - 1, False),
        (ROW, LATE_MS, True),
        (replace(ROW, next_ms=LATE_MS), LATE_MS, False),
        (replace(ROW, paused=True), LATE_MS, False),
        (replace(ROW, next_ms=LATE_MS, firing=TickPlace(TICK_MS, "p", 0)), LATE_MS, True),
    ],
)
def test_a_tick_is_late_after_five_minutes(row: ScheduleRow, now_ms: int, is_late: bool) -> None:
    assert bool(late([row], now_ms)) == is_late


def test_a_late_tick_is_reported_with_its_schedule() -> None:
    (finding,) = schedule_findings([ROW], QUEUES, LATE_MS)
    assert (finding.kind, finding.queue, finding.group) == ("late_schedule", "jobs", "")
    assert finding.owner == "ops"
    said = (
        "the tick of 2023-11-14T22:13:20Z of schedule tidy was not pushed for more than 5 minutes"
    )
    assert finding.message == said
    assert finding.values == {"schedule": "tidy", "tick": "2023-11-14T22:13:20Z", "late": 300.0}
    event = event_maker(0)(finding, 1, LATE_MS, LATE_MS)
    assert event["data"]["message"] == f"queue jobs: {said}"
    assert event["subject"] == "tidy"


def test_a_push_that_was_begun_and_a_pause_are_told() -> None:
    begun = replace(ROW, firing=TickPlace(TICK_MS, "p", 0))
    paused = {"q1": replace(QUEUES["q1"], policy=QueuePolicy(push_paused=True))}
    (finding,) = schedule_findings([begun], paused, LATE_MS)
    assert finding.message.endswith(
        "was begun and not finished for more than 5 minutes; pushes to the queue are paused"
    )


def test_a_schedule_of_a_deleted_queue_is_not_reported() -> None:
    assert schedule_findings([ROW], {}, LATE_MS) == []


def test_an_incident_ends_only_where_schedules_were_looked_at() -> None:
    found = schedule_findings([ROW], QUEUES, LATE_MS)
    wants = {"ops": lambda _: True}
    (step,) = plan(AlertView([], schedules=found), [], wants, event_maker(0), LATE_MS, 1000)
    row = replace(step.row, version=1, data=dump(replace(step.state, claim_ms=0)))
    later_ms = LATE_MS + 60_000
    for view in (AlertView([]), AlertView([], sidecars=[]), AlertView([], schedules=found)):
        (again,) = plan(view, [row], wants, event_maker(0), later_ms, 1000)
        assert again.state.active, "and it is sent, as it was not yet"
    (over,) = plan(AlertView([], schedules=[]), [row], wants, event_maker(0), later_ms, 1000)
    assert not over.state.active
