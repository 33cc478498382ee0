"""Following several queues: one offset for all, queues that come and go; without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cassq
from cassq.errors import ConfigError, GroupNotFoundError, QueueNotFoundError
from tests.integration.stage import numbers, push
from tests.integration.timed import clock, timed

pytest.importorskip("pyspark")

from cassq.spark.clients import Location
from cassq.spark.options import stream_options
from cassq.spark.streams.following import Offset, initial_offset
from cassq.spark.streams.leasing import Renewals
from cassq.spark.streams.several import Followers, pieces_of_each, shares
from tests.spark.batches import payloads_of

__all__ = ["clock", "timed"]
A, B, C = "mails-a", "mails-b", "mails-c"
Follow = Callable[..., Followers]
Batch = dict[str, list[bytes]]


@pytest.fixture
def place(tmp_path: Any) -> Any:
    from tests.integration.places import DirectoryPlace

    return DirectoryPlace(tmp_path / "data")


def options_of(client: cassq.Client, options: dict[str, str]) -> Any:
    return stream_options({"url": client.url, **(options or {"queuePattern": "mails-*"})})


@pytest.fixture
def follow(timed: cassq.Client) -> Iterator[Follow]:
    """Opens followers, of the queues `mails-*` without other options; closed with the test."""
    opened: list[Followers] = []
    renewals = Renewals()

    def open_some(**options: str) -> Followers:
        location = Location(timed.url, timed.ports.catalog.records.identity(), "", "here")
        given = options_of(timed, options)
        opened.append(Followers(timed.ports, given, location, renewals))
        return opened[-1]

    yield open_some
    for followers in opened:
        followers.close()
    renewals.close()


def start_of(client: cassq.Client, **options: str) -> Offset:
    """What Spark gets as the initial offset of a query with a new checkpoint."""
    return initial_offset(client.ports.catalog.records.identity(), options_of(client, options))


def read(client: cassq.Client, start: Offset, end: Offset) -> Batch:
    """The payloads of a batch, by queue."""
    found: Batch = {}
    for piece in pieces_of_each(start, end):
        found.setdefault(piece.queue, []).extend(payloads_of(client, [piece]))
    return found


def committed(queue: cassq.Queue) -> int:
    return queue.stats().groups["default"].committed


def test_a_batch_has_the_messages_of_each_queue_and_acks_go_to_each_group(
    timed: cassq.Client, follow: Follow
) -> None:
    a, b = timed.create_queue(A), timed.create_queue(B)
    push(timed.create_queue("orders"), *numbers(3))
    push(a, *numbers(5))
    push(b, *numbers(4, 5))
    followers = follow()
    start = start_of(timed)
    first = followers.latest(start, None)
    assert read(timed, start, first) == {A: numbers(5), B: numbers(4, 5)}
    assert (committed(a), committed(b)) == (0, 0)
    assert followers.latest(first, None) == first, "there is nothing more"
    assert (committed(a), committed(b)) == (5, 4)
    push(b, *numbers(2, 9))
    second = followers.latest(first, None)
    assert read(timed, first, second) == {B: numbers(2, 9)}
    followers.ack(second)
    assert committed(b) == 6
    assert read(timed, start, first) == {A: numbers(5), B: numbers(4, 5)}, "a replay is the same"
    assert [each.audit().findings for each in (a, b)] == [[], []]


def test_a_queue_that_appears_later_joins_at_the_next_batch(
    timed: cassq.Client, follow: Follow
) -> None:
    timed.create_queue(A)
    options = {"queuePattern": "mails-*", "startingPosition": "latest"}
    followers, start = follow(**options), start_of(timed, **options)
    push(timed.queue(A), *numbers(3))
    first = followers.latest(start, None)
    assert read(timed, start, first) == {}
    push(timed.create_queue(B), *numbers(4))
    second = followers.latest(first, None)
    assert read(timed, first, second) == {B: numbers(4)}, "all of it: it was not there to skip"
    push(timed.queue(B), *numbers(2, 4))
    assert read(timed, second, followers.latest(second, None)) == {B: numbers(2, 4)}


def test_a_pattern_that_matches_nothing_waits(timed: cassq.Client, follow: Follow) -> None:
    followers, start = follow(), start_of(timed)
    assert followers.latest(start, None) == start
    push(timed.create_queue(A), *numbers(3))
    assert read(timed, start, followers.latest(start, None)) == {A: numbers(3)}


@pytest.mark.parametrize("again", [False, True])
def test_a_queue_that_was_deleted_is_reported_or_left_out(
    timed: cassq.Client, follow: Follow, again: bool
) -> None:
    for name in (A, B):
        push(timed.create_queue(name), *numbers(3))
    followers, start = follow(), start_of(timed)
    first = followers.latest(start, None)
    timed.delete_queue(B)
    if again:
        push(timed.create_queue(B), *numbers(2, 7))
    with pytest.raises(QueueNotFoundError, match="'mails-b' was deleted.*failOnDataLoss"):
        followers.latest(first, None)
    followers.close()
    lax = follow(queuePattern="mails-*", failOnDataLoss="false")
    second = lax.latest(first, None)
    assert read(timed, first, second) == ({B: numbers(2, 7)} if again else {})
    assert lax.latest(second, None) == second, "it is reported once"
    push(timed.queue(A), b"more")
    assert read(timed, second, lax.latest(second, None)) == {A: [b"more"]}


def test_a_named_queue_must_exist(timed: cassq.Client, follow: Follow) -> None:
    timed.create_queue(A)
    with pytest.raises(QueueNotFoundError, match="no queue 'mails-b'"):
        follow(queues=f"{A},{B}")
    timed.create_queue(B)
    followers = follow(queues=f"{A},{B}", failOnDataLoss="false")
    timed.delete_queue(B)
    with pytest.raises(QueueNotFoundError, match="no queue 'mails-b'"):
        followers.latest(start_of(timed), None)


def test_a_queue_that_is_no_longer_read_keeps_what_was_read_of_it(
    timed: cassq.Client, follow: Follow
) -> None:
    for name in (A, B):
        push(timed.create_queue(name), *numbers(3))
    both = follow(queues=f"{A},{B}")
    start = start_of(timed)
    first = both.latest(start, None)
    both.close()
    one = follow(queues=A)
    second = one.latest(first, None)
    assert list(second["queues"]) == [A]
    assert committed(timed.queue(B)) == 3, "its last batch was written"
    push(timed.queue(B), *numbers(2, 3))
    one.close()
    third = follow(queues=f"{A},{B}").latest(second, None)
    assert read(timed, second, third) == {B: numbers(2, 3)}


def test_each_queue_has_its_share_of_a_batch(timed: cassq.Client, follow: Follow) -> None:
    for at, name in enumerate((A, B, C)):
        push(timed.create_queue(name), *numbers((50, 3, 50)[at]))
    followers, offset = follow(), start_of(timed)
    end = followers.latest(offset, 20)
    assert {name: len(found) for name, found in read(timed, offset, end).items()} == {
        A: 8,
        B: 3,
        C: 9,
    }
    assert (followers.reported() or {})["behind"] == 83
    sizes = [20]
    while (after := followers.latest(end, 20)) != end:
        sizes.append(sum(map(len, read(timed, end, after).values())))
        end = after
    assert sizes == [20] * 5 + [3]


@pytest.mark.parametrize(
    ("waiting", "most", "wanted"),
    [
        ((5, 5), None, (None, None)),
        ((5, 5), 100, (5, 5)),
        ((5, 5), 4, (2, 2)),
        ((1, 9), 6, (1, 5)),
        ((0, 9), 6, (0, 6)),
        ((7, 9), 1, (0, 1)),
    ],
)
def test_shares_are_equal_and_nothing_of_a_batch_is_left(
    waiting: tuple[int, ...], most: int | None, wanted: tuple[int | None, ...]
) -> None:
    named = {str(at): count for at, count in enumerate(waiting)}
    assert shares(named, most) == {str(at): count for at, count in enumerate(wanted)}


def test_available_now_reads_no_queue_that_appears_later(
    timed: cassq.Client, follow: Follow
) -> None:
    push(timed.create_queue(A), *numbers(3))
    followers, start = follow(), start_of(timed)
    followers.stop_here()
    push(timed.queue(A), b"later")
    push(timed.create_queue(B), b"later")
    first = followers.latest(start, None)
    assert read(timed, start, first) == {A: numbers(3)}
    assert followers.latest(first, None) == first


def test_a_checkpoint_of_one_queue_is_refused(timed: cassq.Client, follow: Follow) -> None:
    timed.create_queue(A)
    one = start_of(timed, queue=A)
    with pytest.raises(ConfigError, match="made for one queue, not for several"):
        follow().latest(one, None)


def test_each_queue_must_have_the_group_and_not_be_cp(timed: cassq.Client, follow: Follow) -> None:
    timed.create_queue(A).create_group("spark")
    followers = follow(queuePattern="mails-*", group="spark")
    timed.create_queue(B)
    with pytest.raises(GroupNotFoundError, match="queue 'mails-b' has no group 'spark'"):
        followers.latest(start_of(timed), None)
    timed.create_queue(C, consistency="cp")
    with pytest.raises(ConfigError, match="queue 'mails-c' is exclusive"):
        follow()


def test_each_group_is_leased_and_released(timed: cassq.Client, follow: Follow) -> None:
    names = [
        f"stream:{group.id}"
        for queue in (timed.create_queue(A), timed.create_queue(B))
        for group in timed.ports.catalog.queues.groups(queue.id)
    ]
    leases = timed.ports.catalog.leases
    followers = follow()
    assert all(map(leases.owner, names))
    followers.close()
    assert not any(map(leases.owner, names))
