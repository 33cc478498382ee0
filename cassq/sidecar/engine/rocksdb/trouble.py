"""What RocksDB's errors mean; rocksdict raises them as plain exceptions with its text."""

from __future__ import annotations

from rocksdict import DbClosedError

from cassq.errors import BackendError, BackendUnavailableError, CassqError, StorageFullError
from cassq.message.frames import FrameError

_FULL = ("no space left", "disk quota", "file too large")
# All that RocksDB says of a file when a write to it has failed before.
_BEFORE = "writer has previous error"


def explained(exc: Exception, what: str) -> CassqError:
    """The cassq error for one of RocksDB's. what: the operation that failed."""
    text = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
    if isinstance(exc, DbClosedError):
        return BackendUnavailableError(f"{what}: it is closed", retryable=False)
    if text.startswith("Corruption"):
        return FrameError(f"{what}: {text}")
    if any(sign in text.lower() for sign in _FULL):
        return StorageFullError(f"{what}: {text}", outcome_unknown=True)
    return BackendError(f"{what}: {text}", outcome_unknown=True)


class Trouble:
    """Why a database takes nothing more: after the first failed write or sync it is unknown what is
    on the disk. False while it is well.

    failure: it failed, then or later, for other reasons than lack of space. starved: only for that.
    """

    def __init__(self) -> None:
        self._told = ""
        self._broken = False

    def __bool__(self) -> bool:
        return bool(self._told)

    @property
    def failure(self) -> str:
        return self._told if self._broken else ""

    @property
    def starved(self) -> str:
        return "" if self._broken else self._told

    def met(self, exc: Exception, what: str) -> CassqError:
        """A write or a sync failed; what to raise. Where one fails because of another, that one
        comes first."""
        error = explained(exc, what)
        again = self._told and _BEFORE in error.message.lower()
        if isinstance(error, StorageFullError) or again:
            self._told = self._told or error.message
        elif not self._broken:
            self._told, self._broken = error.message, True
        if isinstance(error, FrameError):
            return BackendUnavailableError(error.message, outcome_unknown=True)
        return error

    def check(self) -> None:
        """Raise BackendUnavailableError when something failed."""
        if self._told:
            raise BackendUnavailableError(
                f"a write failed, and nobody knows what is on disk: {self._told}",
                hint="start the sidecar again once the disk is well"
                if self._broken
                else "it goes on once there is room on its disk",
            )
