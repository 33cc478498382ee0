"""Checks of requests about extents before anything is done, and the listing of replicas.

Each check raises RefusedError.
"""

from __future__ import annotations

from cassq.extents.protocol.messages import Append, Code, ListedExtent, Open, RefusedError
from cassq.message.frames import BODY_BYTES_MAX, HEADER_SIZE, FrameError, pipe_key, verify
from cassq.sidecar.engine.port import Replica

FRAME_BYTES_MAX = HEADER_SIZE + BODY_BYTES_MAX
PIPE_ID_LENGTH_MAX = 100
QUEUE_NAME_LENGTH_MAX = 1000


def check_open(request: Open) -> None:
    """Check that an extent may have this name and this epoch."""
    pipe_id, name = request.pipe_id, request.queue_name
    if not 0 < len(pipe_id) <= PIPE_ID_LENGTH_MAX or len(name) > QUEUE_NAME_LENGTH_MAX:
        raise RefusedError(Code.MALFORMED, f"{pipe_id!r} of {name!r} is not a valid extent name")
    if request.epoch < 1:
        raise RefusedError(Code.MALFORMED, f"{request.epoch} is not a valid epoch of an extent")


def checked_frame(request: Append) -> bytes:
    """The frame of an append, after a check that it is whole and the one that was announced. Cost:
    a pass over its bytes."""
    frame = request.frame if isinstance(request.frame, bytes) else b"".join(request.frame)
    within("bytes of a frame", len(frame), FRAME_BYTES_MAX)
    try:
        base_seq, messages, size = verify(frame, pipe_key=pipe_key(request.pipe_id))
    except FrameError as exc:
        raise RefusedError(Code.BAD_FRAME, exc.message) from exc
    if size != len(frame):
        raise RefusedError(Code.BAD_FRAME, f"{len(frame)} bytes were sent for a frame of {size}")
    if (base_seq, messages) != (request.base_seq, request.messages):
        raise RefusedError(
            Code.BAD_FRAME,
            f"{request.messages} messages from {request.base_seq} were announced, "
            f"the frame has {messages} from {base_seq}",
        )
    return frame


def within(what: str, asked: int, limit: int) -> None:
    """Check that a request stays within a limit."""
    if asked > limit:
        raise RefusedError(
            Code.TOO_LARGE, f"{asked} {what} were requested, but the limit is {limit}"
        )


LISTED = ("", "damaged", "behind", "unsealed")


def is_listed(replica: Replica, only: str) -> bool:
    """Whether a `List` asks for this replica."""
    match only:
        case "damaged":
            return bool(replica.damage)
        case "behind":
            return replica.behind
        case "unsealed":
            return replica.final is None
    return True


def listed_entry(replica: Replica) -> ListedExtent:
    """A replica's entry in `Listed`."""
    return ListedExtent(
        replica.pipe_id,
        replica.queue_name,
        replica.end,
        -1 if replica.final is None else replica.final,
        replica.fenced,
        replica.size_bytes,
        replica.created_ms,
        replica.damage,
        replica.copying,
    )
