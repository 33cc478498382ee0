"""The client of an event loop: opening, closing, other loops, forks."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

import cassq.aio
from cassq.errors import (
    ClosedError,
    ConfigError,
    ForkedClientError,
    QueueExistsError,
    QueueNotFoundError,
    UsageError,
)
from tests.integration.aio.loops import in_loop
from tests.integration.stage import numbers


def threads() -> set[str]:
    """The threads of this process, but for those of sidecars that the tests run in it."""
    names = {thread.name for thread in threading.enumerate()}
    return {name for name in names if not name.startswith("cassq-sync")}


def test_a_client_leaves_no_thread_behind(url: str) -> None:
    before = threads()

    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        await asyncio.gather(*(queue.push(payload) for payload in numbers(100)))
        async with queue.popper() as popper:
            await popper.commit(await popper.pop(100))
        await queue.pop()
        mine = [t.name for t in threading.enumerate() if t.name.startswith("cassq-aio-")]
        assert len(mine) == 3  # the client's, the pusher's, and that of the popper still open

    in_loop(url, main)
    assert threads() <= before


def test_errors_are_those_of_the_calls_that_block(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        with pytest.raises(QueueNotFoundError):
            await client.queue("none")
        await client.create_queue("jobs")
        with pytest.raises(QueueExistsError):
            await client.create_queue("jobs", max_length=3)
        with pytest.raises(ConfigError, match="max_lenght"):
            await client.create_queue("other", max_lenght=3)  # type: ignore[call-arg]
        assert [queue.name for queue in await client.queues()] == ["jobs"]
        await client.delete_queue("jobs")
        assert await client.queues() == []

    in_loop(url, main)


def test_a_url_that_cannot_be_used_is_refused_at_once() -> None:
    async def main() -> None:
        with pytest.raises(ConfigError):
            await cassq.aio.connect("nonsense:")
        with pytest.raises(ConfigError):
            async with cassq.aio.connect("nonsense:"):
                raise AssertionError("it cannot be opened")

    asyncio.run(main())
    assert not [t for t in threading.enumerate() if t.name.startswith("cassq-aio-")]


def test_a_closed_client_says_so(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        await client.close()
        await client.close()
        for call in (queue.push(b"0"), queue.pop(), client.queues(), queue.stats()):
            with pytest.raises(ClosedError):
                await call

    in_loop(url, main)


def test_another_loop_is_refused(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        pusher, popper = queue.pusher(), queue.popper()
        await pusher.push(b"0")
        (message,) = await popper.pop()
        refused: list[str] = []

        async def elsewhere() -> None:
            for call in (client.queues, lambda: pusher.push(b"1"), popper.pop, message.ack):
                with pytest.raises(UsageError) as excinfo:
                    await call()
                refused.append(str(excinfo.value))

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert len(refused) == 4
        assert all("belongs to another event loop" in each for each in refused)

    in_loop(url, main)


def test_a_forked_child_gets_an_error_that_says_to_open_its_own_client(url: str) -> None:
    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        await queue.push(b"0")
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            said = "nothing"
            try:
                for call in (client.queues(), queue.push(b"1"), queue.pop()):
                    try:
                        call.send(None)
                    except ForkedClientError as exc:
                        said = str(exc.hint)
            finally:
                os.write(write_end, said.encode())
                os._exit(0)
        os.close(write_end)
        os.waitpid(pid, 0)
        said = os.read(read_end, 1000).decode()
        os.close(read_end)
        assert "in the child process, after the fork" in said
        await queue.push(b"2")

    in_loop(url, main)


def test_a_client_that_is_dropped_warns(url: str) -> None:
    async def main() -> None:
        clients = [await cassq.aio.connect(url)]
        sync = clients[0].sync
        with pytest.warns(ResourceWarning, match="was not closed"):
            clients.clear()
        await asyncio.to_thread(sync.close)

    asyncio.run(main())


def test_things_cannot_be_pickled(url: str) -> None:
    import pickle

    async def main(client: cassq.aio.Client) -> None:
        queue = await client.create_queue("jobs")
        await queue.push(b"0")
        (message,) = await queue.pop()
        for thing in (client, queue, queue.pusher(), queue.popper(), message):
            with pytest.raises(UsageError, match="cannot be pickled"):
                pickle.dumps(thing)

    in_loop(url, main)


def test_uvloop_does_as_well(url: str) -> None:
    import uvloop

    async def main() -> None:
        async with cassq.aio.connect(url) as client:
            queue = await client.create_queue("jobs")
            await asyncio.gather(*(queue.push(payload) for payload in numbers(500)))
            seen: list[bytes] = []

            async def handle(message: cassq.aio.Message) -> None:
                seen.append(message.payload)

            await queue.run(handle, max_tasks=500)
            assert seen == numbers(500)

    uvloop.run(main())
