"""Every parameter of every action of SQS: what it takes, and the code of the error for what it does
not take. What has the wrong type, or is missing, is `unit/gateway/test_checking.py`."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cassq.gateway.wire.sqs import ACTIONS, STRUCTURES
from tests.integration.gateway.asking import ACCOUNT_URL, ARN, Asker, served

DOCS = Path(__file__).parents[3] / "docs" / "gateway.md"
ENTRIES = {
    "ChangeMessageVisibilityBatch": "ChangeMessageVisibilityBatchRequestEntry",
    "DeleteMessageBatch": "DeleteMessageBatchRequestEntry",
    "SendMessageBatch": "SendMessageBatchRequestEntry",
}
TEXT = {"DataType": "String", "StringValue": "x"}
HANDLE = "a receipt handle"  # stands for one that is valid
ID = {"Id": "1"}
IPV, NO_QUEUE, NO_ATTRIBUTE = "InvalidParameterValue", "QueueDoesNotExist", "InvalidAttributeName"

Cases = list[tuple[Any, str]]  # values, each with the code of its error, or "" if it is taken


def within(least: int, most: int, code: str = IPV) -> Cases:
    """A number: its limits, and what is just beyond them."""
    return [(least - 1, code), (least, ""), (most, ""), (most + 1, code)]


def entries(*entry: dict[str, Any]) -> Cases:
    """A list of entries: none, one, ten, eleven, and two with one id; and these."""
    ten = [{**entry[0], "Id": str(n)} for n in range(10)]
    return [
        ([], "EmptyBatchRequest"),
        ([*ten, {**entry[0], "Id": "x"}], "TooManyEntriesInBatchRequest"),
        ([ten[0], ten[0]], "BatchEntryIdsNotDistinct"),
        (ten, ""),
    ]


def task(arn: str) -> str:
    """The handle of a task that is not there."""
    return base64.b64encode(json.dumps({"taskId": "1", "sourceArn": arn}).encode()).decode()


QUEUE: Cases = [
    ("", "InvalidAddress"),
    ("http://[/jobs", "InvalidAddress"),
    (f"{ACCOUNT_URL}/none", NO_QUEUE),
    ("http://localhost:1/none", NO_QUEUE),  # its last part alone counts
]
HANDLES: Cases = [(HANDLE, ""), ("x", "ReceiptHandleIsInvalid"), ("", "ReceiptHandleIsInvalid")]
IDS: Cases = [
    *[(name, "") for name in ("a", "A_1-z", "x" * 80)],
    *[(name, "InvalidBatchEntryId") for name in ("", "a b", "x" * 81, "é")],
]
NAMED: Cases = [([], ""), (["All"], ""), (["Name"], NO_ATTRIBUTE)]
TOKENS: Cases = [("", ""), ("no token", IPV)]
ARNS: Cases = [
    (f"{ARN}:none", "ResourceNotFoundException"),
    ("jobs", IPV),
    ("arn:aws:sns:us-east-1:000000000000:jobs", IPV),
]
TAGS: Cases = [
    ({"a": ""}, ""),
    ({"k" * 128: "v" * 256}, ""),
    ({"": "v"}, IPV),
    ({"k" * 129: "v"}, IPV),
    ({"k": "v" * 257}, IPV),
    ({"aws:k": "v"}, IPV),
    ({str(n): "v" for n in range(51)}, IPV),
]
CONTENT: dict[str, Cases] = {
    "MessageBody": [
        ("x", ""),
        ("\t\n\r ~\ud7ff\ue000\ufffd\U00010000", ""),
        ("", "MissingParameter"),
        *[(f"a{wrong}", "InvalidMessageContents") for wrong in "\0\b\x0b\x1f\ufffe\uffff"],
    ],
    "DelaySeconds": within(0, 900),
    "MessageAttributes": [
        ({}, ""),
        ({str(n): TEXT for n in range(10)}, ""),
        ({str(n): TEXT for n in range(11)}, IPV),
        ({"x" * 256: TEXT}, ""),
        *[({name: TEXT}, IPV) for name in ("x" * 257, "", ".a", "a.", "a..b", "AWS.a", "amazon.a")],
        *[({"a": {"DataType": kind, "StringValue": "1"}}, "") for kind in ("Number", "String.x")],
        ({"a": {"DataType": "Number", "StringValue": "one"}}, IPV),
        ({"a": {"DataType": "Binary", "BinaryValue": b"\0"}}, ""),
        ({"a": {"DataType": "Binary", "StringValue": "x"}}, IPV),
        ({"a": {"DataType": "String", "StringValue": ""}}, IPV),
        ({"a": {"DataType": "", "StringValue": "x"}}, IPV),
        ({"a": {"DataType": "String", "StringListValues": ["x"]}}, "UnsupportedOperation"),
        ({"a": {"DataType": "Binary", "BinaryListValues": [b"x"]}}, "UnsupportedOperation"),
    ],
    "MessageSystemAttributes": [
        ({}, ""),
        ({"AWSTraceHeader": TEXT}, ""),
        ({"SenderId": TEXT}, IPV),
        ({"AWSTraceHeader": {"DataType": "Number", "StringValue": "x"}}, IPV),
    ],
    "MessageDeduplicationId": [("x", IPV)],  # of a standard queue; FIFO_IDS are for the others
    "MessageGroupId": [("!~", ""), ("x" * 128, ""), ("", IPV), ("x" * 129, IPV), ("a b", IPV)],
}
NAME_CASES: Cases = [
    ("x" * 80, ""),
    ("A_1-z", ""),
    *[(name, IPV) for name in ("", "x" * 81, "a b", "a.b", "é")],
]
TABLE: dict[str, dict[str, Cases]] = {
    "AddPermission": {
        "Label": [("x" * 80, ""), ("A_1-z", ""), ("", IPV), ("x" * 81, IPV), ("a b", IPV)],
        "AWSAccountIds": [(["1"], ""), ([], "MissingParameter")],
        "Actions": [
            (["*"], ""),
            (["SendMessage"] * 7, ""),
            ([], "MissingParameter"),
            (["SendMessage"] * 8, "OverLimit"),
        ],
    },
    "CancelMessageMoveTask": {
        "TaskHandle": [
            ("", IPV),
            ("x", IPV),
            ("e30=", IPV),
            (task(f"{ARN}:jobs"), "ResourceNotFoundException"),
            (task("jobs"), IPV),
        ]
    },
    "ChangeMessageVisibility": {
        "ReceiptHandle": HANDLES,
        "VisibilityTimeout": within(0, 43_200),
    },
    "ChangeMessageVisibilityBatch": {
        "Entries": entries({**ID, "ReceiptHandle": HANDLE, "VisibilityTimeout": 1}),
        "Entries.Id": IDS,
        "Entries.ReceiptHandle": HANDLES,
        "Entries.VisibilityTimeout": within(0, 43_200),
    },
    "CreateQueue": {
        "QueueName": NAME_CASES,
        "Attributes": [
            ({}, ""),
            ({"Name": "1"}, NO_ATTRIBUTE),
            ({"QueueArn": "x"}, NO_ATTRIBUTE),
            ({"FifoQueue": "false"}, NO_ATTRIBUTE),
            ({"FifoQueue": "true"}, IPV),  # the name does not end so
            ({"DelaySeconds": "x"}, "InvalidAttributeValue"),
            ({"ContentBasedDeduplication": "true"}, NO_ATTRIBUTE),
        ],
        "tags": [({}, ""), *TAGS],
    },
    "DeleteMessage": {"ReceiptHandle": HANDLES},
    "DeleteMessageBatch": {
        "Entries": entries({**ID, "ReceiptHandle": HANDLE}),
        "Entries.Id": IDS,
        "Entries.ReceiptHandle": HANDLES,
    },
    "DeleteQueue": {},
    "GetQueueAttributes": {"AttributeNames": NAMED},
    "GetQueueUrl": {
        "QueueName": [("jobs", ""), ("none", NO_QUEUE), ("", IPV)],
        "QueueOwnerAWSAccountId": [("000000000000", ""), ("1", "")],
    },
    "ListDeadLetterSourceQueues": {"NextToken": TOKENS, "MaxResults": within(1, 1000)},
    "ListMessageMoveTasks": {
        "SourceArn": [(f"{ARN}:jobs", ""), *ARNS],
        "MaxResults": within(1, 10),
    },
    "ListQueueTags": {},
    "ListQueues": {
        "QueueNamePrefix": [("", ""), ("jo", ""), ("none", "")],
        "NextToken": TOKENS,
        "MaxResults": within(1, 1000),
    },
    "PurgeQueue": {},
    "ReceiveMessage": {
        "AttributeNames": [([], ""), (["All"], ""), (["SenderId"], "")],
        "MessageSystemAttributeNames": [([], ""), (["All"], ""), (["SenderId"], "")],
        "MessageAttributeNames": [([], ""), (["All", ".*", "a.*", "b"], "")],
        "MaxNumberOfMessages": within(1, 10),
        "VisibilityTimeout": within(0, 43_200),
        "WaitTimeSeconds": [(-1, IPV), (0, ""), (20, ""), (21, IPV)],  # a message is there
        "ReceiveRequestAttemptId": [("x", ""), ("a b", "")],  # standard queues ignore it
    },
    "RemovePermission": {"Label": [("none", IPV)]},
    "SendMessage": CONTENT,
    "SendMessageBatch": {
        "Entries": [
            *entries({**ID, "MessageBody": "x"}),
            (
                [{"Id": str(n), "MessageBody": "x" * (1 << 19)} for n in range(3)],
                "BatchRequestTooLong",
            ),
        ],
        "Entries.Id": IDS,
        **{f"Entries.{name}": cases for name, cases in CONTENT.items()},
    },
    "SetQueueAttributes": {
        "Attributes": [
            ({}, ""),
            ({"DelaySeconds": "900"}, ""),
            ({"DelaySeconds": "901"}, "InvalidAttributeValue"),
            ({"Name": "1"}, NO_ATTRIBUTE),
            ({"FifoQueue": "true"}, NO_ATTRIBUTE),
            ({"Policy": "{"}, "InvalidAttributeValue"),
            ({"RedrivePolicy": "{}"}, IPV),
        ]
    },
    "StartMessageMoveTask": {
        "SourceArn": [(f"{ARN}:jobs", IPV), *ARNS],  # it holds no dead letters
        "DestinationArn": [(f"{ARN}:letters", IPV), *ARNS],
        "MaxNumberOfMessagesPerSecond": [(0, IPV), (501, IPV)],
    },
    "TagQueue": {"Tags": TAGS},
    "UntagQueue": {"TagKeys": [([], ""), (["none"], "")]},
}
FIFO_IDS: dict[str, Cases] = {
    "MessageGroupId": [("!~", ""), ("x" * 128, ""), ("x" * 129, IPV), ("a b", IPV)],
    "MessageDeduplicationId": [("!~", ""), ("x" * 128, ""), ("x" * 129, IPV), ("é", IPV)],
    "DelaySeconds": [(0, ""), (1, IPV)],
}
REQUIRED: dict[str, dict[str, Any]] = {
    "AddPermission": {"AWSAccountIds": ["1"], "Actions": ["SendMessage"]},
    "ChangeMessageVisibility": {"ReceiptHandle": HANDLE, "VisibilityTimeout": 1},
    "ChangeMessageVisibilityBatch": {**ID, "ReceiptHandle": HANDLE, "VisibilityTimeout": 1},
    "DeleteMessageBatch": {**ID, "ReceiptHandle": HANDLE},
    "GetQueueUrl": {"QueueName": "jobs"},
    "ListMessageMoveTasks": {"SourceArn": f"{ARN}:jobs"},
    "SendMessage": {"MessageBody": "x"},
    "SendMessageBatch": {**ID, "MessageBody": "x"},
    "StartMessageMoveTask": {"SourceArn": f"{ARN}:letters"},
}


def has_queue(action: str) -> bool:
    return "QueueUrl" in STRUCTURES[ACTIONS[action][0]]


def parameters(action: str) -> Iterator[str]:
    """All parameters of an action but the queue, and those of its entries."""
    yield from (name for name in STRUCTURES[ACTIONS[action][0]] if name != "QueueUrl")
    if action in ENTRIES:
        yield from (f"Entries.{name}" for name in STRUCTURES[ENTRIES[action]])


def test_the_table_has_every_parameter_of_the_service_model() -> None:
    assert {action: set(parameters(action)) for action in ACTIONS} == {
        action: set(cases) for action, cases in TABLE.items()
    }


async def filled(sqs: Asker, value: Any) -> Any:
    """A value with a valid handle for each that stands in it."""
    match value:
        case str() if value == HANDLE:
            await sqs.send("jobs", "x")
            (message,) = await sqs.receive("jobs", WaitTimeSeconds=20)
            return message["ReceiptHandle"]
        case list():
            return [await filled(sqs, each) for each in value]
        case dict():
            return {name: await filled(sqs, each) for name, each in value.items()}
    return value


async def outcome(sqs: Asker, action: str, name: str, value: Any) -> str:
    """The code of the error of a request with this value; "" if there is none."""
    asked = {
        **REQUIRED.get(action, {}),
        **(await filled(sqs, {name.removeprefix("Entries."): value})),
    }
    asked = await filled(sqs, asked)
    if action in ENTRIES:
        asked = {"Entries": asked["Entries"] if name == "Entries" else [asked]}
    if action == "CreateQueue":
        asked.setdefault("QueueName", f"new{sum(map(len, repr(value)))}")
    if action == "AddPermission":
        asked.setdefault("Label", f"{name}{len(repr(value))}")
    return await sqs.outcome(action, "jobs" if has_queue(action) else None, **asked)


@pytest.mark.parametrize("action", ACTIONS)
def test_each_parameter_takes_what_sqs_takes(url: str, action: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("letters")
        await sqs.create("jobs")
        arn = f'"deadLetterTargetArn":"{ARN}:letters"'
        await sqs.create("other", RedrivePolicy=f'{{{arn},"maxReceiveCount":1}}')
        wrong = []
        for name, cases in TABLE[action].items():
            for value, code in cases:
                if action == "ReceiveMessage":
                    await sqs.send("jobs", "x")
                found = await outcome(sqs, action, name, value)
                if found != code:
                    wrong.append((name, repr(value)[:100], code, found))
        assert not wrong

    served(url, main)


@pytest.mark.parametrize("action", [*filter(has_queue, ACTIONS)])
def test_each_action_takes_the_url_of_a_queue_alone(url: str, action: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        first = {name: cases[0][0] for name, cases in TABLE[action].items() if "." not in name}
        for value, code in QUEUE:
            asked = {**first, **REQUIRED.get(action, {})}
            if action in ENTRIES:
                asked = {"Entries": [REQUIRED[action]]}
            await sqs.refused(code, action, **asked, QueueUrl=value)

    served(url, main)


@pytest.mark.parametrize("name", FIFO_IDS)
def test_a_fifo_queue_takes_what_that_of_sqs_takes(url: str, name: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs.fifo", FifoQueue="true", ContentBasedDeduplication="true")
        for value, code in FIFO_IDS[name]:
            for action in ("SendMessage", "SendMessageBatch"):
                asked = {"MessageGroupId": "a", "MessageBody": "x", name: value}
                if action in ENTRIES:
                    asked = {"Entries": [{**ID, **asked}]}
                found = await sqs.outcome(action, "jobs.fifo", **asked)
                assert found == code, (action, value)

    served(url, main)


def test_the_documentation_says_of_each_parameter_whether_it_is_as_on_aws() -> None:
    """A row is for the actions and parameters that it names; one without, or with "all others", is
    for all."""
    table = DOCS.read_text().partition("## Differences from AWS")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("| ") and "---" not in line
    ]
    for action in ACTIONS:
        its = [row[1] for row in rows if re.search(rf"\b{action}\b", row[0])]
        assert its, action
        if "" in its or "all others" in its:
            continue
        missing = [name for name in parameters(action) if f"`{name}`" not in " ".join(its)]
        assert not missing, action
