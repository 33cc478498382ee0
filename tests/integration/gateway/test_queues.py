"""Queues of SQS clients: their attributes, tags and permissions, and what is refused."""

from __future__ import annotations

import asyncio
import json

import pytest

import cassq
from cassq.gateway.plain.request import PlainRequest
from cassq.gateway.plain.service import PlainService
from cassq.gateway.request import Caller
from tests.integration.gateway.asking import ACCOUNT_URL, ARN, Asker, bodies, served
from tests.integration.stage import Connect

# What a queue has if nothing was said.
DEFAULTS = {
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "VisibilityTimeout": "30",
    "KmsDataKeyReusePeriodSeconds": "300",
    "SqsManagedSseEnabled": "false",
    "QueueArn": f"{ARN}:jobs",
    "ApproximateNumberOfMessages": "0",
    "ApproximateNumberOfMessagesNotVisible": "0",
    "ApproximateNumberOfMessagesDelayed": "0",
}
LIMITS = {
    "DelaySeconds": (0, 900),
    "MaximumMessageSize": (1024, 1048576),
    "MessageRetentionPeriod": (60, 1209600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, 43200),
    "KmsDataKeyReusePeriodSeconds": (60, 86400),
}


def test_a_queue_has_the_defaults_of_sqs(url: str) -> None:
    async def main(sqs: Asker) -> None:
        answer = await sqs.ask("CreateQueue", QueueName="jobs")
        assert answer == {"QueueUrl": f"{ACCOUNT_URL}/jobs"}
        found = await sqs.attributes("jobs")
        created, changed = found.pop("CreatedTimestamp"), found.pop("LastModifiedTimestamp")
        assert found == DEFAULTS
        assert 0 < int(created) <= int(changed)
        assert await sqs.ask("GetQueueAttributes", "jobs") == {}
        asked = await sqs.ask(
            "GetQueueAttributes", "jobs", AttributeNames=["DelaySeconds", "Policy"]
        )
        assert asked == {"Attributes": {"DelaySeconds": "0"}}
        await sqs.refused(
            "InvalidAttributeName", "GetQueueAttributes", "jobs", AttributeNames=["X"]
        )

    served(url, main)


def test_creating_a_queue_again_returns_it_unless_an_attribute_differs(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs", VisibilityTimeout="0", DelaySeconds="5")
        await sqs.create("jobs", VisibilityTimeout="0", DelaySeconds="5")
        await sqs.create("jobs", DelaySeconds="5")
        await sqs.create("jobs")
        refused = await sqs.refused(
            "QueueNameExists", "CreateQueue", QueueName="jobs", Attributes={"DelaySeconds": "6"}
        )
        assert "DelaySeconds" in refused
        await sqs.refused(
            *("QueueNameExists", "CreateQueue"),
            QueueName="jobs",
            Attributes={"VisibilityTimeout": "1"},
        )

    served(url, main)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "/a", "x" * 81, "é", "a~b", "jobs.fif"])
def test_names_that_sqs_refuses_are_refused(url: str, name: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.refused("InvalidParameterValue", "CreateQueue", QueueName=name)

    served(url, main)


def test_each_number_is_taken_from_its_least_to_its_most(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        for name, (least, most) in LIMITS.items():
            for value in (least, most):
                await sqs.ask("SetQueueAttributes", "jobs", Attributes={name: str(value)})
                assert (await sqs.attributes("jobs"))[name] == str(value)
            for wrong in (str(least - 1), str(most + 1), "", "x", "1.5", "-0", "9" * 30):
                for action in ("SetQueueAttributes", "CreateQueue"):
                    queue, more = ("jobs", {}) if action[0] == "S" else (None, {"QueueName": "b"})
                    await sqs.refused(
                        "InvalidAttributeValue", action, queue, Attributes={name: wrong}, **more
                    )

    served(url, main)


def test_what_cannot_be_set_is_refused(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        for name in ("QueueArn", "CreatedTimestamp", "All", "FifoQueue", "DeduplicationScope", "x"):
            await sqs.refused(
                "InvalidAttributeName", "SetQueueAttributes", "jobs", Attributes={name: "1"}
            )
        for name, value in {
            "SqsManagedSseEnabled": "yes",
            "Policy": "not json",
            "RedriveAllowPolicy": '{"redrivePermission":"some"}',
        }.items():
            await sqs.refused(
                "InvalidAttributeValue", "SetQueueAttributes", "jobs", Attributes={name: value}
            )
        await sqs.refused("QueueDoesNotExist", "SetQueueAttributes", "b", Attributes={})

    served(url, main)


def test_what_is_set_is_kept_and_can_be_taken_back(url: str, connect: Connect) -> None:
    policy = json.dumps({"Version": "2012-10-17", "Statement": []})

    async def main(sqs: Asker) -> None:
        await sqs.create(
            "jobs", Policy=policy, KmsMasterKeyId="alias/x", SqsManagedSseEnabled="true"
        )

    async def again(sqs: Asker) -> None:
        found = await sqs.attributes("jobs")
        assert (found["Policy"], found["KmsMasterKeyId"]) == (policy, "alias/x")
        assert found["SqsManagedSseEnabled"] == "true"
        cleared = {"Policy": "", "KmsMasterKeyId": ""}
        await sqs.ask("SetQueueAttributes", "jobs", Attributes=cleared)
        assert not cleared.keys() & (await sqs.attributes("jobs")).keys()

    served(url, main)
    served(url, again)
    assert connect().queue("jobs").policy.claim_timeout == 30.0


def test_settings_and_attributes_are_the_same_thing(url: str, connect: Connect) -> None:
    native = connect()
    native.create_queue("ours", claim_timeout=0.2)

    async def main(sqs: Asker) -> None:
        await sqs.create("jobs", VisibilityTimeout="0", MessageRetentionPeriod="60")
        policy = native.queue("jobs").policy
        assert (policy.claim_timeout, policy.retain_unconsumed) == (0.05, 60.0)
        native.queue("jobs").update(claim_timeout=7.0, retain_unconsumed=120.0)
        found = await sqs.attributes("jobs")
        assert (found["VisibilityTimeout"], found["MessageRetentionPeriod"]) == ("7", "120")
        assert (await sqs.attributes("ours"))["VisibilityTimeout"] == "1"
        native.queue("ours").pusher().push(b"hello")
        assert bodies(await sqs.receive("ours")) == ["hello"]

    served(url, main)


def test_queues_are_found_and_listed_page_by_page(url: str, connect: Connect) -> None:
    connect().create_queue("/team/jobs")

    async def main(sqs: Asker) -> None:
        for name in ("a1", "a2", "a3", "b1"):
            await sqs.create(name)
        urls = [f"{ACCOUNT_URL}/{name}" for name in ("%2Fteam%2Fjobs", "a1", "a2", "a3", "b1")]
        assert await sqs.ask("ListQueues") == {"QueueUrls": urls}
        assert await sqs.ask("ListQueues", QueueNamePrefix="a") == {"QueueUrls": urls[1:4]}
        assert await sqs.ask("ListQueues", QueueNamePrefix="c") == {}
        page = await sqs.ask("ListQueues", QueueNamePrefix="a", MaxResults=2)
        assert page["QueueUrls"] == urls[1:3]
        rest = await sqs.ask(
            "ListQueues", QueueNamePrefix="a", MaxResults=2, NextToken=page["NextToken"]
        )
        assert rest == {"QueueUrls": urls[3:4]}
        for wrong in ({"MaxResults": 0}, {"MaxResults": 1001}, {"NextToken": "\xff"}):
            await sqs.refused("InvalidParameterValue", "ListQueues", **wrong)
        assert await sqs.ask("GetQueueUrl", QueueName="a1") == {"QueueUrl": urls[1]}
        await sqs.refused("QueueDoesNotExist", "GetQueueUrl", QueueName="c")
        await sqs.send("%2Fteam%2Fjobs", "by its path")
        sqs.may = lambda action, queue: queue in ("", "a2")
        assert await sqs.ask("ListQueues") == {"QueueUrls": urls[2:3]}
        await sqs.refused("AccessDenied", "SendMessage", "a1", MessageBody="x")

    served(url, main)


def test_a_deleted_queue_is_gone_and_its_name_is_free(url: str, connect: Connect) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        await sqs.send("jobs", "old")
        (held,) = await sqs.receive("jobs")
        await sqs.ask("DeleteQueue", "jobs")
        for action, more in {
            "SendMessage": {"MessageBody": "x"},
            "ReceiveMessage": {},
            "DeleteMessage": {"ReceiptHandle": held["ReceiptHandle"]},
            "DeleteQueue": {},
            "PurgeQueue": {},
            "ListQueueTags": {},
            "GetQueueAttributes": {"AttributeNames": ["All"]},
        }.items():
            await sqs.refused("QueueDoesNotExist", action, "jobs", **more)
        await sqs.create("jobs")
        assert await sqs.receive("jobs") == []
        await sqs.refused(
            "ReceiptHandleIsInvalid", "DeleteMessage", "jobs", ReceiptHandle=held["ReceiptHandle"]
        )

    served(url, main)


def test_a_queue_that_another_client_deletes_and_makes_again_is_the_new_one(
    url: str, connect: Connect
) -> None:
    native = connect()

    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        await sqs.send("jobs", "old")
        native.delete_queue("jobs")
        new = native.create_queue("jobs")
        while (await sqs.service.host.find("jobs")).queue.id != new.id:
            await asyncio.sleep(0.01)  # it is seen within half a lease
        await sqs.send("jobs", "new")
        assert bodies(await sqs.receive("jobs", 10)) == ["new"]

    served(url, main)


def test_tags_are_kept(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.ask("CreateQueue", QueueName="jobs", tags={"team": "a"})
        await sqs.ask("TagQueue", "jobs", Tags={"cost": "1", "team": "b"})
        assert await sqs.ask("ListQueueTags", "jobs") == {"Tags": {"cost": "1", "team": "b"}}
        await sqs.ask("UntagQueue", "jobs", TagKeys=["team", "none"])
        assert await sqs.ask("ListQueueTags", "jobs") == {"Tags": {"cost": "1"}}
        for tags in ({"": "x"}, {"k" * 129: ""}, {"k": "v" * 257}, {"aws:x": ""}, TOO_MANY):
            await sqs.refused("InvalidParameterValue", "TagQueue", "jobs", Tags=tags)
        await sqs.ask("UntagQueue", "jobs", TagKeys=["cost"])
        assert await sqs.ask("ListQueueTags", "jobs") == {}

    served(url, main)


TOO_MANY = {str(number): "" for number in range(51)}


def test_permissions_are_statements_of_the_policy(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        one = {"Label": "one", "AWSAccountIds": ["1"], "Actions": ["SendMessage"]}
        await sqs.ask("AddPermission", "jobs", **one)
        await sqs.ask(
            "AddPermission",
            "jobs",
            Label="two",
            AWSAccountIds=["1", "2"],
            Actions=["*", "GetQueueUrl"],
        )
        policy = json.loads((await sqs.attributes("jobs"))["Policy"])
        assert policy["Statement"][0] == {
            "Sid": "one",
            "Effect": "Allow",
            "Principal": {"AWS": "arn:aws:iam::1:root"},
            "Action": "SQS:SendMessage",
            "Resource": f"{ARN}:jobs",
        }
        assert policy["Statement"][1]["Action"] == ["SQS:*", "SQS:GetQueueUrl"]
        await sqs.refused("InvalidParameterValue", "AddPermission", "jobs", **one)
        await sqs.refused("InvalidParameterValue", "RemovePermission", "jobs", Label="three")
        await sqs.refused(
            "InvalidParameterValue", "AddPermission", "jobs", **{**one, "Label": "a b"}
        )
        await sqs.refused("MissingParameter", "AddPermission", "jobs", **{**one, "Actions": []})
        await sqs.refused(
            "MissingParameter", "AddPermission", "jobs", **{**one, "AWSAccountIds": []}
        )
        await sqs.ask("RemovePermission", "jobs", Label="one")
        await sqs.ask("RemovePermission", "jobs", Label="two")
        assert "Policy" not in await sqs.attributes("jobs")

    served(url, main)


def test_a_purge_removes_what_is_in_flight_too(url: str, client: cassq.Client) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs", VisibilityTimeout="0")
        for number in range(5):
            await sqs.send("jobs", str(number))
        await sqs.send("jobs", "later", DelaySeconds=900)
        await sqs.receive("jobs", 2)
        await sqs.ask("PurgeQueue", "jobs")
        assert await sqs.receive("jobs", 10) == []
        assert client.queue("jobs").audit().findings == []

    served(url, main)


def test_an_action_that_is_unknown_is_refused(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.refused("InvalidAction", "SendMassage")
        await sqs.refused("InvalidAddress", "PurgeQueue", QueueUrl="http://localhost:9324/")

    served(url, main)


def test_each_group_of_a_queue_may_be_a_queue_for_clients(url: str, connect: Connect) -> None:
    queue = connect().create_queue("jobs")
    queue.create_group("mail")

    async def main(sqs: Asker) -> None:
        urls = (await sqs.ask("ListQueues"))["QueueUrls"]
        assert urls == [f"{ACCOUNT_URL}/jobs", f"{ACCOUNT_URL}/jobs--mail"]
        assert (await sqs.ask("ListQueues", QueueNamePrefix="jobs--"))["QueueUrls"] == urls[1:]
        for action in ("GetQueueUrl", "CreateQueue"):
            assert (await sqs.ask(action, QueueName="jobs--mail"))["QueueUrl"] == urls[1]
        await sqs.send("jobs", "1")
        await sqs.send("jobs", "2")
        for name in ("jobs", "jobs--mail"):  # each gets all
            found = await sqs.receive(name, 10)
            assert bodies(found) == ["1", "2"]
            await sqs.delete(name, found[0])
        assert (await sqs.attributes("jobs--mail"))["QueueArn"] == f"{ARN}:jobs--mail"
        assert (await sqs.attributes("jobs--mail"))["ApproximateNumberOfMessagesNotVisible"] == "1"
        handle = found[1]["ReceiptHandle"]
        await sqs.refused("ReceiptHandleIsInvalid", "DeleteMessage", "jobs", ReceiptHandle=handle)
        await sqs.ask("PurgeQueue", "jobs--mail")
        for action, parameters in {
            "SendMessage": {"MessageBody": "3"},
            "SetQueueAttributes": {"Attributes": {}},
            "DeleteQueue": {},
            "ListQueueTags": {},
        }.items():
            message = await sqs.refused("UnsupportedOperation", action, "jobs--mail", **parameters)
            assert "for whole queues: use jobs" in message
        for name in ("jobs--none", "jobs--default"):
            await sqs.refused("QueueDoesNotExist", "ReceiveMessage", name)
        await sqs.refused("QueueDoesNotExist", "ReceiveMessage", "none--mail")
        asked = PlainRequest(
            "GET", ("queues", "jobs--mail", "messages"), {}, b"", Caller("key"), "", ""
        )
        answer = await PlainService(sqs.service.host).answer(asked)
        assert (answer.status, b"is a group" in answer.body) == (404, True)
        queue.delete_group("mail")
        assert (await sqs.ask("ListQueues"))["QueueUrls"] == urls[:1]

    served(url, main, groups=True)
    assert queue.stats().groups["default"].pending == 1


def test_groups_are_not_shown_as_queues_unless_asked_for(url: str, connect: Connect) -> None:
    connect().create_queue("jobs").create_group("mail")

    async def main(sqs: Asker) -> None:
        assert (await sqs.ask("ListQueues"))["QueueUrls"] == [f"{ACCOUNT_URL}/jobs"]
        await sqs.refused("QueueDoesNotExist", "ReceiveMessage", "jobs--mail")

    served(url, main)
