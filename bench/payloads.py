"""The messages that are pushed: random bytes, all different within a chunk."""

from __future__ import annotations

import random

CHUNK_MESSAGES = 20_000


def chunk(size: int, count: int = CHUNK_MESSAGES, seed: int = 1) -> list[bytes]:
    """`count` messages of `size` bytes that nobody can compress or confuse."""
    source = random.Random(seed)
    return [source.randbytes(size) for _ in range(count)]


def chunks(size: int, total: int) -> list[list[bytes]]:
    """The same chunk over and over, cut to `total` messages altogether."""
    whole = chunk(size, min(total, CHUNK_MESSAGES))
    repeated, rest = divmod(total, len(whole))
    return [whole] * repeated + ([whole[:rest]] if rest else [])
