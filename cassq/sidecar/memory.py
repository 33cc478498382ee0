"""Memory of the process: what a large frame needed is kept for the next one."""

from __future__ import annotations

import ctypes

# malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 256 * 1024 * 1024
_LARGE_BYTES = 32 * 1024 * 1024  # the most that it allows


def keep_memory() -> bool:
    """Have blocks of up to 32 MiB taken from the heap, of which up to 256 MiB that are free stay
    with the process; whether the C library can do so.

    Otherwise each buffer of a megabyte is mapped, cleared page by page, and unmapped again: a third
    of the time that the system spends for a sidecar that is written to.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library
    kept = mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    return bool(kept and mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES))
