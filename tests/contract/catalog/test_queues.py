"""The Catalog port: queues, groups and leases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.base.clock import ManualClock
from cassq.catalog.port import Catalog, limit_names, line_name, released_name
from cassq.inspect.history import HOUR_MS
from cassq.model.queues import GroupPolicy, QueuePolicy
from cassq.model.rows import GroupRow, PipeState, Sample
from tests.contract.rows import (
    Consumer,
    group_row,
    groups_version,
    make_group,
    make_queue,
    move_row,
    pipe_row,
    place,
    queue_row,
)

# --- queues -----------------------------------------------------------------------------------


def test_a_queue_is_there_for_all_once_it_is_created(catalog: Catalog, other: Catalog) -> None:
    row = make_queue(catalog, "/team/q", consistency="cp", claim_timeout=1.5, compression="zstd")
    assert other.queues.named("/team/q") == other.queues.by_id(row.id) == row
    assert (row.version, row.groups_version, row.tail, row.deleted) == (1, 1, "", False)
    assert other.queues.groups(row.id) == [group_row("default", "/team/q")]


def test_an_unknown_queue_is_none(catalog: Catalog) -> None:
    assert catalog.queues.named("q") is None
    assert catalog.queues.by_id("q") is None
    assert catalog.queues.groups("q") == []


def test_of_two_creations_of_a_queue_one_succeeds(catalog: Catalog, other: Catalog) -> None:
    first = make_queue(catalog, max_pop_width=3)
    late = queue_row("q", "another id", max_pop_width=4)
    assert not other.queues.create(late, replace(group_row(), queue_id="another id", id="late"))
    assert catalog.queues.named("q") == first
    assert catalog.queues.by_id("another id") is None
    assert catalog.queues.groups("another id") == []


def test_queues_are_listed_by_name_and_prefix(catalog: Catalog) -> None:
    for name in ("b", "a", "/t/1", "/t/2", "/tt", "a%", "a_b", "ab", "é~dead"):
        make_queue(catalog, name)

    def names(prefix: str = "") -> list[str]:
        return [row.name for row in catalog.queues.listed(prefix)]

    assert names() == ["/t/1", "/t/2", "/tt", "a", "a%", "a_b", "ab", "b", "é~dead"]
    assert names("/t/") == ["/t/1", "/t/2"]
    assert names("a") == ["a", "a%", "a_b", "ab"]
    assert names("a%") == ["a%"]
    assert names("a_") == ["a_b"]
    assert names("é") == ["é~dead"]
    assert names("zz") == []


def test_a_policy_is_replaced_only_with_its_current_version(
    catalog: Catalog, other: Catalog
) -> None:
    row = make_queue(catalog)
    mine, theirs = QueuePolicy(claim_timeout=1), QueuePolicy(claim_timeout=2)
    assert catalog.queues.update(row.id, row.version, mine)
    assert not other.queues.update(row.id, row.version, theirs), "a race that was lost"
    found = other.queues.named("q")
    assert found is not None
    assert (found.policy, found.version) == (mine, row.version + 1)
    assert other.queues.update(row.id, found.version, theirs)
    assert not catalog.queues.update("unknown", 1, mine)


def test_a_deleted_queue_is_found_only_by_its_id(catalog: Catalog, other: Catalog) -> None:
    row = make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p1"))
    assert catalog.pipes.add(pipe_row("p2"))
    assert sorted(catalog.queues.delete(row.id)) == ["p1", "p2"]
    assert other.queues.named("q") is None
    assert other.queues.listed() == []
    assert other.queues.listed(deleted=True) == [replace(row, deleted=True)]
    found = other.queues.by_id(row.id)
    assert found is not None
    assert found.deleted
    assert other.pipes.live(row.id) == []
    assert {pipe.id for pipe in other.pipes.consumed()} == {"p1", "p2"}
    assert sorted(other.queues.delete(row.id)) == ["p1", "p2"], "done twice it does the same"


def test_nothing_is_added_to_a_deleted_queue(catalog: Catalog, other: Catalog) -> None:
    row = make_queue(catalog)
    version = groups_version(catalog)
    catalog.queues.delete(row.id)
    assert not other.pipes.add(pipe_row("late"))
    assert not other.queues.create_group(group_row("late"), {}, version)
    assert not other.queues.update(row.id, row.version, QueuePolicy(claim_timeout=1))


def test_the_name_of_a_deleted_queue_is_free(catalog: Catalog) -> None:
    catalog.queues.delete(make_queue(catalog).id)
    again = queue_row("q", "new id")
    assert catalog.queues.create(again, replace(group_row(), id="new", queue_id="new id"))
    assert catalog.queues.named("q") == again
    assert [row.deleted for row in catalog.queues.listed(deleted=True)] == [True]


def test_a_deleted_queue_is_forgotten_when_its_pipes_are(catalog: Catalog) -> None:
    row = make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p"))
    Consumer(catalog).claim(5)
    catalog.claims.intend(move_row(1, 1))
    catalog.queues.delete(row.id)
    catalog.queues.forget(row.id)
    assert catalog.queues.by_id(row.id) is not None, "a pipe is left"
    catalog.pipes.forget(["p"])
    for _ in range(2):
        catalog.queues.forget(row.id)
        assert catalog.queues.by_id(row.id) is None
        assert catalog.queues.groups(row.id) == []
        assert catalog.claims.cursors("q/default") == []
        assert catalog.claims.rows("q/default", "p") == []
        assert catalog.claims.moves("q/default", "p") == []
        assert catalog.pipes.retired(row.id) == []


def test_a_queue_that_is_not_deleted_is_not_forgotten(catalog: Catalog) -> None:
    row = make_queue(catalog)
    catalog.queues.forget(row.id)
    assert catalog.queues.named("q") == row
    assert catalog.queues.groups(row.id) == [group_row()]


# --- groups -----------------------------------------------------------------------------------


def test_a_group_is_created_only_with_the_current_version_of_the_groups(
    catalog: Catalog, other: Catalog
) -> None:
    row = make_queue(catalog)
    version = groups_version(catalog)
    assert catalog.queues.create_group(group_row("a"), {}, version)
    assert groups_version(other) == version + 1
    assert not other.queues.create_group(group_row("b"), {}, version), "a race that was lost"
    assert [group.name for group in other.queues.groups(row.id)] == ["a", "default"]
    assert groups_version(other) == version + 1


def test_a_group_s_name_is_given_once_a_queue(catalog: Catalog) -> None:
    make_queue(catalog)
    make_queue(catalog, "r")
    make_group(catalog, "a")
    version = groups_version(catalog)
    taken = replace(group_row("a"), id="another id")
    assert not catalog.queues.create_group(taken, {}, version)
    assert groups_version(catalog) == version
    make_group(catalog, "a", "r")


def test_a_group_needs_a_queue(catalog: Catalog) -> None:
    assert not catalog.queues.create_group(group_row("a"), {}, 1)


def test_a_new_group_starts_at_the_given_place_and_elsewhere_at_0(catalog: Catalog) -> None:
    make_queue(catalog)
    for pipe_id in ("p1", "p2"):
        assert catalog.pipes.add(pipe_row(pipe_id))
    make_group(catalog, "late", p1=place(7))
    assert catalog.pipes.add(pipe_row("p3"))
    at_7 = Consumer(catalog, "q/late", "p1").cursor
    assert (at_7.ack, at_7.chain, at_7.start) == (place(7), place(7), 7)
    for pipe_id in ("p2", "p3"):
        cursor = Consumer(catalog, "q/late", pipe_id).cursor
        assert (cursor.ack.seq, cursor.chain.seq, cursor.start) == (0, 0, 0)
    assert Consumer(catalog, "q/default", "p1").cursor.ack.seq == 0


def test_groups_are_listed_by_name_with_their_policies(catalog: Catalog) -> None:
    row = make_queue(catalog)
    policy = GroupPolicy(exclusive=True, claim_timeout=2.5, max_deliveries=3)
    late = replace(group_row("b"), policy=policy)
    assert catalog.queues.create_group(late, {}, groups_version(catalog))
    make_group(catalog, "a")
    assert catalog.queues.groups(row.id) == [group_row("a"), late, group_row("default")]


def test_a_group_s_policy_is_replaced_while_it_is_there(catalog: Catalog, other: Catalog) -> None:
    row = make_queue(catalog)
    policy = GroupPolicy(claim_timeout=2)
    assert other.queues.update_group("q/default", policy)
    assert [group.policy for group in catalog.queues.groups(row.id)] == [policy]
    assert not other.queues.update_group("unknown", policy)
    assert catalog.queues.delete_group("q/default")
    assert not other.queues.update_group("q/default", policy)


def test_a_deleted_group_takes_its_cursors_claims_and_moves_along(
    catalog: Catalog, other: Catalog
) -> None:
    row = make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p"))
    make_group(catalog, "a")
    for group in ("q/a", "q/default"):
        Consumer(catalog, group).claim(5)
        catalog.claims.intend(move_row(1, 1, group_id=group))
    version = groups_version(catalog)
    assert catalog.queues.delete_group("q/a")
    assert groups_version(catalog) == version + 1
    assert not other.queues.delete_group("q/a")
    assert [group.name for group in other.queues.groups(row.id)] == ["default"]
    assert other.claims.cursors("q/a") == []
    assert other.claims.rows("q/a", "p") == []
    assert other.claims.moves("q/a", "p") == []
    assert other.claims.cursor("q/a", "p") is None
    assert (
        len(other.claims.rows("q/default", "p")) == len(other.claims.moves("q/default", "p")) == 1
    )


# --- groups that expire -----------------------------------------------------------------------


def removal(at_ms: int = 5) -> Sample:
    """What tells of a removed group."""
    return Sample("removed", HOUR_MS, at_ms, '{"name": "a"}')


def make_expiring(catalog: Catalog, name: str, queue: str = "q") -> GroupRow:
    row = group_row(name, queue, group_expires=60)
    assert catalog.queues.create_group(row, {}, groups_version(catalog, queue))
    return row


def test_the_groups_that_expire_are_found_in_the_queues_that_are_named(catalog: Catalog) -> None:
    make_queue(catalog)
    make_queue(catalog, "r")
    make_group(catalog, "stays")
    mine, others = make_expiring(catalog, "a"), make_expiring(catalog, "b", "r")
    assert sorted(row.id for row in catalog.queues.expiring()) == [mine.id, others.id]
    assert catalog.queues.expiring(["id of r"]) == [others]
    assert catalog.queues.update_group(mine.id, GroupPolicy())
    assert catalog.queues.update_group("q/stays", GroupPolicy(group_expires=60))
    assert [row.id for row in catalog.queues.expiring(["id of q"])] == ["q/stays"]


def test_a_poll_is_noted_in_the_row_of_its_group(catalog: Catalog, other: Catalog) -> None:
    queue = make_queue(catalog)
    row = make_expiring(catalog, "a")
    assert catalog.queues.poll_group(row, 77)
    assert other.queues.groups(queue.id) == [replace(row, polled_ms=77), group_row()]
    assert other.queues.update_group(row.id, GroupPolicy(group_expires=30))
    assert [group.polled_ms for group in catalog.queues.expiring()] == [77]
    assert catalog.queues.delete_group(row.id)
    assert not other.queues.poll_group(row, 78)
    assert catalog.queues.groups(queue.id) == [group_row()]


@pytest.mark.parametrize("polled", [False, True])
def test_a_group_expires_with_its_cursors_and_claims_and_leaves_a_sample(
    catalog: Catalog, other: Catalog, polled: bool
) -> None:
    queue = make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p"))
    row = make_expiring(catalog, "a")
    Consumer(catalog, row.id).claim(5)
    if polled:
        assert catalog.queues.poll_group(row, 77)
        row = replace(row, polled_ms=77)
    version = groups_version(catalog)
    assert other.queues.expire_group(row, removal())
    assert not other.queues.expire_group(row, removal())
    assert groups_version(catalog) == version + 1
    assert catalog.queues.groups(queue.id) == [group_row()]
    assert catalog.claims.cursors(row.id) == []
    assert catalog.claims.rows(row.id, "p") == []
    assert catalog.records.samples("removed", HOUR_MS, 0) == [removal()]


def test_a_group_that_was_polled_meanwhile_does_not_expire(
    catalog: Catalog, other: Catalog
) -> None:
    queue = make_queue(catalog)
    row = make_expiring(catalog, "a")
    assert other.queues.poll_group(row, 77)
    assert not catalog.queues.expire_group(row, removal())
    assert other.queues.poll_group(row, 78)
    assert not catalog.queues.expire_group(replace(row, polled_ms=77), removal())
    assert [group.name for group in catalog.queues.groups(queue.id)] == ["a", "default"]
    assert catalog.records.samples("removed", HOUR_MS, 0) == []


def test_the_samples_of_groups_that_expire_at_one_time_do_not_replace_one_another(
    catalog: Catalog,
) -> None:
    make_queue(catalog)
    for number in range(3):
        row = make_expiring(catalog, f"a{number}")
        assert catalog.queues.expire_group(row, replace(removal(), data=f'"{number}"'))
    found = catalog.records.samples("removed", HOUR_MS, 0)
    assert [(sample.at_ms, sample.data) for sample in found] == [(5, '"0"'), (6, '"1"'), (7, '"2"')]


def test_creating_a_group_and_retiring_a_pipe_cannot_miss_each_other(
    catalog: Catalog, other: Catalog
) -> None:
    """A pipe retired between the listing and the creation would be missing from the new group."""
    make_queue(catalog)
    for pipe_id in ("p1", "p2"):
        assert catalog.pipes.add(pipe_row(pipe_id))
        assert catalog.pipes.record_end(pipe_id, place(5)) == place(5)
        consumer = Consumer(catalog, "q/default", pipe_id)
        assert consumer.finish(consumer.claim(5))
    seen = groups_version(catalog)
    assert other.pipes.retire(["p1"], seen)
    assert not catalog.queues.create_group(group_row("a"), {"p1": place(0)}, seen)
    seen = groups_version(catalog)
    assert catalog.queues.create_group(group_row("a"), {"p1": place(3), "p2": place(0)}, seen)
    assert not other.pipes.retire(["p2"], seen), "the retirer did not know of the new group"
    retired = other.pipes.retire(["p2"], groups_version(other))
    assert not retired, "and the new group has it all to do"
    assert [cursor.pipe_id for cursor in catalog.claims.cursors("q/a")] == ["p2"]
    pipe = catalog.pipes.by_id("p1")
    assert pipe is not None
    assert pipe.state is PipeState.CONSUMED


# --- leases -----------------------------------------------------------------------------------


def test_a_lease_has_one_owner_until_it_runs_out(
    catalog: Catalog, other: Catalog, clock: ManualClock
) -> None:
    assert catalog.leases.take("l", "me", 1000) == 1
    assert other.leases.take("l", "you", 1000) is None
    clock.advance(0.999)
    assert other.leases.take("l", "you", 1000) is None
    clock.advance(0.001)
    assert other.leases.take("l", "you", 1000) == 2
    assert catalog.leases.take("l", "me", 1000) is None


def test_taking_one_s_own_again_extends_it_and_keeps_the_epoch(
    catalog: Catalog, other: Catalog, clock: ManualClock
) -> None:
    for _ in range(5):
        assert catalog.leases.take("l", "me", 1000) == 1
        clock.advance(0.9)
    assert other.leases.take("l", "you", 1000) is None


def test_one_s_own_that_ran_out_is_a_new_lease(catalog: Catalog, clock: ManualClock) -> None:
    assert catalog.leases.take("l", "me", 1000) == 1
    clock.advance(1)
    assert catalog.leases.take("l", "me", 1000) == 2


def test_epochs_only_grow_also_over_a_lease_given_back(catalog: Catalog, other: Catalog) -> None:
    for epoch in range(1, 6):
        holder, name = (catalog, "me") if epoch % 2 else (other, "you")
        assert holder.leases.take("l", name, 1000) == epoch
        holder.leases.drop("l", name)


def test_a_lease_is_given_back_by_its_owner_alone(catalog: Catalog, other: Catalog) -> None:
    assert catalog.leases.take("l", "me", 1000) == 1
    other.leases.drop("l", "you")
    other.leases.drop("unknown", "you")
    assert other.leases.take("l", "you", 1000) is None
    catalog.leases.drop("l", "me")
    assert other.leases.take("l", "you", 1000) == 2


@pytest.mark.parametrize("name", ["l", "turn:1"])
def test_the_holder_of_a_lease_can_be_asked(
    catalog: Catalog, other: Catalog, clock: ManualClock, name: str
) -> None:
    assert other.leases.owner(name) is None
    assert catalog.leases.take(name, "me", 1000) is not None
    assert other.leases.owner(name) == "me"
    clock.advance(1)
    assert other.leases.owner(name) is None
    assert catalog.leases.take(name, "me", 1000) is not None
    other.leases.drop(name, "you")
    assert other.leases.owner(name) == "me"
    catalog.leases.drop(name, "me")
    assert other.leases.owner(name) is None
    assert other.leases.take(name, "you", 1000) is not None


def test_the_lock_of_a_pipe_that_is_gone_is_forgotten(catalog: Catalog) -> None:
    for _ in range(3):
        assert catalog.leases.take("pop:g:gone", "me", 1000) == 1, "it began anew"
        catalog.leases.drop("pop:g:gone", "me")


def test_leases_of_different_names_are_apart(catalog: Catalog, other: Catalog) -> None:
    assert catalog.leases.take("a", "me", 1000) == 1
    assert other.leases.take("b", "you", 1000) == 1


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_a_jump_of_the_wall_clock_ends_no_lease_and_keeps_none(
    catalog: Catalog, other: Catalog, clock: ManualClock, jump: float
) -> None:
    assert catalog.leases.take("l", "me", 1000) == 1
    clock.jump_wall(jump)
    assert other.leases.take("l", "you", 1000) is None
    clock.advance(1)
    assert other.leases.take("l", "you", 1000) == 2


# --- what the poppers of a group share ----------------------------------------------------------


def test_a_shared_text_is_replaced_only_by_a_client_that_knows_it(
    catalog: Catalog, other: Catalog
) -> None:
    assert catalog.leases.shared("rate:g") == ""
    assert catalog.leases.swap("rate:g", "", "1 a")
    assert other.leases.shared("rate:g") == "1 a"
    assert not other.leases.swap("rate:g", "", "2 b")
    assert other.leases.swap("rate:g", "1 a", "2 b")
    assert not catalog.leases.swap("rate:g", "1 a", "3 a")
    assert catalog.leases.shared("rate:g") == "2 b"
    assert not catalog.leases.swap("rate:g", "1 a", "")
    assert catalog.leases.swap("rate:g", "2 b", "")
    assert other.leases.shared("rate:g") == ""
    assert other.leases.swap("rate:g", "", "4 b")


def test_what_a_group_shared_goes_with_it(catalog: Catalog) -> None:
    make_queue(catalog)
    make_group(catalog, "a")
    names = *limit_names("q/a"), released_name("q/a"), line_name("q/a")
    for name in names:
        assert catalog.leases.swap(name, "", "1 a")
    assert catalog.queues.delete_group("q/a")
    assert [catalog.leases.shared(name) for name in names] == [""] * len(names)
