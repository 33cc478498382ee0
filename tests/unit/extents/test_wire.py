"""The wire: whatever is said arrives as it was said, and no bytes whatever are taken for more."""

from __future__ import annotations

import contextlib
import string
import tracemalloc
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from cassq.extents.protocol import messages
from cassq.extents.protocol.inbox import BUFFER_BYTES, Inbox
from cassq.extents.protocol.messages import (
    OPS,
    REPLIES,
    REQUESTS,
    Append,
    Code,
    Ends,
    Frames,
    Info,
    List,
    ListedExtent,
    Open,
    Read,
    RefusedError,
    Scrub,
)
from cassq.extents.protocol.wire import (
    MESSAGE_BYTES_MAX,
    ProtocolError,
    body_length,
    read_reply,
    read_request,
    refusal_parts,
    reply_of,
    reply_parts,
    request_parts,
)

NAMES = st.text(max_size=40)
NUMBERS = st.integers(min_value=0, max_value=2**63)
ENDS = st.tuples(NUMBERS, NUMBERS, st.booleans(), st.booleans(), NUMBERS)
TOLD = st.builds(
    ListedExtent,
    *(NAMES, NAMES, NUMBERS, st.integers(-1, 2**40), st.booleans()),
    *(NUMBERS, NUMBERS, NAMES, st.booleans()),
)
FACTS = st.dictionaries(
    st.text(string.ascii_lowercase, max_size=9), NAMES | NUMBERS | st.none() | st.floats(0, 1)
)
BY_KIND: dict[str, st.SearchStrategy[Any]] = {
    "Number": NUMBERS,
    "str": NAMES,
    "bool": st.booleans(),
    "bytes": st.binary(max_size=300),
    "bytes | Sequence[bytes]": st.binary(max_size=300),
    "Sequence[str]": st.lists(NAMES, max_size=5),
    "Sequence[tuple[str, Number]]": st.lists(st.tuples(NAMES, NUMBERS), max_size=5),
    "Sequence[tuple[Number, Number, bool, bool, Number] | None]": st.lists(
        ENDS | st.none(), max_size=5
    ),
    "Sequence[ListedExtent]": st.lists(TOLD, max_size=3),
    "Mapping[str, Any]": FACTS,
}


def of(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, *(BY_KIND[kind.__annotations__[name]] for name in names(kind)))


def names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind))


ANY_REQUEST = st.one_of(*map(of, REPLIES))
ANY_BODY = ANY_REQUEST.map(lambda request: body(request_parts(request, 1)))


def body(parts: Sequence[bytes]) -> bytes:
    whole = b"".join(parts)
    assert body_length(whole) == len(whole) - 4
    return whole[4:]


@given(ANY_REQUEST, NUMBERS)
def test_a_request_arrives_as_it_was_made(request: Any, number: int) -> None:
    assert read_request(body(request_parts(request, number))) == (number, request)
    assert read_request(memoryview(body(request_parts(request, number)))) == (number, request)


@given(st.data(), NUMBERS)
def test_a_reply_arrives_as_it_was_made(data: st.DataObject, number: int) -> None:
    kind = data.draw(st.sampled_from(list(REPLIES)))
    reply = data.draw(of(REPLIES[kind]))
    request = data.draw(of(kind))
    got, fields = read_reply(body(reply_parts(reply, number)))
    assert got == number
    assert not isinstance(fields, RefusedError)
    assert reply_of(request, fields) == reply


@given(st.sampled_from(sorted(set(Code) - {Code.OK})), NAMES, NUMBERS, NUMBERS)
def test_a_refusal_arrives_with_what_is_known(
    code: Code, expected: str, end: int, number: int
) -> None:
    refusal = RefusedError(code, expected, end=end, nothing=None)
    got, refused = read_reply(body(refusal_parts(refusal, number)))
    assert got == number
    assert isinstance(refused, RefusedError)
    assert (refused.code, refused.message) == (code, expected or code.name.lower())
    assert refused.fields == {"end": end}
    assert refused.retryable == refusal.retryable
    assert refused.outcome_unknown == (code is Code.FAILED)


def test_a_frame_in_parts_is_the_frame_and_is_not_copied() -> None:
    header, payload = b"h" * 32, b"p" * 1000
    sent = Append("p", 1, 2, 3, 0, [header, payload])
    parts = request_parts(sent, 9)
    assert parts[-1] is payload
    assert read_request(body(parts)) == (9, replace(sent, frame=header + payload))
    frames = b"f" * 1000
    assert reply_parts(Frames(3, frames), 9)[-1] is frames


# --- what is none -------------------------------------------------------------------------------


def understood(data: bytes) -> None:
    """Whatever it is, it is read or refused as what it is."""
    for read in (read_request, read_reply):
        with contextlib.suppress(ProtocolError):
            read(data)


@example(b"\x81\x80\x00")
@example(b"\x81\x91\x80\x00")
@example(b"\x93\x0a\x07\xa1\xff")
@example(b"\x93\x0a\x07\xd6\xff\xff\xff\xff\xff")
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    understood(data)


@settings(max_examples=300)
@given(ANY_BODY, st.data())
def test_a_message_with_a_byte_changed_or_missing_is_one_or_refused(
    whole: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytes([whole[at] ^ data.draw(st.integers(1, 255))])
    understood(whole[:at] + flipped + whole[at + 1 :])
    understood(whole[:at])
    understood(whole[:at] + whole[at + 1 :])
    understood(whole + flipped)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(st.integers(0, len(REQUESTS) + 2), st.lists(JSON, max_size=9))
def test_any_fields_are_those_of_a_request_or_refused(op: int, fields: list[Any]) -> None:
    try:
        number, request = read_request(msgspec.msgpack.encode([op, 7, *fields]))
    except ProtocolError as exc:
        assert exc.fields == {"number": 7}
        return
    assert number == 7
    assert op in REQUESTS
    for name, value in zip(names(type(request)), astuple(request), strict=True):
        annotation = type(request).__annotations__[name]
        if annotation in ("str", "bool", "bytes"):
            assert type(value).__name__ == annotation
        if annotation == "Number":
            assert type(value) is int
            assert value >= -1
    # It can be said again.
    assert read_request(body(request_parts(request, 7))) == (7, request)


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        (0, []),
        (15, ["p"]),
        (7, []),
        (7, ["p", "q"]),
        (7, [b"p"]),
        (7, [None]),
        (12, [0]),
        (13, ["p", -2]),
        (13, ["p", 1.0]),
        (13, ["p", True]),
        (13, ["p", "1"]),
        (13, [["p", 1]]),
        (4, ["p", 1, 0, 1]),
        (4, ["p", 1, 0, None]),
        (3, ["p", 1, 0, 1, 0, "YWJj"]),
        (3, ["p", 1, 0, 1, 0, [b"abc"]]),
        (3, ["p", 1, 0, 1, 0, b"abc", 0]),
        (6, [["p"], 0]),
        (6, [[["p"]], 0]),
        (6, [[["p", 1, 2]], 0]),
        (6, [[[1, "p"]], 0]),
        (6, [{"p": 1}, 0]),
        (10, ["p"]),
        (10, [["p", 1]]),
    ],
)
def test_fields_of_other_types_or_more_or_fewer_are_refused(op: int, fields: list[Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        read_request(msgspec.msgpack.encode([op, 7, *fields]))
    assert caught.value.fields == {"number": 7}


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (Scrub("p", 0), [1, "", b"digest"]),
        (Scrub("p", 0), [1, ""]),
        (Ends([], 0), [[[1, 2, True, False]]]),
        (Ends([], 0), [[[1, 2, 1, 0, 3]]]),
        (List("", 1, ""), [[["p", "q", 0, -1, False, 0, 0, ""]]]),
        (List("", 1, ""), [[["p", "q", 0, -2, False, 0, 0, "", False]]]),
        (Info(), [[]]),
        (Info(), [{1: 2}]),
        (Read("p", 0, 1, 1, 1, 0), [1, "YWJj"]),
    ],
)
def test_a_reply_of_other_fields_is_refused(request_: Any, fields: list[Any]) -> None:
    _, got = read_reply(msgspec.msgpack.encode([0, 7, *fields]))
    assert got == fields
    with pytest.raises(ProtocolError):
        reply_of(request_, fields)


@pytest.mark.parametrize("head", [b"\xdd", b"\xdf", b"\xc6", b"\xdb"])
def test_memory_is_allocated_for_bytes_received_and_not_for_those_announced(head: bytes) -> None:
    claimed = head + (2**32 - 1).to_bytes(4, "big")
    for data in (claimed, b"\x93\x0a\x07" + claimed, b"\x93\x00\x07" + claimed):
        tracemalloc.start()
        try:
            understood(data)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()


@given(st.lists(JSON, max_size=6))
def test_any_reply_is_one_or_refused(array: list[Any]) -> None:
    data = msgspec.msgpack.encode(array)
    with contextlib.suppress(ProtocolError):
        _, fields = read_reply(data)
        if not isinstance(fields, RefusedError):
            for kind in REPLIES:
                with contextlib.suppress(ProtocolError):
                    reply_of(kind(*[None] * len(names(kind))), fields)


@pytest.mark.parametrize("length", [0, MESSAGE_BYTES_MAX + 1, 2**32 - 1])
def test_a_length_that_cannot_be_is_refused(length: int) -> None:
    with pytest.raises(ProtocolError, match=f"claims {length} bytes"):
        body_length(length.to_bytes(4, "little"))


def test_numbers_without_an_end_are_refused() -> None:
    deep = b"\x91" * 2000 + b"\x01"
    with pytest.raises(ProtocolError):
        read_request(deep)
    with pytest.raises(ProtocolError, match="2 numbers|two numbers"):
        read_request(msgspec.msgpack.encode([True, False]))


# --- the inbox ----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 3 * BUFFER_BYTES) | st.integers(0, 200), min_size=1, max_size=12),
    st.integers(1, 2**31),
    st.data(),
)
def test_messages_come_out_as_they_went_in_however_they_arrive(
    sizes: list[int], seed: int, data: st.DataObject
) -> None:
    bodies = [bytes([n % 251]) * (size + 1) for n, size in enumerate(sizes)]
    stream = b"".join(len(each).to_bytes(4, "little") + each for each in bodies)
    inbox = Inbox(piece=data.draw(st.sampled_from([0, BUFFER_BYTES, 100 * BUFFER_BYTES])))
    got, at = [], 0
    hungry = data.draw(st.booleans())
    while at < len(stream):
        room = inbox.room()
        assert room
        piece = min(len(room), len(stream) - at, data.draw(st.integers(1, 2 * BUFFER_BYTES)))
        room[:piece] = stream[at : at + piece]
        at += piece
        inbox.filled(piece)
        # Whoever takes nothing for a while finds all of it later.
        if hungry or data.draw(st.booleans()):
            while (body := inbox.take()) is not None:
                got.append(bytes(body))
    while (body := inbox.take()) is not None:
        got.append(bytes(body))
    assert got == bodies
    assert inbox.waiting == 0
    assert len(inbox.room()) == BUFFER_BYTES, "what was large is given back"


def test_an_inbox_refuses_what_is_too_long_and_keeps_no_room_for_it() -> None:
    inbox = Inbox(limit=100)
    room = inbox.room()
    room[:4] = (2**31).to_bytes(4, "little")
    inbox.filled(4)
    assert len(inbox.room()) < 2 * BUFFER_BYTES
    with pytest.raises(ProtocolError, match="limit is 100"):
        inbox.take()


def test_a_large_message_is_received_where_it_is_read() -> None:
    size = 10 * BUFFER_BYTES
    inbox = Inbox()
    inbox.room()[:4] = size.to_bytes(4, "little")
    inbox.filled(4)
    assert len(inbox.room()) == size
    inbox.filled(size)
    body = inbox.take()
    assert body is not None
    assert len(body) == size


def test_room_for_an_announced_message_comes_with_its_bytes() -> None:
    """Where a client is not trusted: four bytes must not cost as many megabytes as they say."""
    size, piece = 60_000_000, 1 << 20
    inbox = Inbox(piece=piece)
    inbox.room()[:4] = size.to_bytes(4, "little")
    inbox.filled(4)
    received = 4
    while received < size + 4:
        room = inbox.room()
        assert len(room) + received <= max(piece, 2 * received)
        inbox.filled(len(room))
        received += len(room)
    body = inbox.take()
    assert body is not None
    assert len(body) == size
    assert received == size + 4, "no byte of the next message was asked for"


def test_every_request_has_a_number_of_its_own() -> None:
    assert sorted(OPS.values()) == list(range(1, len(OPS) + 1))
    assert OPS[messages.Hello] == 1, "it never changes: a client of any version begins with it"
    assert OPS[Open] == 2
