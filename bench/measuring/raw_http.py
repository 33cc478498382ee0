"""Connections of HTTP/1.1 that are kept open, and know nothing of what they carry.

An SDK takes many times longer for a request than a server does, so that it would measure itself.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, cast

CLOSING = b"\r\nConnection: close"
LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: *(\d+)")
# As SDKs sign; peers of the comparison take any signature.
SIGNATURE = (
    "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/sqs/aws4_request, SignedHeaders="
    f"content-type;host;x-amz-date;x-amz-target, Signature={'deadbeef' * 8}"
)


class RefusedError(Exception):
    """A server answered with another status than 200."""


class FailedError(RefusedError):
    """A server answered that it could not do it: it may be asked again."""


def request(method: str, path: str, address: str, body: bytes, **headers: str) -> bytes:
    """The bytes of a request. headers: by their names, with `_` for `-`."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def sqs_request(address: str, action: str, **members: Any) -> bytes:
    """The bytes of an action of SQS, as long as an SDK's."""
    return request(
        "POST",
        "/",
        address,
        json.dumps(members).encode(),
        Content_Type="application/x-amz-json-1.0",
        X_Amz_Target=f"AmazonSQS.{action}",
        X_Amz_Date="20260101T000000Z",
        User_Agent="bench/1.0 md/none lang/none",
        Authorization=SIGNATURE,
    )


class RawConnection(asyncio.Protocol):
    """One connection. Its server says the length of each answer; if it closes the connection with
    an answer, the next request has another one."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._read = b""
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    async def open(self) -> None:
        """Connect."""
        self._read = b""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, self._host, self._port)

    async def ask(self, asked: bytes) -> bytes:
        """The body of the answer. Raises RefusedError, or ConnectionError."""
        if self._transport is None:
            await self.open()
        assert self._transport is not None, "it is open"
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(asked)
        return await self._answer

    def close(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._transport is not None and self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._read = read = self._read + data if self._read else data
        head = read.find(b"\r\n\r\n")
        if head < 0:
            return
        length = LENGTH.search(read, 0, head)
        end = head + 4 + (int(length[1]) if length is not None else 0)
        if len(read) < end or self._answer is None:
            return
        body, self._read = read[head + 4 : end], read[end:]
        if CLOSING in read[:head]:
            self.close()
        if self._answer.done():
            return  # its task was ended
        if read[9:12] == b"200":
            self._answer.set_result(body)
        else:
            text = f"{read[:head].decode('latin-1')}: {body.decode('utf-8', 'replace')}"
            kind = FailedError if read[9:10] == b"5" else RefusedError
            self._answer.set_exception(kind(text[:1_000]))
