"""What the reaper's passes decide, from rows just before, at and after each threshold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.base.ids import Ids
from cassq.consumer.presence import GONE_MS
from cassq.extents.port import ExtentInfo
from cassq.lifecycle.sealing import STRAY_MS
from cassq.message.frames import Place
from cassq.message.ranges import RangeSet
from cassq.model.queues import GroupPolicy, QueuePolicy, rules_of
from cassq.model.rows import (
    Claim,
    ClaimState,
    Driver,
    GroupRow,
    PipeRow,
    PipeState,
    QueueRow,
    WriteRow,
    WriteState,
)
from cassq.reaper import disband, retire, rollback, seal, sweep, unstage
from cassq.reaper.actions import Action
from cassq.reaper.seal import ASKED_MAX, LeaseWatch, SeenLease

LEASE_MS = 10_000
SEEN_MS = 500_000
NOW_MS = 700_000
QUEUE = QueueRow("queue", "mail", QueuePolicy(), 1, 1)


def a_pipe(pipe_id: str = "p", state: PipeState = PipeState.OPEN, beat: int = 3) -> PipeRow:
    return PipeRow(pipe_id, "queue", state, "owner", created_ms=0, lease_ms=LEASE_MS, beat=beat)


def sealed(pipe_id: str, end_seq: int) -> PipeRow:
    return replace(a_pipe(pipe_id, PipeState.SEALED), end=Place(end_seq, 4096))


def subjects(actions: list[Action]) -> list[str]:
    return [action.subject for action in actions]


# --- sealing ----------------------------------------------------------------------------------


def planned_seals(
    pipes: list[PipeRow], seen: dict[str, SeenLease], now_ms: int, *gone: str
) -> list[str]:
    return subjects(seal.plan(seal.Unsealed(pipes, seen, gone, {"queue": "mail"}), now_ms))


def sights(pipes: list[PipeRow]) -> dict[str, SeenLease]:
    return {pipe.id: SeenLease(pipe.beat, SEEN_MS, SEEN_MS) for pipe in pipes}


@pytest.mark.parametrize(
    ("passed_ms", "planned"),
    [(0, []), (LEASE_MS - 1, []), (LEASE_MS, ["p"]), (LEASE_MS + 1, ["p"])],
)
@pytest.mark.parametrize("state", [PipeState.READY, PipeState.OPEN])
def test_a_pipe_is_sealed_when_its_lease_was_not_renewed_for_its_whole_length(
    state: PipeState, passed_ms: int, planned: list[str]
) -> None:
    pipe = a_pipe(state=state)
    assert planned_seals([pipe], sights([pipe]), SEEN_MS + passed_ms) == planned


def test_a_lease_that_moved_since_it_was_seen_counts_from_again() -> None:
    seen = sights([a_pipe(beat=2)])
    assert planned_seals([a_pipe(beat=3)], seen, SEEN_MS + 10 * LEASE_MS) == []


def test_a_pipe_not_seen_before_is_left_alone() -> None:
    assert planned_seals([a_pipe()], {}, SEEN_MS) == []


def test_each_pipe_has_a_lease_of_its_own_length() -> None:
    pipes = [a_pipe("short"), replace(a_pipe("long"), lease_ms=2 * LEASE_MS)]
    assert planned_seals(pipes, sights(pipes), SEEN_MS + LEASE_MS) == ["short"]


def test_a_pipe_whose_writer_is_known_to_be_gone_is_sealed_at_once() -> None:
    pipes = [a_pipe("gone"), a_pipe("alive")]
    assert planned_seals(pipes, sights(pipes), SEEN_MS, "gone") == ["gone"]


@pytest.mark.parametrize("state", [PipeState.SEALED, PipeState.CONSUMED])
def test_a_sealed_pipe_is_not_sealed_again(state: PipeState) -> None:
    pipe = a_pipe(state=state)
    assert planned_seals([pipe], sights([pipe]), SEEN_MS + LEASE_MS, "p") == []


# --- watching ---------------------------------------------------------------------------------


def test_a_beat_that_stands_still_keeps_the_time_it_was_first_seen_at() -> None:
    leases = LeaseWatch()
    for now_ms in (100, 200, 300):
        leases.watch([a_pipe(beat=7)], now_ms)
    assert leases.seen["p"].since_ms == 100


def test_a_beat_that_moved_is_seen_again() -> None:
    leases = LeaseWatch()
    leases.watch([a_pipe(beat=7)], 100)
    leases.watch([a_pipe(beat=8)], 200)
    assert leases.seen["p"] == SeenLease(8, 200, 200, "queue")


def test_a_pipe_that_is_gone_is_forgotten() -> None:
    leases = LeaseWatch()
    leases.watch([a_pipe("old"), a_pipe("new")], 100)
    leases.watch([a_pipe("new")], 200, gone={"old"})
    assert list(leases.seen) == ["new"]


def test_a_writer_is_asked_for_at_first_and_then_while_its_lease_stands_still() -> None:
    leases = LeaseWatch()
    dead, alive = a_pipe("dead"), a_pipe("alive")
    assert leases.watch([dead, alive], 100) == [dead, alive]
    alive = replace(alive, beat=4)
    assert leases.watch([dead, alive], 200) == [dead]


def test_of_many_still_leases_each_is_asked_for_in_its_turn() -> None:
    leases = LeaseWatch()
    pipes = [a_pipe(str(number)) for number in range(2 * ASKED_MAX + 1)]
    assert leases.watch(pipes, 0) == pipes, "all of those never seen"
    turns = [leases.watch(pipes, now_ms) for now_ms in (1, 2, 3)]
    assert [len(turn) for turn in turns] == [ASKED_MAX] * 3
    assert {pipe.id for turn in turns for pipe in turn} == {pipe.id for pipe in pipes}


def test_a_pipe_watched_for_a_lease_is_sealed_in_the_pass_after() -> None:
    """The two together: watch, decide, watch again. A pipe that shows life in between stays."""
    leases = LeaseWatch()
    dead, alive = a_pipe("dead"), a_pipe("alive")
    for now_ms, expected in ((0, []), (LEASE_MS - 1, []), (LEASE_MS, ["dead"])):
        alive = replace(alive, beat=alive.beat + 1)
        leases.watch([dead, alive], now_ms)
        assert planned_seals([dead, alive], leases.seen, now_ms) == expected


# --- giving back ------------------------------------------------------------------------------

GROUP = GroupRow("group", "queue", "default", GroupPolicy())
MOST = QUEUE.policy.max_deliveries


def a_claim(state: ClaimState = ClaimState.HELD, count: int = 1, **changes: object) -> Claim:
    row = Claim("group", "p", 5, 5 + count, 4096, state, NOW_MS, deliveries=1, version="v")
    return replace(row, **changes)


def overdue(*claims: Claim, sick: tuple[str, ...] = ()) -> rollback.Overdue:
    rules = rules_of(QUEUE.policy, GROUP.policy)
    health: object = None  # for the deed alone
    return rollback.Overdue(QUEUE, GROUP, rules, health, claims, sick)  # type: ignore[arg-type]


def planned_rollbacks(*groups: rollback.Overdue) -> list[tuple[str, bool]]:
    """Subjects, and whether they become dead letters."""
    actions = rollback.plan(groups, NOW_MS)
    return [(action.subject, action.row.to_dead_letters) for action in actions]


@pytest.mark.parametrize(
    ("due_ms", "planned"),
    [(NOW_MS + 1, []), (NOW_MS, [("p:5-8", False)]), (NOW_MS - 1, [("p:5-8", False)])],
)
def test_a_held_claim_is_freed_from_its_deadline_on(due_ms: int, planned: list[object]) -> None:
    assert planned_rollbacks(overdue(a_claim(count=3, due_ms=due_ms))) == planned


def test_what_is_free_waits_for_a_popper() -> None:
    assert planned_rollbacks(overdue(a_claim(ClaimState.FREE, 3), a_claim(ClaimState.DONE))) == []


@pytest.mark.parametrize(
    ("deliveries", "planned"),
    [(MOST - 1, []), (MOST, [("p:5-6", True)]), (MOST + 1, [("p:5-6", True)])],
)
def test_a_message_delivered_too_often_becomes_a_dead_letter(
    deliveries: int, planned: list[object]
) -> None:
    assert planned_rollbacks(overdue(a_claim(ClaimState.FREE, deliveries=deliveries))) == planned


def test_only_a_message_alone_is_spent() -> None:
    two = a_claim(ClaimState.FREE, 2, deliveries=MOST)
    assert planned_rollbacks(overdue(two)) == []
    assert planned_rollbacks(overdue(replace(two, acked=RangeSet([(5, 6)])))) == [("p:5-7", True)]


def test_a_sick_group_s_messages_do_not_become_dead_letters_for_their_deliveries() -> None:
    spent = a_claim(ClaimState.FREE, deliveries=MOST)
    assert planned_rollbacks(overdue(spent, sick=("v",))) == []
    assert planned_rollbacks(overdue(spent, sick=("of another",))) == [("p:5-6", True)]


def test_a_message_declared_dead_becomes_a_dead_letter_in_a_sick_group_too() -> None:
    doomed = a_claim(ClaimState.FREE, failure='{"doomed": true}')
    assert planned_rollbacks(overdue(doomed, sick=("v",))) == [("p:5-6", True)]


# --- retiring ---------------------------------------------------------------------------------


def planned_retires(
    pipes: list[PipeRow], queue: QueueRow | None = QUEUE, now_ms: int = NOW_MS
) -> list[str]:
    return subjects(retire.plan(retire.Finished(pipes, {"queue": queue}), now_ms))


def test_what_every_group_seems_to_have_acked_is_retired_oldest_first() -> None:
    assert planned_retires([sealed("p1", 5), sealed("p2", 0)]) == ["p1", "p2"]


def test_nothing_is_retired_of_a_queue_that_is_gone_or_being_deleted() -> None:
    assert planned_retires([sealed("p", 5)], None) == []
    assert planned_retires([sealed("p", 5)], replace(QUEUE, deleted=True)) == []


def test_a_pipe_without_an_end_is_not_retired() -> None:
    assert planned_retires([a_pipe()]) == []


def test_what_a_policy_keeps_is_retired_later_and_what_follows_it_too() -> None:
    keeping = replace(QUEUE, policy=QueuePolicy(retain_consumed=100.0))
    first, second = sealed("p1", 5), replace(sealed("p2", 0), predecessor="p1")
    first = replace(first, created_ms=NOW_MS)
    for now_ms, planned in ((99_999, []), (10_000_000, ["p1", "p2"])):
        assert planned_retires([first, second], keeping, NOW_MS + now_ms) == planned


# --- sweeping ---------------------------------------------------------------------------------


def test_all_that_was_consumed_is_swept() -> None:
    pipes = [a_pipe("p1", PipeState.CONSUMED), replace(a_pipe("p2"), queue_id="gone")]
    actions = sweep.plan(sweep.Leftovers(pipes, {"queue": "mail"}), NOW_MS)
    assert [(action.subject, action.queue) for action in actions] == [
        ("p1", "mail"),
        ("p2", "gone"),
    ]


def test_an_extent_without_a_row_is_swept_when_it_is_old_enough() -> None:
    ages_ms = (0, STRAY_MS - 1, STRAY_MS, 10 * STRAY_MS)
    rowless = [ExtentInfo(Ids().new(10**12 - age_ms), "mail", False) for age_ms in ages_ms]
    rowless.append(ExtentInfo("of another kind", "mail", True))
    actions = sweep.plan(sweep.Leftovers([], {}, rowless), 10**12)
    assert [action.subject for action in actions] == [info.pipe_id for info in rowless[2:4]]


# --- what is told -----------------------------------------------------------------------------


def test_an_action_is_reported_with_its_outcome() -> None:
    action = Action("seal", "p", "queue", row=a_pipe())
    assert action.as_dict() == {
        "verb": "seal", "subject": "p", "queue": "queue", "outcome": "planned", "detail": "",
    }  # fmt: skip


# --- writes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beat", "passed_ms", "planned"),
    [
        (3, LEASE_MS - 1, []),
        (3, LEASE_MS, ["w"]),
        (4, LEASE_MS, []),
        (4, 10 * LEASE_MS, []),
    ],
)
def test_a_write_is_aborted_when_its_driver_s_lease_was_not_renewed_for_its_whole_length(
    beat: int, passed_ms: int, planned: list[str]
) -> None:
    row = WriteRow("queue", "w", 0, 1, WriteState.OPEN, "d", 0)
    look = unstage.SeenDriver(3, SEEN_MS)
    drivers = {"d": Driver("d", beat, LEASE_MS)}
    snapshot = unstage.OpenWrites([row], drivers, {"d": look}, {"queue": "mail"})
    assert subjects(unstage.plan(snapshot, SEEN_MS + passed_ms)) == planned


@pytest.mark.parametrize("state", [WriteState.PUBLISHED, WriteState.ABORTED])
def test_a_write_that_is_over_is_finished_whatever_its_driver_does(state: WriteState) -> None:
    row = WriteRow("queue", "w", 0, 1, state, "d", 0)
    assert subjects(unstage.plan(unstage.OpenWrites([row], {}, {}, {}), SEEN_MS)) == ["w"]


# --- disbanding -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("polled_ms", "passed_ms", "planned"),
    [
        (3, 0, []),
        (3, GONE_MS - 1, []),
        (3, GONE_MS, ["g"]),
        (4, GONE_MS, []),
    ],
)
def test_an_idle_group_is_removed_when_it_was_watched_for_long_enough(
    polled_ms: int, passed_ms: int, planned: list[str]
) -> None:
    group = GroupRow("id", "queue", "g", GroupPolicy(group_expires=60), polled_ms=polled_ms)
    seen = {"id": disband.SeenPoll(3, SEEN_MS)}
    snapshot = disband.IdleGroups([disband.IdleGroup(QUEUE, group)], seen)
    assert subjects(disband.plan(snapshot, SEEN_MS + passed_ms)) == planned
    assert disband.plan(disband.IdleGroups(snapshot.groups, {}), SEEN_MS + passed_ms) == []
