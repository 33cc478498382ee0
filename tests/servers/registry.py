"""Which clusters are up for this user: a file and a socket for each, by name.

A cluster's supervisor holds a lock on the file as long as it lives, so a file whose lock is free
is of one that was killed, and counts for nothing. Requests and answers are a line of JSON each.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import tempfile
from pathlib import Path
from typing import IO, Any

from tests.servers.parts.errors import ServerFailedError

Message = dict[str, Any]

_ANSWER_SECONDS_MAX = 300.0


def directory() -> Path:
    """This user's directory of clusters that are up; made if it is not there, for him alone."""
    place = Path(tempfile.gettempdir()) / f"cassq-servers-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.getuid():
        raise ServerFailedError(f"{place} belongs to somebody else")
    return place


class Entry:
    """The file and the socket of a cluster that this process supervises."""

    def __init__(self, name: str) -> None:
        """Take the name. Raises ServerFailedError when a cluster has it."""
        self.name = checked(name)
        self.file = directory() / f"{name}.json"
        self._held = _hold(self.file)
        self.listener = socket.socket(socket.AF_UNIX)
        _socket_file(name).unlink(missing_ok=True)  # of one that was killed
        self.listener.bind(str(_socket_file(name)))
        self.listener.listen()

    def write(self, status: Message) -> None:
        """Let others read what is up."""
        self._held.seek(0)
        self._held.truncate()
        self._held.write(json.dumps(status, indent=1).encode() + b"\n")
        self._held.flush()

    def close(self) -> None:
        """Give the name up."""
        self.listener.close()
        _socket_file(self.name).unlink(missing_ok=True)
        self.file.unlink(missing_ok=True)
        self._held.close()


def checked(name: str) -> str:
    """A name that is good for a file. Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", name):
        raise ValueError(f"a cluster's name has letters, digits, dots and dashes, not {name!r}")
    return name


def names() -> list[str]:
    """The clusters that are up or about to be."""
    return [file.stem for file in sorted(directory().glob("*.json")) if _is_held(file)]


def chosen(name: str | None) -> str:
    """The cluster of this name, or the only one. Raises ServerFailedError when there is none."""
    known = names()
    if name is None and len(known) == 1:
        return known[0]
    if name is not None and name in known:
        return name
    known_text = f"up are: {', '.join(known)}" if known else "none is up"
    raise ServerFailedError(
        f"no cluster {name}; {known_text}" if name else f"which one? {known_text}"
    )


def ask(name: str, request: Message) -> Message:
    """A supervisor's answer. Raises ServerFailedError with what it says went wrong."""
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(_ANSWER_SECONDS_MAX)
        try:
            wire.connect(str(_socket_file(name)))
            wire.sendall(json.dumps(request).encode() + b"\n")
            with wire.makefile("rb") as answers:
                line = answers.readline()
        except OSError as error:
            raise ServerFailedError(f"{name} does not answer: {error}") from error
    answer: Message = json.loads(line) if line else {"error": f"{name} ended while it was asked"}
    if "error" in answer:
        raise ServerFailedError(answer["error"])
    return answer


def _socket_file(name: str) -> Path:
    return directory() / f"{name}.sock"


def _hold(file: Path) -> IO[bytes]:
    """The file, locked by this process."""
    held = file.open("a+b")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        held.close()
        raise ServerFailedError(
            f"{file.stem} is up already; end it (down {file.stem}) or choose another --name"
        ) from error
    return held


def _is_held(file: Path) -> bool:
    try:
        with file.open("rb") as looked:
            fcntl.flock(looked, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False
