"""Scrubbing: reads and verifies every frame of an extent, a bounded stretch at a time."""

from __future__ import annotations

from typing import NamedTuple

from xxhash import xxh3_128

from cassq.message.frames import FrameError, frame_span
from cassq.sidecar.engine.port import Engine

_STEP_BYTES = 4 << 20


class ScrubbedRange(NamedTuple):
    """The result of a scrub.

    seq: where to continue; the requested end when everything was read. digest: xxh3-128, in hex,
    of the frames read, one after another: every replica has the same for the same seqs. damage: of
    the frame at `seq`; "" if there is none.
    """

    seq: int
    digest: str
    damage: str
    size_bytes: int


def scrub(engine: Engine, pipe_id: str, seq: int, end_seq: int, bytes_max: int) -> ScrubbedRange:
    """Verify the frames of an extent that begin from `seq` on, below `end_seq`, up to `bytes_max`
    but at least one. Cost: a read of them and a checksum or two. Callable from any thread.

    seq: where a frame begins.
    """
    digest, size_bytes, damage = xxh3_128(), 0, ""
    while seq < end_seq and not damage and (size_bytes < bytes_max or not size_bytes):
        room = min(_STEP_BYTES, bytes_max - size_bytes)
        try:
            frames = engine.read(pipe_id, seq, end_seq, room, 1 << 20)
        except FrameError as exc:
            damage = exc.message
            break
        if not frames:
            break  # it ends here
        for frame in frames:
            base_seq, count, size = frame_span(frame)
            if base_seq != seq:
                damage = f"a frame begins at {base_seq}, not at {seq}"
                break
            digest.update(frame)
            seq, size_bytes = base_seq + count, size_bytes + size
    return ScrubbedRange(seq, digest.hexdigest(), damage, size_bytes)
