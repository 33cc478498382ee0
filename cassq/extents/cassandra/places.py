"""Places in an extent on Cassandra: a bucket and the first seq of a frame in it, as one number."""

from __future__ import annotations

from cassq.message.frames import Place

_SEQ_BITS = 40
_SEQ_MASK = (1 << _SEQ_BITS) - 1


def position(bucket: int, base_seq: int) -> int:
    """The position of the frame that begins at `base_seq`. Positions grow with seqs."""
    return bucket << _SEQ_BITS | base_seq


def bucket_and_seq(pos: int) -> tuple[int, int]:
    """The bucket and the first seq of the frame at `pos`."""
    return pos >> _SEQ_BITS, pos & _SEQ_MASK


def end_place(bucket: int, end_seq: int) -> Place:
    """The place after the last frame, which is in `bucket`; the next frame may go into the bucket
    after it."""
    return Place(end_seq, position(bucket, end_seq))


def end_at(pos: int) -> Place:
    """`end_place`, from its position alone."""
    return Place(pos & _SEQ_MASK, pos)
