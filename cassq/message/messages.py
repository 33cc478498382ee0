"""Messages as a popper hands them out, and the ids that a push returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, repeat
from typing import ClassVar, NamedTuple, Protocol, overload

from cassq.message.batches import SpilledReceipt
from cassq.message.bundles import Bundle
from cassq.message.ranges import RangeSet

# What a message failed of: a text, or the exception itself.
Error = str | BaseException | None


class Keeper(Protocol):
    """Who holds the claim of a message and answers for it."""

    pipe_id: str
    deliveries: int

    def ack(self, seqs: range) -> None: ...
    def nack(self, seqs: range, delay: float | None, error: Error) -> None: ...
    def dead(self, seqs: range, reason: Error) -> None: ...
    def release(self, seqs: range) -> None: ...
    def extend(self, seconds: float) -> None: ...


class Message:
    """One delivery of one message. Its verbs are thread-safe.

    payload: the bytes pushed. seq: its place in its pipe.
    """

    __slots__ = ("_bundle", "_keeper", "payload", "seq")

    def __init__(self, payload: bytes, seq: int, bundle: Bundle, keeper: Keeper) -> None:
        self.payload: bytes = payload
        self.seq: int = seq
        self._bundle = bundle
        self._keeper = keeper

    @property
    def id(self) -> str:
        """`pipe:seq` of its first place; the same over every delivery and move."""
        bundle = self._bundle
        if not bundle.ids:  # most often: the bundle need not be asked
            return f"{self._keeper.pipe_id}:{self.seq}"
        return bundle.id_at(self.seq - bundle.base_seq, self._keeper.pipe_id).decode()

    @property
    def pipe_id(self) -> str:
        """The pipe it was delivered from."""
        return self._keeper.pipe_id

    @property
    def attempts(self) -> int:
        """How often it was delivered to its group, this time included; 1 the first time."""
        return self._keeper.deliveries

    @property
    def headers(self) -> dict[str, str]:
        bundle = self._bundle
        return bundle.headers_at(self.seq - bundle.base_seq) if bundle.headers else {}

    @property
    def key(self) -> bytes | None:
        keys = self._bundle.keys
        return keys[self.seq - self._bundle.base_seq] if keys else None

    @property
    def pushed_at(self) -> datetime:
        """When it was pushed, by the pusher's wall clock, in UTC."""
        return datetime.fromtimestamp(self.pushed_ms / 1000, UTC)

    @property
    def pushed_ms(self) -> int:
        """`pushed_at` in milliseconds since 1970."""
        return self._bundle.time_ms(self.seq - self._bundle.base_seq)

    def ack(self) -> None:
        """The message is done. Written durably in a group with others within 50 ms, at once on
        an exclusive group or past the claim's deadline; `Popper.commit` waits for that.

        A second ack has no effect. Raises ClaimLostError when another popper has the message.
        """
        self._keeper.ack(range(self.seq, self.seq + 1))

    def nack(self, delay: float | None = None, error: Error = None) -> None:
        """The message failed: deliver it again after `delay` seconds, or by the group's retry
        schedule; without one at once, behind what is waiting. Written as `ack` is.

        error: a text, or an exception, of which type and text are recorded; the first 4,096
        characters are kept, newlines among them. After `max_deliveries` the message goes to the
        group's dead letters, with `error`; but not while nothing of the group succeeds: see
        `sick_check` and `sick_hold` in `QueuePolicy`. Raises UsageError for anything else, and
        nothing is said of the message then.
        """
        self._keeper.nack(range(self.seq, self.seq + 1), delay, error)

    def dead(self, reason: Error = "") -> None:
        """Give the message up: it goes to the group's dead letters, with `reason`, a text or an
        exception, as its error. Written as `ack` is; raises UsageError as `nack` does."""
        self._keeper.dead(range(self.seq, self.seq + 1), reason)

    def release(self) -> None:
        """Give the message back untried: this delivery does not count. Written as `ack` is."""
        self._keeper.release(range(self.seq, self.seq + 1))

    def extend(self, seconds: float) -> None:
        """Move the deadline of this message's claim to `seconds` from now."""
        self._keeper.extend(seconds)

    def as_run(self) -> Run:
        """The message as a run of one."""
        return Run(self._keeper, self._bundle, RangeSet.run(self.seq, self.seq + 1))

    def __eq__(self, other: object) -> bool:
        """Whether both are the same delivery of the same message."""
        if not isinstance(other, Message):
            return NotImplemented
        return self._keeper is other._keeper and self.seq == other.seq

    def __hash__(self) -> int:
        return hash((id(self._keeper), self.seq))

    def __repr__(self) -> str:
        return f"<Message {self.id} attempts={self.attempts} {len(self.payload)} bytes>"


class Run(NamedTuple):
    """Messages of one claim that lie in one bundle."""

    keeper: Keeper
    bundle: Bundle
    seqs: RangeSet

    def messages(self) -> Iterator[Message]:
        keeper, bundle, seqs = self
        return map(Message, bundle.payloads_of(seqs), seqs, repeat(bundle), repeat(keeper))


class Messages(Sequence[Message]):
    """What one pop handed out, in order; each `Message` is made when it is looked at.

    Immutable. runs: the same messages, as runs of bundles.
    """

    __slots__ = ("_count", "runs")

    def __init__(self, runs: Sequence[Run] = ()) -> None:
        self.runs: Sequence[Run] = runs
        self._count = sum(len(run.seqs) for run in runs)

    @property
    def payloads(self) -> list[bytes]:
        """The payloads in order, without a `Message` for each: the fastest way to read a batch."""
        payloads: list[bytes] = []
        for _, bundle, seqs in self.runs:
            payloads += bundle.payloads_of(seqs)
        return payloads

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(map(Run.messages, self.runs))

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Messages: ...
    def __getitem__(self, index: int | slice) -> Message | Messages:
        if not isinstance(index, slice):
            at = range(self._count)[index]
            (message,) = self._part(at, at + 1)
            return message
        places = range(self._count)[index]
        if places.step == 1:
            return self._part(places.start, places.stop)
        return Messages([run for at in places for run in self._part(at, at + 1).runs])

    def _part(self, start: int, stop: int) -> Messages:
        if start == 0 and stop == self._count:
            return self
        runs: list[Run] = []
        before = 0
        for run in self.runs:
            count = len(run.seqs)
            first, last = max(0, start - before), min(count, stop - before)
            if first < last:
                runs.append(run._replace(seqs=run.seqs.part(first, last)))
            before += count
        return Messages(runs)

    def __add__(self, other: Messages) -> Messages:
        if not isinstance(other, Messages):
            return NotImplemented
        return Messages([*self.runs, *other.runs])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Messages, list)) and list(self) == list(other)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Messages({list(self)})"


class MessageId(str):
    """The id of a message, as a push returns it.

    spilled: whether it is in the client's local spool, and on its way to the queue.
    """

    __slots__ = ()
    spilled = False


class SpilledId(MessageId):
    """The id of a message that was pushed while no quorum answered."""

    __slots__ = ()
    spilled = True


class MessageIds(Sequence[str]):
    """The ids of messages pushed together, made when they are looked at.

    To type checkers it is a sequence of str, so that `list(ids)` is a list[str] as everywhere; one
    id of it, `ids[0]`, is a `MessageId`, and so is each that an iteration gives.
    runs: (pipe id, first seq, count) of each run; a `SpilledReceipt` for those in the spool.
    """

    __slots__ = ("runs",)

    def __init__(self, runs: Sequence[tuple[str, int, int]]) -> None:
        self.runs: Sequence[tuple[str, int, int]] = runs

    def __len__(self) -> int:
        return sum(count for _, _, count in self.runs)

    @property
    def spilled(self) -> int:
        """How many of them are in the client's local spool, and on their way to the queue."""
        return sum(run[2] for run in self.runs if isinstance(run, SpilledReceipt))

    def __iter__(self) -> Iterator[str]:
        for run in self.runs:
            yield from ids_of_run(run)

    @overload
    def __getitem__(self, index: int) -> MessageId: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> MessageId | list[str]:
        if isinstance(index, slice):
            return [*self][index]
        at = index + len(self) if index < 0 else index
        for run in self.runs:
            pipe_id, first, count = run
            if 0 <= at < count:
                return _kind_of(run)(f"{pipe_id}:{first + at}")
            at -= count
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (MessageIds, list)) and list(self) == list(other)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"MessageIds({list(self.runs)})"


def ids_of_run(run: tuple[str, int, int]) -> Iterator[MessageId]:
    """The ids of a run: (pipe id, first seq, count), or a receipt."""
    pipe_id, first, count = run
    kind = _kind_of(run)
    for seq in range(first, first + count):
        yield kind(f"{pipe_id}:{seq}")


def _kind_of(run: tuple[str, int, int]) -> type[MessageId]:
    return SpilledId if isinstance(run, SpilledReceipt) else MessageId
