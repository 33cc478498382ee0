"""Calls as payloads: what goes in comes out, or is refused where it is pushed."""

from __future__ import annotations

import enum
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.errors import UsageError
from cassq.message.message_ids import MessageId
from cassq.tasks.calls import Call, Codec, NotACallError, decode, decode_result

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBER = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=10,
)


@given(st.lists(PLAIN, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "c"]), PLAIN))
def test_what_json_can_hold_comes_out_as_it_went_in(
    args: list[Any], kwargs: dict[str, Any]
) -> None:
    assert decode(Codec("json").call(Call("t", args, kwargs))) == Call("t", args, kwargs)


def test_msgpack_also_holds_bytes_times_and_numbers_as_keys() -> None:
    args = [b"\x00\xff", datetime(2030, 1, 2, tzinfo=UTC), {1: "one"}, "text"]
    assert decode(Codec("msgpack").call(Call("t", args, {"k": b"v"}))) == Call(
        "t", args, {"k": b"v"}
    )


def test_a_call_may_be_written_by_hand_in_any_language() -> None:
    assert decode(b'{"task": "mail.send"}') == Call("mail.send", [])
    assert decode(b'{"task": "mail.send", "kwargs": {"a": 1}}') == Call("mail.send", [], {"a": 1})
    assert decode(b'{"task": "mail.send", "args": [1]}') == Call("mail.send", [1])


class Colour(enum.StrEnum):
    RED = "red"


def test_kinds_of_texts_and_numbers_are_written_as_what_they_are() -> None:
    args = [Colour.RED, MessageId("id"), enum.IntEnum("Size", "SMALL")["SMALL"], True]
    assert decode(Codec("json").call(Call("t", args))).args == ["red", "id", 1, True]


def test_a_tuple_comes_out_as_a_list() -> None:
    assert decode(Codec("json").call(Call("t", [(1, 2)]))).args == [[1, 2]]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"bytes", "argument 1 of task 't' has the type bytes"),
        ({1: "one"}, "argument 1 of task 't' has the key 1"),
        ([{"deep": {None: 1}}], "argument 1 of task 't' has the key None"),
        (float("nan"), "argument 1 of task 't' is nan"),
        (datetime(2030, 1, 1, tzinfo=UTC), "has the type datetime"),
        ("\ud800", "not valid text"),
    ],
)
def test_what_json_would_lose_or_change_is_refused_with_its_place(value: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Codec("json").call(Call("t", [value]))


@pytest.mark.parametrize(
    "value", [object(), datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None), 2**70, "\ud800"]
)
def test_what_msgpack_cannot_hold_is_refused_with_its_place(value: object) -> None:
    with pytest.raises(UsageError, match="argument 'at' of task 't'"):
        Codec("msgpack").call(Call("t", (), {"at": value}))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"cat.jpg",
        b"{",
        b"[1]",
        b"\xc1",
        b"\x91\x01",
        b"\xff" * 20,
        b"{}",
        json.dumps({"task": 3}).encode(),
        json.dumps({"task": "t", "args": {}}).encode(),
        json.dumps({"task": "t", "kwargs": []}).encode(),
    ],
)
def test_a_message_that_is_not_a_call_is_reported(payload: bytes) -> None:
    with pytest.raises(NotACallError):
        decode(payload)


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_a_result_or_why_there_is_none_comes_out(serializer: str) -> None:
    codec = Codec(serializer)
    assert decode_result(codec.result("t", {"a": [1, None]})) == ({"a": [1, None]}, "")
    assert decode_result(codec.result("t", None)) == (None, "")
    assert decode_result(codec.error("too large")) == (None, "too large")
    with pytest.raises(UsageError, match="the result of task 't'"):
        codec.result("t", object())
    with pytest.raises(NotACallError):
        decode_result(codec.call(Call("t")))


def test_an_unknown_serializer_is_named() -> None:
    with pytest.raises(UsageError, match="'pickle'"):
        Codec("pickle")
