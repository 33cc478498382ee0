"""Messages as they are handed to a popper, and the ids that a push returns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Protocol, overload

from cassq.frames import Frame


class Keeper(Protocol):
    """Who holds the claim of a message and answers for it."""

    pipe_id: str
    deliveries: int

    def ack(self, seqs: range) -> None: ...
    def nack(self, seqs: range, delay: float | None, error: str | None) -> None: ...
    def release(self, seqs: range) -> None: ...
    def extend(self, seconds: float) -> None: ...


class Message:
    """One delivery of one message. Its verbs are thread-safe.

    payload: the bytes pushed. seq: its place in its pipe.
    """

    __slots__ = ("_frame", "_keeper", "payload", "seq")

    def __init__(self, payload: bytes, seq: int, frame: Frame, keeper: Keeper) -> None:
        self.payload = payload
        self.seq = seq
        self._frame = frame
        self._keeper = keeper

    @property
    def id(self) -> str:
        """`pipe:seq` of its first place; the same over every delivery and move."""
        first = self._column(self._frame.ids)
        return first.decode() if first else f"{self._keeper.pipe_id}:{self.seq}"

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
        raw = self._column(self._frame.headers)
        headers: dict[str, str] = json.loads(raw) if raw else {}
        return headers

    @property
    def key(self) -> bytes | None:
        return self._column(self._frame.keys)

    @property
    def pushed_at(self) -> datetime:
        """When it was pushed, by the pusher's wall clock, in UTC."""
        return datetime.fromtimestamp(self.pushed_ms / 1000, UTC)

    @property
    def pushed_ms(self) -> int:
        """`pushed_at` in milliseconds since 1970."""
        return self._frame.time_ms(self.seq - self._frame.base_seq)

    def ack(self) -> None:
        """The message is done. Written durably in a group with others within 50 ms, at once on
        an exclusive group or past the claim's deadline; `Popper.commit` waits for that.

        Acking twice is no error. Raises ClaimLostError when the message is another's by now.
        """
        self._keeper.ack(range(self.seq, self.seq + 1))

    def nack(self, delay: float | None = None, error: str | None = None) -> None:
        """The message failed: deliver it again after `delay` seconds (None: at once).

        After `max_deliveries` it goes to the group's dead letters, with `error`.
        """
        self._keeper.nack(range(self.seq, self.seq + 1), delay, error)

    def release(self) -> None:
        """Give the message back untried: this delivery does not count."""
        self._keeper.release(range(self.seq, self.seq + 1))

    def extend(self, seconds: float) -> None:
        """Move the deadline of this message's claim to `seconds` from now."""
        self._keeper.extend(seconds)

    def _column(self, column: list[bytes | None] | None) -> bytes | None:
        return column[self.seq - self._frame.base_seq] if column else None

    def __repr__(self) -> str:
        return f"<Message {self.id} attempts={self.attempts} {len(self.payload)} bytes>"


class MessageIds(Sequence[str]):
    """The ids of messages pushed together, made when they are looked at.

    runs: (pipe id, first seq, count) of each run.
    """

    __slots__ = ("runs",)

    def __init__(self, runs: Sequence[tuple[str, int, int]]) -> None:
        self.runs = runs

    def __len__(self) -> int:
        return sum(count for _, _, count in self.runs)

    def __iter__(self) -> Iterator[str]:
        for pipe_id, first, count in self.runs:
            for seq in range(first, first + count):
                yield f"{pipe_id}:{seq}"

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return list(self)[index]
        at = index + len(self) if index < 0 else index
        for pipe_id, first, count in self.runs:
            if 0 <= at < count:
                return f"{pipe_id}:{first + at}"
            at -= count
        raise IndexError(index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (MessageIds, list)) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"MessageIds({list(self.runs)})"
