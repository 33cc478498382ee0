"""Signatures, with botocore's signer as the other side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import botocore.auth
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from cassq.base.clock import ManualClock
from cassq.gateway.wire.http import HttpRequest
from tests.unit.gateway.wired import HOST, QUEUE_URL, URL, Recorder, answer, answering, http_request

KEYS = """
[keys.AKIDALL]
secret = "one"
[keys.AKIDSOME]
secret = "two"
queues = ["orders-*", "mail"]
actions = ["SendMessage", "Receive*"]
"""
# Of the manual clock, which signers do not use.
NOW = datetime.fromtimestamp(1_700_000_000, UTC)
BODY = b'{"QueueUrl":"q","MessageBody":"b"}'


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    path.chmod(0o600)
    return path


@pytest.fixture(autouse=True)
def _signers_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only botocore's, which has no other way to say it."""
    set_signers_time(monkeypatch, NOW.timestamp())


def set_signers_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda remove_tzinfo=True: now)


def signed(
    signer: Any = SigV4Auth,
    *,
    key: tuple[str, str] = ("AKIDALL", "one"),
    method: str = "POST",
    url: str = f"{URL}/",
    body: bytes = BODY,
    headers: Mapping[str, str] = {"X-Amz-Target": "AmazonSQS.SendMessage"},
) -> HttpRequest:
    """A request that botocore has signed."""
    made = AWSRequest(method, url, data=body, headers={"Host": HOST, **headers})
    signer(Credentials(*key), "sqs", "eu-west-1").add_auth(made)
    return http_request(method, made.url, dict(made.headers.items()), body)


def code_of(keys: Path, request: HttpRequest, clock: ManualClock | None = None) -> str:
    """The code of the error that a request gets; "" if it is done."""
    reply = answer(answering(Recorder(), keys, clock), request)
    if reply.status == 200:
        return ""
    assert reply.status == 403, reply.body
    if not reply.body.startswith(b"{"):
        return reply.body.partition(b"<Code>")[2].partition(b"<")[0].decode()
    code: str = json.loads(reply.body)["__type"]
    return code.partition("#")[2]


def test_a_signed_request_is_done(keys: Path) -> None:
    service = Recorder()
    assert answer(answering(service, keys), signed()).status == 200
    assert service.requests[0].caller.access_key == "AKIDALL"


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Amz-Target": "AmazonSQS.SendMessage", "X-Odd": "  two   spaces  "},
        {"X-Amz-Target": "AmazonSQS.SendMessage", "X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"},
        {"X-Amz-Target": "AmazonSQS.SendMessage", "X-Amz-Security-Token": "t"},
    ],
)
def test_headers_are_canonical(keys: Path, headers: dict[str, str]) -> None:
    if "X-Amz-Content-SHA256" in headers:

        class Unsigned(SigV4Auth):  # type: ignore[misc]
            def payload(self, request: Any) -> str:
                return "UNSIGNED-PAYLOAD"

        request = signed(Unsigned, headers=headers)
        request.body = b'{"QueueUrl":"q","MessageBody":"another"}'
    else:
        request = signed(headers=headers)
    assert code_of(keys, request) == ""


@pytest.mark.parametrize(
    "url",
    [
        f"{URL}/000000000000/a.fifo?Action=ReceiveMessage&AttributeName.1=All",
        f"{URL}/000000000000/a%20b?Action=ReceiveMessage",
        f"{URL}/./000000000000//a/../b?Action=ReceiveMessage",
        f"{URL}/?Action=ListQueues&QueueNamePrefix=a%20b%2Bc%2F%7E",
    ],
)
def test_signed_urls_are_done(keys: Path, url: str) -> None:
    request = signed(SigV4QueryAuth, method="GET", url=url, body=b"", headers={})
    assert code_of(keys, request) == ""
    request.query += b"&x=y"
    assert code_of(keys, request) == "SignatureDoesNotMatch"


def test_a_url_expires(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{URL}/?Action=ListQueues"
    for late, code in ((3599, ""), (3601, "RequestExpired"), (-901, "RequestExpired")):
        set_signers_time(monkeypatch, NOW.timestamp() - late)
        request = signed(SigV4QueryAuth, method="GET", url=url, body=b"", headers={})
        assert code_of(keys, request) == code, late


def test_the_skew_is_15_minutes_in_both_directions(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for skew in (-900, 900, -901, 901):
        set_signers_time(monkeypatch, NOW.timestamp() + skew)
        code = "RequestExpired" if abs(skew) > 900 else ""
        assert code_of(keys, signed()) == code, skew


def test_any_change_is_noticed(keys: Path) -> None:
    def changed(**what: Any) -> HttpRequest:
        request = signed(headers={"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "a"})
        for name, value in what.items():
            setattr(request, name, value)
        return request

    assert code_of(keys, changed()) == ""
    for wrong in (
        changed(body=BODY + b" "),
        changed(path=b"/x"),
        changed(query=b"a=b"),
        changed(headers=changed().headers | {b"content-type": b"b"}),
        changed(headers=changed().headers | {b"x-amz-target": b"AmazonSQS.DeleteQueue"}),
        changed(headers=changed().headers | {b"host": b"other"}),
        signed(key=("AKIDALL", "wrong")),
    ):
        assert code_of(keys, wrong) == "SignatureDoesNotMatch"


def test_what_decides_must_be_signed(keys: Path) -> None:
    request = signed(headers={})
    request.headers[b"x-amz-target"] = b"AmazonSQS.DeleteQueue"
    assert code_of(keys, request) == "IncompleteSignature"


def test_a_header_without_a_signature_is_refused(keys: Path) -> None:
    request = signed()
    whole = request.headers[b"authorization"]
    for header in (
        b"",
        b"Basic abc",
        b"AWS4-HMAC-SHA256 ",
        b"AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=",
        whole.replace(b"/sqs/", b"/s3/"),
        whole.replace(b"SignedHeaders=", b"SignedHeaders=z;"),
        whole.replace(b"SignedHeaders", b"Signed"),
    ):
        request.headers[b"authorization"] = header
        assert code_of(keys, request) == "IncompleteSignature", header
    request.headers[b"authorization"] = whole[:-3]
    assert code_of(keys, request) == "SignatureDoesNotMatch"
    request.headers[b"authorization"] = whole
    for date in (b"x", b"20231114T221320", b"\xff"):
        request.headers[b"x-amz-date"] = date
        assert code_of(keys, request) == "IncompleteSignature"
    del request.headers[b"x-amz-date"]
    assert code_of(keys, request) == "IncompleteSignature"


def test_an_unknown_key_and_none_are_refused(keys: Path) -> None:
    assert code_of(keys, signed(key=("AKIDNONE", "one"))) == "InvalidClientTokenId"
    unsigned = http_request("POST", f"{URL}/", {"X-Amz-Target": "AmazonSQS.ListQueues"}, b"{}")
    assert code_of(keys, unsigned) == "MissingAuthenticationToken"
    form = http_request("GET", f"{QUEUE_URL}?Action=ReceiveMessage", {})
    assert code_of(keys, form) == "MissingAuthenticationToken"


def test_a_key_may_do_what_its_patterns_say(keys: Path) -> None:
    service = Recorder()
    front = answering(service, keys)
    assert answer(front, signed(key=("AKIDSOME", "two"))).status == 200
    caller = service.requests[0].caller
    assert caller.may("SendMessage", "orders-1")
    assert caller.may("SendMessageBatch", "mail")
    assert caller.may("ReceiveMessage", "")
    assert not caller.may("SendMessage", "mails")
    assert not caller.may("DeleteMessage", "mail")
    purge = signed(
        key=("AKIDSOME", "two"),
        body=b'{"QueueUrl":"q"}',
        headers={"X-Amz-Target": "AmazonSQS.PurgeQueue"},
    )
    reply = answer(front, purge)
    assert reply.status == 403
    assert json.loads(reply.body)["__type"] == "com.amazonaws.sqs#AccessDenied"


def test_health_needs_no_key(keys: Path) -> None:
    assert (
        answer(answering(Recorder(), keys), http_request("GET", f"{URL}/health", {})).status == 200
    )
