"""Failing disks: a pipe whose disk failed is sealed; what is not acknowledged goes elsewhere."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

import cassq
from cassq.errors import BackendError, StorageFullError
from tests.faults.extents.disks import SickDisk
from tests.integration.deadlines import eventually
from tests.integration.stage import (
    Connect,
    alone,
    client_on,
    drain,
    numbers,
    payloads,
    pipe_files,
    push,
    reap,
)

EVER = 1 << 30


@pytest.fixture
def disk() -> SickDisk:
    return SickDisk()


@pytest.fixture
def sick(directory: Path, disk: SickDisk) -> Iterator[cassq.Client]:
    client = client_on(directory, disk)
    alone(client)  # what falls ill is met by nobody but the test
    yield client
    disk.recover()
    client.close()


@pytest.fixture
def queue(sick: cassq.Client) -> cassq.Queue:
    return sick.create_queue("jobs")


def pipe_of(message_id: str) -> str:
    return message_id.partition(":")[0]


@pytest.mark.parametrize("call", ["sync_data", "pwritev"])
def test_a_failed_append_is_carried_over_to_another_pipe(
    queue: cassq.Queue, disk: SickDisk, call: str
) -> None:
    pusher = queue.pusher()
    first = pusher.push(b"before")
    disk.fall_ill(call)
    carried = pusher.push(b"carried over")
    after = pusher.push(b"after")
    assert pipe_of(first) != pipe_of(carried) == pipe_of(after)
    found = drain(queue.popper())
    assert [(m.payload, m.id) for m in found] == [
        (b"before", first),
        (b"carried over", carried),
        (b"after", after),
    ]
    assert queue.stats().pipes["sealed"] == 1
    assert queue.audit().findings == []


@pytest.mark.parametrize("call", ["sync_data", "pwritev"])
def test_many_that_fail_half_way_are_all_there_once(
    queue: cassq.Queue, disk: SickDisk, call: str
) -> None:
    pusher = queue.pusher()
    pusher.push(b"before")
    disk.fall_ill(call)
    sent = [b"%d" % n * 4000 for n in range(3000)]  # several appends
    ids = pusher.push_many(sent)
    assert len(ids) == len(set(ids)) == len(sent)
    found = {m.id: m.payload for m in drain(queue.popper())}
    assert len(found) == len(sent) + 1
    assert [found[message_id] for message_id in ids] == sent


def test_a_disk_that_keeps_failing_is_an_error_and_loses_nothing_acknowledged(
    queue: cassq.Queue, disk: SickDisk
) -> None:
    pusher = queue.pusher()
    acked = {pusher.push(payload): payload for payload in numbers(5)}
    disk.fall_ill("sync_data", EVER)
    with pytest.raises(BackendError) as caught:
        pusher.push(b"refused")
    assert caught.value.retryable
    assert caught.value.fields["pushed"] == 0
    disk.recover()
    acked[pusher.push(b"again")] = b"again"
    found = drain(queue.popper())
    assert {m.id: m.payload for m in found} == acked
    assert len(found) == len(acked)


def test_an_error_says_how_many_messages_were_pushed(queue: cassq.Queue, disk: SickDisk) -> None:
    queue.update(max_pushes_per_pipe=10)
    pusher = queue.pusher()
    eventually(
        "the limit is taken up", lambda: queue.watched.row().policy.max_pushes_per_pipe == 10
    )
    pusher.push_many(numbers(10))
    disk.fall_ill("create", EVER, errno.ENOSPC)  # no further pipe can be made
    if queue.stats().pipes["ready"]:
        pusher.push_many(numbers(10, first=10))
    pushed = queue.stats().pushed
    with pytest.raises(StorageFullError) as caught:
        pusher.push_many(numbers(25, first=pushed))
    missing = caught.value.fields["pushed"]
    disk.recover()
    pusher.push_many(numbers(25, first=pushed)[missing:])
    assert sorted(payloads(drain(queue.popper()))) == sorted(numbers(pushed + 25))


@pytest.mark.parametrize("size", [0, 1, 30, 47])
def test_a_short_write_counts_for_nothing(queue: cassq.Queue, disk: SickDisk, size: int) -> None:
    pusher = queue.pusher()
    pusher.push(b"before")
    disk.write_short(size)
    with pytest.raises(StorageFullError, match=f"no space left after {size} of"):
        pusher.push(b"cut off in the middle")
    pusher.push(b"after")
    assert payloads(drain(queue.popper())) == [b"before", b"after"]
    assert queue.audit().findings == []


def test_a_failing_group_commit_fails_or_serves_everyone_alike(
    queue: cassq.Queue, disk: SickDisk
) -> None:
    pusher = queue.pusher()
    pusher.push(b"before")
    disk.fall_ill("sync_data")
    futures = [pusher.push_soon(payload) for payload in numbers(500)]
    ids = [future.result(30) for future in futures]
    found = {m.id: m.payload for m in drain(queue.popper())}
    assert len(found) == 501
    assert [found[message_id] for message_id in ids] == numbers(500)


def test_an_error_reaches_every_future_and_the_next_push_succeeds(
    queue: cassq.Queue, disk: SickDisk
) -> None:
    pusher = queue.pusher()
    pusher.push(b"before")
    disk.fall_ill("sync_data", EVER)
    futures = [pusher.push_soon(payload) for payload in numbers(50)]
    assert all(isinstance(future.exception(30), BackendError) for future in futures)
    pusher.flush()
    disk.recover()
    assert pusher.push_soon(b"after").result(30)
    assert payloads(drain(queue.popper())) == [b"before", b"after"]


@pytest.mark.parametrize("call", ["create", "sync_directory"])
def test_a_pipe_that_cannot_be_made_is_an_error_and_leaves_nothing_behind(
    queue: cassq.Queue, disk: SickDisk, connect: Connect, call: str
) -> None:
    pusher = queue.pusher()
    disk.fall_ill(call, EVER, errno.ENOSPC)
    with pytest.raises(StorageFullError):
        pusher.push(b"x")
    disk.recover()
    pusher.push(b"y")
    assert payloads(drain(queue.popper())) == [b"y"]
    pusher.close()
    reap(connect())
    assert pipe_files(connect()) == []


def test_a_read_error_is_passed_on_and_the_next_read_succeeds(
    queue: cassq.Queue, disk: SickDisk
) -> None:
    push(queue, *numbers(5))
    popper = queue.popper()
    disk.fall_ill("pread", 3)
    errors = 0
    while not (found := _popped(popper)):
        errors += 1
        assert errors < 10
    assert payloads(found) == numbers(5)
    assert errors >= 1


def _popped(popper: cassq.Popper) -> list[cassq.Message]:
    try:
        return popper.pop(5)
    except BackendError:
        return []


def test_closing_with_a_dead_disk_ends_and_the_reaper_seals(
    directory: Path, disk: SickDisk, connect: Connect
) -> None:
    client = client_on(directory, disk)
    pusher = client.create_queue("jobs").pusher()
    pusher.push(b"kept")
    for call in ("sync_data", "pwritev", "open", "create", "unlink"):
        disk.fall_ill(call, EVER)
    pusher.close()
    client.close()
    again = connect()
    reap(again)
    assert again.queue("jobs").stats().pipes["open"] == 0
    assert payloads(drain(again.queue("jobs").popper())) == [b"kept"]


def test_files_that_cannot_be_removed_are_removed_later(
    sick: cassq.Client, queue: cassq.Queue, disk: SickDisk, connect: Connect
) -> None:
    push(queue, *numbers(3))
    drain(queue.popper())
    disk.fall_ill("unlink", 1)
    with pytest.raises(BackendError):
        reap(sick)
    assert len(pipe_files(connect())) == 1
    reap(sick)
    assert pipe_files(connect()) == []
    assert queue.audit().groups["default"].committed == 3
