"""The messages that are pushed: random bytes, all different within a chunk."""

from __future__ import annotations

import math
import random

CHUNK_MESSAGES = 20_000
# Bytes. Lengths are spread evenly over their logarithms: 250 B are the mean, 140 B the median.
VARIED_MIN, VARIED_MAX = 20, 1_000


def chunk(size: int, count: int = CHUNK_MESSAGES, seed: int = 1) -> list[bytes]:
    """`count` messages of `size` bytes that nobody can compress or confuse."""
    source = random.Random(seed)
    return [source.randbytes(size) for _ in range(count)]


def varied_chunk(count: int = CHUNK_MESSAGES, seed: int = 1) -> list[bytes]:
    """`count` messages of lengths from `VARIED_MIN` to `VARIED_MAX`, as many between 20 and 40 B as
    between 500 and 1,000; no two neighbours can be expected to be alike."""
    source = random.Random(seed)
    least, most = math.log(VARIED_MIN), math.log(VARIED_MAX)
    return [source.randbytes(round(math.exp(source.uniform(least, most)))) for _ in range(count)]


def chunks(size: int, total: int, *, varied: bool = False) -> list[list[bytes]]:
    """The same chunk over and over, cut to `total` messages altogether. varied: of lengths that
    differ, whatever the size."""
    count = min(total, CHUNK_MESSAGES)
    whole = varied_chunk(count) if varied else chunk(size, count)
    repeated, rest = divmod(total, len(whole))
    return [whole] * repeated + ([whole[:rest]] if rest else [])
