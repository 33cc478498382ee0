"""HTTP: what connections do, with a service that does what it is told."""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
from pathlib import Path

import pytest

from cassq.gateway.serving import Certificate, server_tls
from cassq.gateway.wire.http import BODY_BYTES_MAX, HEAD_BYTES_MAX, HEADERS_MAX
from cassq.gateway.wire.listening import REFUSALS_MAX
from tests.integration.aio.loops import until
from tests.integration.gateway.listened import (
    Client,
    Gateway,
    head,
    in_time,
    listened,
    mutated,
    receiving,
    run,
    sending,
)
from tests.integration.sidecar.certificates import authority, signed


def test_pipelined_requests_are_answered_in_order() -> None:
    async def body() -> None:
        async with listened() as gateway:
            client = await gateway.client()
            client.send(*(sending(str(number)) for number in range(500)))
            for number in range(500):
                assert (await in_time(client.read())).id == str(number)
            client.send(receiving(), sending("after"))
            await until("it waits", lambda: gateway.service.waiting)
            gateway.service.ring.set()
            assert b"Messages" in (await in_time(client.read())).body
            assert (await in_time(client.read())).id == "after"

    run(body)


def test_a_request_that_comes_byte_by_byte_is_read() -> None:
    async def body() -> None:
        async with listened() as gateway:
            client = await gateway.client()
            for byte in sending("slow"):
                client.send(bytes([byte]))
                await asyncio.sleep(0)
            assert (await in_time(client.read())).id == "slow"

    run(body)


def test_bodies_may_be_chunked() -> None:
    async def body() -> None:
        async with listened() as gateway:
            client = await gateway.client()
            text = b'{"QueueUrl":"q","MessageBody":"chunked"}'
            chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in text)
            client.send(head("SendMessage", b"Transfer-Encoding: chunked\r\n"), chunks)
            # A trailer changes nothing.
            client.send(b"0\r\nX-Amz-Target: AmazonSQS.DeleteQueue\r\n\r\n", sending("next"))
            assert (await in_time(client.read())).id == "chunked"
            assert (await in_time(client.read())).id == "next"

    run(body)


def test_a_client_that_expects_100_gets_it() -> None:
    async def body() -> None:
        async with listened() as gateway:
            client = await gateway.client()
            whole = sending("expected", b"Expect: 100-continue\r\n")
            start, _, rest = whole.partition(b"\r\n\r\n")
            client.send(receiving(), start, b"\r\n\r\n")
            await until("it waits", lambda: gateway.service.waiting)
            gateway.service.ring.set()
            assert (await in_time(client.read())).status == 200  # the answer that is due first
            assert (await in_time(client.read())).status == 100
            client.send(rest)
            assert (await in_time(client.read())).id == "expected"

    run(body)


def test_other_methods_and_pages() -> None:
    async def body() -> None:
        async with listened() as gateway:
            client = await gateway.client()

            async def get(line: bytes, headers: bytes = b"") -> tuple[int, bytes]:
                client.send(b"%b HTTP/1.1\r\nHost: a\r\n%b\r\n" % (line, headers))
                answer = await in_time(client.read(head=line.startswith(b"HEAD")))
                return answer.status, answer.body

            status, text = await get(b"GET /health")
            assert (status, json.loads(text)["healthy"]) == (200, True)
            assert await get(b"HEAD /health") == (200, b"")
            assert (await get(b"OPTIONS *"))[0] == 200
            assert (await get(b"DELETE /"))[0] == 405
            assert (await get(b"GET /"))[0] == 404
            # What asks for another protocol is answered in this one.
            assert (await get(b"GET /health", b"Upgrade: h2c\r\nConnection: Upgrade\r\n"))[0] == 200
            client.send(sending("counted"))
            await in_time(client.read())
            text = (await get(b"GET /metrics"))[1]
            line = 'cassq_gateway_requests_total{action="SendMessage",outcome="done"} 1.0'
            assert line in text.decode()

    run(body)


def test_a_client_may_ask_for_the_end() -> None:
    async def body() -> None:
        async with listened() as gateway:
            for headers in (b"Connection: close\r\n", b""):
                client = await gateway.client()
                request = sending("last", headers)
                client.send(request if headers else request.replace(b"HTTP/1.1", b"HTTP/1.0"))
                answer = await in_time(client.read())
                assert answer.headers["connection"] == "close"
                assert await in_time(client.ended())

    run(body)


# --- clients that go away ----------------------------------------------------------------------


def test_a_wait_ends_when_its_client_goes() -> None:
    async def body() -> None:
        async with listened() as gateway:
            client = await gateway.client()
            client.send(receiving())
            await until("it waits", lambda: gateway.service.waiting)
            client.close()
            await until("it is cancelled", lambda: gateway.service.cancelled)
            await until("it is gone", lambda: not gateway.listener.connections)

    run(body)


def test_an_answer_that_comes_too_late_is_given_back() -> None:
    async def body() -> None:
        async with listened() as gateway:
            client = await gateway.client()
            client.send(receiving("stubborn"))
            await until("it waits", lambda: gateway.service.waiting)
            client.close()
            await in_time(gateway.service.given_back.wait())

    run(body)


def test_an_answer_that_was_not_all_taken_is_given_back() -> None:
    async def body() -> None:
        async with listened() as gateway:
            client = await gateway.client()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(*[sending("large")] * 30)
            await until("it cannot write", lambda: _blocked(gateway))
            assert not gateway.service.given_back.is_set()
            client.writer.transport.abort()
            await in_time(gateway.service.given_back.wait())

    run(body)


def test_an_answer_that_was_taken_is_not_given_back() -> None:
    async def body() -> None:
        async with listened() as gateway:
            client = await gateway.client()
            client.send(sending("large"))
            assert (await in_time(client.read())).id.startswith("large")
            client.close()
            await until("it is gone", lambda: not gateway.listener.connections)
            assert not gateway.service.given_back.is_set()

    run(body)


def _blocked(gateway: Gateway) -> bool:
    return any(each._blocked for each in gateway.listener._open)


def _reads(gateway: Gateway) -> bool:
    return any(each._reading for each in gateway.listener._open)


# --- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (head("SendMessage", b"Content-Length: %d\r\n" % (BODY_BYTES_MAX + 1)), 413),
        (head("SendMessage", b"Content-Length: 9999999999999\r\n"), 413),
        (head("SendMessage", b"Content-Length: 99999999999999999999\r\n"), 400),
        (head("SendMessage", b"X: %b\r\n" % (b"x" * HEAD_BYTES_MAX)), 431),
        (head("SendMessage", b"X: 1\r\n" * HEAD_BYTES_MAX), 431),
        (head("SendMessage", b"".join(b"X%d: 1\r\n" % n for n in range(HEADERS_MAX))), 431),
        (b"GET /%b HTTP/1.1\r\n" % (b"x" * HEAD_BYTES_MAX), 431),
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x00", 400),
        (head("ListQueues", b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"), 400),
        (head("ListQueues", b"Content-Length: 1\r\nContent-Length: 2\r\n"), 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
    ],
)
def test_what_is_beyond_a_limit_is_refused(request_: bytes, status: int) -> None:
    async def body() -> None:
        async with listened() as gateway:
            client = await gateway.client()
            client.send(sending("before"), request_)
            assert (await in_time(client.read())).id == "before"
            answer = await in_time(client.read())
            assert answer.status == status
            assert answer.headers["connection"] == "close"
            assert await in_time(client.ended())

    run(body)


def test_a_body_is_cut_off_while_it_is_read() -> None:
    async def body() -> None:
        async with listened() as gateway:
            client = await gateway.client()
            client.send(head("SendMessage", b"Transfer-Encoding: chunked\r\n"))
            client.send(b"%x\r\n" % (BODY_BYTES_MAX + 1), b"x" * (BODY_BYTES_MAX + 1))
            assert (await in_time(client.read())).status == 413
            assert await in_time(client.ended())

    run(body)


def test_the_largest_message_is_taken() -> None:
    async def body() -> None:
        async with listened() as gateway:
            client = await gateway.client()
            client.send(sending("x" * 1_048_576))
            assert len((await in_time(client.read())).id) == 1_048_576

    run(body)


def test_large_bodies_beyond_what_there_is_room_for_get_503(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> None:
        async with listened(body_bytes_max=200_000) as gateway:
            whole = sending("x" * 150_000)
            slow, large, small, waiting = [await gateway.client() for _ in range(4)]
            slow.send(whole[:-1])
            await until("it is read", lambda: gateway.listener.body_bytes > 140_000)
            large.send(whole)
            refused = await in_time(large.read())
            assert (refused.status, refused.body[:8]) == (503, b"SlowDown")
            assert await in_time(large.ended())
            small.send(sending("small"))
            assert (await in_time(small.read())).id == "small"
            slow.send(whole[-1:])
            assert len((await in_time(slow.read())).id) == 150_000
            assert gateway.listener.body_bytes == 0
            waiting.send(receiving())
            await until("it waits", lambda: gateway.service.waiting)
            waiting.send(whole[:-1])
            waiting.close()
            await until("nothing is held", lambda: not gateway.listener.body_bytes)

    run(body)
    gateway_log = [each.getMessage() for each in caplog.records]
    assert any("large bodies get 503" in text for text in gateway_log)


def test_connections_beyond_the_limit_get_503() -> None:
    async def body() -> None:
        async with listened(connections_max=2) as gateway:
            first, _ = [await gateway.client() for _ in range(2)]
            for _ in range(REFUSALS_MAX):
                client = await gateway.client()
            client.send(sending("x"))
            assert (await in_time(client.read())).status == 503
            assert await in_time(client.ended())
            first.send(sending("still"))
            assert (await in_time(first.read())).id == "still"
            first.close()

    run(body)


# --- the end -----------------------------------------------------------------------------------


def test_a_stop_answers_what_was_asked() -> None:
    async def body() -> None:
        async with listened() as gateway:
            idle, waiting, reading = [await gateway.client() for _ in range(3)]
            waiting.send(receiving(), sending("behind"))
            whole = sending("late")
            reading.send(whole[:50])
            await until("it waits", lambda: gateway.service.waiting)
            await until("it reads", lambda: _reads(gateway))
            assert gateway.listener.connections == 3
            stopping = asyncio.ensure_future(gateway.listener.stop(100.0))
            assert await in_time(idle.ended())
            answer = await in_time(waiting.read())
            assert (answer.status, answer.body) == (200, b"{}")  # the wait ended with its answer
            assert gateway.service.cancelled == 1
            reading.send(whole[50:])
            assert (await in_time(reading.read())).id == "late"
            assert await in_time(stopping)
            with pytest.raises(OSError, match="."):
                await gateway.client()

    run(body)


def test_a_stop_does_not_wait_for_longer_than_its_grace() -> None:
    async def body() -> None:
        async with listened() as gateway:
            client = await gateway.client()
            client.send(sending("x")[:50])
            await until("it reads", lambda: _reads(gateway))
            assert not await in_time(gateway.listener.stop(0.0))
            assert await in_time(client.ended())

    run(body)


def test_over_tls_all_is_the_same(tmp_path: Path) -> None:
    trusted = ssl.create_default_context(cafile=str(authority(tmp_path)))
    signed(tmp_path, "gateway")
    tls = server_tls(tmp_path / "gateway.pem", tmp_path / "gateway.key")

    async def body() -> None:
        async with listened(tls=tls) as gateway:
            plain = await gateway.client()
            plain.send(sending("plain"))
            client = await gateway.client(trusted)
            client.send(sending("x" * 500_000))
            assert len((await in_time(client.read())).id) == 500_000
            client.send(receiving())
            await until("it waits", lambda: gateway.service.waiting)
            client.close()
            await until("it is cancelled", lambda: gateway.service.cancelled)

    run(body)


def test_new_connections_use_a_certificate_that_was_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    trusted: list[ssl.SSLContext] = []
    for place in (first, second):
        place.mkdir()
        trusted.append(ssl.create_default_context(cafile=str(authority(place))))
        signed(place, "gateway")
    certificate = Certificate(first / "gateway.pem", first / "gateway.key")

    def replace(name: str, text: bytes) -> None:
        (first / name).write_bytes(text)
        later_ns = (first / name).stat().st_mtime_ns + 10**9
        os.utime(first / name, ns=(later_ns, later_ns))

    async def answered(client: Client) -> None:
        client.send(sending("one"))
        assert (await in_time(client.read())).id == "one"

    async def body() -> None:
        async with listened(tls=certificate.tls) as gateway:
            before = await gateway.client(trusted[0])
            replace("gateway.pem", b"no certificate")
            certificate.refresh()
            gateway.listener.tls = certificate.tls
            await answered(await gateway.client(trusted[0]))
            for name in ("gateway.pem", "gateway.key"):
                replace(name, (second / name).read_bytes())
            certificate.refresh()
            gateway.listener.tls = certificate.tls
            await answered(await gateway.client(trusted[1]))
            with pytest.raises(ssl.SSLCertVerificationError):
                await gateway.client(trusted[0])
            await answered(before)

    run(body, plain=False)
    assert "the former certificate stays in use" in caplog.text
    assert "the certificate that was read again" in caplog.text


# --- garbage -----------------------------------------------------------------------------------


async def garbage(gateway: Gateway, chance: random.Random, count: int) -> None:
    """Send damaged requests, each by a client of its own; none may get a 500."""
    gateway.service.ring.set()
    for _ in range(count):
        request = mutated(chance)
        client = await gateway.client()
        client.send(request)
        client.writer.write_eof()
        try:
            got = await in_time(client.reader.read())
        except ConnectionError:
            got = b""
        assert b"HTTP/1.1 5" not in got, request
        client.close()
        gateway.clients.clear()


def test_garbage_harms_no_other_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with listened() as gateway:
            await garbage(gateway, random.Random(1), 400)
            client = await gateway.client()
            client.send(sending("alive"))
            assert (await in_time(client.read())).id == "alive"

    run(body)
    assert "Traceback" not in caplog.text


@pytest.mark.long(reason="100,000 requests take two minutes")
def test_much_garbage_takes_no_memory() -> None:
    async def body() -> None:
        async with listened() as gateway:
            chance = random.Random(2)
            await garbage(gateway, chance, 10_000)
            before = _resident_bytes()
            await garbage(gateway, chance, 90_000)
            assert _resident_bytes() - before < 8 * 1024 * 1024

    run(body, plain=False, seconds=900)


@pytest.mark.long(reason="opens 9,000 connections, and both of their ends")
def test_9_000_idle_connections_cost_little() -> None:
    async def body() -> None:
        async with listened() as gateway:
            before = _resident_bytes()
            for _ in range(9_000):  # both ends are files of this process
                await gateway.client()
            await until("all are there", lambda: gateway.listener.connections == 9_000)
            # With the client's half of each.
            assert _resident_bytes() - before < 9_000 * 40 * 1024
            client = gateway.clients[4_500]
            client.send(sending("one"))
            assert (await in_time(client.read())).id == "one"

    run(body, plain=False)


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096
