"""The rows of the catalog, and their states. Times are milliseconds of catalog time."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import field, replace

from cassq.frozen import dataclass
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.queues import GroupPolicy, QueuePolicy


class PipeState(enum.IntEnum):
    """The states of a pipe::

    ready ──> open ──> sealed ──> consumed ──> (row gone)
      └────────────────^ ^          ^
              staged ────┴──────────┘

    A staged pipe becomes sealed when its write is published, and consumed when the write is
    aborted: until then it is in no listing, whether it has an end or not.
    """

    READY = 0  # opened ahead by a pusher; no frame yet
    OPEN = 1  # its owner appends
    SEALED = 2  # its end is fixed for ever
    CONSUMED = 3  # retired: its frames may be removed
    STAGED = 4  # belongs to a write that is not published: not yet part of the queue


class ClaimState(enum.IntEnum):
    """The states of a claim row::

    held ──> done
      └──> free ──> held
    """

    HELD = 0  # a popper has it until `due_ms`
    FREE = 1  # given back or expired: any popper may take it from `due_ms` on
    DONE = 2  # every message is committed or dead


class WriteState(enum.IntEnum):
    """The states of a write row::

    open ──> published      (for ever, for its number)
      └────> aborted ──> open
    """

    OPEN = 0  # its pipes are being filled
    PUBLISHED = 1  # the winners among its pipes belong to the queue
    ABORTED = 2  # none of its pipes is delivered


# The totals of retired pipes that are added up.
SUMMED = ("start", "pushed", "dead", "expired", "purged", "merged", "lost")


@dataclass(frozen=True, slots=True)
class QueueRow:
    id: str
    name: str
    policy: QueuePolicy
    version: int  # grows with every change of the policy
    groups_version: int  # grows when a group comes or goes, and when a pipe retires
    tail: str = ""  # cp: the newest pipe, the one that the next must succeed
    deleted: bool = False
    desired_pipes: int = 1  # how many should be open side by side, as a reaper found ...
    desired_ms: int = 0  # ... and when this many were last needed


@dataclass(frozen=True, slots=True)
class GroupRow:
    id: str
    queue_id: str
    name: str
    policy: GroupPolicy
    created_ms: int = 0
    polled_ms: int = 0  # when a popper was last noted as present; only if the group can expire

    @property
    def expires_ms(self) -> int | None:
        """Milliseconds without a popper after which it is removed; None: it stays."""
        limit = self.policy.group_expires
        return None if limit is None else round(limit * 1000)


@dataclass(frozen=True, slots=True)
class PipeRow:
    id: str
    queue_id: str
    state: PipeState
    owner: str  # which pusher
    created_ms: int
    lease_ms: int
    beat: int = 0  # the owner raises it to show that it is alive
    end: Place | None = None  # recorded once, by the first that sealed it
    predecessor: str = ""  # cp: the pipe before it
    ordinal: int = 0  # the order of creation in the queue
    group_id: str = ""  # the only group it is for; empty: for all
    timer_ms: int | None = None  # for a timer pipe: nothing in it is due before
    rate: int = 0  # messages a second, as of its owner's last beat
    stage: str = ""  # while it is staged: `WriteRow.stage` of its write
    priority: int = 0  # of all messages in it; greater ones are delivered first

    def is_for(self, group_id: str) -> bool:
        """Whether a group gets its messages."""
        return self.group_id in ("", group_id)


@dataclass(frozen=True, slots=True)
class WriteRow:
    """Many pipes that join a queue all at once, or never: this row alone decides.

    number: successive writes, such as the batches of a stream, share an id and count up; this is
    the newest, and earlier ones are over. epoch: grows each time the write is begun again; what was
    staged before is discarded. driver: leads the write, see `Driver`; of two, the one with the
    greater id is the younger.
    """

    queue_id: str
    id: str
    number: int
    epoch: int
    state: WriteState
    driver: str
    begun_ms: int

    @property
    def stage(self) -> str:
        """The `PipeRow.stage` of this epoch's pipes."""
        return f"{self.epoch}:{self.id}"


@dataclass(frozen=True, slots=True)
class Driver:
    """A process that leads writes, and shows that it is alive by raising `beat` within each
    `lease_ms`."""

    id: str
    beat: int
    lease_ms: int


def begun(found: WriteRow | None, wanted: WriteRow) -> WriteRow | None:
    """The row that begins a write; None if the one found stays. Pure.

    It stays if it is the same write, if its number is over, or if a younger driver leads it.
    """
    if found is None:
        return replace(wanted, epoch=1, state=WriteState.OPEN)
    published = found.state is WriteState.PUBLISHED
    if (found.number, published) > (wanted.number, False):
        return None
    if found.state is WriteState.OPEN:
        same = (found.number, found.driver) == (wanted.number, wanted.driver)
        if same or wanted.driver < found.driver:
            return None
    return replace(wanted, epoch=found.epoch + 1, state=WriteState.OPEN)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A group's position in a pipe: below `ack` all is done, from `chain` on nothing is claimed.

    epoch and owner fence: an exclusive popper raises the epoch before its first claim.
    """

    group_id: str
    pipe_id: str
    ack: Place
    chain: Place
    epoch: int = 0
    owner: str = ""
    start: int = 0  # what lies below is older than the group, and never delivered to it


@dataclass(frozen=True, slots=True)
class Claim:
    """The messages `[start, end)` of a pipe for a group, and their state.

    Those in `acked` are done; the state applies to the others. The rows of a (group, pipe)
    are disjoint and cover `[ack, chain)` of its cursor. `version` changes with every write of the
    row, and the next conditional write names it.

    tried: the messages of a held row that were handed out; only they count as delivered. A row of a
    keyed group also has messages that wait for their keys. None: all of them were handed out.
    priority: that of its pipe.
    """

    group_id: str
    pipe_id: str
    start: int
    end: int
    pos: int  # of the frame that holds `start`, or an earlier one
    state: ClaimState
    due_ms: int
    deliveries: int  # how often these messages were handed to a popper, this claim included
    losses: int = 0  # how often they failed together with others, or silently
    joint: bool = False  # handed out together with other rows
    holder: str = ""
    version: str = ""
    acked: RangeSet = field(default=EMPTY)
    failure: str = ""  # JSON: the last failure's reason, error, consumer and times
    tried: RangeSet | None = None
    priority: int = 0

    @property
    def count(self) -> int:
        return self.end - self.start

    @property
    def left(self) -> RangeSet:
        """The unacked seqs of its range."""
        return RangeSet.run(self.start, self.end) - self.acked

    @property
    def left_count(self) -> int:
        """How many messages are not acked."""
        return self.count - len(self.acked)

    def remarked(self, acked: RangeSet, tried: RangeSet | None, due_ms: int, version: str) -> Claim:
        """The row with other marks. Faster than `replace`, as rows of keyed groups are written at
        each pop and commit. tried, due_ms: as for `claims.resolved`."""
        return Claim(
            self.group_id,
            self.pipe_id,
            self.start,
            self.end,
            self.pos,
            self.state,
            self.due_ms if tried is None else max(self.due_ms, due_ms),
            self.deliveries,
            self.losses,
            self.joint,
            self.holder,
            version,
            acked,
            self.failure,
            self.tried if tried is None else tried,
            self.priority,
        )


@dataclass(frozen=True, slots=True)
class Move:
    """An intent to move a message elsewhere. The ledger counts settled moves as dead.

    key: (group, pipe, seq). It is written before the message is pushed to `dest`; the message is
    there if the frame at `dest` has its id. The write that marks the message done in its old
    place sets `settled`.
    """

    group_id: str
    pipe_id: str
    seq: int
    reason: str
    dest_pipe: str
    dest_seq: int
    at_ms: int
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Retired:
    """The totals of a retired pipe for one group, written once."""

    pipe_id: str
    group_id: str
    queue_id: str
    start: int  # what lies below is older than the group
    pushed: int
    dead: int
    expired: int = 0
    purged: int = 0
    merged: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class RetiredSum:
    """The totals of all retired pipes of a queue for one group, added up. group_id "": what the
    pipes held, each counted once."""

    group_id: str
    pipes: int
    start: int
    pushed: int
    dead: int
    expired: int = 0
    purged: int = 0
    merged: int = 0
    lost: int = 0


def summed(retired: Sequence[Retired]) -> list[RetiredSum]:
    """The totals of retired pipes of one queue added up, as the catalog keeps them. Pure."""
    pushed = {row.pipe_id: row.pushed for row in retired}
    found = [RetiredSum("", len(pushed), 0, sum(pushed.values()), 0)] if pushed else []
    for group_id in dict.fromkeys(row.group_id for row in retired):
        rows = [row for row in retired if row.group_id == group_id]
        totals = {name: sum(getattr(row, name) for row in rows) for name in SUMMED}
        found.append(RetiredSum(group_id, len(rows), **totals))
    return found


class Reason(enum.StrEnum):
    """Why messages of a group are done without having been committed."""

    EXPIRED = "expired"  # older than the age limit
    PURGED = "purged"  # removed by a purge
    CANCELLED = "cancelled"  # a delayed message taken back; totals count it as purged
    MERGED = "merged"  # dead letters: they are back in their queue
    LOST = "lost"  # damaged, and given up by an explicit command

    @property
    def total(self) -> str:
        """The total of the ledger that counts it: a field of `Retired`, and in the statistics."""
        return "purged" if self is Reason.CANCELLED else str(self)


@dataclass(frozen=True, slots=True)
class Removed:
    """An entry of the ledger: the messages `[start, end)` of a pipe were removed for a group. It is
    written with the claim rows that mark them done; the ranges of entries are disjoint."""

    group_id: str
    pipe_id: str
    start: int
    end: int
    reason: Reason
    at_ms: int


@dataclass(frozen=True, slots=True)
class Dedup:
    """Where the message of a `dedup_id` is, or was about to be, written."""

    queue_id: str
    dedup_id: str
    pipe_id: str
    seq: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Member:
    """A popper of a group, as last seen. waiting: it found nothing to claim."""

    group_id: str
    name: str
    seen_ms: int
    waiting: bool


# Alerts and statistics compare samples of dead letters, of lost messages and of messages in hand
# with the present numbers: the step of these samples, and how long they are kept.
NOTED_MS, NOTES_KEPT_MS = 300_000, 2 * 3_600_000


@dataclass(frozen=True, slots=True)
class Sample:
    """Totals and depths of a queue or group (`subject`: its id) at a time, as JSON.

    step_ms: the time it covers: a minute, an hour or a day from `at_ms` on.
    """

    subject: str
    step_ms: int
    at_ms: int
    data: str


@dataclass(frozen=True, slots=True)
class Incident:
    """A problem that an alert reported, and whose end is not yet reported. version: for
    compare-and-set."""

    key: str
    since_ms: int
    told_ms: int
    data: str
    version: int = 0
