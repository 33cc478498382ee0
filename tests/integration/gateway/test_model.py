"""A standard queue of SQS against a model of it: two services over one directory, and a clock that
the test sets.

The model knows of each message until when it is hidden, how often it was received, and by which
handle it was received last. A receive may return less than there is, but something if there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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

SLACK_MS = 100


@dataclass
class Message:
    """What the model knows of one message. hidden_ms: until when it may be hidden. visible_ms: from
    when it may be received, which is earlier by as long as the request that hid it took."""

    body: str
    hidden_ms: int = 0
    visible_ms: int = 0
    count: int = 0
    handles: list[str] = field(default_factory=list)

    def hide(self, seconds: int, begun_ms: int, now_ms: int) -> None:
        """It was hidden by a request that was made between these times."""
        self.visible_ms, self.hidden_ms = begun_ms + seconds * 1000, now_ms + seconds * 1000


class StandardQueue(ModelledQueue):
    """A standard queue."""

    name = "jobs"
    dead_name = "dead"
    slack_ms = SLACK_MS

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[str, Message] = {}
        self.gone: list[str] = []  # handles of messages that were deleted
        self.numbers = iter(range(1 << 30))

    @rule(at=AT, delay=st.sampled_from([0, 0, 0, 5, 900]))
    def send(self, at: int, delay: int) -> None:
        body, begun_ms = str(next(self.numbers)), self.now_ms()
        self.run(self.askers[at].send("jobs", body, DelaySeconds=delay))
        message = self.alive[body] = Message(body)
        if delay:
            message.hide(delay, begun_ms, self.now_ms())

    @rule(
        at=AT,
        most=st.integers(1, 10),
        seconds=st.sampled_from([0, 1, 30, 43200]),
        arrives=st.booleans(),
    )
    def receive(self, at: int, most: int, seconds: int, arrives: bool) -> None:
        begun_ms = self.now_ms()
        expected = [
            message
            for message in self.alive.values()
            if message.count < COUNT_MAX and message.hidden_ms <= begun_ms - SLACK_MS
        ]
        answer = self.run(
            self.askers[at].answer(
                "ReceiveMessage",
                "jobs",
                MaxNumberOfMessages=most,
                VisibilityTimeout=seconds,
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
        )
        now_ms = self.now_ms()
        found = answer.members.get("Messages", [])
        assert len(found) <= most
        assert found or not expected, f"{[m.body for m in expected]} wait"
        for each in found:
            message = self.alive[each["Body"]]
            assert message.visible_ms <= now_ms, f"{message} was hidden at {now_ms}"
            count = int(each["Attributes"]["ApproximateReceiveCount"])
            assert count == message.count + 1 <= COUNT_MAX, "it should be a dead letter"
        if not arrives and found and answer.undelivered is not None and seconds:
            self.run(answer.undelivered())
            for each in found:
                self.alive[each["Body"]].hide(0, 0, 0)
            return
        for each in found:
            message = self.alive[each["Body"]]
            message.count += 1
            message.handles.append(each["ReceiptHandle"])
            message.hide(seconds, begun_ms, now_ms)

    def _is_open(self, message: Message) -> bool:
        """Whether it may be among the dead letters by now."""
        return message.count >= COUNT_MAX and message.hidden_ms <= self.now_ms() + SLACK_MS

    def _known(self, pick: int) -> tuple[Message, str] | None:
        """A message that was received, and one of its handles; the last one in three of four."""
        known = [m for m in self.alive.values() if m.handles and not self._is_open(m)]
        if not known:
            return None
        message = known[pick % len(known)]
        return message, message.handles[-1] if pick % 4 else message.handles[0]

    @rule(at=AT, pick=PICKS)
    def delete(self, at: int, pick: int) -> None:
        found = self._known(pick)
        if found is None:
            return
        message, handle = found
        self.ask(at, "DeleteMessage", ReceiptHandle=handle)
        if handle == message.handles[-1] and message.hidden_ms:
            del self.alive[message.body]
            self.gone.append(handle)

    @rule(at=AT, seconds=st.sampled_from([0, 1, 30, 43200]), pick=PICKS)
    def change_visibility(self, at: int, seconds: int, pick: int) -> None:
        found = self._known(pick)
        if found is None:
            return
        message, handle = found
        begun_ms = self.now_ms()
        if abs(message.hidden_ms - begun_ms) < SLACK_MS:
            return
        held = handle == message.handles[-1] and message.hidden_ms > begun_ms
        how = {"ReceiptHandle": handle, "VisibilityTimeout": seconds}
        try:
            self.ask(at, "ChangeMessageVisibility", **how)
        except ActionError as exc:
            assert exc.code == "MessageNotInflight"
            assert not held
        else:
            assert held
            message.hide(seconds, begun_ms, self.now_ms())

    @rule(at=AT, pick=PICKS)
    def delete_again(self, at: int, pick: int) -> None:
        handle = self.gone[pick % len(self.gone)] if self.gone else None
        if handle is not None:
            self.ask(at, "DeleteMessage", ReceiptHandle=handle)

    @rule(seconds=st.sampled_from([1, 2, 31, 901, 43201]))
    def wait(self, seconds: int) -> None:
        self.pass_time(seconds)


def test_a_standard_queue_is_as_its_model() -> None:
    run_model(StandardQueue, 6, 40)


@pytest.mark.long(reason="ten thousand steps, in parts")
@pytest.mark.parametrize("part", range(4))
def test_a_standard_queue_is_as_its_model_for_long(part: int) -> None:
    """Each part is another: nothing of it is drawn from its number."""
    run_model_for(StandardQueue, 2_500)
