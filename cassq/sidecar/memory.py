"""Memory of the process: buffers of large frames are kept for reuse."""

from __future__ import annotations

import contextlib
import ctypes
import gc

# malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 256 * 1024 * 1024
_LARGE_BYTES = 32 * 1024 * 1024  # the maximum that malloc allows


def keep_memory() -> bool:
    """Make malloc take blocks of up to 32 MiB from the heap, and keep up to 256 MiB of free heap;
    return whether the C library supports that.

    Otherwise each buffer of a megabyte is mapped, cleared page by page, and unmapped again: a third
    of the system time of a sidecar under write load.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library
    kept = mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    return bool(kept and mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES))


def return_memory() -> None:
    """Return free memory to the system, also below the 256 MiB that malloc keeps. Cost: a walk of
    all objects and of the heap, tens of milliseconds."""
    gc.collect()  # an ended TLS connection is a cycle of objects, with its buffers
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
