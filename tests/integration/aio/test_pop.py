"""Popping in an event loop: waiting, iterating, settling, and what a cancelled task leaves."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

import cassq
import cassq.aio
from cassq.errors import ClaimLostError, ClosedError, GroupNotFoundError, UsageError
from tests.integration.aio.loops import GateDisk, in_loop, on_disk, run
from tests.integration.deadlines import eventually
from tests.integration.stage import numbers


async def counts(queue: cassq.aio.Queue) -> tuple[int, int, int]:
    """How many messages wait, are pending, and committed."""
    group = (await queue.stats()).groups["default"]
    return group.waiting, group.pending, group.committed


def test_a_waiting_pop_gets_what_is_pushed(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        async with queue.popper() as popper:
            assert await popper.pop() == []
            waiting = [asyncio.create_task(popper.pop(wait=100)) for _ in range(5)]
            await asyncio.sleep(0)
            await queue.push_many(numbers(5))
            found = [message.payload for each in waiting for message in await each]
            assert found == numbers(5)
            assert await popper.pop(wait=0.01) == []

    in_loop(url, main)


def test_a_pop_that_does_not_wait_is_not_held_up_by_one_that_does(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        async with queue.popper() as popper:
            waiting = asyncio.create_task(popper.pop(wait=100_000))
            await asyncio.sleep(0)
            assert await popper.pop() == []
            assert not waiting.done()
            popper.stop()
            assert await waiting == []

    in_loop(url, main)


def test_a_cancelled_pop_gives_back_what_it_had_claimed_uncounted(url: str) -> None:
    """In whatever moment it is cancelled, no message stays with it."""

    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs", claim_timeout=3600)
        async with queue.popper() as popper:
            for turns in range(60):
                popping = asyncio.create_task(popper.pop(3, wait=100))
                for _ in range(turns % 6):
                    await asyncio.sleep(0)
                pushing = asyncio.create_task(queue.push_many(numbers(3)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                popping.cancel()
                await asyncio.wait([popping])
                await pushing
                left = 3 if popping.cancelled() else 3 - len(popping.result())
                if not popping.cancelled():
                    await popper.commit(popping.result())
                found: list[cassq.aio.Message] = []
                while len(found) < left:
                    found += await popper.pop(3, wait=100)
                assert [message.attempts for message in found] == [1] * left
                await popper.commit(found)
        assert await counts(queue) == (0, 0, 180)

    in_loop(url, main)


def test_what_was_on_its_way_to_a_cancelled_pop_goes_to_others(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs", claim_timeout=3600)
        await queue.push(b"0")
        mine, theirs = queue.popper(), queue.popper()
        popping = asyncio.create_task(mine.pop())
        fetcher = await mine._opened()
        while not any(want.future.done() for want in fetcher._waiting):
            await asyncio.sleep(0)
        popping.cancel()  # its messages are there, and the task has not seen them
        await asyncio.wait([popping])
        assert popping.cancelled()
        (message,) = await theirs.pop(wait=100)
        assert message.attempts == 1

    in_loop(url, main)


def test_an_iteration_acks_and_ends_when_stopped(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        await queue.push_many(numbers(3000))
        seen: list[bytes] = []
        async with queue.popper() as popper:
            async for message in popper:
                seen.append(message.payload)
                await message.ack()
                assert message.settled
                if len(seen) == 2500:
                    popper.stop()
            assert popper.stopped
        assert seen == numbers(2500)
        assert await counts(queue) == (500, 0, 2500)
        async with queue.popper() as popper:
            async for message in popper:
                assert message.attempts == 1  # what was taken ahead was given back uncounted
                await message.ack()
                seen.append(message.payload)
                if len(seen) == 3000:
                    break
        assert sorted(seen) == sorted(numbers(3000))

    in_loop(url, main)


def test_what_is_taken_ahead_and_not_used_goes_to_others(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs", claim_timeout=3600)
        await queue.push_many(numbers(400))
        seen: list[bytes] = []
        async with queue.popper() as slow, queue.popper() as other:
            async for message in slow:
                seen.append(message.payload)
                await message.ack()
                if len(seen) == 200:  # a long task: it takes nothing meanwhile
                    while len(seen) < 400:
                        for each in await other.pop(400, wait=100):
                            assert each.attempts == 1
                            seen.append(each.payload)
                            await each.ack()
                    break
        assert sorted(seen) == sorted(numbers(400))

    in_loop(url, main)


def test_every_verb_of_a_message(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs", sick_check=False, max_deliveries=3)
        await queue.push_many(numbers(5), headers=[{"n": "1"}] * 5)
        async with queue.popper() as popper:
            acked, nacked, dead, released, extended = await popper.pop(5)
            await acked.ack()
            await acked.ack()
            with pytest.raises(UsageError, match="error must be a text or an exception"):
                await nacked.nack(error=7)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="delay must be between"):
                await nacked.nack(delay=-1)
            assert not nacked.settled
            await nacked.nack(delay=0, error=ValueError("no such user"))
            with pytest.raises(ClaimLostError):
                await nacked.ack()
            await dead.dead("rejected")
            await released.release()
            await extended.extend(600)
            await popper.commit([extended])
            again = {}
            while len(again) < 2:
                again |= {m.payload: m.attempts for m in await popper.pop(5, wait=100)}
            assert again == {b"1": 2, b"3": 1}
        letters = await queue.call(queue.sync.dead_letters().peek)
        assert [letter.death["error"] for letter in letters] == ["rejected"]

    in_loop(url, main)


def test_a_batch_is_settled_as_a_whole(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs", sick_check=False)
        await queue.push_many(numbers(10))
        async with queue.popper() as popper:
            async with popper.transaction(4) as messages:
                await messages[0].ack()
            with pytest.raises(RuntimeError, match="boom"):
                async with popper.transaction(2) as messages:
                    await messages[0].ack()
                    raise RuntimeError("boom")
            found = await popper.pop(10, wait=100)
            await popper.rollback(found[:1], delay=3600)
            await popper.dead(found[1:2], "no")
            await popper.release(found[2:3])
            await popper.commit(found[3:])
            await popper.flush()
            with pytest.raises(UsageError, match="this takes many messages, not Message"):
                await popper.commit(found[0])  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="only messages of this popper"):
                await popper.commit([b"x"])  # type: ignore[list-item]
        group = (await queue.stats()).groups["default"]
        assert (group.committed, group.dead) == (len(found) + 2, 1)

    in_loop(url, main)


def test_an_exclusive_group_hands_out_one_after_another(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        await queue.create_group("one", exclusive=True)
        await queue.push_many(numbers(40))
        seen: list[bytes] = []
        async with queue.popper("one") as popper:

            async def work() -> None:
                while len(seen) < 40:
                    for message in await popper.pop(wait=0.2):
                        seen.append(message.payload)
                        await asyncio.sleep(0)
                        await message.ack()

            await asyncio.gather(*(work() for _ in range(4)))
        assert seen == numbers(40)

    in_loop(url, main)


def test_wrong_arguments_are_named_at_the_call(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        async with queue.popper() as popper:
            with pytest.raises(UsageError, match="max_messages must be between 1 and"):
                await popper.pop(0)
            with pytest.raises(UsageError, match="wait must be a number of seconds"):
                await popper.pop(wait="long")  # type: ignore[arg-type]
        with pytest.raises(ClosedError, match="this popper is closed"):
            await popper.pop()
        with pytest.raises(GroupNotFoundError, match="no group 'none'"):
            async with queue.popper("none"):
                raise AssertionError("there is none")

    in_loop(url, main)


@pytest.mark.embedded_only(reason="a sync is held up")
def test_acks_wait_for_no_disk(directory: Path) -> None:
    """The popper's thread is in the middle of something: an ack returns nevertheless."""
    disk = GateDisk()

    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        await queue.push_many(numbers(3))
        async with queue.popper() as popper:
            first, second, _third = await popper.pop(3)
            gate, entered = asyncio.Event(), asyncio.Event()
            loop = asyncio.get_running_loop()
            fetcher = await popper._opened()

            def hold() -> None:
                loop.call_soon_threadsafe(entered.set)
                asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()

            holding = asyncio.create_task(fetcher.call(hold))
            await entered.wait()
            await first.ack()
            await second.ack()
            assert (first.settled, second.settled) == (True, True)
            gate.set()
            await holding
            await popper.flush()
        assert await counts(queue) == (1, 0, 2)

    run(on_disk(directory, disk), main)


def test_closing_gives_back_what_is_in_hand(url: str, client: cassq.Client) -> None:
    """Also in a task that is cancelled, whose client closes meanwhile."""
    client.create_queue("jobs", claim_timeout=3600)

    async def main(other: cassq.aio.Client) -> None:
        queue = await other.queue("jobs")
        await queue.push_many(numbers(10))
        begun = asyncio.Event()

        async def work() -> None:
            async with cassq.aio.connect(url) as mine:
                queue = await mine.queue("jobs")
                async with queue.popper() as popper:
                    (await popper.pop())[0]
                    begun.set()
                    await asyncio.Event().wait()

        working = asyncio.create_task(work())
        await begun.wait()
        working.cancel()
        await asyncio.wait([working])
        assert working.cancelled()
        assert await counts(queue) == (10, 0, 0)

    in_loop(url, main)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_loop_that_is_closed_first_loses_nothing(
    url: str, client: cassq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    queue = client.create_queue("jobs", claim_timeout=3600)
    with queue.pusher() as pusher:
        pusher.push_many(numbers(10))
    kept: list[object] = []

    async def main() -> None:
        mine = await cassq.aio.connect(url)
        (message,) = await (await mine.queue("jobs")).pop()
        kept.append((mine, message))

    asyncio.run(main())
    eventually("it is given back", lambda: queue.stats().groups["default"].waiting == 10)
    assert "an event loop was closed before its cassq client" in caplog.text
    kept.clear()
    gc.collect()
