"""Batches of SQS clients: each entry by itself, and what is refused as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.gateway.asking import Asker, bodies, served

SEND, DELETE, CHANGE = "SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"


def entries(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"Id": f"e{number}", "MessageBody": str(number), **more} for number in range(count)]


def test_a_batch_is_sent_received_and_deleted(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        sent = await sqs.ask(SEND, "jobs", Entries=entries(10))
        assert sent.keys() == {"Successful"}
        ids = {entry["Id"]: entry["MessageId"] for entry in sent["Successful"]}
        assert list(ids) == [f"e{number}" for number in range(10)]
        messages = await sqs.receive("jobs", 10)
        assert bodies(messages) == [str(number) for number in range(10)]
        assert [message["MessageId"] for message in messages] == list(ids.values())
        handles = [
            {"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]}
            for at, message in enumerate(messages)
        ]
        again = await sqs.ask(DELETE, "jobs", Entries=handles[:5])
        assert again == {"Successful": [{"Id": str(at)} for at in range(5)]}
        hidden = await sqs.ask(
            CHANGE, "jobs", Entries=[{**entry, "VisibilityTimeout": 0} for entry in handles]
        )
        assert [entry["Id"] for entry in hidden["Successful"]] == ["5", "6", "7", "8", "9"]
        assert {entry["Code"] for entry in hidden["Failed"]} == {
            "AWS.SimpleQueueService.MessageNotInflight"
        }
        assert sorted(bodies(await sqs.receive("jobs", 10))) == ["5", "6", "7", "8", "9"]

    served(url, main)


@pytest.mark.parametrize("action", [SEND, DELETE, CHANGE])
def test_a_batch_that_is_wrong_as_a_whole_is_refused(url: str, action: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        more = {"ReceiptHandle": "x", "VisibilityTimeout": 0}
        await sqs.refused("EmptyBatchRequest", action, "jobs", Entries=[])
        await sqs.refused(
            "TooManyEntriesInBatchRequest", action, "jobs", Entries=entries(11, **more)
        )
        twice = entries(1, **more) * 2
        await sqs.refused("BatchEntryIdsNotDistinct", action, "jobs", Entries=twice)
        for wrong in ("", "a b", "a.b", "x" * 81):
            entry = {"Id": wrong, "MessageBody": "x", **more}
            await sqs.refused("InvalidBatchEntryId", action, "jobs", Entries=[entry])
        await sqs.refused("QueueDoesNotExist", action, "mails", Entries=entries(1, **more))

    served(url, main)


def test_what_is_wrong_in_an_entry_costs_no_other(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        wrong = [
            {"Id": "bad-characters", "MessageBody": "\0"},
            {"Id": "too-late", "MessageBody": "x", "DelaySeconds": 901},
            {"Id": "fine", "MessageBody": "fine"},
        ]
        answer = await sqs.ask(SEND, "jobs", Entries=wrong)
        assert [entry["Id"] for entry in answer["Successful"]] == ["fine"]
        failed = {entry["Id"]: entry for entry in answer["Failed"]}
        assert failed["bad-characters"]["Code"] == "InvalidMessageContents"
        assert failed["too-late"]["Code"] == "InvalidParameterValue"
        assert all(entry["SenderFault"] for entry in failed.values())
        (message,) = await sqs.receive("jobs", 10)
        handles = [
            {"Id": "fine", "ReceiptHandle": message["ReceiptHandle"]},
            {"Id": "wrong", "ReceiptHandle": "x"},
        ]
        for action in (CHANGE, DELETE):
            answer = await sqs.ask(
                action, "jobs", Entries=[{**entry, "VisibilityTimeout": 60} for entry in handles]
            )
            assert answer["Successful"] == [{"Id": "fine"}]
            assert answer["Failed"][0]["Code"] == "ReceiptHandleIsInvalid"

    served(url, main)


def test_an_entry_that_the_queue_cannot_hold_costs_no_other(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        some = entries(3)
        # Kept in base64, among headers of a mebibyte at most.
        value = {"DataType": "Binary", "BinaryValue": b"x" * 800_000}
        some[1]["MessageAttributes"] = {"large": value}
        sent = await sqs.ask(SEND, "jobs", Entries=some)
        assert [entry["Id"] for entry in sent["Successful"]] == ["e0", "e2"]
        (failed,) = sent["Failed"]
        assert (failed["Id"], failed["Code"]) == ("e1", "InvalidParameterValue")
        assert failed["SenderFault"]
        await sqs.refused("InvalidParameterValue", "SendMessage", "jobs", **some[1])
        assert bodies(await sqs.receive("jobs", 10)) == ["0", "2"]

    served(url, main)


def test_a_batch_holds_a_mebibyte(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        half = "x" * (1 << 19)
        pair = [{"Id": "a", "MessageBody": half}, {"Id": "b", "MessageBody": half}]
        assert len((await sqs.ask(SEND, "jobs", Entries=pair))["Successful"]) == 2
        pair.append({"Id": "c", "MessageBody": "x"})
        await sqs.refused("BatchRequestTooLong", SEND, "jobs", Entries=pair)

    served(url, main)
