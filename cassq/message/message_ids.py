"""The ids of messages that a push returns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import ClassVar, overload
from uuid import UUID

from cassq.message.batches import AppendReceipt, SpilledReceipt

_SEQ_BITS, _LOW_BITS, _MIDDLE_BITS = 26, 62, 12
_NODE_BITS = 48  # of a UUID's last group, which holds the sequence number
# Not compiled here: few programs show ids as UUIDs.
_PIPE = r"[0-9a-f]{24}"
_PLAIN = r"([0-9a-f]{24})-(0|[1-9][0-9]*)"
_UUID8 = r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def as_uuid(message_id: str) -> str:
    """An id as a UUID of version 8, which `from_uuid` reads back: 96 bits of the pipe, 26 of the
    sequence number. An id that does not fit is returned with `-` in place of `:`."""
    pipe_id, _, digits = message_id.partition(":")
    try:
        seq = int(digits)
    except ValueError:
        seq = -1
    return uuid_at(pipe_id, seq) if str(seq) == digits else message_id.replace(":", "-")


def uuid_at(pipe_id: str, seq: int) -> str:
    """`as_uuid` of the message at a place of a pipe."""
    place = _place_of(pipe_id)
    if place is None or seq >> _SEQ_BITS:
        return f"{pipe_id}-{seq}"
    groups, node = place
    return f"{groups}{node | seq:012x}"


@lru_cache(1024)
def _place_of(pipe_id: str) -> tuple[str, int] | None:
    """What the ids of a pipe share as UUIDs: all groups but the last, and of that the bits above
    the sequence number."""
    if not re.fullmatch(_PIPE, pipe_id):
        return None
    low = 2 << _LOW_BITS | int(pipe_id[15:], 16) << _SEQ_BITS
    high = f"{pipe_id[:8]}-{pipe_id[8:12]}-8{pipe_id[12:15]}"
    return f"{high}-{low >> _NODE_BITS:04x}-", low & (1 << _NODE_BITS) - 1


def from_uuid(text: str) -> str:
    """The id of a message from what `as_uuid` returned; any other text as it is."""
    plain = re.fullmatch(_PLAIN, text)
    if plain is not None:
        return f"{plain[1]}:{plain[2]}"
    match = re.fullmatch(_UUID8, text)
    if match is None:
        return text
    number = UUID(text).int
    middle, low = number >> 64 & (1 << _MIDDLE_BITS) - 1, number & (1 << _LOW_BITS) - 1
    bits = (number >> 80 << _MIDDLE_BITS | middle) << _LOW_BITS | low
    return f"{bits >> _SEQ_BITS:024x}:{bits & (1 << _SEQ_BITS) - 1}"


class MessageId(str):
    """The id of a message, as a push returns it.

    spilled: whether the message is in the client's local spool, on its way to the queue.
    """

    __slots__ = ()
    spilled = False


class SpilledId(MessageId):
    """The id of a message that was pushed while the storage did not answer."""

    __slots__ = ()
    spilled = True


class MessageIds(Sequence[str]):
    """The ids of messages pushed together; each is created when accessed.

    To type checkers it is a sequence of str, so that `list(ids)` is a list[str]; an item, as
    `ids[0]` or from an iteration, is a `MessageId`.
    runs: (pipe id, first seq, count) of each run; a `SpilledReceipt` for those in the spool.
    """

    __slots__ = ("_runs",)

    def __init__(self, runs: Sequence[tuple[str, int, int]]) -> None:
        self._runs = runs

    @property
    def runs(self) -> Sequence[tuple[str, int, int]]:
        return self._runs

    def single_runs(self) -> Iterator[AppendReceipt]:
        """A run of one message for each."""
        for run in self.runs:
            pipe_id, first, count = run
            kind = SpilledReceipt if isinstance(run, SpilledReceipt) else AppendReceipt
            yield from (kind(pipe_id, seq, 1) for seq in range(first, first + count))

    def __len__(self) -> int:
        return sum(count for _, _, count in self.runs)

    @property
    def spilled(self) -> int:
        """How many are in the client's local spool, on their way to the queue."""
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
        return self._at(index)

    def _at(self, index: int) -> MessageId:
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


class ScatteredIds(MessageIds):
    """The ids of messages that went to several places in turn. parts: for each place, the indexes
    of its messages, and their ids."""

    __slots__ = ("_each", "_parts")

    def __init__(self, parts: Sequence[tuple[Sequence[int], MessageIds]]) -> None:
        super().__init__(())
        self._parts = parts
        self._each: list[AppendReceipt] = []

    @property
    def runs(self) -> Sequence[tuple[str, int, int]]:
        if not self._runs:
            self._runs = joined_runs(self._places())
        return self._runs

    def single_runs(self) -> Iterator[AppendReceipt]:
        return iter(self._places())

    def _places(self) -> list[AppendReceipt]:
        """A run of one message for each, in order."""
        if not self._each:
            places: dict[int, AppendReceipt] = {}
            for which, ids in self._parts:
                places.update(zip(which, ids.single_runs(), strict=True))
            self._each = [places[at] for at in range(len(places))]
        return self._each

    def _at(self, at: int) -> MessageId:
        (found,) = ids_of_run(self._places()[at])
        return found

    def __len__(self) -> int:
        return sum(len(which) for which, _ in self._parts)


def joined_runs(runs: Iterable[AppendReceipt]) -> list[AppendReceipt]:
    """The same runs, where those that continue one another are joined."""
    found: list[AppendReceipt] = []
    for run in runs:
        last = found[-1] if found else None
        continues = last is not None and type(last) is type(run) and last[0] == run[0]
        if last is not None and continues and last[1] + last[2] == run[1]:
            found[-1] = type(last)(run[0], last[1], last[2] + run[2])
        else:
            found.append(run)
    return found


def ids_of_run(run: tuple[str, int, int]) -> Iterator[MessageId]:
    """The ids of a run: (pipe id, first seq, count), or a receipt."""
    pipe_id, first, count = run
    kind = _kind_of(run)
    for seq in range(first, first + count):
        yield kind(f"{pipe_id}:{seq}")


def _kind_of(run: tuple[str, int, int]) -> type[MessageId]:
    return SpilledId if isinstance(run, SpilledReceipt) else MessageId
