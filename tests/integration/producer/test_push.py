"""Single pushes: ids, what travels with a message, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import cassq
from cassq.errors import ClosedError, InvalidPayloadError, MessageTooLargeError
from cassq.message.frames import MESSAGE_BYTES_MAX
from tests.integration.stage import Connect, drain, payloads


def test_a_push_returns_the_pipe_and_the_place_in_it(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        ids = [pusher.push(b"a"), pusher.push(b"b"), pusher.push(b"c")]
    pipe_id = ids[0].partition(":")[0]
    assert ids == [f"{pipe_id}:0", f"{pipe_id}:1", f"{pipe_id}:2"]
    assert [message.id for message in queue.popper().pop(10)] == ids


def test_what_was_pushed_is_there_for_a_client_opened_later(
    queue: cassq.Queue, connect: Connect
) -> None:
    pusher = queue.pusher()
    message_id = pusher.push(b"here")  # neither closed nor flushed
    (message,) = connect().queue("jobs").popper().pop()
    assert (message.id, message.payload) == (message_id, b"here")


def test_each_pusher_has_a_pipe_of_its_own(queue: cassq.Queue) -> None:
    with queue.pusher() as one, queue.pusher() as other:
        assert one.push(b"1").partition(":")[0] != other.push(b"2").partition(":")[0]


def test_headers_key_and_push_time_travel_with_the_message(queue: cassq.Queue) -> None:
    before = datetime.now(UTC)
    with queue.pusher() as pusher:
        pusher.push(b"x", headers={"kind": "jpeg", "größe": "12 µm"}, key=b"cat\x00")
        pusher.push(b"y")
    rich, plain = queue.popper().pop(2)
    assert rich.headers == {"kind": "jpeg", "größe": "12 µm"}
    assert rich.key == b"cat\x00"
    assert abs((rich.pushed_at - before).total_seconds()) < 3600
    assert rich.pushed_at.tzinfo is UTC
    assert (plain.headers, plain.key) == ({}, None)


@pytest.mark.parametrize("payload", [b"", b"\x00", bytearray(b"abc"), memoryview(b"abc")])
def test_anything_that_is_bytes_can_be_pushed(queue: cassq.Queue, payload: bytes) -> None:
    with queue.pusher() as pusher:
        pusher.push(payload)
    (message,) = queue.popper().pop()
    assert type(message.payload) is bytes
    assert message.payload == bytes(payload)


def test_a_pushed_buffer_may_be_changed_afterwards(queue: cassq.Queue) -> None:
    buffer = bytearray(b"before")
    with queue.pusher() as pusher:
        future = pusher.push_soon(buffer)
        buffer[:] = b"after!"
        future.result(30)
    assert payloads(drain(queue.popper())) == [b"before"]


@pytest.mark.parametrize("payload", ["text", 1, None, 1.5, ["list"], {"a": 1}])
def test_a_payload_that_is_not_bytes_is_refused_and_named(queue: cassq.Queue, payload: Any) -> None:
    with queue.pusher() as pusher:
        with pytest.raises(InvalidPayloadError, match=type(payload).__name__):
            pusher.push(payload)
        with pytest.raises(InvalidPayloadError, match=type(payload).__name__):
            pusher.push_soon(payload)
        pusher.push(b"fine")
    assert payloads(drain(queue.popper())) == [b"fine"]


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, {"a": b"b"}, "text", [("a", "b")], 7])
def test_headers_that_are_not_text_are_refused(queue: cassq.Queue, headers: Any) -> None:
    with queue.pusher() as pusher, pytest.raises(InvalidPayloadError):
        pusher.push(b"x", headers=headers)


@pytest.mark.parametrize("key", ["text", 1, ["a"]])
def test_a_key_that_is_not_bytes_is_refused(queue: cassq.Queue, key: Any) -> None:
    with queue.pusher() as pusher, pytest.raises(InvalidPayloadError, match="key"):
        pusher.push(b"x", key=key)


def test_the_largest_message_passes_and_one_byte_more_is_refused(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        with pytest.raises(MessageTooLargeError):
            pusher.push(bytes(MESSAGE_BYTES_MAX + 1))
        pusher.push(bytes(MESSAGE_BYTES_MAX))
    (message,) = queue.popper().pop()
    assert len(message.payload) == MESSAGE_BYTES_MAX
    assert queue.stats().pushed == 1


def test_too_large_a_key_or_header_is_refused(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        with pytest.raises(MessageTooLargeError):
            pusher.push(b"x", key=bytes(MESSAGE_BYTES_MAX))
        with pytest.raises(MessageTooLargeError):
            pusher.push(b"x", headers={"h": "x" * MESSAGE_BYTES_MAX})
        pusher.push(b"y")
    assert payloads(drain(queue.popper())) == [b"y"]


def test_a_closed_pusher_refuses_every_verb(queue: cassq.Queue) -> None:
    pusher = queue.pusher()
    pusher.push(b"kept")
    pusher.close()
    pusher.close()  # twice is no error
    assert pusher.closed
    for verb in (
        lambda: pusher.push(b"x"),
        lambda: pusher.push_many([b"x"]),
        lambda: pusher.push_soon(b"x"),
        pusher.flush,
    ):
        with pytest.raises(ClosedError):
            verb()
    assert payloads(drain(queue.popper())) == [b"kept"]


def test_a_pusher_of_a_closed_client_is_closed(queue: cassq.Queue, client: cassq.Client) -> None:
    pusher = queue.pusher()
    pusher.push(b"x")
    client.close()
    with pytest.raises(ClosedError):
        pusher.push(b"y")


@pytest.mark.embedded_only(reason="durability is of files")
@pytest.mark.parametrize("durability", ["disk", "os"])
def test_both_durabilities_deliver(connect: Connect, durability: str) -> None:
    queue = connect(durability=durability).create_queue("jobs")
    with queue.pusher() as pusher:
        pusher.push_many([b"a", b"b"])
    assert payloads(drain(queue.popper())) == [b"a", b"b"]


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_every_compression_delivers_the_same_bytes(client: cassq.Client, compression: str) -> None:
    queue = client.create_queue("jobs", compression=compression)
    sent = [b"abc" * 1000, b"", bytes(range(256)) * 10]
    with queue.pusher() as pusher:
        pusher.push_many(sent)
    assert payloads(drain(queue.popper())) == sent
