"""Messages of SQS clients: what is sent, received, hidden, deleted, and refused."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

import cassq
from bench.walk import walked
from cassq.aio import Connecting
from cassq.base.clock import ManualClock
from cassq.consumer.keyed.lane import AHEAD_IDLE_MS
from cassq.gateway.actions.queues import _counts
from cassq.message.message_ids import from_uuid
from tests.integration.aio.loops import until
from tests.integration.deadlines import ticks
from tests.integration.gateway.asking import ACCOUNT_URL, Asker, bodies, run, served
from tests.integration.stage import Connect, alone, client_on

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793"


def text(value: str, kind: str = "String") -> dict[str, Any]:
    return {"DataType": kind, "StringValue": value}


def test_a_message_is_received_as_it_was_sent(url: str) -> None:
    attributes = {
        "city": text("Graz"),
        "price": text("-1.5e3", "Number.euro"),
        "icon": {"DataType": "Binary.png", "BinaryValue": b"\0\xff"},
        "cassq-own": text("ours"),
    }
    system = {"AWSTraceHeader": text(TRACE)}

    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        body = "Grüß\tGott\n\U0001f600"
        sent = await sqs.ask(
            "SendMessage",
            "jobs",
            MessageBody=body,
            MessageAttributes=attributes,
            MessageSystemAttributes=system,
        )
        (message,) = await sqs.receive("jobs")
        assert message["Body"] == body
        assert message["MessageId"] == sent["MessageId"]
        assert message["MessageAttributes"] == attributes
        assert message["MD5OfBody"] == sent["MD5OfMessageBody"] == md5(body.encode()).hexdigest()
        assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
        found = message["Attributes"]
        sent_ms, first_ms = (
            found.pop("SentTimestamp"),
            found.pop("ApproximateFirstReceiveTimestamp"),
        )
        assert 0 < int(sent_ms) <= int(first_ms) + 5, "two clocks are compared"
        assert found == {
            "AWSTraceHeader": TRACE,
            "ApproximateReceiveCount": "1",
            "SenderId": "000000000000",
        }

    served(url, main)


def test_checksums_are_those_of_sqs(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        sent = await sqs.ask(
            "SendMessage",
            "jobs",
            MessageBody="hello",
            MessageAttributes={"timestamp": text("1493147359900", "Number")},
            MessageSystemAttributes={"AWSTraceHeader": text(TRACE)},
        )
        assert sent["MD5OfMessageBody"] == "5d41402abc4b2a76b9719d911017c592"
        assert sent["MD5OfMessageAttributes"] == "235c5c510d26fb653d073faed50ae77c"
        same = await sqs.ask(
            *("SendMessage", "jobs"),
            MessageBody="hello",
            MessageAttributes={"AWSTraceHeader": text(TRACE)},
        )
        assert sent["MD5OfMessageSystemAttributes"] == same["MD5OfMessageAttributes"]

    served(url, main)


def test_only_the_attributes_asked_for_are_returned(url: str) -> None:
    names = ("price", "price.net", "price.gross", "city")

    async def main(sqs: Asker) -> None:
        await sqs.create("jobs", VisibilityTimeout="0")
        await sqs.send("jobs", "x", MessageAttributes={name: text("1") for name in names})
        for asked, found in {
            ("city",): {"city"},
            ("price.*",): {"price.net", "price.gross"},
            ("All",): set(names),
            (".*",): set(names),
            ("none",): set(),
            (): set(),
        }.items():
            answer = await sqs.ask("ReceiveMessage", "jobs", MessageAttributeNames=list(asked))
            (message,) = answer["Messages"]
            assert set(message.get("MessageAttributes", {})) == found
            assert ("MD5OfMessageAttributes" in message) == bool(found)
            assert "Attributes" not in message
        answer = await sqs.ask("ReceiveMessage", "jobs", AttributeNames=["ApproximateReceiveCount"])
        assert answer["Messages"][0]["Attributes"] == {"ApproximateReceiveCount": "7"}

    served(url, main)


@pytest.mark.parametrize(
    ("code", "parameters"),
    [
        ("MissingParameter", {"MessageBody": ""}),
        ("InvalidMessageContents", {"MessageBody": "a\0b"}),
        ("InvalidMessageContents", {"MessageBody": "a\ufffe"}),
        ("InvalidMessageContents", {"MessageBody": "a\ud800"}),
        *(("InvalidParameterValue", {"MessageGroupId": name}) for name in ("", "a b", "x" * 129)),
        ("InvalidParameterValue", {"MessageDeduplicationId": "a"}),
        ("InvalidParameterValue", {"DelaySeconds": -1}),
        ("InvalidParameterValue", {"DelaySeconds": 901}),
        ("InvalidParameterValue", {"MessageBody": "x" * (1 << 20) + "x"}),
        ("InvalidParameterValue", {"MessageAttributes": {str(n): text("1") for n in range(11)}}),
        ("InvalidParameterValue", {"MessageAttributes": {"a": {"DataType": "String"}}}),
        ("InvalidParameterValue", {"MessageAttributes": {"a": text("x", "Text")}}),
        ("InvalidParameterValue", {"MessageAttributes": {"a": text("x", "Number")}}),
        ("InvalidParameterValue", {"MessageAttributes": {"a": text("x", "Binary")}}),
        ("InvalidParameterValue", {"MessageAttributes": {"a": text("x", "String." + 256 * "x")}}),
        ("InvalidMessageContents", {"MessageAttributes": {"a": text("\1")}}),
        ("InvalidParameterValue", {"MessageSystemAttributes": {"SenderId": text("x")}}),
        (
            "UnsupportedOperation",
            {"MessageAttributes": {"a": {"DataType": "String", "StringListValues": ["x"]}}},
        ),
        *(
            ("InvalidParameterValue", {"MessageAttributes": {name: text("x")}})
            for name in ("", "a b", ".a", "a.", "a..b", "AWS.x", "amazon.x", "x" * 257)
        ),
    ],
)
def test_what_sqs_refuses_to_send_is_refused(
    url: str, code: str, parameters: dict[str, Any]
) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        await sqs.refused(code, "SendMessage", "jobs", **{"MessageBody": "x", **parameters})
        assert await sqs.receive("jobs") == []

    served(url, main)


def test_a_queue_may_take_only_smaller_messages(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs", MaximumMessageSize="1024")
        await sqs.send("jobs", "é" * 512)
        await sqs.refused(
            "InvalidParameterValue", "SendMessage", "jobs", MessageBody="é" * 512 + "x"
        )
        await sqs.refused(
            *("InvalidParameterValue", "SendMessage", "jobs"),
            MessageBody="x" * 1016,
            MessageAttributes={"ab": text("x")},
        )

    served(url, main)


def test_a_delayed_message_comes_when_it_is_due(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs", DelaySeconds="900")
        await sqs.send("jobs", "later")
        await sqs.send("jobs", "at once", DelaySeconds=0)
        assert bodies(await sqs.receive("jobs", 10)) == ["at once"]
        found = await sqs.attributes("jobs")
        assert found["ApproximateNumberOfMessagesDelayed"] == "1"
        assert found["ApproximateNumberOfMessagesNotVisible"] == "1"
        waiting = asyncio.create_task(sqs.receive("jobs", WaitTimeSeconds=20))
        await sqs.send("jobs", "soon", DelaySeconds=1)
        assert bodies(await waiting) == ["soon"]

    served(url, main)


@pytest.mark.parametrize(
    "parameters",
    [
        {"MaxNumberOfMessages": 0},
        {"MaxNumberOfMessages": 11},
        {"VisibilityTimeout": -1},
        {"VisibilityTimeout": 43201},
        {"WaitTimeSeconds": -1},
        {"WaitTimeSeconds": 21},
    ],
)
def test_a_receive_beyond_the_limits_is_refused(url: str, parameters: dict[str, int]) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        await sqs.refused("InvalidParameterValue", "ReceiveMessage", "jobs", **parameters)

    served(url, main)


def test_each_receive_is_counted_for_its_messages_alone(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        for number in range(3):
            await sqs.send("jobs", str(number))
        counts: Counter[str] = Counter()
        firsts: dict[str, str] = {}
        for most in (2, 1, 3, 1, 1, 10, 2, 10, 10, 10):
            messages = await sqs.receive("jobs", most, VisibilityTimeout=0)
            assert 1 <= len(messages) <= most
            for message in messages:
                body, system = message["Body"], message["Attributes"]
                counts[body] += 1
                assert system["ApproximateReceiveCount"] == str(counts[body])
                first = system["ApproximateFirstReceiveTimestamp"]
                assert firsts.setdefault(body, first) == first
        assert len(counts) == 3

    served(url, main)


def test_a_wait_ends_with_a_push_by_any_client(url: str, connect: Connect) -> None:
    native = connect()

    async def main(sqs: Asker) -> None:
        await sqs.create("jobs", ReceiveMessageWaitTimeSeconds="20")
        waiting = asyncio.create_task(sqs.receive("jobs"))
        hosted = await sqs.service.host.find("jobs")
        await until("it waits", lambda: hosted.deliveries.waiting)
        with native.queue("jobs").pusher() as pusher:
            pusher.push(b"native", headers={"city": "Graz"})
        (message,) = await waiting
        assert message["MessageAttributes"] == {"city": text("Graz")}
        assert await sqs.receive("jobs", WaitTimeSeconds=0) == []

    served(url, main)


def test_a_message_that_is_given_back_rings(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        await sqs.send("jobs", "x")
        (message,) = await sqs.receive("jobs")
        waiting = asyncio.create_task(sqs.receive("jobs", WaitTimeSeconds=20))
        await sqs.ask(
            "ChangeMessageVisibility",
            "jobs",
            ReceiptHandle=message["ReceiptHandle"],
            VisibilityTimeout=0,
        )
        (again,) = await waiting
        assert again["Attributes"]["ApproximateReceiveCount"] == "2"

    served(url, main)


def test_the_visibility_of_one_message_leaves_its_neighbours_theirs(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        for number in range(3):
            await sqs.send("jobs", str(number))
        messages = await sqs.receive("jobs", 10)
        handles = [message["ReceiptHandle"] for message in messages]
        change = "ChangeMessageVisibility"
        await sqs.ask(change, "jobs", ReceiptHandle=handles[1], VisibilityTimeout=0)
        (again,) = await sqs.receive("jobs", 10)
        assert again["Body"] == "1"
        await sqs.refused(
            "MessageNotInflight", change, "jobs", ReceiptHandle=handles[1], VisibilityTimeout=5
        )
        for wrong in (-1, 43201):
            await sqs.refused(
                *("InvalidParameterValue", change, "jobs"),
                ReceiptHandle=handles[0],
                VisibilityTimeout=wrong,
            )
        await sqs.ask(change, "jobs", ReceiptHandle=handles[0], VisibilityTimeout=43200)
        await sqs.delete("jobs", messages[0])
        await sqs.refused(
            "MessageNotInflight", change, "jobs", ReceiptHandle=handles[0], VisibilityTimeout=5
        )

    served(url, main)


def test_an_old_handle_deletes_unless_the_message_was_received_again(
    url: str, client: cassq.Client
) -> None:
    alone(client)

    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        await sqs.send("jobs", "x")
        (first,) = await sqs.receive("jobs", VisibilityTimeout=0)
        (second,) = await sqs.receive("jobs", VisibilityTimeout=0)
        await sqs.delete("jobs", first)  # no error, and no effect
        (third,) = await sqs.receive("jobs", VisibilityTimeout=0)
        assert third["Attributes"]["ApproximateReceiveCount"] == "3"
        client.reap(["jobs"])  # so that nobody holds it any more
        await sqs.refused(
            "MessageNotInflight",
            "ChangeMessageVisibility",
            "jobs",
            ReceiptHandle=third["ReceiptHandle"],
            VisibilityTimeout=5,
        )
        await sqs.delete("jobs", second)
        await sqs.delete("jobs", third)
        assert await sqs.receive("jobs") == []
        assert client.queue("jobs").audit().findings == []

    served(url, main)


@pytest.mark.parametrize("handle", ["", "x", "AAAA", "é", "x" * 2000])
def test_an_invalid_receipt_handle_is_refused(url: str, handle: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        await sqs.refused("ReceiptHandleIsInvalid", "DeleteMessage", "jobs", ReceiptHandle=handle)
        await sqs.refused(
            *("ReceiptHandleIsInvalid", "ChangeMessageVisibility", "jobs"),
            ReceiptHandle=handle,
            VisibilityTimeout=1,
        )

    served(url, main)


def test_a_handle_of_another_queue_is_refused_and_changes_nothing(url: str) -> None:
    async def main(sqs: Asker) -> None:
        for name in ("jobs", "mails"):
            await sqs.create(name)
            await sqs.send(name, name)
        (job,), (mail,) = await sqs.receive("jobs"), await sqs.receive("mails")
        await sqs.refused(
            "ReceiptHandleIsInvalid", "DeleteMessage", "jobs", ReceiptHandle=mail["ReceiptHandle"]
        )
        await asyncio.gather(sqs.delete("jobs", job), sqs.delete("mails", mail))

    served(url, main)


def test_a_receive_whose_client_left_gives_back_uncounted_what_came_for_it(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        left = asyncio.create_task(sqs.receive("jobs", WaitTimeSeconds=20))
        hosted = await sqs.service.host.find("jobs")
        await until("it waits", lambda: hosted.deliveries.waiting)
        sending = asyncio.create_task(sqs.send("jobs", "x"))
        left.cancel()
        await sending
        (message,) = await sqs.receive("jobs", WaitTimeSeconds=20)
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"

    served(url, main)


def test_an_answer_that_did_not_arrive_is_as_if_nothing_was_received(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        await sqs.send("jobs", "x")
        await sqs.send("jobs", "y")
        answer = await sqs.answer("ReceiveMessage", "jobs", MaxNumberOfMessages=10)
        assert answer.undelivered is not None
        await sqs.delete("jobs", answer.members["Messages"][0])
        waiting = asyncio.create_task(sqs.receive("jobs", 10, WaitTimeSeconds=20))
        await answer.undelivered()
        (message,) = await waiting
        assert message["Body"] == "y"
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"
        empty = await sqs.answer("ReceiveMessage", "jobs")
        assert empty.undelivered is None

    served(url, main)


def test_native_clients_and_sqs_share_a_queue(url: str, connect: Connect) -> None:
    native = connect()

    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        message_id = await sqs.send(
            "jobs", "from SQS", MessageAttributes={"city": text("Graz"), "n": text("1", "Number")}
        )
        queue = native.queue("jobs")
        popper = queue.popper()
        (message,) = popper.pop(wait=5)
        assert message.payload == b"from SQS"
        assert message.headers["city"] == "Graz"
        assert message.headers["n"] == "1"
        assert message.id == from_uuid(message_id)
        assert native.explain(message_id).id == message.id
        popper.commit([message])
        with queue.pusher() as pusher:
            pusher.push(b"\xff\0", headers={"kind": "a\1"})
        (received,) = await sqs.receive("jobs", WaitTimeSeconds=20)
        assert base64.b64decode(received["Body"]) == b"\xff\0"
        assert received["MessageAttributes"] == {
            "kind": {"DataType": "Binary", "BinaryValue": b"a\1"},
            "cassq-encoding": text("base64"),
        }
        queue.settle(received["ReceiptHandle"]).ack()
        assert queue.stats().groups["default"].committed == 2

    served(url, main)


@pytest.mark.embedded_only(reason="it runs on the test's clock")
def test_a_message_is_gone_once_its_retention_is_over(directory: Path) -> None:
    clock = ManualClock()

    async def main(sqs: Asker) -> None:
        await sqs.create("jobs", MessageRetentionPeriod="60")
        await sqs.send("jobs", "old")
        clock.advance(30)
        await sqs.send("jobs", "young")
        clock.advance(31)
        assert bodies(await sqs.receive("jobs", 10)) == ["young"]
        clock.advance(30)
        assert await sqs.receive("jobs", 10) == []
        host = sqs.service.host
        await host.client.call(host.client.sync.reap)
        found = await sqs.attributes("jobs")
        names = ("", "Delayed", "NotVisible")
        assert [found[f"ApproximateNumberOfMessages{name}"] for name in names] == ["0"] * 3

    run(lambda: Connecting(lambda: client_on(directory, clock=clock)), main)


def test_counts_cost_the_same_with_many_messages(queue: cassq.Queue) -> None:
    """They are made of rows of the catalog; no message is looked at."""
    ports, calls = queue._ports, []
    with queue.pusher() as pusher:
        pusher.push(b"x")
        _counts(ports, queue.row, "default")  # prepares its statements
        for count in (10, 10_000):
            pusher.push_many([b"x"] * count)
            calls.append(walked("counts", lambda: _counts(ports, queue.row, "default")).calls)
    found = _counts(ports, queue.row, "default")
    assert found["ApproximateNumberOfMessages"] == "10011"
    assert 0 < calls[1] < 1.1 * calls[0]  # a wait for a server may take a call more


def test_a_group_with_order_or_limits_is_left_to_poppers(url: str, connect: Connect) -> None:
    native = connect()
    native.create_queue("strict", consistency="cp")
    native.create_queue("slow", rate="1/s")

    async def main(sqs: Asker) -> None:
        for name in ("strict", "slow"):
            await sqs.send(name, "x")
            assert "order or limits" in await sqs.refused(
                "UnsupportedOperation", "ReceiveMessage", name
            )

    served(url, main)


@pytest.mark.embedded_only(reason="the wall clock of a directory is set")
def test_a_wall_clock_that_is_set_changes_no_wait_and_no_deadline(directory: Path) -> None:
    clock = ManualClock()

    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        await sqs.send("jobs", "hidden")
        (message,) = await sqs.receive("jobs", VisibilityTimeout=30)
        waiting = asyncio.create_task(sqs.receive("jobs", WaitTimeSeconds=20))
        for days in (1, -2, 1):
            clock.jump_wall(days * 86_400.0)
            assert await sqs.receive("jobs") == []
            assert not waiting.done()
        sent = await sqs.send("jobs", "sent")
        assert [each["MessageId"] for each in await waiting] == [sent]
        await sqs.delete("jobs", message)

    run(lambda: Connecting(lambda: client_on(directory, clock=clock)), main)


def test_groups_of_messages_share_a_fair_queue(url: str) -> None:
    """Who comes behind the backlog of another group does not wait for it; none waits for a message
    of its own group that is not deleted."""

    async def main(sqs: Asker) -> None:
        await sqs.ask("CreateQueue", QueueName="jobs", tags={"cassq:fair": "true"})
        for name in "aaab":
            entries = [
                {"Id": str(n), "MessageBody": f"{name}{n}", "MessageGroupId": name}
                for n in range(10)
            ]
            await sqs.ask("SendMessageBatch", "jobs", Entries=entries)
        found = [message for _ in range(2) for message in await sqs.receive("jobs", 10)]
        groups = Counter(message["Attributes"]["MessageGroupId"] for message in found)
        assert groups == {"a": 10, "b": 10}
        await sqs.delete("jobs", *found)
        late = await sqs.send("jobs", "c", MessageGroupId="c", DelaySeconds=0)
        await asyncio.to_thread(ticks, AHEAD_IDLE_MS)  # after which it looks for what is behind
        next_ten = await sqs.receive("jobs", 10, WaitTimeSeconds=20)
        assert late in {message["MessageId"] for message in next_ten}
        assert len(next_ten) == 10

    served(url, main)


def test_a_group_of_messages_is_kept_by_a_queue_that_is_not_fair(
    url: str, connect: Connect
) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        await sqs.send("jobs", "1", MessageGroupId="a")
        (message,) = await sqs.receive("jobs", VisibilityTimeout=0)
        assert message["Attributes"]["MessageGroupId"] == "a"

    served(url, main)
    (message,) = connect().queue("jobs").popper().pop(1)
    assert message.key == b"a"


def test_a_paused_queue_gives_nothing_and_a_full_one_takes_nothing(
    url: str, connect: Connect
) -> None:
    native = connect()
    queue = native.create_queue("jobs", max_length=1)
    queue.pause(push=False)

    async def main(sqs: Asker) -> None:
        await sqs.send("jobs", "x")
        assert await sqs.receive("jobs") == []
        await sqs.refused("OverLimit", "SendMessage", "jobs", MessageBody="y")

    served(url, main)


def test_threads_of_a_queue_that_is_not_used_end(url: str) -> None:
    async def main(sqs: Asker) -> None:
        await sqs.create("jobs")
        await sqs.send("jobs", "x")
        await sqs.service.host.forget("jobs")
        (message,) = await sqs.receive("jobs")
        await sqs.service.host.forget("jobs")
        await sqs.delete("jobs", message)
        assert (await sqs.ask("GetQueueUrl", QueueName="jobs"))["QueueUrl"] == f"{ACCOUNT_URL}/jobs"

    served(url, main)
