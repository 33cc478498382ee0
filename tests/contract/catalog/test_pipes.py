"""The Catalog port: pipes, from ready to gone, and the totals they leave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.base.clock import SystemClock
from cassq.catalog.port import Catalog
from cassq.message.frames import Place
from cassq.model.rows import GroupRow, PipeState, Reason, Removed, Retired, RetiredSum, summed
from tests.contract.rows import (
    Consumer,
    group_row,
    groups_version,
    make_group,
    make_queue,
    move_row,
    pipe_row,
    place,
)

QUEUE_ID = "id of q"
DEFAULT = group_row()


def add(catalog: Catalog, *pipe_ids: str, **changes: object) -> None:
    for pipe_id in pipe_ids:
        assert catalog.pipes.add(pipe_row(pipe_id, **changes))


def seal(catalog: Catalog, pipe_id: str, count: int) -> None:
    assert catalog.pipes.record_end(pipe_id, place(count)) == place(count)


def finish(catalog: Catalog, pipe_id: str, count: int, group: str = "q/default") -> None:
    """Claim and ack the next `count` messages."""
    consumer = Consumer(catalog, group, pipe_id)
    assert consumer.finish(consumer.claim(count))


def unclaimed(catalog: Catalog, group: GroupRow = DEFAULT, limit: int = 1000) -> list[str]:
    return [pipe.id for pipe in catalog.pipes.unclaimed(group, limit)]


def unacked(catalog: Catalog, group: GroupRow = DEFAULT, limit: int = 1000) -> list[str]:
    return [pipe.id for pipe in catalog.pipes.unclaimed(group, limit, unacked=True)]


# --- coming -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [PipeState.READY, PipeState.OPEN])
def test_a_pipe_is_there_for_all_once_it_is_added(
    catalog: Catalog, other: Catalog, state: PipeState
) -> None:
    make_queue(catalog)
    row = pipe_row("p", state=state, owner="me", created_ms=123, lease_ms=456)
    assert catalog.pipes.add(row)
    found = other.pipes.by_id("p")
    assert found is not None
    assert replace(found, ordinal=0) == row
    assert other.pipes.live(QUEUE_ID) == [found]
    assert other.pipes.ids() == {"p"}


def test_a_pipe_can_be_added_with_its_end(catalog: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p", state=PipeState.SEALED, end=place(9))
    (found,) = catalog.pipes.live(QUEUE_ID)
    assert (found.state, found.end) == (PipeState.SEALED, place(9))


def test_a_pipe_needs_a_queue(catalog: Catalog) -> None:
    assert not catalog.pipes.add(pipe_row("p"))
    assert catalog.pipes.by_id("p") is None
    assert catalog.pipes.ids() == set()


def test_a_pipe_that_is_there_is_not_added_again(catalog: Catalog, other: Catalog) -> None:
    """As when two find the same file without a row."""
    make_queue(catalog)
    add(catalog, "p", owner="me")
    assert not other.pipes.add(pipe_row("p", owner="you"))
    found = catalog.pipes.by_id("p")
    assert found is not None
    assert found.owner == "me"


def test_pipes_are_listed_in_the_order_they_came(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    make_queue(catalog, "r")
    for number, pipe_id in enumerate(("c", "a", "b")):
        add(other if number % 2 else catalog, pipe_id, created_ms=100 - number)
    assert catalog.pipes.add(pipe_row("x", "r"))
    assert [pipe.id for pipe in catalog.pipes.live(QUEUE_ID)] == ["c", "a", "b"]
    ordinals = [pipe.ordinal for pipe in catalog.pipes.live(QUEUE_ID)]
    assert ordinals == sorted(set(ordinals))
    assert catalog.pipes.ids() == {"a", "b", "c", "x"}


def test_an_ordinal_is_not_given_again(catalog: Catalog) -> None:
    row = make_queue(catalog)
    add(catalog, "p1")
    first = catalog.pipes.live(QUEUE_ID)[0].ordinal
    seal(catalog, "p1", 0)
    assert catalog.pipes.retire(["p1"], groups_version(catalog))
    catalog.pipes.forget(["p1"])
    add(catalog, "p2")
    assert catalog.pipes.live(row.id)[0].ordinal > first


# --- the life of an owner ---------------------------------------------------------------------


def test_a_beat_shows_that_the_owner_is_alive(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p", state=PipeState.READY, owner="me")
    for beats, state in enumerate((PipeState.READY, PipeState.OPEN, PipeState.OPEN), 1):
        assert catalog.pipes.beat("p", "me", state)
        found = other.pipes.by_id("p")
        assert found is not None
        assert (found.beat, found.state) == (beats, state)


def test_only_its_owner_renews_a_pipe(catalog: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p", owner="me")
    assert not catalog.pipes.beat("p", "you", PipeState.OPEN)
    assert not catalog.pipes.beat("unknown", "me", PipeState.OPEN)
    found = catalog.pipes.by_id("p")
    assert found is not None
    assert found.beat == 0


def test_a_beat_of_a_sealed_pipe_is_refused(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p", owner="me")
    seal(other, "p", 5)
    assert not catalog.pipes.beat("p", "me", PipeState.OPEN)
    found = catalog.pipes.by_id("p")
    assert found is not None
    assert found.state is PipeState.SEALED


# --- sealing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [PipeState.READY, PipeState.OPEN])
def test_an_end_is_recorded_once_and_for_all(
    catalog: Catalog, other: Catalog, state: PipeState
) -> None:
    make_queue(catalog)
    add(catalog, "p", state=state)
    assert catalog.pipes.record_end("p", place(5)) == place(5)
    for late in (place(4), place(6)):
        assert other.pipes.record_end("p", late) == place(5)
    found = other.pipes.by_id("p")
    assert found is not None
    assert (found.end, found.state) == (place(5), PipeState.SEALED)


def test_a_pipe_was_sealed_when_its_end_was_recorded_or_at_an_unknown_time(
    catalog: Catalog, other: Catalog
) -> None:
    make_queue(catalog)
    add(catalog, "open")
    add(catalog, "sealed")
    before_ms = SystemClock().wall_ms() - 1000  # servers' clocks may round
    assert catalog.pipes.record_end("sealed", place(5)) == place(5)
    found = other.pipes.sealed_ms(["open", "sealed", "gone"])
    assert all(before_ms <= found[pipe_id] for pipe_id in found)
    assert set(found) <= {"sealed"}


def test_the_end_of_a_pipe_that_is_gone_is_none(catalog: Catalog) -> None:
    assert catalog.pipes.record_end("p", place(5)) is None


def test_the_end_of_a_pipe_of_a_deleted_queue_is_none(catalog: Catalog) -> None:
    row = make_queue(catalog)
    add(catalog, "p")
    catalog.queues.delete(row.id)
    assert catalog.pipes.record_end("p", place(5)) is None
    assert [pipe.state for pipe in catalog.pipes.consumed()] == [PipeState.CONSUMED]


# --- what is left to do -----------------------------------------------------------------------


def test_pipes_with_something_to_claim_come_oldest_first(catalog: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "b", "a", "c")
    assert unclaimed(catalog) == unacked(catalog) == ["b", "a", "c"]
    assert unclaimed(catalog, limit=2) == ["b", "a"]


def test_a_sealed_pipe_claimed_to_its_end_is_left_out(catalog: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p1", "p2")
    seal(catalog, "p1", 5)
    consumer = Consumer(catalog, pipe_id="p1")
    first = consumer.claim(4)
    assert unclaimed(catalog) == ["p1", "p2"], "one message is left"
    last = consumer.claim(1)
    assert unclaimed(catalog) == ["p2"]
    assert unacked(catalog) == ["p1", "p2"], "nothing is acked"
    assert consumer.finish(first)
    assert unacked(catalog) == ["p1", "p2"]
    assert consumer.finish(last)
    assert unacked(catalog) == ["p2"]


def test_an_open_pipe_may_get_more_however_much_is_claimed(catalog: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p")
    finish(catalog, "p", 5)
    assert unclaimed(catalog) == unacked(catalog) == ["p"]


def test_an_empty_sealed_pipe_has_nothing_to_claim(catalog: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p")
    seal(catalog, "p", 0)
    assert unclaimed(catalog) == unacked(catalog) == []


def test_each_group_has_its_own_left_to_do(catalog: Catalog) -> None:
    make_queue(catalog)
    make_queue(catalog, "r")
    add(catalog, "p1", "p2")
    seal(catalog, "p1", 5)
    late = make_group(catalog, "late", p1=place(5))
    early = make_group(catalog, "early")
    finish(catalog, "p1", 5, "q/default")
    assert unclaimed(catalog) == unclaimed(catalog, late) == ["p2"]
    assert unclaimed(catalog, early) == ["p1", "p2"]
    assert unclaimed(catalog, group_row("default", "r")) == []


@pytest.mark.long(reason="hundreds of pipes")
@pytest.mark.parametrize("ask", [unclaimed, unacked])
def test_many_pipes_done_hide_none_that_is_not(catalog: Catalog, ask: object) -> None:
    """More than what a catalog may skip by a stored bound: what it skips must be done."""
    make_queue(catalog)
    make_group(catalog, "slow")
    names = [f"p{number:03}" for number in range(200)]
    add(catalog, *names)
    for number, name in enumerate(names):
        seal(catalog, name, 1)
        if number % 50 != 49:
            finish(catalog, name, 1)
        if number % 20 == 0:
            ask(catalog)  # type: ignore[operator]
    left = [name for number, name in enumerate(names) if number % 50 == 49]
    for done in range(len(left) + 1):
        for _ in range(2):
            assert ask(catalog) == left[done:]  # type: ignore[operator]
        if done < len(left):
            finish(catalog, left[done], 1)
    add(catalog, "new")
    assert ask(catalog) == ["new"]  # type: ignore[operator]
    assert ask(catalog, group_row("slow")) == [*names, "new"]  # type: ignore[operator]


# --- retiring ---------------------------------------------------------------------------------


def test_a_pipe_is_retired_when_every_group_has_acked_it_all(
    catalog: Catalog, other: Catalog
) -> None:
    make_queue(catalog)
    make_group(catalog, "second")
    add(catalog, "p")
    seal(catalog, "p", 5)
    finish(catalog, "p", 5, "q/default")
    finish(catalog, "p", 4, "q/second")
    assert not other.pipes.retire(["p"], groups_version(other))
    finish(catalog, "p", 1, "q/second")
    version = groups_version(catalog)
    assert other.pipes.retire(["p"], version)
    assert groups_version(catalog) == version + 1
    assert catalog.pipes.live(QUEUE_ID) == []
    assert [pipe.id for pipe in catalog.pipes.consumed()] == ["p"]
    assert catalog.claims.cursors("q/default") == catalog.claims.cursors("q/second") == []
    assert catalog.claims.cursor("q/default", "p") is None
    assert not other.pipes.retire(["p"], groups_version(other)), "it is retired once"


def test_of_pipes_retired_together_those_that_are_not_acked_stay(
    catalog: Catalog, other: Catalog
) -> None:
    make_queue(catalog)
    add(catalog, "p1", "p2", "p3", "open")
    for pipe_id in ("p1", "p2", "p3"):
        seal(catalog, pipe_id, 2)
        finish(catalog, pipe_id, 1 if pipe_id == "p2" else 2)
    version = groups_version(catalog)
    pipe_ids = ["p3", "gone", "p2", "open", "p1"]
    assert other.pipes.retire(pipe_ids, version) == ["p3", "p1"]
    assert groups_version(catalog) == version + 1
    assert [pipe.id for pipe in catalog.pipes.live(QUEUE_ID)] == ["p2", "open"]
    assert {pipe.id for pipe in catalog.pipes.consumed()} == {"p1", "p3"}
    for pipe_id in ("p1", "p3"):
        (left,) = catalog.pipes.retired(QUEUE_ID, pipe_id)
        assert (left.pushed, left.start) == (2, 0)
    assert [cursor.pipe_id for cursor in catalog.claims.cursors("q/default")] == ["p2"]
    assert catalog.pipes.retire([], groups_version(catalog)) == []


def test_only_pipes_of_one_queue_are_retired_together(catalog: Catalog) -> None:
    """They have one version of groups to be retired under."""
    make_queue(catalog)
    make_queue(catalog, "r")
    add(catalog, "p")
    assert catalog.pipes.add(pipe_row("x", "r"))
    seal(catalog, "p", 0)
    seal(catalog, "x", 0)
    assert catalog.pipes.retire(["p", "x"], groups_version(catalog)) == ["p"]
    assert [pipe.id for pipe in catalog.pipes.consumed()] == ["p"]
    assert catalog.pipes.retire(["p", "x"], groups_version(catalog, "r")) == ["x"]


def test_what_is_claimed_and_not_acked_keeps_a_pipe(catalog: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p")
    seal(catalog, "p", 5)
    consumer = Consumer(catalog)
    first, second = consumer.claim(2), consumer.claim(3)
    assert consumer.finish(second)
    assert not catalog.pipes.retire(["p"], groups_version(catalog))
    assert consumer.finish(first)
    assert catalog.pipes.retire(["p"], groups_version(catalog))


def test_an_unsealed_pipe_is_not_retired(catalog: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p")
    finish(catalog, "p", 5)
    assert not catalog.pipes.retire(["p"], groups_version(catalog))
    assert not catalog.pipes.retire(["unknown"], groups_version(catalog))


def test_an_empty_pipe_is_retired_though_no_group_ever_looked_at_it(catalog: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p")
    seal(catalog, "p", 0)
    assert catalog.pipes.retire(["p"], groups_version(catalog))


def test_a_group_that_never_looked_at_a_pipe_keeps_it(catalog: Catalog) -> None:
    make_queue(catalog)
    make_group(catalog, "asleep")
    add(catalog, "p")
    seal(catalog, "p", 1)
    finish(catalog, "p", 1)
    assert not catalog.pipes.retire(["p"], groups_version(catalog))


def test_a_queue_without_groups_retires_nothing(catalog: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p")
    seal(catalog, "p", 0)
    assert catalog.queues.delete_group("q/default")
    assert not catalog.pipes.retire(["p"], groups_version(catalog))


def test_a_retirement_with_outdated_groups_is_refused(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p")
    seal(catalog, "p", 5)
    finish(catalog, "p", 5)
    seen = groups_version(catalog)
    make_group(other, "new", p=place(5))
    assert not catalog.pipes.retire(["p"], seen)
    assert catalog.pipes.retire(["p"], groups_version(catalog))


def test_a_pipe_that_a_message_may_be_moving_into_is_kept(catalog: Catalog) -> None:
    """Its mover may still have to look whether the message arrived."""
    make_queue(catalog)
    add(catalog, "p", "dead")
    seal(catalog, "dead", 3)
    finish(catalog, "dead", 3)
    row = Consumer(catalog).claim(1)
    move = catalog.claims.intend(move_row(0, 2))
    assert not catalog.pipes.retire(["dead"], groups_version(catalog))
    assert catalog.claims.replace(row, Consumer(catalog).acked(row, 0, 1), settle=[move])
    assert catalog.pipes.retire(["dead"], groups_version(catalog))


def test_the_totals_of_a_retired_pipe_are_written_once_a_group(
    catalog: Catalog, other: Catalog
) -> None:
    make_queue(catalog)
    make_queue(catalog, "r")
    add(catalog, "p", "dead")
    make_group(catalog, "late", p=place(4))
    consumer = Consumer(catalog)
    row = consumer.claim(6)
    move = catalog.claims.intend(move_row(2, 0))
    assert catalog.claims.replace(row, consumer.acked(row, 0, 6), settle=[move])
    finish(catalog, "p", 2, "q/late")
    seal(catalog, "p", 6)
    assert catalog.pipes.retired(QUEUE_ID) == []
    assert catalog.pipes.retire(["p"], groups_version(catalog))
    expected = [
        Retired("p", "q/default", QUEUE_ID, start=0, pushed=6, dead=1),
        Retired("p", "q/late", QUEUE_ID, start=4, pushed=6, dead=0),
    ]
    assert sorted(other.pipes.retired(QUEUE_ID), key=lambda row: row.group_id) == expected
    assert catalog.claims.moves("q/default", "p") == []
    assert catalog.pipes.retired("id of r") == catalog.pipes.retired("id of r", "p") == []
    assert catalog.pipes.retired(QUEUE_ID, "p") == catalog.pipes.retired(QUEUE_ID)
    assert catalog.pipes.retired(QUEUE_ID, "dead") == []
    catalog.pipes.forget(["p"])
    assert len(catalog.pipes.retired(QUEUE_ID)) == 2, "they stay when the pipe is forgotten"


def test_the_totals_of_retired_pipes_are_added_up_a_group_and_for_the_queue(
    catalog: Catalog, other: Catalog
) -> None:
    make_queue(catalog)
    make_queue(catalog, "r")
    add(catalog, "p", "s", "live")
    make_group(catalog, "late", p=place(4))
    assert catalog.pipes.retired_sums(QUEUE_ID) == []
    consumer = Consumer(catalog)
    row = consumer.claim(6)
    gone = [Removed("q/default", "p", 1, 4, Reason.EXPIRED, 0)]
    assert catalog.claims.replace(row, consumer.acked(row, 0, 6), removed=gone)
    finish(catalog, "p", 2, "q/late")
    finish(catalog, "s", 3, "q/default")
    finish(catalog, "s", 3, "q/late")
    for pipe_id, end in {"s": 3, "p": 6}.items():
        seal(catalog, pipe_id, end)
        assert catalog.pipes.retire([pipe_id], groups_version(catalog))
    expected = {
        RetiredSum("", pipes=2, start=0, pushed=9, dead=0),
        RetiredSum("q/default", pipes=2, start=0, pushed=9, dead=0, expired=3),
        RetiredSum("q/late", pipes=2, start=4, pushed=9, dead=0),
    }
    assert set(other.pipes.retired_sums(QUEUE_ID)) == expected
    assert set(summed(other.pipes.retired(QUEUE_ID))) == expected
    assert not catalog.pipes.retire(["p"], groups_version(catalog))
    catalog.pipes.forget(["p", "s"])
    assert set(catalog.pipes.retired_sums(QUEUE_ID)) == expected, "once, and for good"
    assert catalog.pipes.retired_sums("id of r") == []


def test_the_sums_of_a_deleted_queue_are_forgotten_with_it(catalog: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p")
    seal(catalog, "p", 0)
    assert catalog.pipes.retire(["p"], groups_version(catalog))
    assert catalog.pipes.retired_sums(QUEUE_ID) != []
    catalog.pipes.forget(catalog.queues.delete(QUEUE_ID))
    catalog.queues.forget(QUEUE_ID)
    assert catalog.pipes.retired_sums(QUEUE_ID) == []


def test_only_a_consumed_pipe_is_forgotten(catalog: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "gone", "open", "sealed")
    for pipe_id, count in (("gone", 0), ("sealed", 3)):
        seal(catalog, pipe_id, count)
    Consumer(catalog, pipe_id="open").claim(2)
    Consumer(catalog, pipe_id="sealed").claim(2)
    assert catalog.pipes.retire(["gone"], groups_version(catalog))
    for _ in range(2):
        catalog.pipes.forget(["gone", "open", "sealed", "unknown"])
        assert catalog.pipes.ids() == {"open", "sealed"}
        assert catalog.pipes.consumed() == []
        assert catalog.pipes.record_end("gone", place(1)) is None
    assert [Consumer(catalog, pipe_id=p).cursor.chain.seq for p in ("open", "sealed")] == [2, 2]


# --- strict queues ----------------------------------------------------------------------------


def tail(catalog: Catalog) -> str:
    row = catalog.queues.named("q")
    assert row is not None
    return row.tail


def test_the_pipes_of_a_strict_queue_follow_one_another(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog, consistency="cp")
    add(catalog, "p1", predecessor="")
    assert tail(other) == "p1"
    second = pipe_row("p2", predecessor="p1")
    assert not other.pipes.add(second), "the one before it is open"
    seal(catalog, "p1", 5)
    assert not other.pipes.add(pipe_row("p2", predecessor="")), "it is not the first"
    assert not other.pipes.add(pipe_row("p2", predecessor="p0")), "it does not follow the last"
    assert other.pipes.add(second)
    assert tail(catalog) == "p2"
    assert [pipe.predecessor for pipe in catalog.pipes.live(QUEUE_ID)] == ["", "p1"]


def test_of_two_successors_of_a_pipe_one_is_added(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog, consistency="cp")
    add(catalog, "p1")
    seal(catalog, "p1", 5)
    assert catalog.pipes.add(pipe_row("mine", predecessor="p1"))
    assert not other.pipes.add(pipe_row("theirs", predecessor="p1"))
    assert other.pipes.by_id("theirs") is None
    assert tail(other) == "mine"


def test_a_strict_queue_goes_on_after_a_pipe_that_is_gone(catalog: Catalog) -> None:
    make_queue(catalog, consistency="cp")
    add(catalog, "p1")
    seal(catalog, "p1", 0)
    assert catalog.pipes.retire(["p1"], groups_version(catalog))
    assert catalog.pipes.add(pipe_row("p2", predecessor="p1")), "consumed is sealed"
    seal(catalog, "p2", 0)
    assert catalog.pipes.retire(["p2"], groups_version(catalog))
    catalog.pipes.forget(["p1", "p2"])
    assert not catalog.pipes.add(pipe_row("p3", predecessor=""))
    assert catalog.pipes.add(pipe_row("p3", predecessor="p2"))


def test_the_pipes_of_a_strict_queue_are_retired_in_their_order(
    catalog: Catalog, other: Catalog
) -> None:
    """That a pipe's predecessor is gone means to a reader that all before it is done."""
    make_queue(catalog, consistency="cp")
    before = ""
    for pipe_id in ("p1", "p2", "p3"):
        add(catalog, pipe_id, predecessor=before)
        seal(catalog, pipe_id, 1)
        before = pipe_id
    finish(catalog, "p2", 1)
    finish(catalog, "p3", 1)
    for pipe_id in ("p3", "p2", "p1"):
        assert not other.pipes.retire([pipe_id], groups_version(other))
    finish(catalog, "p1", 1)
    assert not other.pipes.retire(["p2"], groups_version(other)), "the one before it is still there"
    assert other.pipes.retire(["p1"], groups_version(other))
    assert other.pipes.retire(["p2"], groups_version(other)), "the one before it is consumed"
    other.pipes.forget(["p1", "p2"])
    assert other.pipes.retire(["p3"], groups_version(other)), "the one before it is gone"


def test_the_pipes_of_a_strict_queue_are_retired_together_up_to_one_that_stays(
    catalog: Catalog,
) -> None:
    make_queue(catalog, consistency="cp")
    pipe_ids = ["p1", "p2", "p3", "p4"]
    for before, pipe_id in zip(["", *pipe_ids], pipe_ids, strict=False):
        add(catalog, pipe_id, predecessor=before)
        seal(catalog, pipe_id, 1)
    for pipe_id in ("p1", "p2", "p4"):
        finish(catalog, pipe_id, 1)
    assert catalog.pipes.retire(pipe_ids, groups_version(catalog)) == ["p1", "p2"]
    finish(catalog, "p3", 1)
    assert catalog.pipes.retire(["p4"], groups_version(catalog)) == []
    assert catalog.pipes.retire(["p3", "p4"], groups_version(catalog)) == ["p3", "p4"]


def test_a_pipe_of_an_unordered_queue_follows_none(catalog: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p1", "p2")
    assert tail(catalog) == ""


def test_an_end_is_a_place_with_a_position(catalog: Catalog) -> None:
    make_queue(catalog)
    add(catalog, "p")
    far = Place((1 << 62) + 1, (1 << 62) + 3)
    assert catalog.pipes.record_end("p", far) == far
    found = catalog.pipes.by_id("p")
    assert found is not None
    assert found.end == far


def test_the_sums_of_many_retired_pipes_are_what_their_rows_say(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However a backend keeps them from being read again."""
    monkeypatch.setattr("cassq.catalog.sqlite.pipe_tables.SHEET_ROWS_MAX", 4)
    make_queue(catalog)
    make_group(catalog, "late")
    for number in range(11):
        pipe_id = f"p{number}"
        add(catalog, pipe_id)
        for group in catalog.queues.groups(QUEUE_ID):
            finish(catalog, pipe_id, number, group.id)
        seal(catalog, pipe_id, number)
        if number == 6:
            assert catalog.queues.delete_group("q/late")
        assert catalog.pipes.retire([pipe_id], groups_version(catalog))
        assert set(catalog.pipes.retired_sums(QUEUE_ID)) == set(
            summed(catalog.pipes.retired(QUEUE_ID))
        )
    (whole,) = [row for row in catalog.pipes.retired_sums(QUEUE_ID) if not row.group_id]
    assert (whole.pipes, whole.pushed) == (11, sum(range(11)))
