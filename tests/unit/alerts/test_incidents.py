"""Incidents: each is told once to each target, with its end, and nothing is lost on the way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from cassq.alerts.events import event_maker
from cassq.alerts.incidents import (
    EPISODES_MAX,
    KEPT_MS,
    PAUSE_FIRST_MS,
    PAUSE_MOST_MS,
    AlertView,
    IncidentStep,
    Notice,
    NoticeOutcome,
    dump,
    load,
    plan,
    settled,
)
from cassq.alerts.rules import Snapshot
from cassq.alerts.targets import AlertTarget
from cassq.inspect.stats import GroupStats
from cassq.model.queues import QueuePolicy
from cassq.model.rows import Incident

TOLD = NoticeOutcome(sent=True)
DOWN = NoticeOutcome(sent=False, error="nobody there")
CLAIM_MS = 40_000
LATER_MS = PAUSE_MOST_MS + 1


def seen(age: float = 100.0, owner: str = "", **letters: int) -> Snapshot:
    policy = QueuePolicy(alert_no_consumer=None, alert_oldest_age=60, owner=owner)
    return Snapshot("jobs", "default", "q1", "g1", policy, GroupStats(oldest_age=age),
                    letters=letters)  # fmt: skip


WRONG, FINE = seen(), seen(age=1.0)


class Catalog:
    """The incidents of a catalog, with its compare-and-set, and a reaper that tells."""

    def __init__(self, *targets: AlertTarget) -> None:
        self.rows: dict[str, Incident] = {}
        self.targets = targets
        self.now_ms = 1_000_000

    def plan(self, *snapshots: Snapshot, gone: Iterable[str] = ()) -> list[IncidentStep]:
        wanting = {target.name: target.wants for target in self.targets}
        view = AlertView(snapshots, set(gone))
        rows = list(self.rows.values())
        return plan(view, rows, wanting, event_maker(0), self.now_ms, CLAIM_MS)

    def put(self, row: Incident) -> bool:
        before = self.rows.get(row.key)
        if row.version != (before.version if before else 0):
            return False
        self.rows[row.key] = replace(row, version=row.version + 1)
        return True

    def settle(
        self, step: IncidentStep, outcome: NoticeOutcome, notices: list[Notice] | None = None
    ) -> None:
        wanted = step.notices if notices is None else notices
        state = settled(step.state, [(notice, outcome) for notice in wanted], self.now_ms)
        if state.episodes:
            assert self.put(replace(step.row, version=step.row.version + 1, data=dump(state)))
        else:
            del self.rows[step.row.key]

    def run(
        self, *snapshots: Snapshot, outcome: NoticeOutcome = TOLD, after_ms: int = 0
    ) -> list[str]:
        """A pass whose notices all end alike; what it told, as "target kind.state"."""
        self.now_ms += after_ms
        sent = []
        for step in self.plan(*snapshots):
            assert self.put(step.row)
            self.settle(step, outcome)
            sent += [shown(notice) for notice in step.notices]
        return sent


def shown(notice: Notice) -> str:
    return f"{notice.target} {notice.event['type'].removeprefix('cassq.alert.')}"


LOG = AlertTarget("log")


def test_an_incident_is_reported_once_however_long_it_lasts_and_then_its_end() -> None:
    catalog = Catalog(LOG)
    assert catalog.run(WRONG) == ["log oldest_age.raised"]
    for age in (200.0, 3000.0):
        assert catalog.run(seen(age), after_ms=60_000) == []
    assert catalog.run(FINE, after_ms=60_000) == ["log oldest_age.recovered"]
    assert catalog.rows == {}
    assert catalog.run(FINE) == []


def test_the_same_again_is_another_incident() -> None:
    catalog = Catalog(LOG)
    catalog.run(WRONG)
    catalog.run(FINE, after_ms=1)
    assert catalog.run(WRONG, after_ms=1) == ["log oldest_age.raised"]


def test_of_several_reapers_that_saw_the_same_one_sends_the_alert() -> None:
    catalog = Catalog(LOG)
    plans = [catalog.plan(WRONG) for _ in range(3)]
    assert [catalog.put(steps[0].row) for steps in plans] == [True, False, False]
    assert catalog.plan(WRONG) == []  # while the first is at it
    ended = catalog.plan(FINE)
    assert ended == []


def test_an_alert_that_a_dead_reaper_was_about_to_send_is_sent_by_another_with_the_same_id() -> (
    None
):
    catalog = Catalog(LOG)
    (first,) = catalog.plan(WRONG)
    catalog.put(first.row)
    catalog.now_ms += CLAIM_MS
    (second,) = catalog.plan(WRONG)
    assert second.notices[0].event == first.notices[0].event
    assert catalog.put(second.row)
    late = replace(first.row, version=first.row.version + 1)
    assert not catalog.put(late), "who was taken for dead writes nothing more"


def test_an_alert_that_cannot_be_sent_stays_due_with_a_growing_pause() -> None:
    catalog = Catalog(LOG)
    assert catalog.run(WRONG, outcome=DOWN) == ["log oldest_age.raised"]
    pause_ms = PAUSE_FIRST_MS
    for _ in range(10):
        assert catalog.run(WRONG, outcome=DOWN, after_ms=pause_ms - 1) == []
        assert catalog.run(WRONG, outcome=DOWN, after_ms=1) == ["log oldest_age.raised"]
        pause_ms = min(2 * pause_ms, PAUSE_MOST_MS)
    assert catalog.run(WRONG, after_ms=LATER_MS) == ["log oldest_age.raised"]
    assert catalog.run(WRONG, after_ms=LATER_MS) == []


def test_an_incident_that_ends_before_its_alert_was_sent_is_sent_with_its_end_in_order() -> None:
    catalog = Catalog(LOG)
    catalog.run(WRONG, outcome=DOWN)
    assert catalog.run(FINE, outcome=DOWN, after_ms=LATER_MS) == [
        "log oldest_age.raised",
        "log oldest_age.recovered",
    ]
    assert catalog.run(FINE, after_ms=LATER_MS) == [
        "log oldest_age.raised",
        "log oldest_age.recovered",
    ]
    assert catalog.rows == {}


def test_an_end_is_not_sent_when_the_beginning_just_failed() -> None:
    catalog = Catalog(LOG)
    catalog.run(WRONG, outcome=DOWN)
    catalog.now_ms += LATER_MS
    (step,) = catalog.plan(FINE)
    catalog.put(step.row)
    catalog.settle(step, DOWN, step.notices[:1])
    telling = load(catalog.rows[step.row.key].data).episodes[0].tellings["log"]
    assert (telling.stage, telling.tries) == (0, 2)


def test_what_was_not_tried_because_its_target_is_down_does_not_count_as_a_try() -> None:
    catalog = Catalog(LOG)
    catalog.run(WRONG, outcome=NoticeOutcome(sent=False, tried=False))
    (row,) = catalog.rows.values()
    telling = load(row.data).episodes[0].tellings["log"]
    assert (telling.tries, telling.next_ms) == (0, catalog.now_ms + PAUSE_FIRST_MS)


def test_an_incident_that_returns_before_its_end_was_sent_skips_no_notice() -> None:
    catalog = Catalog(LOG)
    catalog.run(WRONG)
    catalog.run(FINE, outcome=DOWN, after_ms=1)
    assert catalog.run(WRONG, after_ms=1) == [], "the end of the last comes first"
    assert catalog.run(WRONG, after_ms=LATER_MS) == [
        "log oldest_age.recovered",
        "log oldest_age.raised",
    ]
    assert catalog.run(FINE, after_ms=1) == ["log oldest_age.recovered"]
    assert catalog.rows == {}


def test_one_target_that_is_down_keeps_nothing_from_another() -> None:
    catalog = Catalog(LOG, AlertTarget("page"))
    (step,) = catalog.plan(WRONG)
    catalog.put(step.row)
    outcomes = [(n, TOLD if n.target == "log" else DOWN) for n in step.notices]
    state = settled(step.state, outcomes, catalog.now_ms)
    catalog.put(replace(step.row, version=1, data=dump(state)))
    assert catalog.run(WRONG, after_ms=LATER_MS) == ["page oldest_age.raised"]


def test_only_targets_that_want_an_alert_get_it() -> None:
    targets = (
        AlertTarget("high", importances=("high",)),
        AlertTarget("team", owners=("team",)),
        AlertTarget("age", kinds=("oldest_age",)),
    )
    catalog = Catalog(*targets)
    found = catalog.run(seen(owner="team", high=1, normal=2))
    assert sorted(found) == [
        "age oldest_age.raised",
        "high failed.raised",
        "team failed.raised",
        "team failed.raised",
        "team oldest_age.raised",
    ]
    other = Catalog(AlertTarget("nobody", owners=("someone",)))
    assert other.run(WRONG) == []
    assert other.rows == {}


def test_a_target_that_another_reaper_serves_is_left_to_it() -> None:
    catalog = Catalog(LOG)
    catalog.run(WRONG, outcome=DOWN)
    catalog.targets = (AlertTarget("page"),)
    assert catalog.run(WRONG, after_ms=LATER_MS) == ["page oldest_age.raised"]
    assert catalog.run(FINE, after_ms=LATER_MS) == ["page oldest_age.recovered"]
    catalog.targets = (LOG,)
    assert catalog.run(FINE, after_ms=1) == ["log oldest_age.raised", "log oldest_age.recovered"]
    assert catalog.rows == {}


def test_an_alert_that_was_never_sent_is_given_up_after_days_and_logged() -> None:
    catalog = Catalog(LOG)
    catalog.run(WRONG, outcome=DOWN)
    catalog.run(FINE, outcome=DOWN, after_ms=LATER_MS)
    catalog.targets = (AlertTarget("page"),)
    catalog.now_ms += KEPT_MS
    (step,) = catalog.plan(FINE)
    assert [line.partition(":")[0] for line in step.lost] == ["target log"] * 2
    assert step.state.episodes == ()


def test_a_flapping_incident_that_cannot_be_sent_stays_bounded() -> None:
    catalog = Catalog(LOG)
    lost = 0
    for _ in range(3 * EPISODES_MAX):
        for snapshot in (WRONG, FINE):
            catalog.now_ms += 1
            for step in catalog.plan(snapshot):
                lost += len(step.lost)
                catalog.put(step.row)
                catalog.settle(step, DOWN)
    (row,) = catalog.rows.values()
    assert len(load(row.data).episodes) <= EPISODES_MAX
    assert lost > 0


def test_a_queue_that_was_not_looked_at_stays_as_it_was() -> None:
    catalog = Catalog(LOG)
    catalog.run(WRONG)
    assert catalog.run(after_ms=LATER_MS) == []
    catalog.now_ms += 1
    (step,) = catalog.plan(gone=["g1"])
    assert [shown(notice) for notice in step.notices] == ["log oldest_age.recovered"]


def test_an_event_is_a_cloud_event() -> None:
    catalog = Catalog(LOG)
    (step,) = catalog.plan(seen(owner="team"))
    event: dict[str, Any] = step.notices[0].event
    assert {k: event[k] for k in ("specversion", "type", "source", "subject")} == {
        "specversion": "1.0",
        "type": "cassq.alert.oldest_age.raised",
        "source": "/cassq/jobs",
        "subject": "default",
    }
    assert event["time"] == "1970-01-01T00:16:40.000+00:00"
    assert event["datacontenttype"] == "application/json"
    data = event["data"]
    assert (data["state"], data["queue"], data["group"]) == ("raised", "jobs", "default")
    assert (data["owner"], data["importance"], data["threshold"]) == ("team", "normal", 60.0)
    assert event["id"] == "oldest_age:g1:1000000:raised"


@pytest.mark.parametrize("outcome", [TOLD, DOWN])
def test_a_state_comes_back_as_it_was_stored(outcome: NoticeOutcome) -> None:
    catalog = Catalog(LOG, AlertTarget("page"))
    (step,) = catalog.plan(WRONG)
    state = settled(step.state, [(step.notices[0], outcome)], 5)
    assert load(dump(state)) == state
