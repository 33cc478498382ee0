"""What sidecars and their clients say to one another: requests, their replies, and refusals.

`cassq.extents.protocol.wire` has their bytes, and `docs/sidecar_protocol.md` specifies both.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

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

# -1 stands for none, where that is possible.
Number = Annotated[int, Meta(ge=-1)]


class _Message(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """On the wire an array of its fields in their order, all of them, and no others."""


class Done(_Message, frozen=True):
    """It is done, durably where that matters."""


class Hello(_Message, frozen=True):
    """The first request of a connection. cluster: the catalog's identity, "" if not known.
    client: told in logs."""

    version: Number
    cluster: str
    token: str
    client: str

    def __repr__(self) -> str:
        """Never shows the token."""
        return f"Hello(version={self.version}, cluster={self.cluster!r}, client={self.client!r})"


class Welcome(_Message, frozen=True):
    """window_bytes: how much a connection may have sent that is not answered: one request more is
    always allowed when nothing is."""

    version: Number
    sidecar: str
    generation: str
    zone: str
    window_bytes: Number
    message_bytes_max: Number


class Open(_Message, frozen=True):
    """Make an extent, durably; the same once more is no error."""

    pipe_id: str
    epoch: Number
    queue_name: str
    strict: bool


class Append(_Message, frozen=True):
    """Add a frame, durably. acked: below which all replicas have everything. frame: header and
    body, given in parts that are sent one after another. The same once more is no error."""

    pipe_id: str
    epoch: Number
    base_seq: Number
    messages: Number
    acked: Number
    frame: bytes | Sequence[bytes]


class Appended(_Message, frozen=True):
    """end: of the extent here. turn: somebody asks for the next turn. leave: the sidecar drains:
    go on in another pipe."""

    end: Number
    turn: bool
    leave: bool


class Mark(_Message, frozen=True):
    """Tell what is acknowledged, and whether the writer stops for good. Sent with id 0."""

    pipe_id: str
    epoch: Number
    acked: Number
    closed: bool


class Read(_Message, frozen=True):
    """Frames that hold seqs `seq .. end_seq`, from the first on, whole. wait_ms: how long to wait
    for the first of them while it is not there (long poll)."""

    pipe_id: str
    seq: Number
    end_seq: Number
    bytes_max: Number
    frames_max: Number
    wait_ms: Number


class Frames(_Message, frozen=True):
    """end: of the extent here. frames: one after another."""

    end: Number
    frames: bytes


class Ends(_Message, frozen=True):
    """How far extents are. asked: a pipe id and the acknowledged end that is known already.
    wait_ms: where frames came that nobody called acknowledged yet, so long to wait for that."""

    asked: Sequence[tuple[str, Number]]
    wait_ms: Number


class EndsAre(_Message, frozen=True):
    """For each extent asked for: acked, end, fenced, closed, milliseconds since the last append;
    None where there is none."""

    ends: Sequence[tuple[Number, Number, bool, bool, Number] | None]


class Turn(_Message, frozen=True):
    """Ask the writer for the next turn (cp queues)."""

    pipe_id: str


class TurnAsked(_Message, frozen=True):
    """idle_ms: since the last append."""

    idle_ms: Number


class Fence(_Message, frozen=True):
    """Take no more appends, for ever, durably."""

    pipe_id: str
    epoch: Number


class Fenced(_Message, frozen=True):
    """Where the extent ends here, and what this replica was told to be acknowledged. copying: it
    is a copy that is not whole, and does not count."""

    end: Number
    acked: Number
    copying: bool


class Settle(_Message, frozen=True):
    """The end is recorded: remove what lies past it, durably. A replica that has less is damaged
    from then on, and says so."""

    pipe_id: str
    end: Number


class Drop(_Message, frozen=True):
    """Remove extents; absent ones are no error."""

    pipe_ids: Sequence[str]


class List(_Message, frozen=True):
    """Extents by id, after one. only: "" all, "damaged", "unsealed"."""

    after: str
    limit: Number
    only: str


class Told(_Message, frozen=True):
    """What a sidecar tells of an extent."""

    pipe_id: str
    queue_name: str
    end: Number
    final: Number  # -1: none is known
    fenced: bool
    size_bytes: Number
    created_ms: Number
    damage: str
    copying: bool


class Listed(_Message, frozen=True):
    """Each as `Told`."""

    extents: Sequence[Told]


class Info(_Message, frozen=True):
    """Ask a sidecar how it is."""


class InfoIs(_Message, frozen=True):
    """By name: see `docs/sidecar_protocol.md`."""

    facts: Mapping[str, Any]


class Scrub(_Message, frozen=True):
    """Verify every frame of an extent, from a seq on, as many as take some time."""

    pipe_id: str
    seq: Number


class Scrubbed(_Message, frozen=True):
    """seq: where to go on; the extent's end when all were verified. digest: of the frames that
    were, in hex: the same on every replica for the same stretch."""

    seq: Number
    damage: str
    digest: str


class Replicate(_Message, frozen=True):
    """Copy a sealed extent from another sidecar, or go on with it, for some time.

    end: its recorded end. bytes_max: how much to copy before answering, and per second.
    """

    pipe_id: str
    queue_name: str
    strict: bool
    source: str  # host:port
    end: Number
    bytes_max: Number


class Replicated(_Message, frozen=True):
    """seq: up to where it has come; the end when it is whole and verified."""

    seq: Number


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
