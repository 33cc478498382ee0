"""The messages of clients and sidecars: requests, replies and refusals.

`cassq.extents.protocol.wire` encodes them, and `docs/sidecar_protocol.md` specifies both.
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
    MALFORMED = 1  # not a message of this protocol
    VERSION = 2  # another version of the protocol
    TOKEN = 3  # a wrong token, or none
    CLUSTER = 4  # the sidecar belongs to another catalog
    UNKNOWN = 5  # there is no such extent
    FENCED = 6  # the epoch is outdated, or the extent is sealed
    GAP = 7  # the frame is not the next one; `end` says which is
    CONFLICT = 8  # another frame is there, or another extent has that name
    DAMAGED = 9  # the extent, or the frame, is damaged here
    BAD_FRAME = 10  # what was sent is not a whole frame of that extent
    TOO_LARGE = 11  # the message is, or what it asks for
    FULL = 12  # read-only, because space is short
    DRAINING = 13  # takes no new extents
    BUSY = 14  # overloaded at the moment; nothing was done
    FAILED = 15  # a disk failure or a bug; the request may have been carried out


# Refusals that a retry may overcome.
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

# -1 means none, where none is possible.
Number = Annotated[int, Meta(ge=-1)]


class _Message(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """On the wire: an array of exactly its fields, in order."""


class Done(_Message, frozen=True):
    """The request was carried out, durably where that matters."""


class Hello(_Message, frozen=True):
    """The first request of a connection. cluster: the catalog's identity, "" if not known.
    client: its name in logs."""

    version: Number
    cluster: str
    token: str
    client: str

    def __repr__(self) -> str:
        """Never shows the token."""
        return f"Hello(version={self.version}, cluster={self.cluster!r}, client={self.client!r})"


class Welcome(_Message, frozen=True):
    """window_bytes: how many unanswered bytes a connection may have sent; when nothing is
    unanswered, one request of any size is allowed."""

    version: Number
    sidecar: str
    generation: str
    zone: str
    window_bytes: Number
    message_bytes_max: Number


class Open(_Message, frozen=True):
    """Make an extent, durably; repeating it is not an error."""

    pipe_id: str
    epoch: Number
    queue_name: str
    strict: bool


class Append(_Message, frozen=True):
    """Add a frame, durably. acked: all replicas have everything below it. frame: header and body,
    in parts that are sent one after another. Repeating it is not an error."""

    pipe_id: str
    epoch: Number
    base_seq: Number
    messages: Number
    acked: Number
    frame: bytes | Sequence[bytes]


class Appended(_Message, frozen=True):
    """end: of the extent here. turn: another pusher asks for the next turn. leave: the sidecar
    drains, so continue in another pipe."""

    end: Number
    turn: bool
    leave: bool


class Mark(_Message, frozen=True):
    """Report what is acknowledged, and whether the writer stops for good. Sent with id 0."""

    pipe_id: str
    epoch: Number
    acked: Number
    closed: bool


class Read(_Message, frozen=True):
    """Get the whole frames that hold seqs `seq .. end_seq`, from the first on. wait_ms: how long
    to wait for the first of them if it is not there yet (long poll)."""

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
    """Ask how far extents have come. asked: pipe ids, each with the acknowledged end known so far.
    wait_ms: how long to wait for the acknowledgement of frames that have arrived."""

    asked: Sequence[tuple[str, Number]]
    wait_ms: Number


class EndsAre(_Message, frozen=True):
    """For each extent asked about: acked, end, fenced, closed, milliseconds since the last append;
    None where there is no such extent."""

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
    """Where the extent ends here, and the acknowledged end as this replica knows it. copying: it
    is an unfinished copy, and does not count."""

    end: Number
    acked: Number
    copying: bool


class Settle(_Message, frozen=True):
    """The end is recorded: remove what lies past it, durably. A replica that has less is damaged
    from then on, and reports that."""

    pipe_id: str
    end: Number


class Drop(_Message, frozen=True):
    """Remove extents; absent ones are not an error."""

    pipe_ids: Sequence[str]


class List(_Message, frozen=True):
    """List extents by id, after a given one. only: "" for all, "damaged", "unsealed", or "behind"
    for those damaged only in that they lack their last messages; earlier sidecars refuse that."""

    after: str
    limit: Number
    only: str


class ListedExtent(_Message, frozen=True):
    """What a sidecar reports about an extent."""

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
    """Each as `ListedExtent`."""

    extents: Sequence[ListedExtent]


class Info(_Message, frozen=True):
    """Ask a sidecar for its report about itself."""


class InfoIs(_Message, frozen=True):
    """Values by name: see `docs/sidecar_protocol.md`."""

    facts: Mapping[str, Any]


class Scrub(_Message, frozen=True):
    """Verify the frames of an extent, from a seq on, for a limited time."""

    pipe_id: str
    seq: Number


class Scrubbed(_Message, frozen=True):
    """seq: where to continue; the extent's end when all were verified. digest: of the verified
    frames, in hex; every replica has the same digest for the same stretch."""

    seq: Number
    damage: str
    digest: str


class Replicate(_Message, frozen=True):
    """Copy a sealed extent from another sidecar, or continue doing so, for a limited time.

    end: its recorded end. bytes_max: how much to copy before answering.
    """

    pipe_id: str
    queue_name: str
    strict: bool
    source: str  # host:port
    end: Number
    bytes_max: Number


class Replicated(_Message, frozen=True):
    """seq: how far the copy has come; the end when it is whole and verified."""

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
# The numbers of requests never change: a new request goes at the end.
REQUESTS: Mapping[int, type[Any]] = dict(enumerate(REPLIES, 1))
OPS: Mapping[type[Any], int] = {kind: number for number, kind in REQUESTS.items()}
