"""The JSON encoding, with botocore's serializer and parser as the other side."""

from __future__ import annotations

import json
from typing import Any

import botocore.parsers
import botocore.serialize
import pytest
from botocore.model import ServiceModel

from cassq.errors import (
    BackendUnavailableError,
    MessageNotFoundError,
    QueueFullError,
    StorageFullError,
)
from cassq.gateway.errors import ActionError
from cassq.gateway.request import Answer, Request
from tests.gateway_model import installed_model
from tests.unit.gateway.wired import (
    QUEUE_URL,
    URL,
    Recorder,
    answer,
    answering,
    http_request,
    json_request,
)

MODEL = ServiceModel(installed_model(), "sqs")
ATTRIBUTES = {
    "n": {"DataType": "Number", "StringValue": "1"},
    "b": {"DataType": "Binary.gif", "BinaryValue": b"\x00\xff"},
}


def serialized(action: str, parameters: dict[str, Any]) -> Any:
    """A request as botocore sends it."""
    made = botocore.serialize.create_serializer("json").serialize_to_request(
        parameters, MODEL.operation_model(action)
    )
    return http_request("POST", f"{URL}/", made["headers"], made["body"])


def parsed(action: str, reply: Any) -> Any:
    """An answer as botocore reads it."""
    headers = botocore.awsrequest.HeadersDict()
    for line in reply.headers.decode().splitlines():
        name, _, value = line.partition(": ")
        headers[name] = value
    response = {"status_code": reply.status, "headers": headers, "body": reply.body}
    shape = MODEL.operation_model(action).output_shape
    return botocore.parsers.create_parser("json").parse(response, shape)


def test_what_botocore_sends_arrives() -> None:
    service = Recorder(lambda request: {"MessageId": "m", "MD5OfMessageBody": "d"})
    sent = {
        "QueueUrl": QUEUE_URL,
        "MessageBody": "grüß\r\n<&>",
        "DelaySeconds": 3,
        "MessageAttributes": ATTRIBUTES,
    }
    reply = answer(answering(service), serialized("SendMessage", sent))
    assert dict(service.parameters) == sent
    got = service.requests[0]
    assert (got.action, got.base_url) == ("SendMessage", URL)
    found = parsed("SendMessage", reply)
    assert found["MessageId"] == "m"
    assert found["ResponseMetadata"]["HTTPHeaders"]["x-amzn-requestid"] == got.id


def test_botocore_reads_messages_with_bytes() -> None:
    messages = [{"MessageId": "m", "Body": "b\r\n", "MessageAttributes": ATTRIBUTES}]
    service = Recorder(lambda request: {"Messages": messages})
    reply = answer(answering(service), serialized("ReceiveMessage", {"QueueUrl": QUEUE_URL}))
    assert parsed("ReceiveMessage", reply)["Messages"] == messages


@pytest.mark.parametrize(
    ("action", "body", "code", "named"),
    [
        ("SendMessage", {"QueueUrl": "q"}, "MissingParameter", "MessageBody"),
        ("SendMessage", {"QueueUrl": "q", "MessageBody": None}, "MissingParameter", "MessageBody"),
        ("SendMessage", {"QueueUrl": 1, "MessageBody": "b"}, "SerializationException", "QueueUrl"),
        ("ReceiveMessage", {"QueueUrl": "q", "Max": 1}, "InvalidParameterValue", "Max"),
        (
            "ReceiveMessage",
            {"QueueUrl": "q", "MaxNumberOfMessages": True},
            "SerializationException",
            "MaxNumberOfMessages",
        ),
        (
            "ReceiveMessage",
            {"QueueUrl": "q", "MaxNumberOfMessages": 2**31},
            "SerializationException",
            "MaxNumberOfMessages",
        ),
        (
            "SendMessageBatch",
            {"QueueUrl": "q", "Entries": [{"Id": "1", "MessageBody": "b"}, {"Id": "2"}]},
            "MissingParameter",
            "Entries.2.MessageBody",
        ),
        (
            "SendMessage",
            {
                "QueueUrl": "q",
                "MessageBody": "b",
                "MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": "?"}},
            },
            "SerializationException",
            "MessageAttributes.a.BinaryValue",
        ),
        ("ListQueues", [], "SerializationException", "structure"),
        ("ListQueues", "x", "SerializationException", "structure"),
    ],
)
def test_a_wrong_parameter_is_named(action: str, body: Any, code: str, named: str) -> None:
    service = Recorder()
    reply = answer(answering(service), json_request(action, json.dumps(body).encode()))
    error = json.loads(reply.body)
    assert reply.status == 400
    assert error["__type"] == f"com.amazonaws.sqs#{code}"
    assert named in error["message"]
    assert service.requests == []


def test_an_empty_batch_reaches_the_actions() -> None:
    service = Recorder()
    answer(answering(service), json_request("SendMessageBatch", b'{"QueueUrl":"q","Entries":[]}'))
    assert service.parameters["Entries"] == []


def test_an_unknown_action_is_refused() -> None:
    reply = answer(answering(Recorder()), json_request("Nonsense", b"{}"))
    assert reply.status == 400
    assert b"x-amzn-query-error: InvalidAction;Sender\r\n" in reply.headers


def test_a_body_that_is_not_json_is_refused() -> None:
    for body in (b"{", b"\xff", b'{"QueueUrl": "\\ud800"}', b"[" * 100_000):
        reply = answer(answering(Recorder()), json_request("ListQueues", body))
        assert reply.status == 400, body[:20]


@pytest.mark.parametrize(
    ("failure", "status", "code", "legacy"),
    [
        (
            ActionError("QueueDoesNotExist", "no"),
            400,
            "QueueDoesNotExist",
            "AWS.SimpleQueueService.NonExistentQueue;Sender",
        ),
        (ActionError("OverLimit", "no"), 403, "OverLimit", "OverLimit;Sender"),
        (QueueFullError(), 403, "OverLimit", "OverLimit;Sender"),
        (BackendUnavailableError(), 503, "ServiceUnavailable", "ServiceUnavailable;Receiver"),
        (StorageFullError(), 503, "ServiceUnavailable", "ServiceUnavailable;Receiver"),
        (MessageNotFoundError(), 500, "InternalFailure", "InternalFailure;Receiver"),
        (ZeroDivisionError("oops"), 500, "InternalFailure", "InternalFailure;Receiver"),
    ],
)
def test_errors_have_both_codes(
    failure: Exception,
    status: int,
    code: str,
    legacy: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing:
        async def answer(self, request: Request) -> Answer:
            raise failure

    reply = answer(answering(Failing()), json_request("ListQueues", b"{}"))
    assert reply.status == status
    assert json.loads(reply.body)["__type"] == f"com.amazonaws.sqs#{code}"
    assert f"x-amzn-query-error: {legacy}\r\n".encode() in reply.headers
    assert parsed("ListQueues", reply)["Error"]["Code"] == legacy.partition(";")[0]
    if status == 500:
        assert "oops" not in reply.body.decode()
        assert type(failure).__name__ in caplog.text
    if status == 503:
        assert getattr(failure, "hint", "") in caplog.text
