"""A message as the tasks of an event loop see it, with methods that can be awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NamedTuple, NoReturn

from cassq.base.arguments import error_text, milliseconds, refuse_pickling
from cassq.consumer.delivery import Error
from cassq.consumer.delivery import Message as Delivered


class SettleCallbacks(NamedTuple):
    """The callbacks by which the messages of a popper are settled. notes: whether it is enough to
    note an ack. note: notes it, and returns at once. call: calls something in the popper's
    thread."""

    notes: Callable[[Delivered], bool]
    note: Callable[[Delivered], None]
    call: Callable[..., Awaitable[object]]


class Message:
    """One delivery of one message. Use it in the event loop of its client."""

    __slots__ = ("_acked", "_callbacks", "delivered")

    def __init__(self, delivered: Delivered, callbacks: SettleCallbacks) -> None:
        self.delivered: Delivered = delivered  # the message as threads see it
        self._callbacks = callbacks
        self._acked = False

    @property
    def payload(self) -> bytes:
        """The pushed bytes."""
        return self.delivered.payload

    @property
    def seq(self) -> int:
        """Its number in its pipe."""
        return self.delivered.seq

    @property
    def id(self) -> str:
        """See `cassq.Message.id`."""
        return self.delivered.id

    @property
    def pipe_id(self) -> str:
        """The pipe it was delivered from."""
        return self.delivered.pipe_id

    @property
    def attempts(self) -> int:
        """How often it was delivered to its group, including this time."""
        return self.delivered.attempts

    @property
    def priority(self) -> int:
        """How urgent it is, as it was pushed: from 0 to 9."""
        return self.delivered.priority

    @property
    def headers(self) -> dict[str, str]:
        return self.delivered.headers

    @property
    def key(self) -> bytes | None:
        return self.delivered.key

    @property
    def pushed_at(self) -> datetime:
        """When it was pushed, by the pusher's wall clock, in UTC."""
        return self.delivered.pushed_at

    @property
    def pushed_ms(self) -> int:
        """`pushed_at` in milliseconds since 1970."""
        return self.delivered.pushed_ms

    @property
    def receipt(self) -> str:
        """A string by which `cassq.Queue.settle` settles this delivery, from any process. Raises
        UsageError for a message of an exclusive group, ClaimLostError in a keyed group for one
        that is settled."""
        return self.delivered.receipt

    @property
    def settled(self) -> bool:
        """Whether it was acked, or given back in any way."""
        return self._acked or self.delivered.settled

    async def ack(self) -> None:
        """Mark the message as done. Returns at once; the ack is written within 50 ms, together with
        others. `Popper.commit` waits until it is written. In an exclusive group, or past the
        claim's deadline, this waits too.

        A second ack has no effect. Raises ClaimLostError if another popper is known to have the
        message.
        """
        if self._callbacks.notes(self.delivered):
            self._acked = True
            self._callbacks.note(self.delivered)
            return
        await self._callbacks.call(self.delivered.ack)

    async def nack(self, delay: float | None = None, error: Error = None) -> None:
        """Mark the message as failed: see `cassq.Message.nack`. Raises ClaimLostError; UsageError
        for a wrong argument, which leaves the message unsettled."""
        if delay is not None:
            milliseconds("delay", delay)
        text = None if error is None else error_text("error", error)
        await self._callbacks.call(self.delivered.nack, delay, text)

    async def dead(self, reason: Error = "") -> None:
        """Reject the message: it becomes a dead letter. Raises as `nack` does."""
        await self._callbacks.call(self.delivered.dead, error_text("reason", reason))

    async def release(self) -> None:
        """Give the message back untried: this delivery does not count. Raises ClaimLostError."""
        await self._callbacks.call(self.delivered.release)

    async def extend(self, seconds: float) -> None:
        """Move the deadline of this message's claim to `seconds` from now."""
        await self._callbacks.call(self.delivered.extend, seconds)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same delivery of the same message."""
        return isinstance(other, Message) and self.delivered == other.delivered

    def __hash__(self) -> int:
        return hash(self.delivered)

    def __reduce__(self) -> NoReturn:
        refuse_pickling("message", "pass its payload and id, and handle it there")

    def __repr__(self) -> str:
        return repr(self.delivered)
