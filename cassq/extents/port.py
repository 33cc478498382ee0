"""The ExtentStore port: where frames live, append-only, one extent a pipe.

Every store keeps these promises, which its contract suite checks:

- an append that returned is durable (as the store's durability says) and is found by `seal`;
- seqs are gapless: a reader gets frames in order, each verified, and nothing past the end asked;
- after `seal` returned an end, no later append is acknowledged, and every later `seal` of the
  same extent returns an end at or past everything acknowledged and never below the first;
- `drop` is idempotent.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from cassq.errors import BackendError, BackendUnavailableError
from cassq.message.frames import COUNT_MAX, Frame, Place
from cassq.message.ranges import RangeSet


class ExtentMissingError(BackendError):
    """The extent of a pipe is not in the store."""


class ExtentUnavailableError(BackendUnavailableError):
    """The extent of a pipe cannot be read at the moment; those of other pipes may be."""


class Slice(NamedTuple):
    """Messages `first .. last` (indexes, last excluded) of one frame."""

    frame: Frame
    first: int
    last: int

    @property
    def seqs(self) -> RangeSet:
        """The same messages by their seqs."""
        base = self.frame.base_seq
        return RangeSet.run(base + self.first, base + self.last)

    @property
    def end_seq(self) -> int:
        """The seq after the last of them."""
        return self.frame.base_seq + self.last


class ExtentInfo(NamedTuple):
    """What an extent says of itself, without the catalog."""

    pipe_id: str
    queue_name: str
    abandoned: bool  # its writer is known to be gone


class ExtentWriter(abc.ABC):
    """The one writer of an extent. Not thread-safe: a pusher serialises its appends.

    append_bytes: how much is best given to one append. frame_messages: how many messages a frame
    may have at most; both are smaller in simulations.
    """

    append_bytes: int = 8 * 1024 * 1024
    frame_messages: int = COUNT_MAX

    @property
    @abc.abstractmethod
    def end(self) -> Place:
        """The place after the last frame acknowledged."""

    @property
    @abc.abstractmethod
    def size_bytes(self) -> int:
        """Bytes of the frames acknowledged."""

    @abc.abstractmethod
    def append(self, frames: Sequence[tuple[bytes, bytes]], end_seq: int) -> Place:
        """Write frames (header, body) one after another, make them durable, publish the new end.

        Raises PipeSealedError when someone sealed the extent: the frames may lie below its end or
        not. Any other error leaves the outcome unknown, and the extent must be sealed.
        Cost: one write, one sync.
        """

    @abc.abstractmethod
    def sealed(self) -> bool:
        """Whether someone has begun to seal this extent. On networked stores this lags: what
        counts is what `append` says. Cost: a memory read."""

    @abc.abstractmethod
    def turn_wanted(self) -> bool:
        """Whether another pusher asks for the next turn (cp queues). May lag, as `sealed`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop writing; the extent stays as it is."""


class ExtentReader(abc.ABC):
    """Reads one extent; verified frames only. Not thread-safe.

    earlier_boot: it was begun before the machine started, which its readers may have felled.
    """

    earlier_boot: bool

    @abc.abstractmethod
    def published(self) -> Place:
        """The end of what is acknowledged so far; on networked stores it lags some milliseconds
        behind other processes. Cost: a memory read; there, a read when it was not asked for of
        late."""

    # Whether `ask_published` is of use: whether to learn the end is a round trip.
    asks = False

    def ask_published(self) -> None:
        """Say that `published` will be asked for: on networked stores several pipes are then
        looked at in one round. Cost: a read that nobody waits for, at most."""
        return

    @abc.abstractmethod
    def read(self, start: Place, end_seq: int, limit: int, bytes_max: int) -> list[Slice]:
        """Messages from `start` on, below `end_seq`, at most `limit` (at least one frame's worth
        is looked at, whatever `bytes_max`). Raises CorruptionError for a damaged frame.
        """

    @abc.abstractmethod
    def place_after(self, start: Place, slices: Sequence[Slice]) -> Place:
        """The place right after `slices`, which were read from `start`."""

    @abc.abstractmethod
    def after_damage(self, start: Place, end_seq: int) -> Place | None:
        """The place of the first frame behind `start`, and below `end_seq`, that can be read;
        None when there is none. start: where `read` told of damage: what lies between is lost.
        For people who look into damage, not for the way of messages: see the store's for its cost.
        """

    @abc.abstractmethod
    def ask_turn(self) -> int:
        """Ask the writer for the next turn; returns boot milliseconds of its last append, as far
        as this process can tell."""

    def dropped(self) -> bool:
        """Whether the extent was removed, so that keeping it open holds its space for nothing.
        False where an open reader holds none. Cost: no round trip; for a file one system call."""
        return False

    @abc.abstractmethod
    def close(self) -> None:
        """Give back file handles."""


class ExtentStore(abc.ABC):
    """Creates, opens, seals and drops extents.

    Sealing decides for every append whether it counts, however long its writer was stopped; so
    nothing acknowledged can lie past an end, and nothing has to be rescued from there.
    """

    # Extents whose pusher died before their pipe had a row are looked for by the reaper; else
    # whoever opens the store adopts them.
    leaves_strays = False

    @abc.abstractmethod
    def create(self, pipe_id: str, queue_name: str, *, strict: bool = False) -> ExtentWriter:
        """A new, empty extent whose existence is durable. strict: its queue is cp."""

    @abc.abstractmethod
    def reader(self, pipe_id: str) -> ExtentReader:
        """Open for reading; ExtentMissingError when it is gone."""

    def readers(self, pipe_ids: Sequence[str]) -> list[ExtentReader | None]:
        """Readers of these, as far as it is quicker to open them together; None for the others,
        and for those that are gone. Cost: on networked stores one waits once."""
        return [None] * len(pipe_ids)

    @abc.abstractmethod
    def seal(self, pipe_id: str) -> Place:
        """Fence the writer and find the end that covers everything acknowledged, durably."""

    def salvage_reader(self, pipe_id: str) -> ExtentReader:
        """`reader`, whatever an extent says of itself: its frames alone tell whose they are."""
        return self.reader(pipe_id)

    def missing_end(self, pipe_id: str, *, fence: bool = False) -> Place | None:
        """Where an extent that is missing ended, as far as anything left of it tells; None when
        nothing does. fence: have its writer, if it still lives, go on in another."""
        return None

    def restore_identity(self, pipe_id: str, queue_name: str) -> bool:
        """Where all that is damaged is what an extent says of itself, and its frames are its own,
        write that anew; whether it was. Cost: as `ExtentReader.after_damage`."""
        return False

    @abc.abstractmethod
    def abandoned(self, pipe_id: str) -> bool:
        """Whether the writer is certainly gone. False may only mean that it cannot be told (yet,
        on networked stores)."""

    def all_abandoned(self, pipe_ids: Sequence[str]) -> set[str]:
        """Those of these that are `abandoned`. Cost: on networked stores as often one waits as
        for a single one."""
        return {pipe_id for pipe_id in pipe_ids if self.abandoned(pipe_id)}

    @abc.abstractmethod
    def drop(self, pipe_ids: Sequence[str]) -> None:
        """Remove extents durably; absent ones are no error."""

    @abc.abstractmethod
    def extents(self, known: Collection[str] = ()) -> Iterator[ExtentInfo]:
        """Every extent that is not known and can be sealed from here, oldest first. Cost: one look
        into each."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back everything that is held."""
