"""A sidecar's rules about its extents: reading them, fencing, settling, dropping, listing."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from cassq.errors import BrokenInvariantError
from cassq.extents.protocol.messages import (
    EXTENTS_MAX,
    READ_BYTES_MAX,
    WAIT_MS_MAX,
    Appended,
    Code,
    Done,
    Drop,
    Ends,
    Fence,
    Fenced,
    Frames,
    Info,
    List,
    ListedExtent,
    Mark,
    Open,
    Read,
    Request,
    Settle,
    Turn,
)
from cassq.message.frames import decode, pipe_key
from cassq.sidecar.engine.replica_state import ReplicaAnswer
from tests.unit.sidecar.replicas import OTHER, PIPE, Sidecar, a_frame, an_append, begun, copying


@pytest.fixture
def sidecar() -> Sidecar:
    return begun()


# --- read ---------------------------------------------------------------------------------------


def test_a_read_gives_whole_frames_from_the_one_that_holds_the_seq(sidecar: Sidecar) -> None:
    sidecar.does(an_append(20))
    one, two, three = a_frame(0), a_frame(10), a_frame(20)
    read = Read(PIPE, 5, 30, READ_BYTES_MAX, 9, 0)
    assert sidecar.outcome(read) == ReplicaAnswer(Frames(30, one + two + three))
    assert sidecar.does(replace(read, end_seq=11)).frames == one + two
    assert sidecar.does(replace(read, end_seq=10)).frames == one
    assert sidecar.does(replace(read, frames_max=2)).frames == one + two
    assert sidecar.does(replace(read, bytes_max=2 * len(one))).frames == one + two
    assert sidecar.does(replace(read, bytes_max=2 * len(one) - 1)).frames == one
    assert sidecar.does(replace(read, bytes_max=0)).frames == one
    assert sidecar.does(replace(read, seq=30, end_seq=99)) == Frames(30, b"")
    assert sidecar.does(replace(read, seq=9, end_seq=9)) == Frames(30, b"")
    decode(one, pipe_key=pipe_key(PIPE))


def test_a_damaged_frame_is_not_given_out_and_is_noted(sidecar: Sidecar) -> None:
    sidecar.engine.flip(PIPE, 10)
    read = Read(PIPE, 0, 20, 1000, 9, 0)
    assert sidecar.does(read).frames == a_frame(0)
    assert sidecar.does(List("", 9, "damaged")).extents == []
    assert sidecar.code(replace(read, seq=10)) is Code.DAMAGED
    assert [extent.pipe_id for extent in sidecar.does(List("", 9, "damaged")).extents] == [PIPE]
    assert sidecar.does(read).frames == a_frame(0)


def test_damage_found_elsewhere_is_noted_and_the_first_is_kept(sidecar: Sidecar) -> None:
    sidecar.replica_state.found(PIPE, "a scrub found it")
    sidecar.replica_state.found(PIPE, "and again")
    sidecar.replica_state.found("gone since", "and another")
    sidecar.replica_state.note_found()
    assert sidecar.replica().damage == "a scrub found it"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (Read(PIPE, -1, 9, 9, 9, 0), Code.MALFORMED),
        (Read(PIPE, 0, 9, 9, 0, 0), Code.MALFORMED),
        (Read(PIPE, 0, 9, READ_BYTES_MAX + 1, 9, 0), Code.TOO_LARGE),
        (Read(PIPE, 0, 9, 9, 9, WAIT_MS_MAX + 1), Code.TOO_LARGE),
        (Ends([(PIPE, 0)] * (EXTENTS_MAX + 1), 0), Code.TOO_LARGE),
        (Ends([(PIPE, 0)], WAIT_MS_MAX + 1), Code.TOO_LARGE),
        (Drop([PIPE] * (EXTENTS_MAX + 1)), Code.TOO_LARGE),
        (List("", EXTENTS_MAX + 1, ""), Code.TOO_LARGE),
        (List("", 0, ""), Code.MALFORMED),
        (List("", 9, "lost"), Code.MALFORMED),
    ],
)
def test_what_asks_for_too_much_or_for_nothing(
    sidecar: Sidecar, wrong: Request, code: Code
) -> None:
    assert sidecar.code(wrong) is code
    assert PIPE in sidecar.engine.replicas()


# --- fence, settle, drop, list --------------------------------------------------------------------


def test_a_fence_is_durable_and_reports_what_the_replica_has(sidecar: Sidecar) -> None:
    for _ in range(2):
        found = sidecar.outcome(Fence(PIPE, 2))
        assert found == ReplicaAnswer(Fenced(20, 5, False), durable=True, grown=PIPE)
        assert (sidecar.replica().fenced, sidecar.replica().epoch) == (True, 2)
    sidecar.engine.sync()
    sidecar.crash()
    assert sidecar.does(Fence(PIPE, 2)) == Fenced(20, 5, False)
    assert sidecar.code(an_append(20)) is Code.FENCED


def test_an_older_fence_is_refused_and_a_newer_one_raises_the_epoch(sidecar: Sidecar) -> None:
    sidecar.does(an_append(20, epoch=3))
    assert sidecar.code(Fence(PIPE, 2)) is Code.FENCED
    assert not sidecar.replica().fenced
    sidecar.does(Fence(PIPE, 3))
    sidecar.does(Fence(PIPE, 4))
    assert (sidecar.replica().fenced, sidecar.replica().epoch) == (True, 4)


def test_a_copy_that_is_not_whole_says_so_to_a_sealer(sidecar: Sidecar) -> None:
    copying(sidecar)
    assert sidecar.does(Fence(PIPE, 2)) == Fenced(20, 5, True)


def test_settling_removes_what_lies_past_the_end(sidecar: Sidecar) -> None:
    assert sidecar.outcome(Settle(PIPE, 10)) == ReplicaAnswer(Done(), durable=True, grown=PIPE)
    replica = sidecar.replica()
    assert (replica.end, replica.final, replica.fenced) == (10, 10, True)
    assert (replica.frames, replica.size_bytes) == (1, len(a_frame(0)))
    assert sidecar.does(Read(PIPE, 0, 20, 1000, 9, 0)).frames == a_frame(0)
    assert sidecar.outcome(Settle(PIPE, 10)) == ReplicaAnswer(Done(), durable=True)


def test_settling_a_replica_that_has_less_finds_it_damaged(sidecar: Sidecar) -> None:
    refusal = sidecar.refuses(Settle(PIPE, 30))
    assert (refusal.code, refusal.fields["end"]) == (Code.DAMAGED, 20)
    assert sidecar.replica().damage == "it ends at 20, all replicas had 30"
    assert sidecar.replica().final is None


@pytest.mark.parametrize("end", [0, 4, 12])
def test_no_end_within_a_frame_or_below_what_is_acknowledged(sidecar: Sidecar, end: int) -> None:
    assert sidecar.code(Settle(PIPE, end)) is Code.CONFLICT
    replica = sidecar.replica()
    assert (replica.end, replica.final, replica.fenced) == (20, None, False)


def test_a_crash_while_settling_leaves_no_tail_past_the_end() -> None:
    for seed in range(40):
        sidecar = Sidecar()
        sidecar.does(Open(PIPE, 1, "orders", False))
        sidecar.does(an_append(0))
        sidecar.does(an_append(10))
        sidecar.engine.sync()
        sidecar.does(Settle(PIPE, 10))
        sidecar.engine.crash(random.Random(seed))
        replica = sidecar.replica()
        assert replica.final is None or replica.end == replica.final
        sidecar.does(Settle(PIPE, 10))
        assert replica.end == 10


def test_dropped_extents_are_gone_with_what_was_remembered_of_them(sidecar: Sidecar) -> None:
    sidecar.does(Turn(PIPE))
    sidecar.does(Mark(PIPE, 1, 20, True))
    sidecar.does(Open(OTHER, 1, "orders", False))
    dropped = sidecar.outcome(Drop([PIPE, "none", PIPE]))
    assert dropped == ReplicaAnswer(Done(), durable=True, grown=PIPE)
    assert list(sidecar.engine.replicas()) == [OTHER]
    sidecar.does(Open(PIPE, 1, "orders", False))
    assert sidecar.does(an_append(0)) == Appended(10, False, False)
    assert sidecar.does(Ends([(PIPE, 0)], 0)).ends == [(0, 10, False, False, 0)]


def test_extents_are_listed_page_by_page_in_order(sidecar: Sidecar) -> None:
    ids = sorted([PIPE, *(f"{number:024x}" for number in range(9))])
    for pipe_id in ids:
        sidecar.does(Open(pipe_id, 1, "orders", False))
    listed, after = [], ""
    while page := sidecar.does(List(after, 4, "")).extents:
        assert len(page) <= 4
        listed += [extent.pipe_id for extent in page]
        after = listed[-1]
    assert listed == ids
    sidecar.does(Settle(PIPE, 10))
    [extent] = [each for each in sidecar.does(List("", 99, "")).extents if each.pipe_id == PIPE]
    wall_ms = sidecar.clock.wall_ms()
    assert extent == ListedExtent(PIPE, "orders", 10, 10, True, len(a_frame(0)), wall_ms, "", False)
    unsealed = [extent.pipe_id for extent in sidecar.does(List("", 99, "unsealed")).extents]
    assert unsealed == [pipe_id for pipe_id in ids if pipe_id != PIPE]
    assert sidecar.does(List("", 1, "unsealed")).extents[0].final == -1


def test_a_request_that_needs_more_than_replicas_is_not_its_business(sidecar: Sidecar) -> None:
    with pytest.raises(BrokenInvariantError):
        sidecar.does(Info())


def test_nothing_acknowledged_after_a_sync_is_lost_by_a_crash() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        sidecar = Sidecar()
        sidecar.does(Open(PIPE, 1, "orders", False))
        synced = 0
        sidecar.engine.sync()
        for base_seq in range(0, 100, 10):
            sidecar.does(an_append(base_seq))
            if rng.random() < 0.3:
                sidecar.engine.sync()
                synced = base_seq + 10
        sidecar.engine.crash(rng)
        end = sidecar.replica().end
        assert synced <= end <= 100
        frames = sidecar.does(Read(PIPE, 0, 100, READ_BYTES_MAX, 99, 0)).frames
        assert frames == b"".join(a_frame(base_seq) for base_seq in range(0, end, 10))
