"""Dead letters of SQS clients: which messages move where, and when."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

import cassq
import cassq.aio
from cassq.gateway.actions.service import service_of
from tests.integration.gateway.asking import ACCOUNT_URL, ARN, Asker, bodies, served
from tests.integration.stage import Connect


def redrive(target: str, count: int | str) -> dict[str, str]:
    policy = {"deadLetterTargetArn": f"{ARN}:{target}", "maxReceiveCount": count}
    return {"RedrivePolicy": json.dumps(policy)}


async def pair(sqs: Asker, count: int = 2) -> None:
    await sqs.create("dead")
    await sqs.create("jobs", **redrive("dead", count))


def test_a_message_moves_once_it_was_received_as_often_as_allowed(
    url: str, client: cassq.Client
) -> None:
    async def main(sqs: Asker) -> None:
        await pair(sqs)
        message_id = await sqs.send("jobs", "bad", MessageAttributes={"n": NUMBER})
        sent_at = ""
        for count in ("1", "2"):
            (message,) = await sqs.receive("jobs", 10, VisibilityTimeout=0)
            assert message["Attributes"]["ApproximateReceiveCount"] == count
            sent_at = message["Attributes"]["SentTimestamp"]
        assert await sqs.receive("jobs", 10) == []
        (letter,) = await sqs.receive("dead", 10, WaitTimeSeconds=20)
        assert (letter["MessageId"], letter["Body"]) == (message_id, "bad")
        assert letter["MessageAttributes"] == {"n": NUMBER}
        found = letter["Attributes"]
        assert found["DeadLetterQueueSourceArn"] == f"{ARN}:jobs"
        assert (found["SentTimestamp"], found["ApproximateReceiveCount"]) == (sent_at, "1")
        await sqs.delete("dead", letter)
        explained = client.explain(message_id)
        assert explained.groups["default"][-1].queue == "dead"
        for name in ("jobs", "dead"):
            assert client.queue(name).audit().findings == []

    served(url, main)


NUMBER = {"DataType": "Number", "StringValue": "7"}


def test_each_message_of_a_receive_moves_by_its_own_count(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await pair(sqs)
        for number in range(4):
            await sqs.send("jobs", str(number))
        await sqs.receive("jobs", 2, VisibilityTimeout=0)
        seen: dict[str, int] = {"0": 1, "1": 1}
        while messages := await sqs.receive("jobs", 3, VisibilityTimeout=0):
            for message in messages:
                seen[message["Body"]] = seen.get(message["Body"], 0) + 1
                assert message["Attributes"]["ApproximateReceiveCount"] == str(
                    seen[message["Body"]]
                )
        assert seen == dict.fromkeys("0123", 2)
        letters: list[str] = []
        while len(letters) < 4:
            letters += bodies(await sqs.receive("dead", 10, WaitTimeSeconds=20))
        assert sorted(letters) == ["0", "1", "2", "3"]

    served(url, main)


def test_a_message_that_is_deleted_in_time_does_not_move(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await pair(sqs, 1)
        await sqs.send("jobs", "good")
        (message,) = await sqs.receive("jobs")
        await sqs.delete("jobs", message)
        assert await sqs.receive("jobs") == await sqs.receive("dead") == []

    served(url, main)


def test_without_a_policy_nothing_moves(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await pair(sqs, 1)
        await sqs.ask("SetQueueAttributes", "jobs", Attributes={"RedrivePolicy": ""})
        assert "RedrivePolicy" not in await sqs.attributes("jobs")
        await sqs.send("jobs", "x")
        for count in range(1, 15):
            (message,) = await sqs.receive("jobs", VisibilityTimeout=0)
            assert message["Attributes"]["ApproximateReceiveCount"] == str(count)

    served(url, main)


def test_a_redrive_policy_is_returned_and_names_its_sources(url: str, connect: Connect) -> None:
    async def main(sqs: Asker) -> None:
        await pair(sqs)
        await sqs.create("mails", **redrive("dead", "1000"))
        shown = json.loads((await sqs.attributes("jobs"))["RedrivePolicy"])
        assert shown == {"deadLetterTargetArn": f"{ARN}:dead", "maxReceiveCount": 2}
        listed = await sqs.ask("ListDeadLetterSourceQueues", "dead")
        assert listed == {"queueUrls": [f"{ACCOUNT_URL}/jobs", f"{ACCOUNT_URL}/mails"]}
        page = await sqs.ask("ListDeadLetterSourceQueues", "dead", MaxResults=1)
        assert page["queueUrls"] == listed["queueUrls"][:1]
        assert await sqs.ask("ListDeadLetterSourceQueues", "jobs") == {"queueUrls": []}
        await sqs.create("jobs", **redrive("dead", 2))
        await sqs.refused(
            "QueueNameExists", "CreateQueue", QueueName="jobs", Attributes=redrive("dead", 3)
        )

    served(url, main)
    assert connect().queue("jobs").policy.dead_letters == "dead"


@pytest.mark.parametrize(
    "policy",
    [
        redrive("dead", 0),
        redrive("dead", 1001),
        redrive("dead", "x"),
        redrive("none", 1),
        redrive("jobs", 1),
        {"RedrivePolicy": '{"maxReceiveCount":1}'},
        {"RedrivePolicy": '{"maxReceiveCount":1,"deadLetterTargetArn":"dead"}'},
    ],
)
def test_a_wrong_redrive_policy_is_refused(url: str, policy: dict[str, str]) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("dead")
        await sqs.create("jobs")
        await sqs.refused("InvalidParameterValue", "SetQueueAttributes", "jobs", Attributes=policy)
        assert "RedrivePolicy" not in await sqs.attributes("jobs")

    served(url, main)


def allow(permission: str, *sources: str) -> dict[str, str]:
    policy: dict[str, Any] = {"redrivePermission": permission}
    if sources:
        policy["sourceQueueArns"] = [f"{ARN}:{source}" for source in sources]
    return {"RedriveAllowPolicy": json.dumps(policy)}


def test_a_queue_says_whose_dead_letters_it_takes(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("dead", **allow("denyAll"))
        await sqs.create("jobs")
        settle = "SetQueueAttributes"
        await sqs.refused("InvalidParameterValue", settle, "jobs", Attributes=redrive("dead", 1))
        await sqs.ask(settle, "dead", Attributes=allow("byQueue", "mails"))
        await sqs.refused("InvalidParameterValue", settle, "jobs", Attributes=redrive("dead", 1))
        await sqs.ask(settle, "dead", Attributes=allow("byQueue", "mails", "jobs"))
        await sqs.ask(settle, "jobs", Attributes=redrive("dead", 1))
        await sqs.ask(settle, "dead", Attributes=allow("allowAll"))
        assert (await sqs.attributes("dead"))["RedriveAllowPolicy"]
        for wrong in (allow("byQueue"), allow("denyAll", "jobs"), allow("byQueue", *"abcdefghijk")):
            await sqs.refused("InvalidAttributeValue", settle, "dead", Attributes=wrong)

    served(url, main)


# --- moving them back ---------------------------------------------------------------------------


async def letters(sqs: Asker, count: int) -> None:
    """Dead letters of the queue "jobs"."""
    await pair(sqs, 1)
    for number in range(count):
        await sqs.send("jobs", str(number))
    while await sqs.receive("jobs", 10, VisibilityTimeout=0):
        pass
    while await depth(sqs, "dead") < count:
        await asyncio.sleep(0.01)


async def depth(sqs: Asker, queue: str) -> int:
    """How many messages a queue has now."""
    sqs.service.host._counts.clear()
    return int((await sqs.attributes(queue))["ApproximateNumberOfMessages"])


async def ended(sqs: Asker, status: str) -> dict[str, Any]:
    """The last task, once it has ended this way."""
    while True:
        answer = await sqs.ask("ListMessageMoveTasks", SourceArn=f"{ARN}:dead")
        task: dict[str, Any] = answer["Results"][0]
        if task["Status"] not in ("RUNNING", "CANCELLING"):
            assert task["Status"] == status, task
            return task
        await asyncio.sleep(0.01)


def test_dead_letters_move_back_to_where_they_came_from(url: str, client: cassq.Client) -> None:
    async def main(sqs: Asker) -> None:
        await letters(sqs, 3)
        await sqs.send("dead", "of its own")
        answer = await sqs.ask("StartMessageMoveTask", SourceArn=f"{ARN}:dead")
        assert answer["TaskHandle"]
        task = await ended(sqs, "COMPLETED")
        started = task.pop("StartedTimestamp")
        assert task == {
            "Status": "COMPLETED",
            "SourceArn": f"{ARN}:dead",
            "ApproximateNumberOfMessagesMoved": 3,
            "ApproximateNumberOfMessagesToMove": 4,
        }
        assert bodies(await sqs.receive("dead", 10)) == ["of its own"]
        back = await sqs.receive("jobs", 10)
        assert sorted(bodies(back)) == ["0", "1", "2"]
        for message in back:
            found = message["Attributes"]
            assert found["ApproximateReceiveCount"] == "1"
            assert int(found["SentTimestamp"]) >= started, "they count as sent anew"
            assert "DeadLetterQueueSourceArn" not in found
        for name in ("jobs", "dead"):
            assert client.queue(name).audit().findings == []

    served(url, main)


def test_dead_letters_move_to_another_queue(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await letters(sqs, 2)
        await sqs.create("mails")
        await sqs.ask(
            "StartMessageMoveTask", SourceArn=f"{ARN}:dead", DestinationArn=f"{ARN}:mails"
        )
        task = await ended(sqs, "COMPLETED")
        assert task["DestinationArn"] == f"{ARN}:mails"
        assert sorted(bodies(await sqs.receive("mails", 10))) == ["0", "1"]

    served(url, main)


def test_a_task_keeps_to_its_rate_and_can_be_cancelled_anywhere(url: str) -> None:
    async def other(sqs: Asker) -> None:
        arn = f"{ARN}:dead"
        start = {"SourceArn": arn, "MaxNumberOfMessagesPerSecond": 1}
        async with service_of(cassq.aio.connect(url)) as service:
            beside = Asker(service)
            await letters(sqs, 30)
            handle = (await sqs.ask("StartMessageMoveTask", **start))["TaskHandle"]
            await beside.refused("UnsupportedOperation", "StartMessageMoveTask", **start)
            listed = await beside.ask("ListMessageMoveTasks", SourceArn=arn, MaxResults=10)
            assert [task["TaskHandle"] for task in listed["Results"]] == [handle]
            assert listed["Results"][0]["MaxNumberOfMessagesPerSecond"] == 1
            await beside.ask("CancelMessageMoveTask", TaskHandle=handle)
            task = await ended(sqs, "CANCELLED")
            assert task["ApproximateNumberOfMessagesMoved"] < 20
            assert "TaskHandle" not in task
            await beside.refused(
                "InvalidParameterValue", "CancelMessageMoveTask", TaskHandle=handle
            )

    served(url, other)


def test_a_move_that_makes_no_sense_is_refused(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await pair(sqs)
        start, dead = "StartMessageMoveTask", {"SourceArn": f"{ARN}:dead"}
        await sqs.refused("InvalidParameterValue", start, SourceArn=f"{ARN}:jobs")
        await sqs.refused("ResourceNotFoundException", start, SourceArn=f"{ARN}:none")
        await sqs.refused("InvalidParameterValue", start, SourceArn="dead")
        for wrong in (0, 501):
            more = {**dead, "MaxNumberOfMessagesPerSecond": wrong}
            await sqs.refused("InvalidParameterValue", start, **more)
        await sqs.refused("ResourceNotFoundException", start, **dead, DestinationArn=f"{ARN}:none")
        await sqs.refused("InvalidParameterValue", start, **dead, DestinationArn=f"{ARN}:dead")
        assert await sqs.ask("ListMessageMoveTasks", **dead) == {}
        for wrong in (0, 11):
            await sqs.refused(
                "InvalidParameterValue", "ListMessageMoveTasks", **dead, MaxResults=wrong
            )
        unknown = base64.b64encode(
            json.dumps({"taskId": "x", "sourceArn": f"{ARN}:dead"}).encode()
        ).decode()
        await sqs.refused("ResourceNotFoundException", "CancelMessageMoveTask", TaskHandle=unknown)
        await sqs.refused("InvalidParameterValue", "CancelMessageMoveTask", TaskHandle="x")

    served(url, main)
