"""The write-ahead log of a SQLite file, as something to sync.

SQLite writes its log with plain writes before a commit becomes visible, so a sync of the file makes
every commit so far durable, whichever process made it. The log lives as long as any connection.
Closing it here releases no lock of SQLite's: those are on the other files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self


class Log:
    """An open log."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def of(cls, database: Path) -> Self | None:
        """The log of an open database. None on systems without `fdatasync`, where SQLite knows
        better how to reach the disk; and if SQLite keeps the log elsewhere."""
        if not hasattr(os, "fdatasync"):
            return None
        try:
            return cls(os.open(f"{os.path.realpath(database)}-wal", os.O_RDWR | os.O_CLOEXEC))
        except FileNotFoundError:
            return None

    def sync(self) -> None:
        """Make durable what was written. Raises OSError."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)
