"""Messages and ids: what a popper hands out says of itself, and whom its verbs reach."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.consumer.delivery import Message
from cassq.message.columns import encode_headers
from cassq.message.frames import Extras, Frame, decode, encode
from cassq.message.message_ids import MessageIds

TIME_MS = 1_700_000_000_123


class RecordingHolding:
    """Holds a claim and writes down what is said to it."""

    pipe_id = "pipe"
    deliveries = 3

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def ack(self, seqs: range) -> None:
        self.said.append(("ack", seqs))

    def nack(self, seqs: range, delay: float | None, error: str | None) -> None:
        self.said.append(("nack", seqs, delay, error))

    def release(self, seqs: range) -> None:
        self.said.append(("release", seqs))

    def extend(self, seconds: float, seq: int) -> None:
        self.said.append(("extend", seconds, seq))


def a_frame(base_seq: int, payloads: Sequence[bytes], extras: Extras) -> Frame:
    return decode(b"".join(encode(base_seq, payloads, extras)))


FRAME = a_frame(
    40,
    [b"first", b"second"],
    Extras(
        [TIME_MS, TIME_MS + 1000],
        headers=[None, encode_headers({"kind": "delay", "to": "Zürich"})],
        keys=[b"", None],
        ids=[None, b"elsewhere:7"],
    ),
)
BARE = a_frame(40, [b"first", b"second"], Extras(TIME_MS))


def messages(frame: Frame, holding: RecordingHolding) -> list[Message]:
    payloads = frame.payloads(0, frame.count)
    return [
        Message(payload, seq, frame, holding)
        for seq, payload in enumerate(payloads, frame.base_seq)
    ]


# --- what a message says of itself ------------------------------------------------------------


def test_a_message_without_columns_has_an_id_of_its_place_and_nothing_else() -> None:
    first, second = messages(BARE, RecordingHolding())
    assert (first.id, second.id) == ("pipe:40", "pipe:41")
    for message in (first, second):
        assert (message.headers, message.key, message.attempts) == ({}, None, 3)
        assert message.pipe_id == "pipe"
        assert message.pushed_ms == TIME_MS
    assert (first.payload, second.payload) == (b"first", b"second")


def test_each_message_has_its_own_entry_of_every_column() -> None:
    first, second = messages(FRAME, RecordingHolding())
    assert (first.headers, second.headers) == ({}, {"kind": "delay", "to": "Zürich"})
    assert (first.key, second.key) == (b"", None)
    assert (first.pushed_ms, second.pushed_ms) == (TIME_MS, TIME_MS + 1000)


def test_a_message_that_was_moved_keeps_its_first_id() -> None:
    first, second = messages(FRAME, RecordingHolding())
    assert (first.id, second.id) == ("pipe:40", "elsewhere:7")
    assert second.seq == 41


def test_the_time_of_a_push_is_in_utc() -> None:
    message = messages(BARE, RecordingHolding())[0]
    assert message.pushed_at == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert message.pushed_at.tzinfo is UTC


def test_headers_handed_out_are_the_caller_s_own() -> None:
    message = messages(FRAME, RecordingHolding())[1]
    message.headers["kind"] = "changed"
    assert message.headers["kind"] == "delay"


def test_attempts_follow_the_delivery() -> None:
    holding = RecordingHolding()
    message = messages(BARE, holding)[0]
    holding.deliveries = 4
    assert message.attempts == 4


def test_a_message_shows_its_id_attempts_and_size_but_not_its_payload() -> None:
    shown = repr(messages(BARE, RecordingHolding())[1])
    assert shown == "<Message pipe:41 attempts=3 6 bytes>"


# --- its verbs --------------------------------------------------------------------------------


def test_every_verb_reaches_the_holding_with_this_message_alone() -> None:
    holding = RecordingHolding()
    first, second = messages(BARE, holding)
    second.ack()
    first.nack()
    first.nack(delay=1.5, error="too late")
    second.release()
    first.extend(9.0)
    assert holding.said == [
        ("ack", range(41, 42)),
        ("nack", range(40, 41), None, None),
        ("nack", range(40, 41), 1.5, "too late"),
        ("release", range(41, 42)),
        ("extend", 9.0, 40),
    ]


# --- ids --------------------------------------------------------------------------------------

runs = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9), st.integers(0, 5)), max_size=4
)


def spelled_out(found: Sequence[tuple[str, int, int]]) -> list[str]:
    return [f"{pipe}:{seq}" for pipe, first, count in found for seq in range(first, first + count)]


@given(runs, st.data())
def test_ids_behave_like_the_list_of_them(
    found: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    ids, expected = MessageIds(found), spelled_out(found)
    assert len(ids) == len(expected)
    assert list(ids) == expected
    assert ids == expected
    assert list(reversed(ids)) == expected[::-1]
    for index in range(-len(expected), len(expected)):
        assert ids[index] == expected[index]
    cut = data.draw(st.slices(len(expected)))
    assert ids[cut] == expected[cut]
    for name in expected:
        assert name in ids
        assert ids.index(name) == expected.index(name)
    assert "c:0" not in ids


@pytest.mark.parametrize("index", [3, -4, 99])
def test_an_id_that_is_not_there_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError):
        MessageIds([("a", 5, 3)])[index]


def test_ids_are_equal_when_they_name_the_same_messages() -> None:
    assert MessageIds([("a", 0, 2), ("a", 2, 1)]) == MessageIds([("a", 0, 3)])
    assert MessageIds([("a", 0, 2)]) != MessageIds([("a", 0, 3)])
    assert MessageIds([("a", 0, 1)]) != "a:0"


def test_a_million_ids_are_not_made_before_they_are_looked_at() -> None:
    ids = MessageIds([("a", 0, 10**12)])
    assert len(ids) == 10**12
    assert ids[-1] == f"a:{10**12 - 1}"
    assert repr(ids) == "MessageIds([('a', 0, 1000000000000)])"
