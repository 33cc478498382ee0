"""Translates errors of the operating system to cassq's, with hints on what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from cassq.errors import BackendError, BackendUnavailableError, StorageFullError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn an OSError into the matching BackendError; `what` names file and operation."""
    try:
        yield
    except OSError as exc:
        raise explained(exc, what) from exc


def explained(exc: OSError, what: str) -> BackendError:
    """The BackendError that matches an OSError."""
    if exc.errno in _FULL:
        return StorageFullError(f"{what}: {exc.strerror}")
    if exc.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return BackendUnavailableError(
            f"{what}: {exc.strerror}",
            hint="the directory must be writable by this user",
            retryable=False,
        )
    if exc.errno in (errno.EMFILE, errno.ENFILE):
        return BackendUnavailableError(
            f"{what}: {exc.strerror}", hint="raise the limit of open files (ulimit -n)"
        )
    return BackendUnavailableError(f"{what}: {exc.strerror or exc}", outcome_unknown=True)
