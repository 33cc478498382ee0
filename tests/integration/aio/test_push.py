"""Pushing from an event loop: shared syncs, few threads, errors, cancelled pushes."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import cassq.aio
from cassq.errors import ClosedError, InvalidPayloadError, QueueFullError, UsageError
from cassq.message.message_ids import MessageId
from cassq.producer.pusher import Push
from tests.integration.aio.loops import GateDisk, in_loop, on_disk, run, until
from tests.integration.stage import drain, numbers


@pytest.mark.embedded_only(reason="it counts syncs")
def test_a_thousand_pushes_share_their_syncs_and_threads(directory: Path) -> None:
    disk = GateDisk()

    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        await queue.push(b"first")
        threads, syncs = set(threading.enumerate()), disk.syncs
        ids = await asyncio.gather(*(queue.push(payload) for payload in numbers(1000)))
        assert set(threading.enumerate()) <= threads  # some of other tests may have ended
        assert disk.syncs - syncs <= 10
        assert len(set(ids)) == 1000
        async with queue.popper() as popper:
            found = await popper.pop(2000)
            assert [message.id for message in found[1:]] == ids
            assert [message.payload for message in found[1:]] == numbers(1000)

    run(on_disk(directory, disk), main)


@pytest.mark.embedded_only(reason="it counts syncs")
def test_several_pushed_together_share_a_sync_with_others_and_have_outcomes_of_their_own(
    directory: Path,
) -> None:
    disk = GateDisk()

    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        await queue.push(b"first")
        syncs = disk.syncs
        async with queue.pusher() as pusher:
            one, several, none, two = await asyncio.gather(
                pusher.push(b"one"),
                pusher.push_each([Push(b"a"), Push(b"b", priority=10), Push(b"c", key=b"k")]),
                pusher.push_each([]),
                pusher.push(b"two"),
            )
        assert disk.syncs - syncs <= 2  # a new pipe, and the messages
        assert (none, type(several[1])) == ([], UsageError)
        found: list[cassq.aio.Message] = []
        while len(found) < 5:
            found += await queue.pop(10, wait=100)
        ids = [message.id for message in found[1:]]
        assert ids == [one, several[0], several[2], two]
        assert [message.payload for message in found[1:]] == [b"one", b"a", b"c", b"two"]

    run(on_disk(directory, disk), main)


@pytest.mark.embedded_only(reason="a sync is held up")
def test_the_loop_goes_on_while_a_sync_is_held_up(directory: Path) -> None:
    disk = GateDisk()

    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        await queue.push(b"0")
        disk.shut = True
        pushing = asyncio.create_task(queue.push(b"1"))
        await until("a sync is held up", lambda: disk.held.acquire(blocking=False))
        for _ in range(1000):  # as many turns as it likes: nothing it does waits for the disk
            await asyncio.sleep(0)
        assert not pushing.done()
        others = [asyncio.create_task(queue.push(b"2")) for _ in range(5)]
        (found,) = await queue.pop()
        assert found.payload == b"0"
        assert not any(task.done() for task in (pushing, *others))
        disk.let_go()
        await asyncio.gather(pushing, *others)

    run(on_disk(directory, disk), main)


@pytest.mark.embedded_only(reason="a sync is held up")
def test_a_cancelled_push_says_what_is_known_of_it(directory: Path) -> None:
    disk = GateDisk()

    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        await queue.push(b"0")
        disk.shut = True
        begun = asyncio.create_task(queue.push(b"begun"))
        await until("a sync is held up", lambda: disk.held.acquire(blocking=False))
        begun.cancel()
        with pytest.raises(asyncio.CancelledError) as excinfo:
            await begun
        assert excinfo.value.__notes__ == ["the message may have been pushed: it was on its way"]
        not_begun = asyncio.create_task(queue.push(b"not begun"))
        asyncio.get_running_loop().call_soon(not_begun.cancel)  # in the turn in which it pushes
        with pytest.raises(asyncio.CancelledError) as excinfo:
            await not_begun
        assert excinfo.value.__notes__ == ["the message was not pushed"]
        disk.let_go()
        await queue.push(b"last")
        found = await queue.pop(10)
        assert [message.payload for message in found] == [b"0", b"begun", b"last"]

    run(on_disk(directory, disk), main)


def test_each_push_has_its_own_arguments_and_its_own_error(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs", dedup_window=3600)
        outcomes = await asyncio.gather(
            queue.push(b"plain"),
            queue.push("text"),  # type: ignore[arg-type]
            queue.push(b"urgent", priority=9, headers={"a": "b"}),
            queue.push(b"later", delay=3600),
            queue.push(b"once", dedup_id="1"),
            queue.push(b"twice", dedup_id="1"),
            queue.push(b"wrong", priority=10),
            queue.push(b"keyed", key=b"k"),
            return_exceptions=True,
        )
        errors = {at: type(each) for at, each in enumerate(outcomes) if isinstance(each, Exception)}
        assert errors == {1: InvalidPayloadError, 6: UsageError}
        assert "priority must be a whole number" in str(outcomes[6])
        assert outcomes[4] == outcomes[5]
        found: list[cassq.aio.Message] = []
        while len(found) < 4:
            found += await queue.pop(10, wait=100)
        assert sorted(message.payload for message in found) == [
            b"keyed", b"once", b"plain", b"urgent"
        ]  # fmt: skip
        (urgent,) = [message for message in found if message.payload == b"urgent"]
        assert (urgent.priority, urgent.headers) == (9, {"a": "b"})

    in_loop(url, main)


def test_a_full_queue_refuses_only_what_has_no_room(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs", max_length=3)
        outcomes = await asyncio.gather(
            *(queue.push(payload) for payload in numbers(10)), return_exceptions=True
        )
        pushed = [each for each in outcomes if isinstance(each, MessageId)]
        assert len(pushed) == 3
        assert all(isinstance(each, QueueFullError) for each in outcomes[3:])

    in_loop(url, main)


def test_push_many_keeps_its_place_among_pushes(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        async with queue.pusher() as pusher:
            one, many, last = await asyncio.gather(
                pusher.push(b"0"), pusher.push_many([b"1", b"2"]), pusher.push(b"3")
            )
        with pytest.raises(ClosedError, match="this pusher is closed"):
            await pusher.push(b"4")
        found = await client.call(lambda: drain(queue.sync.popper()))
        assert [message.payload for message in found] == [b"0", b"1", b"2", b"3"]
        assert [message.id for message in found] == [one, *many, last]

    in_loop(url, main)


def test_what_waits_to_be_pushed_is_bounded_and_keeps_its_order(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cassq.aio.pusher.BUFFER_MESSAGES_MAX", 7)

    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        pushes = [asyncio.create_task(queue.push(payload)) for payload in numbers(100)]
        await asyncio.sleep(0)
        gone = pushes.pop(50)
        gone.cancel()
        await asyncio.gather(*pushes)
        found = await queue.pop(200)
        expected = [payload for payload in numbers(100) if payload != b"50"]
        assert [message.payload for message in found] == expected

    in_loop(url, main)
