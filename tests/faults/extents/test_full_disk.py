"""Full disks: a clear error, nothing acknowledged lost, and on it goes when there is space."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import cassq
from cassq.errors import StorageFullError
from tests.faults.actors import Act
from tests.faults.mounts import SmallDisk, mount, small_disk
from tests.integration.deadlines import eventually
from tests.integration.stage import drain, numbers, payloads, push, reap

__all__ = ["mount", "small_disk"]

NEEDS_ROOT = pytest.mark.may_skip("a file system of its own can be mounted by root alone")


@pytest.fixture
def small(small_disk: SmallDisk) -> Iterator[cassq.Client]:
    """A client on a disk of four megabytes."""
    with cassq.connect(f"file://{small_disk.place}/data") as client:
        yield client


def push_until_full(pusher: cassq.Pusher, size: int) -> dict[str, bytes]:
    acked: dict[str, bytes] = {}
    while True:
        payload = b"%d:" % len(acked) + bytes(size)
        try:
            acked[pusher.push(payload)] = payload
        except StorageFullError as exc:
            assert "free some space" in exc.hint
            return acked


@NEEDS_ROOT
@pytest.mark.parametrize("size", [10, 1000, 100_000])
def test_what_was_acknowledged_on_a_disk_that_fills_up_is_all_there(
    small: cassq.Client, small_disk: SmallDisk, size: int
) -> None:
    queue = small.create_queue("jobs")
    pusher = queue.pusher()
    acked = {pusher.push(b"first"): b"first"}
    small_disk.fill()
    acked |= push_until_full(pusher, size)
    with pytest.raises(StorageFullError):
        pusher.push_many([bytes(size)] * 100)
    small_disk.free()
    acked[pusher.push(b"again")] = b"again"
    found = {m.id: m.payload for m in drain(queue.popper())}
    assert {i: found[i] for i in acked} == acked
    assert queue.audit().findings == []


@NEEDS_ROOT
def test_a_full_disk_refuses_futures_and_takes_them_again(
    small: cassq.Client, small_disk: SmallDisk
) -> None:
    pusher = small.create_queue("jobs").pusher()
    pusher.push_soon(b"x").result(30)
    small_disk.fill()
    futures = [pusher.push_soon(bytes(50_000)) for _ in range(20)]
    assert any(isinstance(f.exception(30), StorageFullError) for f in futures)
    pusher.flush()
    small_disk.free()
    assert pusher.push_soon(b"y").result(30)


@NEEDS_ROOT
def test_popping_from_a_full_disk_is_an_error_until_there_is_space(
    small: cassq.Client, small_disk: SmallDisk
) -> None:
    queue = small.create_queue("jobs")
    push(queue, b"a", b"b")
    popper = queue.popper()
    small_disk.fill()
    with pytest.raises(StorageFullError):
        for _ in range(10_000):  # a few rows may still fit
            popper.release(popper.pop(1))
    small_disk.free()
    assert sorted(payloads(drain(popper))) == [b"a", b"b"]


@NEEDS_ROOT
def test_what_is_out_on_a_full_disk_can_be_committed_when_there_is_space(
    small: cassq.Client, small_disk: SmallDisk
) -> None:
    queue = small.create_queue("jobs")
    push(queue, *numbers(3000))
    popper = queue.popper()
    small_disk.fill()
    done: list[bytes] = []
    out: list[cassq.Message] = []
    with pytest.raises(StorageFullError):
        while out := popper.pop(1):
            popper.commit(out)
            done += payloads(out)
    small_disk.free()
    if out and out[0].payload not in done:  # it was the commit that failed
        popper.commit(out)
        done += payloads(out)
    done += payloads(drain(popper))
    assert done == numbers(3000)
    assert queue.audit().findings == []


@NEEDS_ROOT
def test_retiring_makes_space_for_new_pushes(small: cassq.Client, small_disk: SmallDisk) -> None:
    """Sealing and committing take a little space themselves: that much has to be freed by hand."""
    queue = small.create_queue("jobs", max_bytes_per_pipe=500_000, idle_seal=0.05)
    pusher, popper = queue.pusher(), queue.popper()
    spare = small_disk.place / "spare"
    spare.write_bytes(bytes(400_000))
    push_until_full(pusher, 50_000)
    spare.unlink()

    def consumed() -> bool:
        try:
            drain(popper)
            reap(small)
        except StorageFullError:
            return False
        return queue.stats().groups["default"].waiting == 0

    eventually("what was pushed is consumed", consumed)
    for _ in range(20):
        pusher.push(bytes(50_000))


@NEEDS_ROOT
def test_opening_on_a_full_disk_is_an_error_and_succeeds_later(small_disk: SmallDisk) -> None:
    small_disk.fill()
    url = f"file://{small_disk.place}/data"
    with pytest.raises(StorageFullError):
        cassq.connect(url)
    small_disk.free()
    with cassq.connect(url) as client:
        push(client.create_queue("jobs"), b"x")


@NEEDS_ROOT
@pytest.mark.parametrize(
    "verb",
    [
        lambda queue: queue.popper().pop(1, wait=0.05),
        lambda queue: queue.create_group("g"),
        lambda queue: queue.update(claim_timeout=3),
        lambda queue: queue.pusher().push(b"x" * 9000),
    ],
    ids=["popper", "create_group", "update", "pusher"],
)
def test_a_client_first_used_on_a_full_disk_does_not_crash(
    small: cassq.Client, small_disk: SmallDisk, verb: Callable[[cassq.Queue], object]
) -> None:
    """Neither does it when closed: shared pages must not lie in holes of a full disk."""
    queue = small.create_queue("jobs")
    small_disk.fill()
    outcome: object = None
    try:
        outcome = verb(queue)
    except StorageFullError as exc:
        outcome = exc
    assert outcome is not None
    small.close()


@pytest.mark.parametrize("size", [100, 20_000])
def test_a_limit_on_file_sizes_is_reported_as_a_full_disk(
    client: cassq.Client, act: Act, url: str, size: int
) -> None:
    """The same for everyone: no root needed, and a write that stops in the middle."""
    queue = client.create_queue("jobs")
    pusher = act("push_to_the_limit", url, 300_000, size)
    ids = pusher.expect("full")[1]
    assert pusher.expect("again")[1] not in ids
    assert pusher.join() == 0
    found = drain(queue.popper())
    assert {message.id for message in found} >= set(ids)
    assert queue.audit().findings == []
