"""A FIFO queue of SQS against a model of it: two services over one directory, and a clock that the
test sets.

The model knows the messages of each group in order. Of a group only the first may be received, when
it is not hidden. A receive that waits gets something if there is something, at whichever service.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from cassq.gateway.errors import ActionError
from tests.integration.gateway.modelled import (
    AT,
    COUNT_MAX,
    PICKS,
    ModelledQueue,
    run_model,
    run_model_for,
)

WINDOW_MS = 300_000
SLACK_MS = 300


@dataclass
class Message:
    """What the model knows of one message. hidden_ms: until when nobody else gets it."""

    body: str
    group: str
    dedup: str
    answer: dict[str, Any]
    pushed_ms: int
    hidden_ms: int = 0
    count: int = 0
    handle: str = ""


class FifoQueue(ModelledQueue):
    """A FIFO queue."""

    name = "jobs.fifo"
    dead_name = "dead.fifo"
    attributes: ClassVar[dict[str, str]] = {"FifoQueue": "true"}
    slack_ms = SLACK_MS

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, list[Message]] = {"a": [], "b": [], "c": []}
        self.sent: list[Message] = []
        self.gone: list[Message] = []

    @rule(at=AT, group=st.sampled_from("abc"))
    def send(self, at: int, group: str) -> None:
        body = str(len(self.sent))
        answer = self.ask(
            at,
            "SendMessage",
            MessageBody=body,
            MessageGroupId=group,
            MessageDeduplicationId=body,
        )
        message = Message(body, group, body, answer, self.now_ms())
        earlier = [each for each in self.sent if each.group == group]
        assert all(m.answer["SequenceNumber"] < answer["SequenceNumber"] for m in earlier)
        self.sent.append(message)
        self.groups[group].append(message)

    @rule(at=AT, pick=PICKS)
    def send_again(self, at: int, pick: int) -> None:
        recent = [m for m in self.sent if self.now_ms() - m.pushed_ms < WINDOW_MS - 10_000]
        if not recent:
            return
        message = recent[pick % len(recent)]
        answer = self.ask(
            at,
            "SendMessage",
            MessageBody=message.body,
            MessageGroupId=message.group,
            MessageDeduplicationId=message.dedup,
        )
        assert answer == message.answer

    def _is_spent(self, message: Message, now_ms: int) -> bool:
        """Whether it may be a dead letter at this time."""
        return message.count >= COUNT_MAX and message.hidden_ms <= now_ms

    def _first(self, group: str, now_ms: int) -> Message | None:
        """The message of a group that comes next, if those that may be dead letters are."""
        messages = self.groups[group]
        spent = list(takewhile(lambda each: self._is_spent(each, now_ms), messages))
        return messages[len(spent)] if len(spent) < len(messages) else None

    @rule(at=AT, most=st.integers(1, 10), seconds=st.sampled_from([2, 30, 43200]))
    def receive(self, at: int, most: int, seconds: int) -> None:
        begun_ms = self.now_ms()
        firsts = [self._first(group, begun_ms - SLACK_MS) for group in self.groups]
        expected = [m for m in firsts if m is not None and m.hidden_ms <= begun_ms - SLACK_MS]
        answer = self.ask(
            at,
            "ReceiveMessage",
            MaxNumberOfMessages=most,
            VisibilityTimeout=seconds,
            WaitTimeSeconds=20 if expected else 0,
            MessageSystemAttributeNames=["All"],
        )
        now_ms = self.now_ms()
        found = answer.get("Messages", [])
        assert len(found) <= most
        assert found or not expected, f"{expected} wait"
        for each in found:
            shown = each["Attributes"]
            message = self._first(shown["MessageGroupId"], now_ms)
            assert message is not None
            assert each["Body"] == message.body, "out of order"
            assert message.hidden_ms <= now_ms, "it was hidden"
            assert int(shown["ApproximateReceiveCount"]) == message.count + 1
            assert shown["SequenceNumber"] == message.answer["SequenceNumber"]
            assert shown["MessageDeduplicationId"] == message.dedup
            assert each["MessageId"] == message.answer["MessageId"]
            before = takewhile(lambda m, it=message: m is not it, self.groups[message.group])
            for dead in list(before):
                self.groups[message.group].remove(dead)
            message.count += 1
            message.handle = each["ReceiptHandle"]
            message.hidden_ms = now_ms + seconds * 1000

    def _known(self, pick: int) -> Message | None:
        """A message that was received, at no edge of its time."""
        now_ms = self.now_ms()
        known = [
            each
            for messages in self.groups.values()
            for each in messages
            if each.handle and abs(each.hidden_ms - now_ms) > SLACK_MS
        ]
        return known[pick % len(known)] if known else None

    @rule(at=AT, pick=PICKS)
    def delete(self, at: int, pick: int) -> None:
        message = self._known(pick)
        if message is None:
            return
        held = message.hidden_ms > self.now_ms()
        may_be_dead = message.count >= COUNT_MAX
        try:
            self.ask(at, "DeleteMessage", ReceiptHandle=message.handle)
        except ActionError as exc:
            assert exc.code == "InvalidParameterValue"
            assert "expired" in exc.message
            assert not held
        else:
            assert held or may_be_dead
            if held:
                self.groups[message.group].remove(message)
                self.gone.append(message)

    @rule(at=AT, pick=PICKS)
    def delete_again(self, at: int, pick: int) -> None:
        if self.gone:
            handle = self.gone[pick % len(self.gone)].handle
            self.ask(at, "DeleteMessage", ReceiptHandle=handle)

    @rule(at=AT, seconds=st.sampled_from([0, 2, 30, 43200]), pick=PICKS)
    def change_visibility(self, at: int, seconds: int, pick: int) -> None:
        message = self._known(pick)
        if message is None:
            return
        held = message.hidden_ms > self.now_ms()
        try:
            self.ask(
                at,
                "ChangeMessageVisibility",
                ReceiptHandle=message.handle,
                VisibilityTimeout=seconds,
            )
        except ActionError as exc:
            assert exc.code == "MessageNotInflight"
            assert not held
        else:
            assert held
            message.hidden_ms = self.now_ms() + seconds * 1000

    @rule(seconds=st.sampled_from([1, 3, 31, 43201]))
    def wait(self, seconds: int) -> None:
        self.pass_time(seconds)


def test_a_fifo_queue_is_as_its_model() -> None:
    run_model(FifoQueue, 2, 30)


@pytest.mark.long(reason="ten thousand steps, in parts")
@pytest.mark.parametrize("part", range(4))
def test_a_fifo_queue_is_as_its_model_for_long(part: int) -> None:
    """Each part is another: nothing of it is drawn from its number."""
    run_model_for(FifoQueue, 2_500)
