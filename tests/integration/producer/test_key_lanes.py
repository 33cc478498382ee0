"""Pushes to a queue with key lanes: each message goes to a pipe of its key's lane, whoever pushes
it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import cassq
from cassq.errors import InvalidPayloadError, MessageTooLargeError
from cassq.message.columns import COLUMN_BYTES_MAX
from cassq.outbox.relay import Relay
from tests.integration.deadlines import eventually
from tests.integration.laned import check_lanes
from tests.integration.outbox.databases import connection, file, outbox
from tests.integration.spilled import FakeCluster
from tests.integration.stage import alone, drain, payloads

__all__ = ["connection", "file", "outbox"]

LANES = 4
KEYS = [b"%d" % n for n in range(40)]


@pytest.fixture
def queue(client: cassq.Client) -> cassq.Queue:
    """Its pipes stay until the test has looked at them."""
    alone(client)
    return client.create_queue("jobs", key_lanes=LANES)


def test_ids_are_in_the_order_of_the_payloads(client: cassq.Client, queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        ids = pusher.push_many(KEYS, keys=KEYS)
    found = drain(queue.popper())
    assert check_lanes(client, found, LANES) == set(range(LANES))
    assert {message.id: message.payload for message in found} == dict(zip(ids, KEYS, strict=True))
    assert len(queue.pipes()) == LANES


def test_some_of_many_may_have_no_key(queue: cassq.Queue) -> None:
    keys = [None if n % 2 else key for n, key in enumerate(KEYS)]
    with queue.pusher() as pusher:
        assert len(pusher.push_many(KEYS, keys=keys)) == len(KEYS)
        assert len(pusher.push_many(KEYS)) == len(KEYS)
        assert len(pusher.push_many([], keys=[])) == 0
    assert sorted(payloads(drain(queue.popper()))) == sorted(2 * KEYS)


def test_each_priority_has_all_lanes(client: cassq.Client, queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        priorities = [n % 2 for n in range(len(KEYS))]
        ids = pusher.push_many(KEYS, keys=KEYS, priority=priorities)
        assert len(set(ids)) == len(KEYS)
        pusher.push(b"last", key=b"0", priority=1)
    found = drain(queue.popper())
    check_lanes(client, found, LANES)
    by_payload = {message.payload: message.priority for message in found}
    assert by_payload == dict(zip(KEYS, priorities, strict=True)) | {b"last": 1}


def test_delayed_messages_are_in_the_lanes_of_their_keys_too(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    with queue.pusher() as pusher:
        pusher.push_many(KEYS, keys=KEYS, delay=0.001)
    found = drain(queue.popper())
    while len(found) < len(KEYS):
        found += drain(queue.popper())
    assert check_lanes(client, found, LANES) == set(range(LANES))


def test_a_dedup_id_is_one_message_whatever_its_key(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", key_lanes=LANES, dedup_window=600)
    with queue.pusher() as pusher:
        ids = pusher.push_many(KEYS, keys=KEYS, dedup_ids=["a", "b"] * (len(KEYS) // 2))
        assert len(set(ids)) == 2
        assert pusher.push(b"again", key=b"other", dedup_id="b") in set(ids)
    assert len(drain(queue.popper())) == 2


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ([b"a", 5], InvalidPayloadError),
        ([b"a", b"x" * (COLUMN_BYTES_MAX + 1)], MessageTooLargeError),
        ([b"a"], InvalidPayloadError),
    ],
)
def test_of_many_with_a_wrong_key_none_is_pushed(
    queue: cassq.Queue, keys: list[bytes], error: type[Exception]
) -> None:
    with queue.pusher() as pusher:
        with pytest.raises(error, match="key"):
            pusher.push_many([b"one", b"two"], keys=keys)
        with pytest.raises(error, match="key"):
            pusher.push_many([b"one", b"two"], keys=keys, priority=[0, 1])
    assert queue.audit().pushed == 0


def test_merged_and_imported_letters_go_to_the_lanes_of_their_keys(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    with queue.pusher() as pusher:
        pusher.push_many(KEYS, keys=KEYS)
    popper = queue.popper()
    while messages := popper.pop(100):
        popper.dead(messages)
    letters = queue.dead_letters()
    exported = [letter.to_json() for letter in letters.export()]
    assert letters.merge().messages == len(KEYS)
    found = drain(popper)
    assert check_lanes(client, found, LANES) == set(range(LANES))
    assert letters.import_(exported, to_queue=True).messages == len(KEYS)
    assert check_lanes(client, drain(popper), LANES) == set(range(LANES))
    assert queue.audit().findings == []


def test_what_an_outbox_forwards_goes_to_the_lanes_of_its_keys(
    client: cassq.Client,
    queue: cassq.Queue,
    file: Path,
    connection: sqlite3.Connection,
    outbox: cassq.Outbox,
) -> None:
    for number in range(3):
        outbox.push_many("jobs", [b"%d" % number] * len(KEYS), keys=KEYS)
    connection.commit()
    relay = Relay(client, str(file), retry=0.01)
    assert relay.forward().forwarded == 3 * len(KEYS)
    relay.close()
    queue.create_group("keyed", order="key")
    found = drain(queue.popper())
    assert check_lanes(client, found, LANES) == set(range(LANES))
    order = {key: [m.payload for m in found if m.key == key] for key in KEYS}
    assert order == {key: [b"0", b"1", b"2"] for key in KEYS}


def test_what_was_spilled_goes_to_the_lanes_of_its_keys(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path / "cluster")
    with cluster.client(tmp_path / "spool") as client:
        queue = client.create_queue("jobs", key_lanes=LANES)
        with queue.pusher() as pusher:
            pusher.push(b"before", key=b"0")
            cluster.down = True
            assert pusher.push_many(KEYS, keys=KEYS).spilled == len(KEYS)
            assert pusher.push(b"unkeyed").spilled
            cluster.down = False
            spool = client.spool
            assert spool is not None
            eventually(
                "it is forwarded",
                lambda: not spool.overflow.down and not sum(e.waiting for e in spool.contents()),
                seconds=60,
            )
        found = drain(queue.popper())
        assert len(found) == len(KEYS) + 2
        keyed = [message for message in found if message.key is not None]
        assert check_lanes(client, keyed, LANES) == set(range(LANES))
        assert queue.audit().balanced
