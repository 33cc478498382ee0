"""What a popper claimed ahead: taken in order, each message once, one by one or many at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.consumer.delivery import (
    Acknowledger,
    DeliveredRun,
    Delivery,
    Message,
    Messages,
    Prefetched,
)
from cassq.message.frames import Extras, Frame, decode, encode
from cassq.message.ranges import RangeSet
from cassq.model.rows import Claim, ClaimState

FRAME_MESSAGES = 40
ACKNOWLEDGER = Acknowledger(lambda *_: None, lambda *_: None, lambda *_: None)


def a_delivery(pipe_id: str) -> Delivery:
    row = Claim("group", pipe_id, 0, FRAME_MESSAGES, 0, ClaimState.HELD, 0, 1)
    return Delivery(ACKNOWLEDGER, [row], 0, None, None)


def a_frame(name: str) -> Frame:
    payloads = [f"{name}:{seq}".encode() for seq in range(FRAME_MESSAGES)]
    return decode(b"".join(encode(0, payloads, Extras(0))))


NAMES = ("a", "b", "c")
DELIVERIES = {name: a_delivery(name) for name in NAMES}
FRAMES = {name: a_frame(name) for name in NAMES}

indexes = st.integers(0, FRAME_MESSAGES - 1)
whole_runs = st.tuples(indexes, indexes).map(lambda ends: set(range(min(ends), max(ends) + 1)))
runs_added = st.lists(
    st.tuples(st.sampled_from(NAMES), whole_runs | st.sets(indexes, min_size=1)),
    min_size=1,
    max_size=4,
)
steps = st.lists(
    st.tuples(st.just("add"), runs_added)
    | st.tuples(st.just("take"), st.integers(1, 2 * FRAME_MESSAGES))
    | st.tuples(st.just("next"), st.integers(1, 8))
    | st.tuples(st.just("forget"), st.sampled_from(NAMES)),
    max_size=25,
)


def found(run: Sequence[tuple[str, set[int]]]) -> Messages:
    return Messages(
        [
            DeliveredRun(DELIVERIES[name], FRAMES[name], RangeSet.of(sorted(seqs)))
            for name, seqs in run
        ]
    )


def shown(messages: Sequence[Message]) -> list[tuple[str, int, bytes]]:
    return [(message.pipe_id, message.seq, message.payload) for message in messages]


@given(steps)
def test_each_message_is_taken_once_and_in_order(
    steps: list[tuple[str, object]],
) -> None:
    prefetched, expected = Prefetched(), []
    for what, how in steps:
        if what == "add":
            prefetched.add(found(how))
            for name, seqs in how:  # type: ignore[attr-defined]
                expected += [(name, seq, f"{name}:{seq}".encode()) for seq in sorted(seqs)]
        elif what == "take":
            assert shown(prefetched.take(how)) == expected[:how]
            del expected[:how]
        elif what == "next":
            for _ in range(min(how, len(expected))):
                assert prefetched.first.pipe_id == expected[0][0]
                assert shown([prefetched.next()]) == [expected.pop(0)]
        else:
            prefetched.forget([DELIVERIES[how]])
            expected = [each for each in expected if each[0] != how]
        assert len(prefetched) == len(expected)
        assert bool(prefetched.parts) == bool(expected)
        kept = {delivery.pipe_id: list(seqs) for delivery, seqs in prefetched.seqs().items()}
        assert kept == {
            name: sorted({seq for other, seq, _ in expected if other == name})
            for name in {name for name, _, _ in expected}
        }


@pytest.mark.parametrize("asked", [1, 7, FRAME_MESSAGES])
def test_a_run_is_taken_in_parts(asked: int) -> None:
    prefetched = Prefetched()
    prefetched.add(found([("a", set(range(FRAME_MESSAGES)))]))
    taken: list[int] = []
    while prefetched.parts:
        taken += [message.seq for message in prefetched.take(asked)]
        assert len(prefetched) == FRAME_MESSAGES - len(taken)
    assert taken == list(range(FRAME_MESSAGES))


def test_what_is_taken_stays_in_as_few_runs_as_there_are_frames() -> None:
    prefetched = Prefetched()
    everything = set(range(FRAME_MESSAGES))
    prefetched.add(found([("a", everything), ("b", everything), ("c", everything)]))
    assert len(prefetched.take(2 * FRAME_MESSAGES - 5).runs) == 2
    assert len(prefetched.take(FRAME_MESSAGES + 5).runs) == 2
