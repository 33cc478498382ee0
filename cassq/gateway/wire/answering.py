"""Answering: finds the action and the caller of an HTTP request, and writes its answer.

A request is read in this order: pages that are not actions, such as /health; the action, in one of
the two encodings; its caller; its parameters. Errors have the encoding of the request. A failure of
the stores is 503, which SDKs try again; a defect of cassq is 500, and is logged in full.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from cassq.base.clock import Clock
from cassq.base.os_errors import untraced
from cassq.base.rare_log import RareLog
from cassq.errors import BackendError, QueueFullError
from cassq.gateway.errors import ActionError
from cassq.gateway.request import Answer, Caller, Request, Service
from cassq.gateway.wire import json_codec, query_codec
from cassq.gateway.wire.counts import DONE, FAILED, GONE, OTHER, REFUSED, Counts
from cassq.gateway.wire.http import PLAIN_PREFIX, HttpRequest, Reply, Undelivered
from cassq.gateway.wire.signatures import Verifier, access_key_of
from cassq.inspect.prometheus import as_text

logger: logging.Logger = logging.getLogger("cassq")

WAITING = "ReceiveMessage"  # the action that waits, and may be answered with nothing
ACCOUNT = "000000000000"
FORM = b"application/x-www-form-urlencoded"
_METHODS = b"GET, HEAD, OPTIONS, POST"
# Characters of a host and a port, as they stand in URLs.
_HOST = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]")
_HOST_BYTES_MAX = 260
_TRUSTED: Callable[[str, str], bool] = lambda action, queue: True  # noqa: E731 - one for all


class ActionCall:
    """One call of an action, in either encoding. text: parameters of the Query encoding; None for
    JSON."""

    __slots__ = ("action", "id", "text")

    def __init__(self, request_id: str) -> None:
        self.action: str = ""
        self.id: str = request_id
        self.text: Mapping[str, str] | None = None


class Health(NamedTuple):
    """What /health says. well: whether the gateway serves."""

    well: bool
    facts: Mapping[str, Any]


class Answering:
    """Answers requests. plain: answers those below /v1/. verifier: None accepts all callers.
    scheme: "http" or "https", by which clients reach this. health: see `Health`. log: logs why
    stores cannot be used."""

    def __init__(
        self,
        service: Service,
        counts: Counts,
        clock: Clock,
        *,
        plain: Callable[[HttpRequest], Awaitable[Reply]] | None = None,
        verifier: Verifier | None = None,
        scheme: str = "http",
        health: Callable[[], Health] = lambda: Health(True, {}),
        log: RareLog | None = None,
    ) -> None:
        self._service = service
        self._counts = counts
        self._clock = clock
        self._plain = plain
        self._verifier = verifier
        self._scheme = scheme
        self._health = health
        self._log = log or RareLog()
        self._hosts: dict[bytes, str] = {}
        self._callers: dict[str, Caller] = {}
        # Request ids: unique, and cheaper than random ones.
        seed = os.urandom(10).hex()
        self._prefix = f"{seed[:8]}-{seed[8:12]}-4{seed[12:15]}-8{seed[15:18]}-"
        self._numbers = itertools.count(int.from_bytes(os.urandom(4)))

    async def __call__(self, request: HttpRequest) -> Reply:
        """The answer. Raises nothing but CancelledError."""
        if self._plain is not None and request.path.startswith(PLAIN_PREFIX):
            return await self._plain(request)
        method = request.method
        target = request.headers.get(b"x-amz-target")
        if method != b"POST" or target is None:
            page = self._page(request)
            if page is not None:
                return page
        call = ActionCall(f"{self._prefix}{next(self._numbers) & 0xFFFFFFFFFFFF:012x}")
        began = time.perf_counter()
        outcome = GONE
        try:
            if target is not None and method == b"POST":
                call.action = json_codec.action_of(target)
            else:
                call.text = {}
                call.text = _form(request)
                call.action = query_codec.action_of(call.text)
            caller = self._caller(request)
            reply = await self._done(request, call, caller)
            outcome = DONE
        except ActionError as exc:
            reply, outcome = _refusal(call, exc), REFUSED if exc.sender else FAILED
            untraced(exc)
        except Exception as exc:
            reply, outcome = _refusal(call, self._failure(request, call, exc)), FAILED
            untraced(exc)
        finally:
            self._counts.ended(call.action or OTHER, outcome, time.perf_counter() - began)
        return reply

    def flush(self) -> None:
        """Report what was left out of the log; called about once per second."""
        self._log.flush()

    # --- what is not an action --------------------------------------------------------------------

    def _page(self, request: HttpRequest) -> Reply | None:
        """The answer to a request for a page; None if the request may be an action."""
        match request.method, request.path:
            case b"GET" | b"HEAD", b"/health":
                well, facts = self._health()
                text = json.dumps({"healthy": well, **facts}, indent=2) + "\n"
                headers = b"Content-Type: application/json\r\n"
                return Reply(200 if well else 503, text.encode(), headers)
            case b"GET" | b"HEAD", b"/metrics":
                kind = b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                return Reply(200, as_text(self._counts.metrics), kind)
            case b"OPTIONS", _:
                return Reply(200, b"", b"Allow: %b\r\n" % _METHODS)
            case b"GET" | b"HEAD", _ if b"Action=" not in request.query:
                return Reply(404, b"this is a gateway for SQS clients; see /health and /metrics\n")
            case b"GET" | b"HEAD" | b"POST", _:
                return None
        return Reply(405, b"this method is not supported\n", b"Allow: %b\r\n" % _METHODS)

    # --- actions ----------------------------------------------------------------------------------

    def _caller(self, request: HttpRequest) -> Caller:
        """The caller of a request. Raises ActionError."""
        if self._verifier is not None:
            return self._verifier.key_of(request, self._clock.wall_ms() / 1000).caller
        access_key = access_key_of(request)
        caller = self._callers.get(access_key)
        if caller is None:
            caller = Caller(access_key, _TRUSTED)
            if len(self._callers) < 1000:
                self._callers[access_key] = caller
        return caller

    async def _done(self, request: HttpRequest, call: ActionCall, caller: Caller) -> Reply:
        action, text = call.action, call.text
        if text is not None and action == query_codec.IDENTITY:
            return _identity(call, caller)
        if not caller.may(action, ""):
            raise ActionError(
                "AccessDenied", f"The access key may not use the action {action}.", status=403
            )
        base_url = self._base_url(request)
        if text is None:
            parameters = json_codec.decoded(action, request.body)
        else:
            parameters = query_codec.decoded(action, text, _queue_url(request, base_url))
        asked = self._service.answer(Request(action, parameters, caller, base_url, call.id))
        answer = await request.unless_ended(asked, waits=action == WAITING)
        if answer is None:
            answer = Answer({})
        if text is None:
            return _reply(200, json_codec.encoded(answer.members), call, b"", answer.undelivered)
        body = query_codec.encoded(action, answer.members, call.id)
        return _reply(200, body, call, b"", answer.undelivered)

    def _base_url(self, request: HttpRequest) -> str:
        """Scheme, host and port by which the client reached the gateway. Raises ActionError if the
        header Host is not valid."""
        host = request.headers.get(b"host", b"")
        proto = request.headers.get(b"x-forwarded-proto")
        if proto is not None:
            scheme = "https" if proto == b"https" else "http"
            return f"{scheme}://{_checked_host(host)}"
        found = self._hosts.get(host)
        if found is None:
            found = f"{self._scheme}://{_checked_host(host)}"
            if len(self._hosts) < 1000:
                self._hosts[host] = found
        return found

    def _failure(self, request: HttpRequest, call: ActionCall, exc: Exception) -> ActionError:
        """The client's error for a failed store or a defect of cassq; the log gets the details."""
        match exc:
            case QueueFullError():
                return ActionError("OverLimit", exc.message)
            case BackendError():
                name = call.action or "a request"
                self._log.say("failed requests", "%s failed: %s", name, exc)
                return ActionError("ServiceUnavailable", exc.message, status=503, sender=False)
        logger.error(
            "request %s failed: %s %s, action %s: %s",
            call.id,
            *(request.method.decode(), request.path.decode("latin-1")[:200]),
            call.action or "unknown",
            type(exc).__name__,
            exc_info=exc,
        )
        message = f"The request failed; the gateway's log has more at {call.id}."
        return ActionError("InternalFailure", message, status=500, sender=False)


def _form(request: HttpRequest) -> Mapping[str, str]:
    """The parameters of a request in the Query encoding. Raises ActionError."""
    if request.method != b"POST":
        return query_codec.pairs_of(request.query)
    kind = request.headers.get(b"content-type", FORM)
    if not kind.startswith(FORM) and request.body:
        shown = kind.decode("latin-1")
        raise ActionError(
            "MissingAction",
            f"With the content type {shown!r:.200} the header X-Amz-Target must name an action.",
        )
    if b"Action=" in request.query:
        return {**query_codec.pairs_of(request.query), **query_codec.pairs_of(request.body)}
    return query_codec.pairs_of(request.body)


def _checked_host(host: bytes) -> str:
    if not host or len(host) > _HOST_BYTES_MAX or not _HOST.issuperset(host):
        raise ActionError("InvalidAddress", "The header Host is missing, or is not valid.")
    return host.decode()


def _queue_url(request: HttpRequest, base_url: str) -> str:
    """The URL of the queue whose path was asked for; "" for the path /."""
    return f"{base_url}{request.path.decode('latin-1')}" if request.path != b"/" else ""


def _identity(call: ActionCall, caller: Caller) -> Reply:
    user = caller.access_key or "anonymous"
    arn = f"arn:aws:iam::{ACCOUNT}:user/{user}"
    return _reply(200, query_codec.identity(ACCOUNT, arn, user, call.id), call)


def _refusal(call: ActionCall, failure: ActionError) -> Reply:
    status = json_codec.status(failure)
    if call.text is None:
        body, headers = json_codec.error(failure)
        return _reply(status, body, call, headers)
    return _reply(status, query_codec.error(failure, call.id), call)


def _reply(
    status: int,
    body: bytes,
    call: ActionCall,
    headers: bytes = b"",
    undelivered: Undelivered | None = None,
) -> Reply:
    kind = json_codec.CONTENT_TYPE if call.text is None else query_codec.CONTENT_TYPE
    lines = b"Content-Type: %b\r\nx-amzn-RequestId: %b\r\n%b" % (kind, call.id.encode(), headers)
    return Reply(status, body, lines, undelivered)
