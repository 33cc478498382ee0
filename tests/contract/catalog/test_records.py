"""The Catalog port: what it keeps of pushes, poppers and the past."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.catalog.port import Catalog
from cassq.model.rows import Dedup, Incident, Member, Sample
from cassq.model.schedules import ScheduleRow, TickPlace
from tests.contract.rows import groups_version, make_group, make_queue

GROUP = "q/default"
HOUR_MS = 3_600_000
INTENT = Dedup("id of q", "order-7", "p", 3, at_ms=100)


def sample(at_ms: int, data: str = "{}", subject: str = GROUP, step_ms: int = 60_000) -> Sample:
    return Sample(subject, step_ms, at_ms, data)


def member(name: str, seen_ms: int, *, waiting: bool = False, group: str = GROUP) -> Member:
    return Member(group, name, seen_ms, waiting)


# --- dedup ids --------------------------------------------------------------------------------


def test_the_first_intent_of_a_dedup_id_stands(catalog: Catalog, other: Catalog) -> None:
    assert catalog.records.dedup(INTENT) == INTENT
    assert other.records.dedup(replace(INTENT, pipe_id="later", seq=9, at_ms=200)) == INTENT
    assert catalog.records.dedup(INTENT) == INTENT


def test_an_intent_is_replaced_by_a_writer_that_has_read_it(
    catalog: Catalog, other: Catalog
) -> None:
    catalog.records.dedup(INTENT)
    mine, late = replace(INTENT, pipe_id="mine"), replace(INTENT, pipe_id="late")
    assert catalog.records.dedup(mine, instead_of=INTENT) == mine
    assert other.records.dedup(late, instead_of=INTENT) == mine, "it is not that one any more"
    assert other.records.dedup(late) == mine


@pytest.mark.parametrize("column", ["pipe_id", "seq", "at_ms"])
def test_every_column_of_the_intent_seen_must_agree(catalog: Catalog, column: str) -> None:
    catalog.records.dedup(INTENT)
    seen = replace(INTENT, **{column: "x" if column == "pipe_id" else 1})
    assert catalog.records.dedup(replace(INTENT, pipe_id="mine"), instead_of=seen) == INTENT


def test_an_intent_may_stand_in_place_of_one_that_is_forgotten(catalog: Catalog) -> None:
    mine = replace(INTENT, pipe_id="mine")
    assert catalog.records.dedup(mine, instead_of=INTENT) == mine


def test_dedup_ids_are_of_one_queue(catalog: Catalog) -> None:
    catalog.records.dedup(INTENT)
    elsewhere = replace(INTENT, queue_id="id of r", pipe_id="r")
    assert catalog.records.dedup(elsewhere) == elsewhere
    another = replace(INTENT, dedup_id="order-8", pipe_id="8")
    assert catalog.records.dedup(another) == another


def test_dedup_ids_are_forgotten_by_age_and_queue(catalog: Catalog) -> None:
    for number, at_ms in enumerate((99, 100, 101)):
        catalog.records.dedup(Dedup("id of q", str(number), "p", number, at_ms))
    elsewhere = Dedup("id of r", "0", "p", 0, 99)
    catalog.records.dedup(elsewhere)
    assert catalog.records.forget_dedups("id of q", 100) == 1
    assert catalog.records.forget_dedups("id of q", 100) == 0
    fresh = Dedup("id of q", "0", "new", 0, 200)
    assert catalog.records.dedup(fresh) == fresh
    assert catalog.records.dedup(Dedup("id of q", "1", "new", 0, 200)).pipe_id == "p"
    assert catalog.records.dedup(replace(elsewhere, pipe_id="new")) == elsewhere


# --- members ----------------------------------------------------------------------------------


@pytest.fixture
def groups(catalog: Catalog) -> None:
    """The groups `default` and `other` of a queue."""
    make_queue(catalog)
    make_group(catalog, "other")


in_groups = pytest.mark.usefixtures("groups")


@in_groups
def test_members_are_those_seen_since(catalog: Catalog, other: Catalog) -> None:
    catalog.records.attend(member("b", 999))
    catalog.records.attend(member("c", 1000, waiting=True))
    other.records.attend(member("a", 1001))
    assert catalog.records.members(GROUP, 1000) == [
        member("a", 1001),
        member("c", 1000, waiting=True),
    ]
    assert catalog.records.members(GROUP, 1002) == []
    assert catalog.records.members("q/other", 0) == []


@in_groups
def test_a_member_is_one_however_often_it_shows_itself(catalog: Catalog) -> None:
    catalog.records.attend(member("a", 1, waiting=True))
    catalog.records.attend(member("a", 2))
    assert catalog.records.members(GROUP, 0) == [member("a", 2)]


@in_groups
def test_a_member_that_left_is_gone_from_its_group_alone(catalog: Catalog, other: Catalog) -> None:
    catalog.records.attend(member("a", 1))
    catalog.records.attend(member("b", 1))
    catalog.records.attend(member("a", 1, group="q/other"))
    other.records.leave(GROUP, "a")
    other.records.leave(GROUP, "nobody")
    assert catalog.records.members(GROUP, 0) == [member("b", 1)]
    assert catalog.records.members("q/other", 0) == [member("a", 1, group="q/other")]


@in_groups
def test_members_not_seen_for_long_are_removed_in_passing(catalog: Catalog) -> None:
    catalog.records.attend(member("old", 0))
    catalog.records.attend(member("present", 30 * 24 * HOUR_MS))
    assert len(catalog.records.members(GROUP, 30 * 24 * HOUR_MS)) == 1
    assert [found.name for found in catalog.records.members(GROUP, 0)] == ["present"]


def test_a_group_that_is_gone_has_no_members(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    make_group(catalog, "other")
    assert catalog.queues.delete_group("q/other")
    other.records.attend(member("late", 1, group="q/other"))
    assert catalog.records.members("q/other", 0) == []


# --- successes --------------------------------------------------------------------------------


def test_the_last_success_of_a_group_is_noted_and_never_goes_back(
    catalog: Catalog, other: Catalog
) -> None:
    make_queue(catalog)
    make_group(catalog, "other")
    assert catalog.records.success_ms(GROUP) == 0
    catalog.records.note_success(GROUP, 500)
    other.records.note_success(GROUP, 400)
    assert other.records.success_ms(GROUP) == 500
    assert catalog.records.success_ms("q/other") == 0
    catalog.records.note_success("q/gone", 500)
    assert catalog.records.success_ms("q/gone") == 0


# --- samples ----------------------------------------------------------------------------------


def test_samples_come_back_as_they_were_oldest_first(catalog: Catalog, other: Catalog) -> None:
    added = [sample(120_000, '{"new": "ü"}'), sample(0), sample(60_000)]
    catalog.records.add_samples(added)
    assert other.records.samples(GROUP, 60_000, 0) == [added[1], added[2], added[0]]


def test_samples_are_asked_for_by_subject_step_and_time(catalog: Catalog) -> None:
    catalog.records.add_samples([sample(60_000 * n) for n in range(4)])
    catalog.records.add_samples([sample(0, subject="q/other"), sample(0, step_ms=HOUR_MS)])
    found = catalog.records.samples(GROUP, 60_000, 120_000)
    assert [each.at_ms for each in found] == [120_000, 180_000]
    assert [each.at_ms for each in catalog.records.samples(GROUP, 60_000, 120_001)] == [180_000]
    assert catalog.records.samples(GROUP, HOUR_MS, 0) == [sample(0, step_ms=HOUR_MS)]
    assert catalog.records.samples("q/other", 60_000, 0) == [sample(0, subject="q/other")]
    assert catalog.records.samples("q/gone", 60_000, 0) == []


def test_a_sample_that_is_there_stays_and_the_others_are_added(
    catalog: Catalog, other: Catalog
) -> None:
    catalog.records.add_samples([sample(0, "first")])
    other.records.add_samples([sample(0, "second"), sample(60_000, "second")])
    other.records.add_samples([])
    assert [each.data for each in catalog.records.samples(GROUP, 60_000, 0)] == ["first", "second"]


def test_samples_are_forgotten_by_step_and_age_of_all_subjects(catalog: Catalog) -> None:
    for subject in (GROUP, "q/other"):
        catalog.records.add_samples(
            [sample(at_ms, subject=subject) for at_ms in (0, 60_000, 120_000)]
        )
    catalog.records.add_samples([sample(0, step_ms=HOUR_MS)])
    catalog.records.forget_samples(60_000, 60_000)
    for subject in (GROUP, "q/other"):
        left = [each.at_ms for each in catalog.records.samples(subject, 60_000, 0)]
        assert left == [60_000, 120_000]
    assert len(catalog.records.samples(GROUP, HOUR_MS, 0)) == 1


# --- incidents --------------------------------------------------------------------------------


def test_an_incident_is_begun_by_one(catalog: Catalog, other: Catalog) -> None:
    mine = Incident("stalled:q", 10, 20, '{"by": "me"}')
    assert catalog.records.put_incident(mine)
    assert not other.records.put_incident(replace(mine, data="{}"))
    (found,) = other.records.incidents()
    assert found.version > 0
    assert replace(found, version=0) == mine


def test_an_incident_is_changed_only_by_a_reader_of_its_current_row(
    catalog: Catalog, other: Catalog
) -> None:
    catalog.records.put_incident(Incident("stalled:q", 10, 20, "{}"))
    (seen,) = catalog.records.incidents()
    assert other.records.put_incident(replace(seen, told_ms=30, data="other"))
    assert not catalog.records.put_incident(replace(seen, told_ms=40, data="mine"))
    (now,) = catalog.records.incidents()
    assert (now.since_ms, now.told_ms, now.data) == (10, 30, "other")
    assert now.version != seen.version
    assert not catalog.records.put_incident(replace(now, key="never begun"))
    assert len(catalog.records.incidents()) == 1


def test_an_incident_is_ended_only_by_a_reader_of_its_current_row(
    catalog: Catalog, other: Catalog
) -> None:
    catalog.records.put_incident(Incident("stalled:q", 10, 20, "{}"))
    catalog.records.put_incident(Incident("stalled:r", 10, 20, "{}"))
    seen = next(found for found in catalog.records.incidents() if found.key == "stalled:q")
    other.records.put_incident(replace(seen, told_ms=30))
    assert not catalog.records.drop_incident(seen)
    now = next(found for found in catalog.records.incidents() if found.key == "stalled:q")
    assert catalog.records.drop_incident(now)
    assert not other.records.drop_incident(now)
    assert [found.key for found in other.records.incidents()] == ["stalled:r"]
    assert catalog.records.put_incident(Incident("stalled:q", 50, 50, "{}")), "it may come again"


# --- what goes with its queue or group ----------------------------------------------------------


def test_what_is_known_of_a_group_goes_with_it(catalog: Catalog) -> None:
    make_queue(catalog)
    make_group(catalog, "other")
    for group in (GROUP, "q/other"):
        catalog.records.attend(member("a", 1, group=group))
        catalog.records.add_samples(
            [sample(0, subject=group), sample(0, subject=group, step_ms=HOUR_MS)]
        )
    assert catalog.queues.delete_group("q/other")
    assert catalog.records.members("q/other", 0) == []
    assert (
        catalog.records.samples("q/other", 60_000, 0)
        == catalog.records.samples("q/other", HOUR_MS, 0)
        == []
    )
    assert (
        len(catalog.records.members(GROUP, 0))
        == len(catalog.records.samples(GROUP, 60_000, 0))
        == 1
    )
    assert groups_version(catalog) > 1


def test_what_is_known_of_a_queue_goes_with_it(catalog: Catalog) -> None:
    for name in ("q", "r"):
        make_queue(catalog, name)
        catalog.records.dedup(replace(INTENT, queue_id=f"id of {name}"))
        catalog.records.attend(member("a", 1, group=f"{name}/default"))
        for subject in (f"id of {name}", f"{name}/default"):
            catalog.records.add_samples([sample(0, subject=subject)])
    catalog.queues.delete("id of q")
    catalog.queues.forget("id of q")
    fresh = replace(INTENT, pipe_id="fresh")
    assert catalog.records.dedup(fresh) == fresh
    assert catalog.records.members(GROUP, 0) == []
    assert (
        catalog.records.samples(GROUP, 60_000, 0)
        == catalog.records.samples("id of q", 60_000, 0)
        == []
    )
    assert catalog.records.dedup(replace(fresh, queue_id="id of r")).pipe_id == "p"
    assert len(catalog.records.members("r/default", 0)) == 1
    assert len(catalog.records.samples("id of r", 60_000, 0)) == 1


# --- schedules ----------------------------------------------------------------------------------

TIDY = ScheduleRow("s1", "tidy", "id of q", "q", "@daily", "UTC", 0, 86_400_000, b"\xff\0")


def test_a_schedule_is_created_by_one(catalog: Catalog, other: Catalog) -> None:
    assert catalog.records.schedules() == []
    assert catalog.records.schedule("tidy") is None
    assert catalog.records.add_schedule(TIDY)
    assert not other.records.add_schedule(replace(TIDY, id="s2"))
    assert other.records.schedule("tidy") == TIDY
    assert other.records.schedules() == [TIDY]


def test_schedules_are_listed_by_name(catalog: Catalog) -> None:
    names = ["b", "/a/b", "a", "B", "a-b"]
    for name in names:
        assert catalog.records.add_schedule(replace(TIDY, name=name))
    assert [row.name for row in catalog.records.schedules()] == sorted(names)


def test_a_schedule_is_changed_only_by_a_reader_of_its_current_row(
    catalog: Catalog, other: Catalog
) -> None:
    catalog.records.add_schedule(TIDY)
    mine = replace(TIDY, firing=TickPlace(86_400_000, "p", 3))
    assert catalog.records.change_schedule(TIDY, mine)
    assert not other.records.change_schedule(TIDY, replace(TIDY, paused=True))
    assert other.records.change_schedule(mine, replace(mine, paused=True))
    assert catalog.records.schedule("tidy") == replace(mine, paused=True)
    assert not catalog.records.change_schedule(
        replace(TIDY, name="never"), replace(TIDY, name="never", paused=True)
    )
    assert len(catalog.records.schedules()) == 1


def test_all_settings_of_a_schedule_can_be_changed(catalog: Catalog, other: Catalog) -> None:
    catalog.records.add_schedule(TIDY)
    new = replace(
        TIDY, queue_id="id of r", queue="r", cron="@every 5m", tz="Europe/Vienna", payload=b"new",
        headers={"a": "ü"}, key=b"k\0", missed="all", overlap="skip", priority=9, since_ms=5,
        next_ms=7, firing=TickPlace(7, "p", 3), firing_queue_id="id of q",
    )  # fmt: skip
    assert catalog.records.change_schedule(TIDY, new)
    assert other.records.schedule("tidy") == new
    assert not other.records.change_schedule(TIDY, TIDY)


def test_a_schedule_is_removed_only_by_a_reader_of_its_current_row(
    catalog: Catalog, other: Catalog
) -> None:
    catalog.records.add_schedule(TIDY)
    other.records.change_schedule(TIDY, replace(TIDY, paused=True))
    assert not catalog.records.drop_schedule(TIDY)
    assert catalog.records.drop_schedule(replace(TIDY, paused=True))
    assert not other.records.drop_schedule(replace(TIDY, paused=True))
    assert catalog.records.schedule("tidy") is None
    assert catalog.records.add_schedule(TIDY), "the name is free again"


def test_a_schedule_of_another_with_the_same_name_is_not_taken_for_ours(catalog: Catalog) -> None:
    """It was deleted and created again since it was read."""
    catalog.records.add_schedule(TIDY)
    catalog.records.drop_schedule(TIDY)
    catalog.records.add_schedule(replace(TIDY, id="s2"))
    assert not catalog.records.change_schedule(TIDY, replace(TIDY, paused=True))
    assert not catalog.records.drop_schedule(TIDY)


def test_schedules_are_neither_incidents_nor_notes(catalog: Catalog) -> None:
    catalog.records.add_schedule(TIDY)
    catalog.records.put_incident(Incident("tidy", 10, 20, "{}"))
    assert [found.key for found in catalog.records.incidents()] == ["tidy"]
    assert catalog.records.schedules() == [TIDY]
    assert catalog.records.note("tidy", "mine") == "mine"
