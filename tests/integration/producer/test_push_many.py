"""Pushing many at once: order, ids, columns, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import cassq
from cassq.errors import InvalidPayloadError, MessageTooLargeError, UsageError
from cassq.message.frames import MESSAGE_BYTES_MAX
from tests.integration.stage import drain, numbers, payloads


def test_many_keep_their_order_and_get_consecutive_ids(queue: cassq.Queue) -> None:
    sent = numbers(50_000)  # several frames
    with queue.pusher() as pusher:
        ids = pusher.push_many(sent)
    pipe_id = ids[0].partition(":")[0]
    assert len(ids) == len(sent)
    assert list(ids) == [f"{pipe_id}:{seq}" for seq in range(len(sent))]
    found = drain(queue.popper())
    assert payloads(found) == sent
    assert [message.id for message in found] == list(ids)


def test_the_ids_are_a_sequence(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        ids = pusher.push_many(numbers(5))
    assert ids[4] == ids[-1]
    assert ids[1:3] == [ids[1], ids[2]]
    assert ids[0] in ids
    assert ids == list(ids)
    with pytest.raises(IndexError):
        ids[5]
    with pytest.raises(IndexError):
        ids[-6]


def test_many_over_several_pipes_keep_their_order(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_pushes_per_pipe=300, max_pop_width=1)
    sent = numbers(1000)
    with queue.pusher() as pusher:
        ids = pusher.push_many(sent)
    pipes = list(dict.fromkeys(i.partition(":")[0] for i in ids))
    assert [sum(i.startswith(p) for i in ids) for p in pipes] == [300, 300, 300, 100]
    found = drain(queue.popper())
    assert [(m.id, m.payload) for m in found] == list(zip(ids, sent, strict=True))


def test_many_large_messages_are_cut_into_frames(queue: cassq.Queue) -> None:
    sent = [bytes([n]) * 700_000 for n in range(30)]
    with queue.pusher() as pusher:
        assert len(pusher.push_many(sent)) == 30
    assert payloads(drain(queue.popper())) == sent


def test_headers_and_keys_go_with_their_payloads(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        pusher.push_many([b"a", b"b", b"c"], headers=[{"n": "1"}, None, {}], keys=[None, b"k", b""])
    found = queue.popper().pop(3)
    assert [message.headers for message in found] == [{"n": "1"}, {}, {}]
    assert [message.key for message in found] == [None, b"k", b""]


@pytest.mark.parametrize("column", ["headers", "keys"])
def test_a_column_of_another_length_is_refused(queue: cassq.Queue, column: str) -> None:
    with queue.pusher() as pusher:
        with pytest.raises(InvalidPayloadError, match=f"2 payloads came with 1 {column}"):
            pusher.push_many([b"a", b"b"], **{column: [None]})
    assert queue.stats().pushed == 0


@pytest.mark.parametrize("column", ["headers", "keys"])
def test_a_column_with_a_wrong_entry_is_refused_as_a_whole(queue: cassq.Queue, column: str) -> None:
    with queue.pusher() as pusher, pytest.raises(InvalidPayloadError):
        pusher.push_many([b"a", b"b"], **{column: [None, 7]})
    assert queue.stats().pushed == 0


def test_none_at_all_is_not_an_error_and_makes_no_pipe(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        assert list(pusher.push_many([])) == []
        assert list(pusher.push_many(iter(()))) == []
        assert queue.stats().pipes["open"] == 0


def test_a_generator_is_taken_to_its_end(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        assert len(pusher.push_many(b"%d" % n for n in range(10))) == 10
    assert payloads(drain(queue.popper())) == numbers(10)


def test_a_generator_that_fails_pushes_nothing(queue: cassq.Queue) -> None:
    def broken() -> Iterator[bytes]:
        yield b"a"
        raise LookupError("no more")

    with queue.pusher() as pusher:
        with pytest.raises(LookupError, match="no more"):
            pusher.push_many(broken())
        pusher.push(b"after")
    assert payloads(drain(queue.popper())) == [b"after"]


@pytest.mark.parametrize("one", ["text", b"bytes", bytearray(b"b"), memoryview(b"m")])
def test_one_payload_instead_of_many_is_refused(queue: cassq.Queue, one: Any) -> None:
    with queue.pusher() as pusher, pytest.raises(InvalidPayloadError, match="a list of payloads"):
        pusher.push_many(one)


@pytest.mark.parametrize("wrong", ["text", 3, None])
def test_one_wrong_payload_among_many_refuses_them_all(queue: cassq.Queue, wrong: Any) -> None:
    with queue.pusher() as pusher, pytest.raises(InvalidPayloadError):
        pusher.push_many([b"a", wrong, b"c"])
    assert queue.stats().pushed == 0


@pytest.mark.parametrize("wrong", [5, None, object()])
def test_anything_but_a_collection_is_refused(queue: cassq.Queue, wrong: Any) -> None:
    with queue.pusher() as pusher, pytest.raises((UsageError, TypeError)):
        pusher.push_many(wrong)


def test_one_too_large_among_many_refuses_them_all(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher, pytest.raises(MessageTooLargeError):
        pusher.push_many([b"a", bytes(MESSAGE_BYTES_MAX + 1)])
    assert queue.stats().pushed == 0
