"""What the disk itself allows: small writes, each synced before the next."""

from __future__ import annotations

import os
import time
from pathlib import Path

# About what one small message takes with its frame.
WRITE_BYTES = 160
PREALLOCATED_BYTES = 4 << 20


def synced_appends(directory: Path, seconds: float) -> tuple[int, float]:
    """Append and fdatasync over and over; writes done, seconds taken."""
    descriptor = os.open(directory / "append", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    return _write(descriptor, seconds, wrap=0)


def synced_overwrites(directory: Path, seconds: float) -> tuple[int, float]:
    """The same over bytes that were written before: no allocation, no new size to record."""
    descriptor = os.open(directory / "overwrite", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.pwrite(descriptor, bytes(PREALLOCATED_BYTES), 0)
    os.fsync(descriptor)
    return _write(descriptor, seconds, wrap=PREALLOCATED_BYTES - WRITE_BYTES)


def _write(descriptor: int, seconds: float, wrap: int) -> tuple[int, float]:
    payload = os.urandom(WRITE_BYTES)
    written, offset = 0, 0
    try:
        start = time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            os.pwrite(descriptor, payload, offset)
            os.fdatasync(descriptor)
            written += 1
            offset += WRITE_BYTES
            if wrap and offset > wrap:
                offset = 0
    finally:
        os.close(descriptor)
    return written, spent
