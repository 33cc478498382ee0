"""Damage: flipped bytes, cut, missing and exchanged files, and a catalog that is lost."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import cassq
from cassq.errors import CassqError, CorruptionError
from cassq.extents.port import ExtentMissingError
from tests.integration.deadlines import eventually
from tests.integration.stage import (
    Connect,
    drain,
    numbers,
    payloads,
    pipe_file,
    push,
    reap,
)


def pipe_of(ids: list[str]) -> str:
    return ids[0].partition(":")[0]


def flip(path: Path, position: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[position] ^= 0x40
    path.write_bytes(damaged)


def pop_all(popper: cassq.Popper) -> tuple[list[bytes], list[CassqError]]:
    """What a popper gets, and the errors it meets on the way, until two looks find nothing."""
    found: list[bytes] = []
    errors: list[CassqError] = []
    empty = 0
    while empty < 2:
        try:
            messages = popper.pop(7)
        except (CorruptionError, ExtentMissingError) as exc:
            errors.append(exc)
            assert len(errors) < 10
            continue
        empty = 0 if messages else empty + 1
        popper.commit(messages)
        found += payloads(messages)
    return found, errors


# --- a pipe file ------------------------------------------------------------------------------


def test_a_damaged_pipe_is_named_once_and_other_pipes_are_delivered(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    bad = pipe_of(push(queue, *numbers(20)))
    push(queue, *numbers(20, first=20))
    path = pipe_file(client, bad)
    flip(path, path.read_bytes().rindex(b"19"))
    popper = queue.popper()
    found, errors = pop_all(popper)
    assert found == numbers(20, first=20)
    assert len(errors) == 1
    assert bad in str(errors[0])
    assert errors[0].hint
    push(queue, b"later")
    assert pop_all(popper) == ([b"later"], [])
    assert list(popper.broken) == [bad]


def test_what_lies_before_the_damage_is_delivered(queue: cassq.Queue, client: cassq.Client) -> None:
    with queue.pusher() as pusher:
        ids = [pusher.push(payload) for payload in numbers(20)]  # a frame each
    path = pipe_file(client, pipe_of(ids))
    flip(path, path.read_bytes().rindex(b"12"))
    found, errors = pop_all(queue.popper())
    assert found == numbers(12)
    assert len(errors) == 1


@pytest.mark.parametrize("seed", range(3))
def test_no_flipped_byte_ever_changes_a_message(
    queue: cassq.Queue, client: cassq.Client, seed: int
) -> None:
    chance = random.Random(seed)
    for round_ in range(20):
        name = f"g{round_}"
        with queue.pusher() as pusher:
            sent = [b"%d" % chance.getrandbits(chance.randint(1, 400)) for _ in range(30)]
            ids = [*pusher.push_many(sent[:10]), *map(pusher.push, sent[10:])]
        path = pipe_file(client, pipe_of(ids))
        whole = path.read_bytes()
        flip(path, chance.randrange(len(whole.rstrip(b"\0"))))
        queue.create_group(name)
        found, errors = pop_all(queue.popper(name))
        assert found == sent[: len(found)]
        assert len(found) == len(sent) or errors
        path.write_bytes(whole)
        for group in ("default", name):
            drain(queue.popper(group))
        queue.delete_group(name)
        reap(client)


@pytest.mark.parametrize("size", [0, 1, 100, 4095, 4096, 4100, 8000])
def test_a_cut_pipe_file_is_damage_never_a_crash(
    queue: cassq.Queue, client: cassq.Client, connect: Connect, size: int
) -> None:
    ids = push(queue, *[bytes(1000)] * 20)
    client.close()
    path = pipe_file(client, pipe_of(ids))
    path.write_bytes(path.read_bytes()[:size])
    queue = connect().queue("jobs")
    push(queue, b"good")
    found, errors = pop_all(queue.popper())
    assert found == [b"good"]
    assert [pipe_of(ids) in str(error) for error in errors] == [True]
    assert not queue.audit().balanced


def test_a_missing_pipe_file_is_named_once_and_other_pipes_are_delivered(
    queue: cassq.Queue, client: cassq.Client, connect: Connect
) -> None:
    bad = pipe_of(push(queue, *numbers(5)))
    push(queue, *numbers(5, first=5))
    client.close()
    pipe_file(client, bad).unlink()
    queue = connect().queue("jobs")
    popper = queue.popper()
    found, errors = pop_all(popper)
    assert found == numbers(5, first=5)
    assert len(errors) == 1
    assert isinstance(errors[0], ExtentMissingError)
    assert bad in str(errors[0])
    assert pop_all(popper) == ([], [])
    assert any(bad in finding for finding in queue.audit().findings)


def test_another_pipes_file_in_its_place_is_damage(
    queue: cassq.Queue, client: cassq.Client, connect: Connect
) -> None:
    one = pipe_of(push(queue, b"one"))
    other = pipe_of(push(queue, b"other"))
    client.close()
    shutil.copy(pipe_file(client, one), pipe_file(client, other))
    found, errors = pop_all(connect().queue("jobs").popper())
    assert found == [b"one"]
    assert len(errors) == 1
    assert other in str(errors[0])


@pytest.mark.parametrize("harm", ["flipped header", "missing"])
def test_looking_works_beside_a_damaged_pipe(
    queue: cassq.Queue, client: cassq.Client, connect: Connect, harm: str
) -> None:
    bad = pipe_of(push(queue, *numbers(5)))
    push(queue, *numbers(3, first=5))
    client.close()
    if harm == "missing":
        pipe_file(client, bad).unlink()
    else:
        flip(pipe_file(client, bad), 30)
    client = connect()
    queue = client.queue("jobs")
    assert queue.stats().groups["default"].waiting >= 3
    assert [peeked.payload for peeked in queue.peek(3)] == numbers(3, first=5)
    queue.create_group("new", start="now")
    reap(client)
    assert not queue.audit().balanced
    client.delete_queue("jobs")  # which gives the messages up
    assert client.queues() == []


def test_a_pusher_whose_open_pipe_is_damaged_closes_in_peace(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    pusher = queue.pusher()
    bad = pipe_of([pusher.push(b"x")])
    with pipe_file(client, bad).open("r+b") as file:
        file.seek(30)
        file.write(b"!")
    pusher.push(b"y")
    pusher.close()
    assert any(bad in finding for finding in queue.audit().findings)


def test_due_messages_of_a_damaged_pipe_hide_no_others(
    queue: cassq.Queue, client: cassq.Client, connect: Connect
) -> None:
    push(queue, b"good")
    popper = queue.popper()
    popper.pop()[0].nack(delay=0.2)
    bad = pipe_of(push(queue, *numbers(20)))
    for message in popper.pop(20):
        message.nack(delay=0.01)  # twenty rows that come due before the good one's
    client.close()
    flip(pipe_file(client, bad), pipe_file(client, bad).read_bytes().rindex(b"19"))
    popper = connect().queue("jobs").popper()
    found: list[bytes] = []

    def good_came() -> bool:
        got, _ = pop_all(popper)
        found.extend(got)
        return b"good" in found

    eventually("the good message comes back", good_came)


# --- the catalog ------------------------------------------------------------------------------


def spoil(directory: Path) -> None:
    """Overwrite every page of the catalog but the first."""
    path = directory / "catalog.sqlite"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:4096] + b"\xa5" * (size - 4096))


def test_a_damaged_catalog_is_a_clear_error_that_says_what_to_do(
    queue: cassq.Queue, client: cassq.Client, directory: Path
) -> None:
    push(queue, *numbers(5))
    client.close()
    spoil(directory)
    with pytest.raises(CorruptionError) as caught:
        with cassq.connect(f"file://{directory}") as again:
            again.queue("jobs")
    assert "catalog.sqlite" in str(caught.value)
    assert "move it away" in caught.value.hint


def move_away(directory: Path, *, only_main: bool = False) -> None:
    for path in directory.glob("catalog.sqlite*"):
        if not only_main or path.suffix == ".sqlite":
            path.rename(directory.parent / path.name)


@pytest.mark.parametrize("only_main", [False, True])
def test_a_catalog_moved_away_is_rebuilt_from_the_pipe_files(
    client: cassq.Client, directory: Path, connect: Connect, only_main: bool
) -> None:
    first = client.create_queue("/team/first", max_deliveries=1, max_pushes_per_pipe=4)
    second = client.create_queue("second")
    ids = {"/team/first": push(first, *numbers(10)), "second": push(second, *numbers(10))}
    popper = first.popper()
    bad, *good = popper.pop(3)
    bad.nack(error="bad")
    popper.commit(good)
    second.popper().pop(5)
    client.close()
    move_away(directory, only_main=only_main)
    again = connect()
    names = [queue.name for queue in again.queues()]
    assert names == ["/team/first", "/team/first~default~dead", "second"]
    # Nothing is known of what was done: everything not yet retired is delivered again.
    for name, pushed in ids.items():
        found = drain(again.queue(name).popper())
        assert sorted(message.id for message in found) == sorted(pushed)
        assert {message.attempts for message in found} == {1}
        assert again.queue(name).audit().findings == []
    assert payloads(drain(again.queue("/team/first~default~dead").popper())) == [b"0"]


def test_delayed_messages_are_rebuilt_with_their_due_times(
    queue: cassq.Queue, client: cassq.Client, directory: Path, connect: Connect
) -> None:
    with queue.pusher() as pusher:
        pusher.push_many([b"far", b"away"], delay=86400)
        pusher.push(b"near", delay=1)
        pusher.push(b"now")
    client.close()
    move_away(directory)
    queue = connect().queue("jobs")
    popper = queue.popper()
    found: list[bytes] = []
    while len(found) < 2:
        messages = popper.pop(wait=30)
        found += payloads(messages)
        popper.commit(messages)
    assert found == [b"now", b"near"]
    assert popper.pop() == []
    assert queue.stats().groups["default"].delayed == 2


def test_a_rebuilt_catalog_takes_pushes_and_its_old_order(
    client: cassq.Client, directory: Path, connect: Connect
) -> None:
    queue = client.create_queue("jobs", max_pushes_per_pipe=10)
    push(queue, *numbers(95))
    client.close()
    move_away(directory)
    queue = connect().create_queue("jobs")  # its policy is gone with the catalog
    queue.update(max_pop_width=1)
    push(queue, b"95")
    assert payloads(drain(queue.popper())) == numbers(96)


def test_a_strict_queue_is_rebuilt_in_its_order_but_not_strict(
    client: cassq.Client, directory: Path, connect: Connect
) -> None:
    queue = client.create_queue("jobs", consistency="cp", max_pushes_per_pipe=10)
    push(queue, *numbers(35))
    client.close()
    move_away(directory)
    queue = connect().queue("jobs")
    assert queue.policy.consistency == "ap"
    queue.update(max_pop_width=1)
    assert payloads(drain(queue.popper())) == numbers(35)


def test_a_damaged_file_does_not_stop_the_rebuilding(
    client: cassq.Client, directory: Path, connect: Connect
) -> None:
    queue = client.create_queue("jobs")
    bad = pipe_of(push(queue, b"lost"))
    push(queue, b"kept")
    client.close()
    flip(pipe_file(client, bad), 12)
    (directory / "pipes" / "0123456789abcdef01234567.pipe").write_bytes(b"rubbish")
    move_away(directory)
    assert payloads(drain(connect().queue("jobs").popper())) == [b"kept"]
    assert pipe_file(client, bad).exists()  # left for a person to look at
