"""Translates RocksDB's errors, which rocksdict raises as plain exceptions with a text."""

from __future__ import annotations

import re
from collections.abc import Callable

from rocksdict import DbClosedError

from cassq.errors import BackendError, BackendUnavailableError, CassqError, StorageFullError
from cassq.message.frames import FrameError

_FILES = ("too many open files",)  # of the process or the system
_FULL = ("no space left", "disk quota", "file too large")
_MISSING = "No such file or directory"  # a table is gone
# RocksDB's only message for a file to which an earlier write failed.
_BEFORE = "writer has previous error"
_LASTS = "restart the sidecar once the disk is fixed, or with an empty directory"
_PASSES = (
    "writing resumes by itself once there is room on the disk, files can be opened, and the damaged"
    " table was mended"
)
_MANIFEST = re.compile(r"\s*The file \S*MANIFEST-\d+ may be corrupted\.?")


def explained(exc: Exception, what: str) -> CassqError:
    """Translate one of RocksDB's errors. what: the operation that failed."""
    # RocksDB blames its manifest for whatever it finds in another file while opening.
    said = _MANIFEST.sub("", str(exc)).strip()
    text = said.splitlines()[0].strip() if said else type(exc).__name__
    if isinstance(exc, DbClosedError):
        return BackendUnavailableError(f"{what}: it is closed", retryable=False)
    if text.startswith("Corruption") or _MISSING in text:
        return FrameError(f"{what}: {text}")
    if any(sign in text.lower() for sign in _FULL):
        return StorageFullError(f"{what}: {text}", outcome_unknown=True)
    return BackendError(f"{what}: {text}", outcome_unknown=True)


class Trouble:
    """The reason why a database accepts no more writes: after the first failed write or sync, the
    state of the disk is unknown. It is false while there is no reason.

    failure: set if a write failed for a reason that lasts, or to begin with if the directory is
    damaged. starved: set if only space was lacking, or open files; or if it failed because of
    something that the next opening mends. mends: asked about the message of any other failure.
    """

    def __init__(
        self, failure: str = "", mends: Callable[[str], bool] = lambda text: False
    ) -> None:
        self._mends = mends
        self._reason = failure
        self._broken = bool(failure)
        self._what = "the data are damaged" if failure else "a write failed"

    def __bool__(self) -> bool:
        return bool(self._reason)

    @property
    def failure(self) -> str:
        return self._reason if self._broken else ""

    @property
    def starved(self) -> str:
        return "" if self._broken else self._reason

    def met(self, exc: Exception, what: str) -> CassqError:
        """Record a failed write or sync; return the error to raise. If it failed because of an
        earlier failure, the earlier one is kept."""
        error = explained(exc, what)
        again = self._reason and _BEFORE in error.message.lower()
        if isinstance(error, StorageFullError) or _lacks_files(error.message) or again:
            self._reason = self._reason or error.message
        elif not self._broken:
            self._reason, self._broken = error.message, not self._mends(error.message)
        if isinstance(error, FrameError):
            return BackendUnavailableError(error.message, outcome_unknown=True)
        return error

    def check(self) -> None:
        """Raise BackendUnavailableError if a write or sync has failed."""
        if self._reason:
            raise BackendUnavailableError(
                f"{self._what}, so no more writes are accepted: {self._reason}",
                hint=_LASTS if self._broken else _PASSES,
            )


def _lacks_files(text: str) -> bool:
    return any(sign in text.lower() for sign in _FILES)
