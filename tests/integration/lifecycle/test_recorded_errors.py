"""What a message failed of: exceptions and texts are recorded, the rest is refused at the call, and
nothing that is said of one message costs another its ack."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Any, Literal

import pytest

import cassq
import cassq.aio
from cassq.base.arguments import ERROR_MAX, error_text
from cassq.consumer.delivery import Message, NackOptions
from cassq.errors import UsageError
from tests.integration.stage import numbers, push


class Wordless(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Colour(enum.StrEnum):
    RED = "red"


class Mine(str):
    """A text that is not what it says."""

    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError("not to be sliced")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, ""),
        ("no answer", "no answer"),
        (ValueError("no such user"), "ValueError: no such user"),
        (KeyError("user"), "KeyError: 'user'"),
        (ValueError(), "ValueError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Wordless(), "Wordless (its text is unavailable: RuntimeError)"),
        (ValueError("one\ntwo\x00"), "ValueError: one\ntwo\x00"),
        ("x" * (ERROR_MAX + 1), "x" * ERROR_MAX),
        ("\ud83d", "\\ud83d"),
        ("\ud83d" * ERROR_MAX, ("\\ud83d" * ERROR_MAX)[:ERROR_MAX]),
        (Colour.RED, "red"),
        (Mine("mine"), "mine"),
    ],
)
def test_a_text_and_an_exception_become_the_text_that_is_recorded(error: Any, text: str) -> None:
    assert error_text("error", error) == text
    assert type(error_text("error", error)) is str


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (5, "not 5 of type int"),
        (b"no", "not b'no' of type bytes"),
        (ValueError, "not <class 'ValueError'> of type type"),
        (["x" * 1000], "of type list"),
        (object.__new__(type("Odd", (), {"__repr__": Wordless.__str__})), "an object of type Odd"),
    ],
)
def test_anything_else_is_refused_and_named(error: Any, named: str) -> None:
    with pytest.raises(UsageError, match="error must be a text or an exception") as caught:
        error_text("error", error)
    assert named in caught.value.message
    assert len(caught.value.message) < 200


Say = Callable[[cassq.Popper, Message, Any], None]
WAYS: dict[str, Say] = {
    "nack": lambda popper, message, error: message.nack(error=error),
    "dead": lambda popper, message, error: message.dead(error),
    "rollback": lambda popper, message, error: popper.rollback([message], error=error),
    "popper.dead": lambda popper, message, error: popper.dead([message], error),
}


@pytest.mark.parametrize("say", WAYS.values(), ids=WAYS)
def test_an_exception_is_recorded_as_its_type_and_text(queue: cassq.Queue, say: Say) -> None:
    (name,) = push(queue, b"x")
    popper = queue.popper()
    (message,) = popper.pop()
    say(popper, message, ValueError("no such user"))
    popper.flush()
    step = queue.explain(name).groups["default"][-1]
    assert step.failure["error"] == "ValueError: no such user"


@pytest.mark.parametrize("say", WAYS.values(), ids=WAYS)
def test_what_is_refused_costs_no_other_message_its_ack(queue: cassq.Queue, say: Say) -> None:
    push(queue, *numbers(3))
    popper = queue.popper()
    first, second, third = popper.pop(3)
    first.ack()
    with pytest.raises(UsageError, match="not 5 of type int"):
        say(popper, second, 5)
    third.ack()
    second.ack()
    popper.flush()
    assert queue.stats().groups["default"].committed == 3


def test_a_transaction_records_an_exception_whose_text_cannot_be_had(queue: cassq.Queue) -> None:
    (name,) = push(queue, b"x")
    popper = queue.popper()
    with pytest.raises(Wordless), popper.transaction() as messages:
        assert len(messages) == 1
        raise Wordless
    step = queue.explain(name).groups["default"][-1]
    assert step.failure["error"].startswith("Wordless (its text")
    assert step.state != "pending"


def test_receipts_refuse_it_and_stay_valid(queue: cassq.Queue) -> None:
    push(queue, b"x")
    receipt = queue.popper().pop()[0].receipt
    for say in (queue.settle(receipt).nack, queue.settle(receipt).dead):
        with pytest.raises(UsageError, match="not 5 of type int"):
            say(**{"error" if say.__name__ == "nack" else "reason": 5})
    queue.settle(receipt).ack()
    assert queue.stats().groups["default"].committed == 1


def test_async_messages_refuse_it_and_can_be_acked(queue: cassq.Queue, url: str) -> None:
    async def main() -> None:
        async with cassq.aio.connect(url) as client:
            (message,) = await (await client.queue("jobs")).pop()
            for say in (message.nack(error=5), message.dead(5)):  # type: ignore[arg-type]
                with pytest.raises(UsageError, match="not 5 of type int"):
                    await say
            await message.ack()

    push(queue, b"x")
    asyncio.run(main())
    assert queue.stats().groups["default"].committed == 1


@pytest.mark.parametrize("kind", ["ap", "cp", "key"])
def test_what_cannot_be_written_costs_no_other_message_its_ack(
    client: cassq.Client, kind: Literal["ap", "cp", "key"]
) -> None:
    """Past all checks, something is said that cannot be put into a row."""
    consistency = "cp" if kind == "cp" else "ap"
    queue = client.create_queue("jobs", consistency=consistency, claim_timeout=3600)
    queue.create_group("one", order="key" if kind == "key" else "any")
    with queue.pusher() as pusher:
        pusher.push_many(numbers(3), keys=numbers(3))
    popper = queue.popper("one")
    messages = [*popper.pop(2), *popper.pop()]
    messages[0].ack()
    delivery: Any = messages[1]._delivery
    unwritable: Any = NackOptions(error=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        delivery.acknowledger.give(delivery, range(1, 2), unwritable)
        popper.flush()
    if kind != "cp":
        messages[2].ack()
    for _ in range(2):
        with pytest.raises(TypeError):
            popper.flush()
    committed = 1 if kind == "cp" else 2
    assert queue.stats().groups["one"].committed == committed
    delivery.pending_returns = {NackOptions(delay_ms=0): delivery.pending_returns.pop(unwritable)}
    popper.flush()
    (again,) = popper.pop()
    assert (again.payload, again.attempts) == (b"1", 2)
