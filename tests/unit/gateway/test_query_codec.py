"""The Query encoding, with botocore's parser as the other side."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from cassq.gateway.errors import ActionError
from cassq.gateway.wire.checking import checked
from cassq.gateway.wire.query_codec import PARAMETERS_MAX, encoded, pairs_of
from tests.unit.gateway.wired import (
    QUEUE_URL,
    URL,
    Recorder,
    answer,
    answering,
    http_request,
    query_request,
)

SPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


def texts(body: bytes, name: str) -> list[str]:
    """The texts of all elements with a name."""
    return [each.text or "" for each in ET.fromstring(body).iter(SPACE + name)]


def test_a_form_is_read() -> None:
    service = Recorder(lambda request: {"MessageId": "m"})
    form = {
        "Action": "SendMessage",
        "Version": "2012-11-05",
        "QueueUrl": QUEUE_URL,
        "MessageBody": "a b+c&d=ü\r\n",
        "DelaySeconds": "5",
        "MessageAttribute.1.Name": "n",
        "MessageAttribute.1.Value.DataType": "Number",
        "MessageAttribute.1.Value.StringValue": "1",
        "MessageAttribute.2.Name": "b",
        "MessageAttribute.2.Value.DataType": "Binary",
        "MessageAttribute.2.Value.BinaryValue": "AP8=",
    }
    reply = answer(answering(service), query_request(form))
    assert service.parameters == {
        "QueueUrl": QUEUE_URL,
        "MessageBody": "a b+c&d=ü\r\n",
        "DelaySeconds": 5,
        "MessageAttributes": {
            "n": {"DataType": "Number", "StringValue": "1"},
            "b": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        },
    }
    assert reply.status == 200
    assert texts(reply.body, "MessageId") == ["m"]
    assert texts(reply.body, "RequestId") == [service.requests[0].id]


def test_a_queues_path_names_the_queue() -> None:
    service = Recorder()
    url = f"{QUEUE_URL}?Action=ReceiveMessage&MaxNumberOfMessages=2&AttributeName.1=All"
    assert answer(answering(service), http_request("GET", url, {})).status == 200
    assert service.parameters == {
        "QueueUrl": QUEUE_URL,
        "MaxNumberOfMessages": 2,
        "AttributeNames": ["All"],
    }


def test_lists_keep_the_order_of_their_numbers() -> None:
    service = Recorder()
    form = {"Action": "UntagQueue", "QueueUrl": QUEUE_URL}
    form |= {"TagKey.10": "c", "TagKey.2": "b", "TagKey.1": "a"}
    answer(answering(service), query_request(form))
    assert service.parameters["TagKeys"] == ["a", "b", "c"]


def test_a_batch_without_entries_reaches_the_actions() -> None:
    service = Recorder()
    answer(answering(service), query_request({"Action": "DeleteMessageBatch", "QueueUrl": "q"}))
    assert service.parameters["Entries"] == []


@pytest.mark.parametrize(
    ("form", "code", "named"),
    [
        ({}, "MissingAction", "Action"),
        ({"Action": "Nonsense"}, "InvalidAction", "Nonsense"),
        ({"Action": "SendMessage", "QueueUrl": "q"}, "MissingParameter", "MessageBody"),
        ({"Action": "ListQueues", "Nonsense": "1"}, "InvalidParameterValue", "Nonsense"),
        ({"Action": "ListQueues", "MaxResults": "x"}, "SerializationException", "MaxResults"),
        ({"Action": "ListQueues", "MaxResults.1": "1"}, "SerializationException", "MaxResults"),
        (
            {"Action": "TagQueue", "QueueUrl": "q", "Tag.1.Value": "v"},
            "MalformedQueryString",
            "Key",
        ),
        ({"Action": "TagQueue", "QueueUrl": "q", "Tag": "v"}, "MalformedQueryString", "Tags"),
        (
            {"Action": "TagQueue", "QueueUrl": "q", "Tag.1": "v", "Tag.1.Key": "v"},
            "MalformedQueryString",
            "Tag.1.Key",
        ),
        (
            {
                "Action": "SendMessageBatch",
                "QueueUrl": "q",
                "SendMessageBatchRequestEntry.1.Id": "1",
            },
            "MissingParameter",
            "Entries.1.MessageBody",
        ),
    ],
)
def test_a_wrong_form_is_refused_by_name(form: dict[str, str], code: str, named: str) -> None:
    service = Recorder()
    reply = answer(answering(service), query_request(form))
    assert reply.status == 400
    assert texts(reply.body, "Code") == [code]
    assert texts(reply.body, "Type") == ["Sender"]
    assert named in texts(reply.body, "Message")[0]
    assert service.requests == []


def test_errors_have_the_older_codes() -> None:
    def refuse(request: Any) -> Any:
        raise ActionError("QueueDoesNotExist", "no \x00 <such> queue")

    form = {"Action": "PurgeQueue", "QueueUrl": "q"}
    reply = answer(answering(Recorder(refuse)), query_request(form))
    assert texts(reply.body, "Code") == ["AWS.SimpleQueueService.NonExistentQueue"]
    assert texts(reply.body, "Message") == ["no ? <such> queue"]


@pytest.mark.parametrize("raw", [b"a=%ff", b"a=1&a=2", b"&".join([b"a"] * (PARAMETERS_MAX + 2))])
def test_a_malformed_form_is_refused(raw: bytes) -> None:
    with pytest.raises(ActionError, match="malformed"):
        pairs_of(raw)


def test_an_answer_is_xml() -> None:
    message = {
        "MessageId": "m",
        "Body": "<a>&\r\n",
        "Attributes": {"SentTimestamp": "1"},
        "MessageAttributes": {"b": {"DataType": "Binary", "BinaryValue": b"\x00\xff"}},
    }
    body = encoded("ReceiveMessage", {"Messages": [message, message]}, "r")
    assert texts(body, "Body") == ["<a>&\r\n"] * 2
    assert texts(body, "BinaryValue") == ["AP8="] * 2
    assert texts(body, "Name") == ["SentTimestamp", "b"] * 2
    assert texts(encoded("PurgeQueue", {}, "r"), "RequestId") == ["r"]


def test_sts_returns_the_caller_s_identity() -> None:
    form = {"Action": "GetCallerIdentity", "Version": "2011-06-15"}
    reply = answer(answering(Recorder()), query_request(form))
    assert reply.status == 200
    assert b"<Account>000000000000</Account>" in reply.body


def test_a_url_of_a_strange_host_is_never_made() -> None:
    service = Recorder()
    for host in ("", "a/b", "a b", "x" * 300, "a@b", "a\\b"):
        request = http_request("POST", f"{URL}/", {"X-Amz-Target": "AmazonSQS.ListQueues"}, b"{}")
        request.headers[b"host"] = host.encode()
        assert answer(answering(service), request).status == 404
    assert service.requests == []


def test_what_is_checked_is_a_copy() -> None:
    given = {"QueueUrl": "q", "Entries": [{"Id": "1", "MessageBody": "b"}]}
    assert checked("SendMessageBatch", given) == given
