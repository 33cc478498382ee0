"""A connection's time, with a transport that notes what is done to it."""

from __future__ import annotations

import asyncio
from typing import Any

from cassq.gateway.wire.http import (
    BODIES_BYTES_MAX,
    BODY_BYTES_MAX,
    BODY_BYTES_PER_SECOND_MIN,
    CROWDED_SECONDS,
    IDLE_SECONDS,
    PLAIN_BODY_BYTES_MAX,
    SLOW_SECONDS,
    HttpConnection,
    HttpRequest,
    Reply,
    Undelivered,
)

MARGIN = 0.5  # seconds; nothing here waits for them


class Transport(asyncio.Transport):
    """Notes what is written, and how it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.end = ""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return bool(self.end)

    def close(self) -> None:
        self.end = self.end or "closed"

    def abort(self) -> None:
        self.end = "aborted"

    def pause_reading(self) -> None:
        """Nothing is read here."""

    def resume_reading(self) -> None:
        """Nothing is read here."""


class House:
    """What a connection needs; its requests wait for `go`."""

    def __init__(self) -> None:
        self.date = b""
        self.closing = False
        self.body_bytes, self.body_bytes_max = 0, BODIES_BYTES_MAX
        self.go = asyncio.Event()
        self.given_back = 0

    async def answer(self, request: HttpRequest) -> Reply:
        await self.go.wait()
        return Reply(200, b"x", b"", self._nothing)

    async def _nothing(self) -> None:
        return

    def opened(self, connection: HttpConnection) -> None:
        return

    def lost(self, connection: HttpConnection) -> None:
        return

    def undelivered(self, give_back: Undelivered) -> None:
        self.given_back += 1

    def body_refused(self) -> None:
        return


def connected() -> tuple[HttpConnection, Transport, House, float]:
    """A connection, with its transport, its house, and the loop's time."""
    house, transport = House(), Transport()
    connection = HttpConnection(house)
    connection.connection_made(transport)
    return connection, transport, house, asyncio.get_running_loop().time()


def test_a_slow_head_gets_408() -> None:
    async def body() -> None:
        connection, transport, _, now = connected()
        connection.data_received(b"POST / HTTP/1.1\r\nHo")
        connection.sweep(now + SLOW_SECONDS - MARGIN, crowded=False)
        assert not transport.written
        connection.sweep(now + SLOW_SECONDS + MARGIN, crowded=False)
        assert transport.written.startswith(b"HTTP/1.1 408 ")
        assert transport.end == "closed"

    asyncio.run(body())


def test_a_body_may_take_longer_if_it_comes() -> None:
    async def body() -> None:
        connection, transport, _, now = connected()
        connection.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        connection.data_received(b"x" * (10 * BODY_BYTES_PER_SECOND_MIN))
        connection.sweep(now + SLOW_SECONDS + 10 - MARGIN, crowded=False)
        assert not transport.end
        connection.sweep(now + SLOW_SECONDS + 10 + MARGIN, crowded=False)
        assert transport.written.startswith(b"HTTP/1.1 408 ")

    asyncio.run(body())


def test_an_idle_connection_is_closed_sooner_in_a_crowd() -> None:
    async def body() -> None:
        for crowded, seconds in ((False, IDLE_SECONDS), (True, CROWDED_SECONDS)):
            connection, transport, _, now = connected()
            connection.sweep(now + seconds - MARGIN, crowded=crowded)
            assert not transport.end
            connection.sweep(now + seconds + MARGIN, crowded=crowded)
            assert (transport.end, transport.written) == ("closed", b"")

    asyncio.run(body())


def test_a_request_in_hand_is_never_idle() -> None:
    async def body() -> None:
        connection, transport, house, now = connected()
        connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        connection.sweep(now + 10 * IDLE_SECONDS, crowded=True)
        assert not transport.end
        house.go.set()
        while not transport.written:
            await asyncio.sleep(0)
        assert transport.written.startswith(b"HTTP/1.1 200 ")

    asyncio.run(body())


def test_a_client_that_does_not_read_is_ended_and_its_answer_given_back() -> None:
    async def body() -> None:
        connection, transport, house, now = connected()
        house.go.set()
        transport.write = lambda data: connection.pause_writing()  # type: ignore[method-assign]
        connection.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
        for _ in range(5):
            await asyncio.sleep(0)
        connection.sweep(now + SLOW_SECONDS - MARGIN, crowded=False)
        assert not transport.end
        connection.sweep(now + SLOW_SECONDS + MARGIN, crowded=False)
        assert transport.end == "aborted"
        connection.connection_lost(None)
        assert house.given_back == 1

    asyncio.run(body())


def test_a_batch_of_plain_http_may_have_its_whole_limit() -> None:
    async def body() -> None:
        connection, transport, house, _ = connected()
        house.go.set()
        head = b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
        connection.data_received(head % PLAIN_BODY_BYTES_MAX)
        for _ in range(16):
            connection.data_received(bytes(PLAIN_BODY_BYTES_MAX // 16))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert transport.written.startswith(b"HTTP/1.1 200 ")
        # The limit of batches ends with their request.
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
        connection.data_received(head % (BODY_BYTES_MAX + 1))
        assert b"HTTP/1.1 413 " in transport.written

    asyncio.run(body())
