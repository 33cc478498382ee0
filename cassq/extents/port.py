"""The ExtentStore port: stores frames, append-only, one extent per pipe.

Every store keeps these promises, which its contract suite checks:

- an append that returned is durable (as the store's durability says) and is found by `seal`;
- seqs are gapless: a reader gets frames in order, each verified, and nothing past the end it asked
  for;
- once `seal` has returned an end, no later append is acknowledged, and every later `seal` of the
  same extent returns an end that covers everything acknowledged and is never below the first;
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


def missing(pipe_id: str, what: str = "extent") -> ExtentMissingError:
    """The error for an extent that does not exist. what: the store's word for it."""
    return ExtentMissingError(
        f"the {what} of pipe {pipe_id} is missing",
        hint="restore it from a backup, or give its messages up with `cassq pipe skip`",
        retryable=False,
    )


class ExtentUnavailableError(BackendUnavailableError):
    """The extent of a pipe cannot be read at the moment; other pipes may be readable."""


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
    """An extent's own data about itself, without the catalog."""

    pipe_id: str
    queue_name: str
    abandoned: bool  # its writer is known to be gone


class ExtentWriter(abc.ABC):
    """The one writer of an extent. Not thread-safe: a pusher serialises its appends.

    append_bytes: the best size of one append. frame_messages: the most messages a frame may have.
    Both are smaller in simulations.
    """

    append_bytes: int = 8 * 1024 * 1024
    frame_messages: int = COUNT_MAX

    # How many fewer replicas it has than it should have.
    missing: int = 0

    @property
    @abc.abstractmethod
    def end(self) -> Place:
        """The place after the last acknowledged frame."""

    @property
    @abc.abstractmethod
    def size_bytes(self) -> int:
        """Bytes of the acknowledged frames."""

    @abc.abstractmethod
    def append(self, frames: Sequence[tuple[bytes, bytes]], end_seq: int) -> Place:
        """Write frames (header, body) one after another, make them durable, publish the new end.

        Raises PipeSealedError when the extent was sealed: the frames may or may not lie below its
        end. Any other error leaves the outcome unknown, and the extent must be sealed.
        Cost: one write, one sync.
        """

    @abc.abstractmethod
    def sealed(self) -> bool:
        """Whether sealing of this extent has begun. On networked stores this lags: only what
        `append` reports counts. Cost: a memory read."""

    def may_improve(self) -> bool:
        """Whether replicas are `missing` that a new extent would probably have. Cost: a memory
        read; while some are missing, at most a read of the catalog a second."""
        return False

    @abc.abstractmethod
    def turn_wanted(self) -> bool:
        """Whether another pusher asks for the next turn (cp queues). May lag, like `sealed`.

        The catalog alone decides who has the turn: the owner of the queue's newest pipe. Only the
        request for the next turn is kept with the extent. Its writer looks there anyway, so an
        append needs no read of the catalog. A wrong or lost request costs time, never the order.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Stop writing; the extent stays as it is."""


class ExtentReader(abc.ABC):
    """Reads one extent; verified frames only. Not thread-safe.

    earlier_boot: it was begun before the machine last started; its readers may have crashed it.
    """

    earlier_boot: bool

    @abc.abstractmethod
    def published(self) -> Place:
        """The end of what is acknowledged so far; on networked stores it lags some milliseconds
        behind other processes. Cost: a memory read; on networked stores also a read when the end
        was not asked for lately."""

    # Whether learning the end takes a round trip, so that `ask_published` is useful.
    asks = False

    # Whether `known_end` renews the end in the background.
    renews = False

    def known_end(self) -> Place:
        """The end as last known, for a caller that need not wait for a newer one. Cost: at most a
        background read where the store `renews` it, else as `published`."""
        return self.published()

    def ask_published(self) -> None:
        """Announce a call of `published`: networked stores then look at several pipes in one
        round. Cost: at most a background read."""
        return

    @abc.abstractmethod
    def read(self, start: Place, end_seq: int, limit: int, bytes_max: int) -> list[Slice]:
        """Messages from `start` on, below `end_seq`, at most `limit`, in about `bytes_max` bytes
        (but always at least one frame). Raises CorruptionError for a damaged frame.
        """

    @abc.abstractmethod
    def place_after(self, start: Place, slices: Sequence[Slice]) -> Place:
        """The place right after `slices`, which were read from `start`."""

    @abc.abstractmethod
    def after_damage(self, start: Place, end_seq: int) -> Place | None:
        """The place of the first readable frame after `start` and below `end_seq`; None when
        there is none. start: where `read` reported damage; everything in between is lost. For
        people who investigate damage, never for deliveries: each store states its cost.
        """

    @abc.abstractmethod
    def ask_turn(self) -> int:
        """Ask the writer for the next turn; returns the boot time in milliseconds of its last
        append, as far as this process knows."""

    def dropped(self) -> bool:
        """Whether the extent was removed, so that an open reader only wastes its space. Always
        False where open readers hold no space. Cost: no round trip; for a file one system call."""
        return False

    @abc.abstractmethod
    def close(self) -> None:
        """Release file handles."""


class ExtentStore(abc.ABC):
    """Creates, opens, seals and drops extents.

    Sealing decides for every append whether it counts, however long its writer was stopped. So
    nothing acknowledged can lie past an end, and nothing has to be rescued from there.
    """

    # True: the reaper looks for extents whose pusher died before their pipe had a row.
    # False: the client that opens the store adopts them.
    leaves_strays = False
    # True: an append waits for servers, so that several at the same time take no longer than one.
    networked = False

    @abc.abstractmethod
    def create(self, pipe_id: str, queue_name: str, *, strict: bool = False) -> ExtentWriter:
        """A new, empty extent, durably created. strict: its queue is cp."""

    def create_ahead(self, pipe_id: str, queue_name: str) -> ExtentWriter:
        """As `create`, before any push needs it: slow servers are waited for, so that it has all
        its replicas."""
        return self.create(pipe_id, queue_name)

    @abc.abstractmethod
    def reader(self, pipe_id: str) -> ExtentReader:
        """Open an extent for reading; ExtentMissingError when it is gone."""

    def readers(self, pipe_ids: Sequence[str]) -> list[ExtentReader | None]:
        """Readers of those pipes that open faster together; None for the others, and for those
        that are gone. Cost: on networked stores one round trip's wait."""
        return [None] * len(pipe_ids)

    @abc.abstractmethod
    def seal(self, pipe_id: str) -> Place:
        """Fence the writer and find the end that covers everything acknowledged, durably."""

    def salvage_reader(self, pipe_id: str) -> ExtentReader:
        """`reader`, without checking what the extent says about itself: its frames alone prove
        whose they are."""
        return self.reader(pipe_id)

    def missing_end(self, pipe_id: str, *, fence: bool = False) -> Place | None:
        """Where a missing extent ended, if anything left of it shows that; else None. fence: make
        its writer, if it still lives, continue in another extent."""
        return None

    def restore_identity(self, pipe_id: str, queue_name: str) -> bool:
        """Rewrite what an extent says about itself if only that is damaged and its frames are
        its own; returns whether it was rewritten. Cost: as `ExtentReader.after_damage`."""
        return False

    def last_write_ms(self, pipe_id: str) -> int | None:
        """When the extent was last written, in wall milliseconds of its writer's machine, or a time
        after that; None if it is gone, and where this is not known. Cost: for a file one system
        call, which does not open it."""
        return None

    @abc.abstractmethod
    def abandoned(self, pipe_id: str) -> bool:
        """Whether the writer is certainly gone. False may only mean that this is not known (on
        networked stores: not yet)."""

    def all_abandoned(self, pipe_ids: Sequence[str]) -> set[str]:
        """The extents among these that are `abandoned`. Cost: on networked stores as many waits as
        for a single one."""
        return {pipe_id for pipe_id in pipe_ids if self.abandoned(pipe_id)}

    @abc.abstractmethod
    def drop(self, pipe_ids: Sequence[str]) -> None:
        """Remove extents durably; absent ones are not an error."""

    @abc.abstractmethod
    def extents(self, known: Collection[str] = ()) -> Iterator[ExtentInfo]:
        """Every extent that is not in `known` and can be sealed from here, oldest first. Cost: one
        look into each."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything that is held."""
