"""A sidecar's rules about its extents: every request in every state, opening, appending, marks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from cassq.extents.protocol.messages import (
    Append,
    Appended,
    Code,
    Done,
    Drop,
    Ends,
    EndsAre,
    Fence,
    List,
    Mark,
    Open,
    Read,
    Request,
    Settle,
    Turn,
    TurnAsked,
)
from cassq.sidecar.engine.checks import FRAME_BYTES_MAX, PIPE_ID_LENGTH_MAX, QUEUE_NAME_LENGTH_MAX
from cassq.sidecar.engine.port import Replica
from cassq.sidecar.engine.replica_state import ReplicaAnswer
from tests.unit.sidecar.replicas import OTHER, PIPE, Sidecar, a_frame, an_append, begun, copying


@pytest.fixture
def sidecar() -> Sidecar:
    return begun()


def fenced(sidecar: Sidecar) -> None:
    sidecar.does(Fence(PIPE, 2))


def settled(sidecar: Sidecar) -> None:
    sidecar.does(Settle(PIPE, 20))


def damaged(sidecar: Sidecar) -> None:
    sidecar.engine.note(PIPE, damage="a hole in it")


def gone(sidecar: Sidecar) -> None:
    sidecar.does(Drop([PIPE]))


def opened(_: Sidecar) -> None:
    """As it is."""


# What each request is answered in each state.
STATES: list[tuple[Callable[[Sidecar], None], Request, Code]] = [
    (opened, Open(PIPE, 1, "orders", False), Code.OK),
    (fenced, Open(PIPE, 1, "orders", False), Code.FENCED),
    (settled, Open(PIPE, 1, "orders", False), Code.FENCED),
    (damaged, Open(PIPE, 1, "orders", False), Code.DAMAGED),
    (copying, Open(PIPE, 1, "orders", False), Code.FENCED),
    (gone, Open(PIPE, 1, "orders", False), Code.OK),
    (opened, an_append(20), Code.OK),
    (fenced, an_append(20), Code.FENCED),
    (fenced, an_append(20, epoch=3), Code.FENCED),
    (fenced, an_append(10), Code.FENCED),
    (settled, an_append(20), Code.FENCED),
    (damaged, an_append(20), Code.DAMAGED),
    (copying, an_append(20), Code.FENCED),
    (gone, an_append(20), Code.UNKNOWN),
    (opened, Mark(PIPE, 1, 20, True), Code.OK),
    (fenced, Mark(PIPE, 1, 20, True), Code.OK),
    (settled, Mark(PIPE, 1, 20, True), Code.OK),
    (copying, Mark(PIPE, 1, 30, True), Code.OK),
    (gone, Mark(PIPE, 1, 20, True), Code.UNKNOWN),
    (opened, Read(PIPE, 0, 20, 100, 9, 0), Code.OK),
    (fenced, Read(PIPE, 0, 20, 100, 9, 0), Code.OK),
    (settled, Read(PIPE, 0, 20, 100, 9, 0), Code.OK),
    (damaged, Read(PIPE, 0, 20, 100, 9, 0), Code.OK),
    (damaged, Read(PIPE, 20, 30, 100, 9, 0), Code.DAMAGED),
    (copying, Read(PIPE, 0, 20, 100, 9, 0), Code.OK),
    (gone, Read(PIPE, 0, 20, 100, 9, 0), Code.UNKNOWN),
    (opened, Turn(PIPE), Code.OK),
    (fenced, Turn(PIPE), Code.OK),
    (gone, Turn(PIPE), Code.UNKNOWN),
    (opened, Fence(PIPE, 2), Code.OK),
    (fenced, Fence(PIPE, 2), Code.OK),
    (settled, Fence(PIPE, 2), Code.OK),
    (damaged, Fence(PIPE, 2), Code.DAMAGED),
    (copying, Fence(PIPE, 2), Code.OK),
    (gone, Fence(PIPE, 2), Code.UNKNOWN),
    (opened, Settle(PIPE, 10), Code.OK),
    (fenced, Settle(PIPE, 10), Code.OK),
    (settled, Settle(PIPE, 20), Code.OK),
    (settled, Settle(PIPE, 10), Code.CONFLICT),
    (damaged, Settle(PIPE, 10), Code.DAMAGED),
    (copying, Settle(PIPE, 20), Code.BUSY),
    (gone, Settle(PIPE, 10), Code.UNKNOWN),
    (opened, Drop([PIPE]), Code.OK),
    (settled, Drop([PIPE]), Code.OK),
    (damaged, Drop([PIPE]), Code.OK),
    (copying, Drop([PIPE]), Code.OK),
    (gone, Drop([PIPE]), Code.OK),
]


@pytest.mark.parametrize(("state", "request_", "code"), STATES)
def test_each_request_in_each_state(
    sidecar: Sidecar, state: Callable[[Sidecar], None], request_: Request, code: Code
) -> None:
    state(sidecar)
    if code is Code.OK:
        sidecar.does(request_)
    else:
        before = [replace(replica) for replica in sidecar.engine.replicas().values()]
        assert sidecar.code(request_) is code
        assert list(sidecar.engine.replicas().values()) == before


# --- open ---------------------------------------------------------------------------------------


def test_an_extent_is_opened_durably_and_once() -> None:
    sidecar = Sidecar()
    assert sidecar.outcome(Open(PIPE, 1, "orders", True)) == ReplicaAnswer(Done(), durable=True)
    made = sidecar.replica()
    assert made == Replica(PIPE, "orders", True, sidecar.clock.wall_ms(), 1)
    sidecar.clock.advance(9)
    sidecar.does(an_append(0))
    assert sidecar.outcome(Open(PIPE, 1, "orders", True)) == ReplicaAnswer(Done(), durable=True)
    assert sidecar.replica() is made
    assert made.end == 10


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (Open(PIPE, 1, "invoices", False), Code.CONFLICT),
        (Open(PIPE, 1, "orders", True), Code.CONFLICT),
        (Open(PIPE, 2, "orders", False), Code.CONFLICT),
        (Open(PIPE, 0, "orders", False), Code.MALFORMED),
        (Open("", 1, "orders", False), Code.MALFORMED),
        (Open("p" * (PIPE_ID_LENGTH_MAX + 1), 1, "orders", False), Code.MALFORMED),
        (Open(OTHER, 1, "q" * (QUEUE_NAME_LENGTH_MAX + 1), False), Code.MALFORMED),
    ],
)
def test_what_cannot_be_opened(sidecar: Sidecar, wrong: Open, code: Code) -> None:
    assert sidecar.code(wrong) is code
    assert list(sidecar.engine.replicas()) == [PIPE]


def test_an_older_epoch_does_not_open_what_a_newer_one_writes(sidecar: Sidecar) -> None:
    sidecar.does(an_append(20, epoch=2))
    assert sidecar.code(Open(PIPE, 1, "orders", False)) is Code.FENCED


def test_a_draining_sidecar_opens_nothing_new(sidecar: Sidecar) -> None:
    sidecar.replica_state.draining = True
    assert sidecar.code(Open(OTHER, 1, "orders", False)) is Code.DRAINING
    sidecar.does(Open(PIPE, 1, "orders", False))
    assert sidecar.does(an_append(20)) == Appended(30, False, True)


def test_a_read_only_sidecar_opens_and_takes_nothing_and_gives_what_it_has(
    sidecar: Sidecar,
) -> None:
    sidecar.engine.free_min = sidecar.engine.free + 1
    assert sidecar.code(Open(OTHER, 1, "orders", False)) is Code.FULL
    refusal = sidecar.refuses(an_append(20))
    assert (refusal.code, refusal.outcome_unknown, refusal.retryable) == (Code.FULL, False, True)
    assert len(sidecar.does(Read(PIPE, 0, 20, 1000, 9, 0)).frames) == 2 * len(a_frame(0))
    sidecar.does(Fence(PIPE, 2))
    sidecar.engine.free_min = 0
    sidecar.does(Open(OTHER, 1, "orders", False))


# --- append -------------------------------------------------------------------------------------


def test_frames_are_added_one_behind_the_other(sidecar: Sidecar) -> None:
    added = sidecar.outcome(an_append(20, 5, acked=15))
    assert added == ReplicaAnswer(Appended(25, False, False), durable=True, grown=PIPE)
    replica = sidecar.replica()
    assert (replica.end, replica.acked, replica.frames) == (25, 15, 3)
    assert replica.size_bytes == 2 * len(a_frame(0)) + len(a_frame(20, 5))


def test_a_frame_may_come_in_parts(sidecar: Sidecar) -> None:
    frame = a_frame(20)
    sidecar.does(an_append(20, frame=(frame[:32], frame[32:])))
    assert sidecar.does(Read(PIPE, 20, 30, 1, 1, 0)).frames == frame


def test_acknowledged_never_goes_back(sidecar: Sidecar) -> None:
    sidecar.does(an_append(20, acked=20))
    sidecar.does(an_append(30, acked=3))
    sidecar.does(Mark(PIPE, 1, 4, False))
    assert sidecar.replica().acked == 20


def test_the_same_frame_again_is_acknowledged_again(sidecar: Sidecar) -> None:
    again = sidecar.outcome(an_append(0))
    assert again == ReplicaAnswer(Appended(20, False, False), durable=True)
    assert sidecar.outcome(an_append(10, acked=20)).grown == PIPE
    assert (sidecar.replica().frames, sidecar.replica().acked) == (2, 20)


@pytest.mark.parametrize(
    "other",
    [
        an_append(0, 5),
        an_append(5, 5),
        an_append(10, frame=a_frame(10, fill=b"y")),
        an_append(15, 10),
    ],
)
def test_another_frame_in_the_place_of_one_is_refused(sidecar: Sidecar, other: Append) -> None:
    refusal = sidecar.refuses(other)
    assert (refusal.code, refusal.fields["end"]) == (Code.CONFLICT, 20)
    assert sidecar.replica().end == 20


def test_a_gap_is_refused_and_the_answer_says_where_it_begins(sidecar: Sidecar) -> None:
    refusal = sidecar.refuses(an_append(30))
    assert (refusal.code, refusal.fields["end"]) == (Code.GAP, 20)
    assert not refusal.outcome_unknown


GOOD = a_frame(20)


@pytest.mark.parametrize(
    "bad",
    [
        an_append(20, frame=b""),
        an_append(20, frame=b"no frame at all, but of some length"),
        an_append(20, frame=GOOD[:-1]),
        an_append(20, frame=GOOD[:31]),
        an_append(20, frame=GOOD + b"\0"),
        an_append(20, frame=GOOD + GOOD),
        an_append(20, frame=GOOD[:-1] + b"z"),
        an_append(20, frame=a_frame(20, pipe_id=OTHER)),
        an_append(20, frame=a_frame(10)),
        an_append(20, messages=9),
        structs.replace(an_append(20), base_seq=-1),
    ],
)
def test_anything_but_a_whole_frame_of_the_extent_is_refused(sidecar: Sidecar, bad: Append) -> None:
    assert sidecar.code(bad) is Code.BAD_FRAME
    assert sidecar.replica().end == 20


@pytest.mark.parametrize("at", range(0, len(GOOD), 7))
def test_a_frame_with_any_byte_changed_is_refused(sidecar: Sidecar, at: int) -> None:
    changed = bytearray(GOOD)
    changed[at] ^= 0x10
    assert sidecar.code(an_append(20, frame=bytes(changed))) is Code.BAD_FRAME


def test_a_frame_over_the_limit_is_refused(sidecar: Sidecar) -> None:
    assert sidecar.code(an_append(20, frame=bytes(FRAME_BYTES_MAX + 1))) is Code.TOO_LARGE


def test_a_newer_epoch_takes_over_and_the_older_one_is_refused(sidecar: Sidecar) -> None:
    sidecar.does(an_append(20, epoch=2))
    assert sidecar.replica().epoch == 2
    refusal = sidecar.refuses(an_append(30, epoch=1))
    assert (refusal.code, refusal.fields["end"]) == (Code.FENCED, 30)
    assert sidecar.code(an_append(20, epoch=1)) is Code.FENCED
    sidecar.does(an_append(30, epoch=2))


def test_more_acknowledged_than_a_replica_has_shows_that_it_lost_some(sidecar: Sidecar) -> None:
    assert sidecar.code(an_append(30, acked=21)) is Code.DAMAGED
    assert "ends at 20" in sidecar.replica().damage
    assert sidecar.code(an_append(20)) is Code.DAMAGED
    assert sidecar.code(Fence(PIPE, 2)) is Code.DAMAGED


def test_a_frame_that_changed_on_disk_is_not_acknowledged_again(sidecar: Sidecar) -> None:
    sidecar.engine.flip(PIPE, 10)
    assert sidecar.code(an_append(10)) is Code.DAMAGED
    assert sidecar.replica().damage == "the frame at seq 10 has changed"


def test_a_disk_that_fails_leaves_it_open_what_was_done(sidecar: Sidecar) -> None:
    sidecar.engine.failing = True
    refusal = sidecar.refuses(an_append(20))
    assert (refusal.code, refusal.outcome_unknown) == (Code.FAILED, True)
    assert sidecar.code(Fence(PIPE, 2)) is Code.FAILED
    assert sidecar.replica().end == 20
    assert not sidecar.replica().fenced


def test_damage_is_reported_by_an_engine_that_failed_until_it_ends(
    sidecar: Sidecar, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="cassq")
    sidecar.does(Open(OTHER, 1, "orders", False))
    sidecar.engine.sync()
    sidecar.engine.failing = True
    assert sidecar.engine.failure == ""
    assert sidecar.code(an_append(20)) is Code.FAILED
    assert sidecar.engine.failure == "the disk failed"
    sidecar.replica_state.found(PIPE, "a frame is bad")
    (extent,) = sidecar.does(List("", 10, "damaged")).extents
    assert (extent.pipe_id, extent.damage) == (PIPE, "a frame is bad")
    assert caplog.text.count("not be recorded: the disk failed") == 1
    assert sidecar.code(Fence(PIPE, 2)) is Code.DAMAGED
    assert sidecar.code(Fence(OTHER, 2)) is Code.FAILED
    sidecar.crash()
    assert sidecar.engine.failure == ""
    assert not sidecar.replica().damage


# --- turns, marks, ends -------------------------------------------------------------------------


def test_a_wanted_turn_is_reported_to_the_writer_once(sidecar: Sidecar) -> None:
    sidecar.clock.advance(3)
    assert sidecar.does(Turn(PIPE)) == TurnAsked(3000)
    sidecar.refuses(an_append(40))
    assert sidecar.does(an_append(20)).turn
    assert not sidecar.does(an_append(30)).turn
    assert sidecar.does(Turn(PIPE)) == TurnAsked(0)


def test_idle_time_after_a_start_counts_from_it(sidecar: Sidecar) -> None:
    sidecar.clock.advance(100)
    sidecar.engine.sync()
    sidecar.crash()
    sidecar.clock.advance(2)
    assert sidecar.does(Turn(PIPE)) == TurnAsked(2000)


def test_ends_tell_how_far_each_extent_is(sidecar: Sidecar) -> None:
    sidecar.does(Open(OTHER, 1, "orders", False))
    sidecar.clock.advance(1.5)
    ends = Ends([(PIPE, 0), ("none", 3), (OTHER, 0)], 0)
    found = sidecar.outcome(ends)
    assert found == ReplicaAnswer(
        EndsAre([(5, 20, False, False, 1500), None, (0, 0, False, False, 1500)])
    )
    assert sidecar.outcome(Mark(PIPE, 1, 20, False)) == ReplicaAnswer(Done(), grown=PIPE)
    assert sidecar.does(ends).ends[0] == (20, 20, False, False, 1500)
    assert sidecar.outcome(Mark(PIPE, 1, 20, False)).grown == ""
    assert sidecar.outcome(Mark(PIPE, 1, 20, True)).grown == PIPE
    assert sidecar.does(ends).ends[0] == (20, 20, False, True, 1500)
    sidecar.does(Fence(PIPE, 2))
    assert sidecar.does(ends).ends[0] == (20, 20, True, True, 1500)


def test_below_a_recorded_end_all_is_acknowledged(sidecar: Sidecar) -> None:
    sidecar.does(Settle(PIPE, 10))
    assert sidecar.does(Ends([(PIPE, 0)], 0)).ends == [(10, 10, True, False, 0)]


def test_that_a_writer_stopped_is_forgotten_at_a_restart(sidecar: Sidecar) -> None:
    sidecar.does(Mark(PIPE, 1, 20, True))
    sidecar.engine.sync()
    sidecar.crash()
    _, end, _, closed, _ = sidecar.does(Ends([(PIPE, 0)], 0)).ends[0]
    assert (end, closed) == (20, False)


def test_a_mark_of_an_older_epoch_shows_what_is_acknowledged_but_closes_nothing(
    sidecar: Sidecar,
) -> None:
    sidecar.does(Fence(PIPE, 2))
    sidecar.does(Mark(PIPE, 1, 20, True))
    assert sidecar.does(Ends([(PIPE, 0)], 0)).ends[0][:4] == (20, 20, True, False)


def test_a_mark_past_the_end_shows_that_frames_were_lost(sidecar: Sidecar) -> None:
    assert sidecar.code(Mark(PIPE, 1, 21, False)) is Code.DAMAGED
    assert sidecar.replica().acked == 5
    assert sidecar.replica().damage
