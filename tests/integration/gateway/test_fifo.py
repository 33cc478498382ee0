"""FIFO queues through the gateway's actions: what clients are refused, deduplication, attempts,
delays, dead letters, and gateways that share one queue."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import cassq
import cassq.aio
from cassq.gateway.actions.service import service_of
from cassq.model import claims
from cassq.model.receipts import parsed
from tests.integration.deadlines import DEADLINE_SECONDS
from tests.integration.gateway.asking import ARN, Asker, bodies, served


async def fifo(sqs: Asker, name: str = "jobs.fifo", **attributes: str) -> None:
    """A FIFO queue with deduplication by content."""
    attributes = {"ContentBasedDeduplication": "true", **attributes}
    await sqs.create(name, FifoQueue="true", **attributes)


async def say(sqs: Asker, body: str, group: str = "a", **parameters: Any) -> dict[str, Any]:
    """Send a message to the queue; the answer."""
    return await sqs.ask(
        "SendMessage", "jobs.fifo", MessageBody=body, MessageGroupId=group, **parameters
    )


def test_one_message_of_each_group_is_received_at_a_time(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await fifo(sqs)
        for body in ("a1", "a2", "b1", "b2"):
            await say(sqs, body, body[0])
        first = await sqs.receive("jobs.fifo", 10)
        assert bodies(first) == ["a1", "b1"]
        assert await sqs.receive("jobs.fifo", 10) == []
        await sqs.delete("jobs.fifo", first[0])
        assert bodies(await sqs.receive("jobs.fifo", 10, WaitTimeSeconds=20)) == ["a2"]
        await sqs.ask(
            "ChangeMessageVisibility",
            "jobs.fifo",
            ReceiptHandle=first[1]["ReceiptHandle"],
            VisibilityTimeout=0,
        )
        again = await sqs.receive("jobs.fifo", 10, WaitTimeSeconds=20)
        assert bodies(again) == ["b1"]
        assert again[0]["Attributes"]["ApproximateReceiveCount"] == "2"

    served(url, main)


def test_a_duplicate_is_answered_as_the_first_and_not_delivered(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await fifo(sqs)
        first = await say(sqs, "1")
        assert await say(sqs, "1") == first
        assert await say(sqs, "1", "b") == first  # the scope is the queue
        named = await say(sqs, "2", MessageDeduplicationId="x")
        other = await say(sqs, "3", MessageDeduplicationId="x")
        assert other["MessageId"] == named["MessageId"]
        assert other["SequenceNumber"] == named["SequenceNumber"] > first["SequenceNumber"]
        got = await sqs.receive("jobs.fifo", 10)
        await sqs.delete("jobs.fifo", *got)
        assert await say(sqs, "1") == first  # deleted, and known all the same
        assert bodies(await sqs.receive("jobs.fifo", 10, WaitTimeSeconds=20)) == ["2"]

    served(url, main)


def test_the_scope_of_deduplication_may_be_the_group(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await fifo(
            sqs,
            DeduplicationScope="messageGroup",
            FifoThroughputLimit="perMessageGroupId",
        )
        first = await say(sqs, "1", "a")
        assert (await say(sqs, "1", "b"))["MessageId"] != first["MessageId"]
        assert await say(sqs, "1", "a") == first
        assert bodies(await sqs.receive("jobs.fifo", 10)) == ["1", "1"]

    served(url, main)


@pytest.mark.parametrize(
    ("code", "parameters"),
    [
        ("MissingParameter", {}),
        ("InvalidParameterValue", {"MessageGroupId": ""}),
        ("InvalidParameterValue", {"MessageGroupId": "a b"}),
        ("InvalidParameterValue", {"MessageGroupId": "a" * 129}),
        ("InvalidParameterValue", {"MessageGroupId": "a"}),
        ("InvalidParameterValue", {"MessageGroupId": "a", "MessageDeduplicationId": "\u00e4"}),
        (
            "InvalidParameterValue",
            {"MessageGroupId": "a", "MessageDeduplicationId": "b", "DelaySeconds": 1},
        ),
    ],
)
def test_what_a_fifo_queue_refuses(url: str, code: str, parameters: dict[str, str]) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs.fifo", FifoQueue="true")
        await sqs.refused(code, "SendMessage", "jobs.fifo", MessageBody="x", **parameters)

    served(url, main)


def test_names_and_attributes_of_fifo_queues_are_checked(url: str) -> None:
    async def main(sqs: Asker) -> None:
        async def refused(code: str, name: str, **attributes: str) -> None:
            await sqs.refused(code, "CreateQueue", QueueName=name, Attributes=attributes)

        await refused("InvalidParameterValue", "jobs", FifoQueue="true")
        await refused("InvalidParameterValue", "jobs.fifo")
        await refused("InvalidAttributeName", "jobs.fifo", FifoQueue="false")
        await refused("InvalidAttributeName", "jobs", ContentBasedDeduplication="true")
        await refused(
            "InvalidParameterValue",
            "jobs.fifo",
            FifoQueue="true",
            FifoThroughputLimit="perMessageGroupId",
        )
        await refused(
            "InvalidAttributeValue", "jobs.fifo", FifoQueue="true", DeduplicationScope="all"
        )
        await fifo(sqs)
        await fifo(sqs)
        shown = await sqs.attributes("jobs.fifo")
        assert shown["FifoQueue"] == shown["ContentBasedDeduplication"] == "true"
        assert shown["DeduplicationScope"] == "queue"
        assert shown["FifoThroughputLimit"] == "perQueue"
        await sqs.ask(
            "SetQueueAttributes", "jobs.fifo", Attributes={"ContentBasedDeduplication": "false"}
        )
        assert (await sqs.attributes("jobs.fifo"))["ContentBasedDeduplication"] == "false"
        await sqs.refused(
            "InvalidAttributeName", "SetQueueAttributes", "jobs.fifo", Attributes={"FifoQueue": "x"}
        )
        await sqs.create("plain")
        redrive = f'{{"deadLetterTargetArn":"{ARN}:plain","maxReceiveCount":2}}'
        await refused("InvalidParameterValue", "b.fifo", FifoQueue="true", RedrivePolicy=redrive)

    served(url, main)


def test_a_batch_keeps_its_order_and_says_what_failed(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await fifo(sqs)
        entries: list[dict[str, Any]] = [
            {"Id": str(number), "MessageBody": str(number), "MessageGroupId": "a"}
            for number in range(4)
        ]
        del entries[2]["MessageGroupId"]
        answer = await sqs.ask("SendMessageBatch", "jobs.fifo", Entries=entries)
        numbers = [each["SequenceNumber"] for each in answer["Successful"]]
        assert numbers == sorted(numbers)
        assert len(set(numbers)) == 3
        assert [each["Id"] for each in answer["Failed"]] == ["2"]
        for body in ("0", "1", "3"):
            (got,) = await sqs.receive("jobs.fifo", 10, WaitTimeSeconds=20)
            assert got["Body"] == body
            done = [{"Id": "x", "ReceiptHandle": got["ReceiptHandle"]}]
            deleted = await sqs.ask("DeleteMessageBatch", "jobs.fifo", Entries=done)
            assert deleted == {"Successful": [{"Id": "x"}]}

    served(url, main)


def test_the_same_attempt_gets_the_same_messages(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await fifo(sqs)
        attempt = {"ReceiveRequestAttemptId": "once"}
        assert await sqs.receive("jobs.fifo", 10, **attempt) == []  # not remembered
        await say(sqs, "a1", "a")
        await say(sqs, "b1", "b")
        first = await sqs.receive("jobs.fifo", 10, **attempt)
        assert await sqs.receive("jobs.fifo", 10, **attempt) == first
        await sqs.delete("jobs.fifo", first[0])
        assert await sqs.receive("jobs.fifo", 10, **attempt) == []

    served(url, main)


@pytest.mark.waits(reason="a queue's delay is whole seconds")
def test_the_delay_of_a_queue_holds_its_messages_in_order(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await fifo(sqs, DelaySeconds="1")
        await say(sqs, "1")
        await say(sqs, "2")
        assert await sqs.receive("jobs.fifo", 10) == []
        for body in ("1", "2"):
            (got,) = await sqs.receive("jobs.fifo", 10, WaitTimeSeconds=20)
            assert got["Body"] == body
            assert got["Attributes"]["ApproximateReceiveCount"] == "1"
            await sqs.delete("jobs.fifo", got)

    served(url, main)


@pytest.mark.waits(reason="visibility timeouts are whole seconds")
def test_dead_letters_keep_their_group_and_can_be_moved_back(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await fifo(sqs, "dead.fifo")
        redrive = f'{{"deadLetterTargetArn":"{ARN}:dead.fifo","maxReceiveCount":1}}'
        await fifo(sqs, RedrivePolicy=redrive)
        await say(sqs, "1")
        await say(sqs, "2")
        (got,) = await sqs.receive("jobs.fifo", VisibilityTimeout=1)
        (late,) = await sqs.receive("jobs.fifo", WaitTimeSeconds=20)
        assert late["Body"] == "2"
        (letter,) = await sqs.receive("dead.fifo", WaitTimeSeconds=20)
        assert letter["MessageId"] == got["MessageId"]
        assert letter["Attributes"]["MessageGroupId"] == "a"
        hidden = {"ReceiptHandle": letter["ReceiptHandle"], "VisibilityTimeout": 0}
        await sqs.ask("ChangeMessageVisibility", "dead.fifo", **hidden)
        await sqs.delete("jobs.fifo", late)
        await sqs.ask("StartMessageMoveTask", SourceArn=f"{ARN}:dead.fifo")
        (back,) = await sqs.receive("jobs.fifo", WaitTimeSeconds=20)
        assert (back["Body"], back["MessageId"]) == ("1", got["MessageId"])
        assert back["Attributes"]["MessageGroupId"] == "a"

    served(url, main)


def test_a_purge_of_a_fifo_queue_removes_what_is_in_flight_too(
    url: str, client: cassq.Client
) -> None:
    async def main(sqs: Asker) -> None:
        await fifo(sqs)
        for number in range(5):
            await say(sqs, str(number))
        await sqs.receive("jobs.fifo")
        await sqs.ask("PurgeQueue", "jobs.fifo")
        assert await sqs.receive("jobs.fifo", 10) == []
        await say(sqs, "new")
        assert bodies(await sqs.receive("jobs.fifo", 10, WaitTimeSeconds=20)) == ["new"]
        assert client.queue("jobs.fifo").audit().findings == []

    served(url, main)


@pytest.mark.waits(reason="a receive that finds nothing more waits for a second")
@pytest.mark.embedded_only(reason="it opens the directory a second time")
def test_two_gateways_take_turns_and_keep_the_order(directory: Path) -> None:
    async def work(sqs: Asker, got: list[tuple[str, str]], whose: list[int], me: int) -> None:
        while len(got) < 60:
            for message in await sqs.receive("jobs.fifo", 2, WaitTimeSeconds=1):
                got.append((message["Attributes"]["MessageGroupId"], message["Body"]))
                whose.append(me)
                await sqs.delete("jobs.fifo", message)

    async def main() -> None:
        url = f"file://{directory}"
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            service_of(cassq.aio.connect(url)) as one,
            service_of(cassq.aio.connect(url)) as two,
        ):
            askers = Asker(one), Asker(two)
            await fifo(askers[0])
            for number in range(60):
                await say(askers[number % 2], f"{number:02}", "abc"[number % 3])
            got: list[tuple[str, str]] = []
            whose: list[int] = []
            await asyncio.gather(*(work(sqs, got, whose, me) for me, sqs in enumerate(askers)))
            for group in "abc":
                theirs = [body for each, body in got if each == group]
                assert theirs == sorted(theirs)
            assert len(set(got)) == len(got) == 60
            # What one has, the other can settle; and whoever waits gets what is sent.
            await say(askers[0], "last")
            (message,) = await askers[0].receive("jobs.fifo", WaitTimeSeconds=20)
            await askers[1].delete("jobs.fifo", message)
            await say(askers[0], "very last")
            assert bodies(await askers[1].receive("jobs.fifo", WaitTimeSeconds=20)) == ["very last"]

    asyncio.run(main())


@pytest.mark.embedded_only(reason="it opens the directory a second time")
def test_a_receive_that_does_not_wait_gets_the_lane_of_another_gateway(directory: Path) -> None:
    async def main() -> None:
        url = f"file://{directory}"
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            service_of(cassq.aio.connect(url)) as one,
            service_of(cassq.aio.connect(url)) as two,
        ):
            here, there = Asker(one), Asker(two)
            await fifo(here)
            for number in range(4):
                await say(here, f"{number}")
                found: list[Any] = []
                while not found:
                    found = await (here, there)[number % 2].receive("jobs.fifo")
                assert bodies(found) == [f"{number}"]
                await here.delete("jobs.fifo", found[0])

    asyncio.run(main())


def test_what_is_received_together_shares_a_row_until_its_messages_part(
    url: str, client: cassq.Client
) -> None:
    async def main(sqs: Asker) -> None:
        await fifo(sqs)
        for number in range(10):
            await say(sqs, f"{number}", f"{number}")
        for number in range(10):
            await say(sqs, f"next {number}", f"{number}")
        first = await sqs.receive("jobs.fifo", 10)
        queue = client.queue("jobs.fifo")
        held = parsed(first[0]["ReceiptHandle"])
        rows = client.ports.catalog.claims.rows(held.group_id, held.pipe_id)
        assert sum(claims.is_dated(row) for row in rows) == 1
        handles = [each["ReceiptHandle"] for each in first]
        await sqs.delete("jobs.fifo", *first[:2])
        queue.settle(handles[2]).ack()
        hidden = {"ReceiptHandle": handles[3], "VisibilityTimeout": 0}
        await sqs.ask("ChangeMessageVisibility", "jobs.fifo", **hidden)
        queue.settle(handles[4]).release()
        longer = {"ReceiptHandle": handles[5], "VisibilityTimeout": 3600}
        await sqs.ask("ChangeMessageVisibility", "jobs.fifo", **longer)
        got: dict[str, dict[str, Any]] = {}
        while len(got) < 5:
            found = await sqs.receive("jobs.fifo", 10, WaitTimeSeconds=20)
            got.update(zip(bodies(found), found, strict=True))
        assert set(got) == {"next 0", "next 1", "next 2", "3", "4"}
        shown = {body: each["Attributes"] for body, each in got.items()}
        counts = {body: each["ApproximateReceiveCount"] for body, each in shown.items()}
        assert counts == dict.fromkeys(got, "1") | {"3": "2"}
        since = "ApproximateFirstReceiveTimestamp"
        assert shown["3"][since] == first[3]["Attributes"][since]
        await sqs.delete("jobs.fifo", *got.values(), *first[5:])
        left = {*map(str, range(3, 10))}
        while left:
            found = await sqs.receive("jobs.fifo", 10, WaitTimeSeconds=20)
            left -= {body.removeprefix("next ") for body in bodies(found)}
            await sqs.delete("jobs.fifo", *found)
        assert queue.audit().findings == []

    served(url, main)


@pytest.mark.waits(reason="visibility timeouts are whole seconds")
def test_messages_whose_time_ends_together_become_dead_letters_one_by_one(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await fifo(sqs, "dead.fifo")
        redrive = f'{{"deadLetterTargetArn":"{ARN}:dead.fifo","maxReceiveCount":1}}'
        await fifo(sqs, RedrivePolicy=redrive)
        for number in range(6):
            await say(sqs, f"{number}", "abc"[number % 3])
        got = await sqs.receive("jobs.fifo", 10, VisibilityTimeout=1)
        assert bodies(got) == ["0", "1", "2"]
        late: list[str] = []
        while len(late) < 3:
            late += bodies(await sqs.receive("jobs.fifo", 10, WaitTimeSeconds=20))
        assert sorted(late) == ["3", "4", "5"]
        letters: list[str] = []
        while len(letters) < 3:
            found = await sqs.receive("dead.fifo", 10, WaitTimeSeconds=20)
            letters += bodies(found)
        assert sorted(letters) == ["0", "1", "2"]

    served(url, main)
