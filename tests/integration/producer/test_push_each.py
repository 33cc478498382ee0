"""push_each: many pushes, each with its own arguments, in one call."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.errors import (
    ClosedError,
    InvalidPayloadError,
    QueueFullError,
    StorageFullError,
    UsageError,
)
from cassq.message.frames import Place as At
from cassq.message.message_ids import MessageId
from cassq.producer.pusher import Push
from tests.integration.deadlines import in_threads
from tests.integration.fronts import Append, FrontStore, client_with
from tests.integration.places import Place
from tests.integration.stage import drain, numbers


def test_each_push_gets_its_id_or_its_error(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", dedup_window=3600)
    with queue.pusher() as pusher:
        outcomes = pusher.push_each(
            [
                Push(b"plain", {"a": "b"}, b"key"),
                Push(b"later", delay=3600),
                Push("text"),  # type: ignore[arg-type]
                Push(b"urgent", priority=5),
                Push(b"wrong", priority=11),
                Push(b"once", dedup_id="1"),
                Push(b"twice", dedup_id="1"),
                Push(b"last"),
            ]
        )
        assert pusher.push_each([]) == []
    errors = {at: type(each) for at, each in enumerate(outcomes) if isinstance(each, Exception)}
    assert errors == {2: InvalidPayloadError, 4: UsageError}
    assert outcomes[5] == outcomes[6]
    found = {message.payload: message for message in drain(queue.popper())}
    assert set(found) == {b"plain", b"urgent", b"once", b"last"}
    assert [found[b"plain"].id, found[b"urgent"].id, found[b"last"].id] == [
        outcomes[0], outcomes[3], outcomes[7]
    ]  # fmt: skip
    assert (found[b"plain"].headers, found[b"plain"].key) == ({"a": "b"}, b"key")


def test_what_is_more_urgent_is_pushed_first(client: cassq.Client, queue: cassq.Queue) -> None:
    priorities = [0, 9, 4, 0, 9]
    with queue.pusher() as pusher:
        pusher.push_each([Push(b"x", priority=priority) for priority in priorities])
    pipes = client.ports.catalog.pipes.live(queue.row.id)
    in_order = sorted(pipes, key=lambda pipe: pipe.ordinal)
    assert [pipe.priority for pipe in in_order] == [9, 4, 0]


def test_many_threads_push_in_turn_and_keep_their_order(queue: cassq.Queue) -> None:
    pusher = queue.pusher()
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for n in range(0, 60, 6):
            names = [b"%d/%d" % (number, n + i) for i in range(6)]
            if number % 2:
                delayed = [
                    Push(name, delay=1e-9 if i % 2 else None) for i, name in enumerate(names)
                ]
                assert all(isinstance(each, MessageId) for each in pusher.push_each(delayed))
            else:
                for name in names:
                    pusher.push(name)

    in_threads(8, work)
    pusher.close()
    seen: dict[bytes, list[int]] = {}
    for message in drain(queue.popper()):
        thread, _, n = message.payload.partition(b"/")
        seen.setdefault(thread, []).append(int(n))
    assert len(seen) == 8
    assert all(found == list(range(60)) for found in seen.values())


def test_what_has_no_room_is_refused_and_the_rest_is_pushed(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_length=3)
    with queue.pusher() as pusher:
        outcomes = pusher.push_each([Push(payload) for payload in numbers(5)])
    assert [isinstance(each, QueueFullError) for each in outcomes] == [False] * 3 + [True] * 2
    with pytest.raises(ClosedError):
        pusher.push(b"0")
    (refused,) = pusher.push_each([Push(b"0")])
    assert isinstance(refused, ClosedError)


@pytest.mark.embedded_only(reason="an append fails")
@pytest.mark.parametrize("more", [{}, {"dedup_id": None, "importance": "low"}])
def test_when_some_pushes_fill_a_pipe_and_the_next_fails_each_gets_its_own_outcome(
    place: Place, more: dict[str, Any]
) -> None:
    """Whether they are appended as one batch, or have more than payloads, headers and keys."""
    appends = count(1)

    def around(append: Append) -> At:
        if next(appends) == 2:
            raise StorageFullError("no room")
        return append()

    with client_with(place, store=lambda store: FrontStore(store, around)) as client:
        queue = client.create_queue("jobs", max_pushes_per_pipe=3)
        pusher = queue.pusher()
        outcomes = pusher.push_each([Push(payload, **more) for payload in numbers(5)])
        failed = [each for each in outcomes[3:] if isinstance(each, StorageFullError)]
        assert [(each.fields["pushed"], each.outcome_unknown) for each in failed] == [
            (0, False)
        ] * 2
        assert pusher.tally.pushed == 3
        assert pusher.tally.push_failures == {"StorageFullError": 2}
        pusher.close()
        found = drain(queue.popper())
        assert [message.id for message in found] == outcomes[:3]
        assert [message.payload for message in found] == numbers(3)


def test_pushes_with_dedup_ids_share_one_append(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs", dedup_window=3600)
    with queue.pusher() as pusher:
        first = pusher.push(b"0", dedup_id="0")
        outcomes = pusher.push_each(
            [Push(b"%d" % (n % 40), key=b"k", dedup_id=str(n % 40)) for n in range(50)]
        )
        soon = [pusher.push_soon(b"s", dedup_id=f"s{n % 5}") for n in range(10)]
        pusher.flush()
    assert outcomes[0] == first
    assert outcomes[40:] == outcomes[:10]
    assert len({each.result() for each in soon}) == 5
    places = [str(each).split(":") for each in outcomes[1:40]]
    assert {pipe for pipe, _ in places} == {first.split(":")[0]}
    assert [int(seq) for _, seq in places] == list(range(1, 40))
    assert len(drain(queue.popper())) == 45


@pytest.mark.embedded_only(reason="an append fails")
def test_of_those_with_dedup_ids_that_fail_what_is_there_gets_its_id(place: Place) -> None:
    """What was pushed before, and what fills a pipe before the append that fails."""
    appends = count(1)

    def around(append: Append) -> At:
        if next(appends) >= 3:
            raise StorageFullError("no room")
        return append()

    with client_with(place, store=lambda store: FrontStore(store, around)) as client:
        queue = client.create_queue("jobs", dedup_window=3600, max_pushes_per_pipe=3)
        pusher = queue.pusher()
        before = pusher.push(b"4", dedup_id="4")
        names = ["0", "1", "2", "3", "4", "5", "1", "2"]
        outcomes = pusher.push_each([Push(each.encode(), dedup_id=each) for each in names])
        assert [isinstance(each, StorageFullError) for each in outcomes] == [
            False, False, True, True, False, True, False, True
        ]  # fmt: skip
        assert (outcomes[4], outcomes[6]) == (before, outcomes[1])
        errors = [each for each in outcomes if isinstance(each, StorageFullError)]
        assert [(each.fields["pushed"], each.outcome_unknown) for each in errors] == [
            (0, False)
        ] * 4
        pusher.close()
        found = drain(queue.popper())
        assert [message.id for message in found] == [before, *outcomes[:2]]
        assert [message.payload for message in found] == [b"4", b"0", b"1"]


@pytest.mark.embedded_only(reason="a file of it is removed")
def test_an_id_whose_message_cannot_be_read_fails_alone(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", dedup_window=3600)
    with queue.pusher() as pusher:
        lost = pusher.push(b"lost", dedup_id="lost").split(":")[0]
    for path in Path(client.url.removeprefix("file://")).rglob(f"*{lost}*"):
        path.unlink()
    with queue.pusher() as pusher:
        pushes = [Push(b"%d" % n, dedup_id="lost" if n == 2 else str(n)) for n in range(4)]
        outcomes = pusher.push_each(pushes)
        assert (pusher.tally.pushed, pusher.tally.push_failures.total()) == (3, 1)
    assert [isinstance(each, MessageId) for each in outcomes] == [True, True, False, True]
