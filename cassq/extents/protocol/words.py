"""What sidecars and their clients say to one another: requests, their replies, and refusals.

`cassq.extents.protocol.wire` has their bytes, and `docs/sidecar_protocol.md` specifies both.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cassq.errors import BackendError

VERSION = 1
READ_BYTES_MAX = 8 * 1024 * 1024
WAIT_MS_MAX = 30_000
EXTENTS_MAX = 1000  # named in one request


class Code(enum.IntEnum):
    """Why a request was refused; 0 when it was not."""

    OK = 0
    MALFORMED = 1  # no message of this protocol
    VERSION = 2  # another version of the protocol
    TOKEN = 3  # a wrong token, or none
    CLUSTER = 4  # the sidecar belongs to another catalog
    UNKNOWN = 5  # there is no such extent
    FENCED = 6  # of an older epoch, or the extent is sealed
    GAP = 7  # the frame is not the next one; `end` says which is
    CONFLICT = 8  # another frame stands there, or another extent of that name
    DAMAGED = 9  # the extent, or the frame, is damaged here
    BAD_FRAME = 10  # what was sent is no whole frame of that extent
    TOO_LARGE = 11  # the message, or what it asks for
    FULL = 12  # read-only, for want of space
    DRAINING = 13  # takes no new extents
    BUSY = 14  # too much to do at the moment; nothing was done
    FAILED = 15  # the disk, or a bug; it may have been done


# Those of which it is certain that nothing was done, and those that another try may mend.
_RETRYABLE = {Code.FULL, Code.DRAINING, Code.BUSY, Code.FAILED}


class RefusedError(BackendError):
    """A sidecar refused a request."""

    def __init__(self, code: Code, message: str = "", *, hint: str = "", **fields: Any) -> None:
        super().__init__(
            message or code.name.lower(),
            hint=hint,
            retryable=code in _RETRYABLE,
            outcome_unknown=code is Code.FAILED,
            **fields,
        )
        self.code = code


# --- requests and their replies -----------------------------------------------------------------


class Done(NamedTuple):
    """It is done, durably where that matters."""


class Hello(NamedTuple):
    """The first request of a connection. cluster: the catalog's identity, "" if not known.
    client: told in logs."""

    version: int
    cluster: str
    token: str
    client: str

    def __repr__(self) -> str:
        """Never shows the token."""
        return f"Hello(version={self.version}, cluster={self.cluster!r}, client={self.client!r})"


class Welcome(NamedTuple):
    """window_bytes: how much a connection may have sent that is not answered: one request more is
    always allowed when nothing is."""

    version: int
    sidecar: str
    generation: str
    zone: str
    window_bytes: int
    message_bytes_max: int


class Open(NamedTuple):
    """Make an extent, durably; the same once more is no error."""

    pipe_id: str
    epoch: int
    queue_name: str
    strict: bool


class Append(NamedTuple):
    """Add a frame, durably. acked: below which all replicas have everything. frame: header and
    body, given in parts that are sent one after another. The same once more is no error."""

    pipe_id: str
    epoch: int
    base_seq: int
    messages: int
    acked: int
    frame: bytes | Sequence[bytes]


class Appended(NamedTuple):
    """end: of the extent here. turn: somebody asks for the next turn. leave: the sidecar drains:
    go on in another pipe."""

    end: int
    turn: bool
    leave: bool


class Mark(NamedTuple):
    """Tell what is acknowledged, and whether the writer stops for good. Sent with id 0."""

    pipe_id: str
    epoch: int
    acked: int
    closed: bool


class Read(NamedTuple):
    """Frames that hold seqs `seq .. end_seq`, from the first on, whole. wait_ms: how long to wait
    for the first of them while it is not there (long poll)."""

    pipe_id: str
    seq: int
    end_seq: int
    bytes_max: int
    frames_max: int
    wait_ms: int


class Frames(NamedTuple):
    """end: of the extent here. frames: one after another."""

    end: int
    frames: bytes


class Ends(NamedTuple):
    """How far extents are. asked: a pipe id and the acknowledged end that is known already.
    wait_ms: where frames came that nobody called acknowledged yet, so long to wait for that."""

    asked: Sequence[tuple[str, int]]
    wait_ms: int


class EndsAre(NamedTuple):
    """For each extent asked for: acked, end, fenced, closed, milliseconds since the last append;
    None where there is none."""

    ends: Sequence[tuple[int, int, bool, bool, int] | None]


class Turn(NamedTuple):
    """Ask the writer for the next turn (cp queues)."""

    pipe_id: str


class TurnAsked(NamedTuple):
    """idle_ms: since the last append."""

    idle_ms: int


class Fence(NamedTuple):
    """Take no more appends, for ever, durably."""

    pipe_id: str
    epoch: int


class Fenced(NamedTuple):
    """Where the extent ends here, and what this replica was told to be acknowledged. copying: it
    is a copy that is not whole, and does not count."""

    end: int
    acked: int
    copying: bool


class Settle(NamedTuple):
    """The end is recorded: remove what lies past it, durably. A replica that has less is damaged
    from then on, and says so."""

    pipe_id: str
    end: int


class Drop(NamedTuple):
    """Remove extents; absent ones are no error."""

    pipe_ids: Sequence[str]


class List(NamedTuple):
    """Extents by id, after one. only: "" all, "damaged", "unsealed"."""

    after: str
    limit: int
    only: str


class Told(NamedTuple):
    """What a sidecar tells of an extent."""

    pipe_id: str
    queue_name: str
    end: int
    final: int  # -1: none is known
    fenced: bool
    size_bytes: int
    created_ms: int
    damage: str
    copying: bool


class Listed(NamedTuple):
    """Each as `Told`."""

    extents: Sequence[Told]


class Info(NamedTuple):
    """Ask a sidecar how it is."""


class InfoIs(NamedTuple):
    """By name: see `docs/sidecar_protocol.md`."""

    facts: Mapping[str, Any]


class Scrub(NamedTuple):
    """Verify every frame of an extent, from a seq on, as many as take some time."""

    pipe_id: str
    seq: int


class Scrubbed(NamedTuple):
    """seq: where to go on; the extent's end when all were verified. digest: of the frames that
    were, in hex: the same on every replica for the same stretch."""

    seq: int
    damage: str
    digest: str


class Replicate(NamedTuple):
    """Copy a sealed extent from another sidecar, or go on with it, for some time.

    end: its recorded end. bytes_max: how much to copy before answering, and per second.
    """

    pipe_id: str
    queue_name: str
    strict: bool
    source: str  # host:port
    end: int
    bytes_max: int


class Replicated(NamedTuple):
    """seq: up to where it has come; the end when it is whole and verified."""

    seq: int


Request = (
    Hello
    | Open
    | Append
    | Mark
    | Read
    | Ends
    | Turn
    | Fence
    | Settle
    | Drop
    | List
    | Info
    | Scrub
    | Replicate
)
Reply = (
    Done
    | Welcome
    | Appended
    | Frames
    | EndsAre
    | TurnAsked
    | Fenced
    | Listed
    | InfoIs
    | Scrubbed
    | Replicated
)

REPLIES: Mapping[type[Any], type[Any]] = {
    Hello: Welcome,
    Open: Done,
    Append: Appended,
    Mark: Done,
    Read: Frames,
    Ends: EndsAre,
    Turn: TurnAsked,
    Fence: Fenced,
    Settle: Done,
    Drop: Done,
    List: Listed,
    Info: InfoIs,
    Scrub: Scrubbed,
    Replicate: Replicated,
}
# The numbers of requests stand for ever: a new one comes at the end.
REQUESTS: Mapping[int, type[Any]] = dict(enumerate(REPLIES, 1))
OPS: Mapping[type[Any], int] = {kind: number for number, kind in REQUESTS.items()}
