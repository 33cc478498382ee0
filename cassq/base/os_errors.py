"""Translates errors of the operating system to cassq's, with hints on what to do; and frees the
memory that handled errors hold."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from cassq.errors import BackendError, BackendUnavailableError, StorageFullError

Error = TypeVar("Error", bound=BaseException)
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


def untraced(error: Error) -> Error:
    """The error, without its traceback and those of the errors behind it.

    The frames of a traceback, and those of their callers, hold the data they worked on, and often
    the error itself: all of it would stay until the garbage collector runs, which may be seldom.
    """
    left: list[BaseException | None] = [error]
    known: set[int] = set()
    while left:
        each = left.pop()
        if each is not None and id(each) not in known:
            known.add(id(each))
            each.__traceback__ = None
            left += (each.__cause__, each.__context__)
    return error
