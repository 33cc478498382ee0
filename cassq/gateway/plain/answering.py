"""Answering plain HTTP: from a request as it was read to its answer, including its caller.

A caller signs with its access key, as SQS clients do, or sends the key with its secret (`curl -u
KEY:SECRET`). Send secrets only over TLS, or in a trusted network.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import time
from urllib.parse import unquote

from cassq.base.clock import Clock
from cassq.base.os_errors import untraced
from cassq.base.rare_log import RareLog
from cassq.gateway.errors import ActionError
from cassq.gateway.plain.formats import bad
from cassq.gateway.plain.request import PlainAnswer, PlainError, PlainRequest
from cassq.gateway.plain.service import PlainService, refused
from cassq.gateway.request import Caller
from cassq.gateway.wire.counts import (
    DONE,
    FAILED,
    GONE,
    PLAIN_OTHER,
    PLAIN_PUSH,
    PLAIN_RECEIVE,
    PLAIN_SETTLE,
    REFUSED,
    Counts,
)
from cassq.gateway.wire.credentials import Credentials
from cassq.gateway.wire.http import HttpRequest, Reply
from cassq.gateway.wire.query_codec import pairs_of
from cassq.gateway.wire.signatures import Verifier

logger: logging.Logger = logging.getLogger("cassq")

_NAMES = {
    ("POST", "messages"): PLAIN_PUSH,
    ("GET", "messages"): PLAIN_RECEIVE,
    ("POST", "settle"): PLAIN_SETTLE,
}


class PlainAnswering:
    """Answers requests below /v1/. verifier: None accepts all callers. log: logs why stores cannot
    be used."""

    def __init__(
        self,
        service: PlainService,
        counts: Counts,
        clock: Clock,
        verifier: Verifier | None,
        log: RareLog | None = None,
    ) -> None:
        self._service = service
        self._counts = counts
        self._clock = clock
        self._verifier = verifier
        self._log = log or RareLog()

    async def __call__(self, request: HttpRequest) -> Reply:
        """The answer. Raises nothing but CancelledError."""
        method = "GET" if request.method == b"HEAD" else request.method.decode("latin-1")
        path = tuple(map(unquote, request.path.decode("latin-1").split("/")[2:]))
        name = _NAMES.get((method, path[-1]), PLAIN_OTHER)
        began, outcome = time.perf_counter(), GONE
        try:
            answer = await self._answered(request, method, path, waits=name == PLAIN_RECEIVE)
            outcome = DONE if answer.status < 400 else REFUSED if answer.status < 500 else FAILED
        finally:
            self._counts.ended(name, outcome, time.perf_counter() - began)
        if answer.status == 503:
            asked, error = f"{method} /v1/{'/'.join(path)}", answer.error
            why = error["message"], error.get("hint")
            self._log.say("failed requests", "%s failed: %s (%s)", asked, *why)
        headers = b"Content-Type: %b\r\n" % answer.content_type.encode()
        if answer.status == 401:
            headers += b'WWW-Authenticate: Basic realm="cassq"\r\n'
        return Reply(answer.status, answer.body, headers, answer.undelivered)

    async def _answered(
        self, request: HttpRequest, method: str, path: tuple[str, ...], *, waits: bool
    ) -> PlainAnswer:
        try:
            asked = PlainRequest(
                method,
                path,
                pairs_of(request.query),
                request.body,
                self._caller(request),
                request.headers.get(b"content-type", b"").decode("latin-1"),
                request.headers.get(b"accept", b"").decode("latin-1"),
            )
            answer = await request.unless_ended(self._service.answer(asked), waits=waits)
            return self._service.nothing(asked) if answer is None else answer
        except PlainError as exc:
            return refused(exc)
        except ActionError as exc:  # a query that is not one
            return refused(bad(exc.message))
        except Exception as exc:
            logger.error("%s /v1/%s: %s", method, "/".join(path), type(exc).__name__, exc_info=exc)
            untraced(exc)
            return refused(PlainError(500, "failed", "the request failed; the log has more"))

    def _caller(self, request: HttpRequest) -> Caller:
        """The caller of a request. Raises PlainError."""
        header = request.headers.get(b"authorization", b"")
        kind, _, given = header.partition(b" ")
        if self._verifier is None:
            return Caller("")
        if kind.lower() == b"basic":
            return _named(self._verifier.credentials, given)
        try:
            return self._verifier.key_of(request, self._clock.wall_ms() / 1000).caller
        except ActionError as exc:
            raise _unauthorized(exc.message) from exc


def _unauthorized(message: str) -> PlainError:
    return PlainError(401, "unauthorized", message, "sign the request, or curl -u KEY:SECRET")


def _named(credentials: Credentials, given: bytes) -> Caller:
    """The caller with the access key and secret of `Authorization: Basic`. Raises PlainError."""
    try:
        name, _, secret = base64.b64decode(given, validate=True).partition(b":")
    except (ValueError, binascii.Error) as exc:
        raise _unauthorized("the header Authorization is not valid") from exc
    key = credentials.keys.get(name.decode("utf-8", "replace"))
    # An unknown key is compared too, so that the time taken tells nothing.
    right = b"AWS4" + secret if key is None else key.secret
    if not hmac.compare_digest(right, b"AWS4" + secret) or key is None:
        raise _unauthorized("the access key or its secret is wrong")
    return key.caller
