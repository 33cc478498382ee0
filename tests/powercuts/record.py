"""Records of what a process did to the files below a directory, as `recorder.c` writes them."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.needs import missing, require

_ENTRY = struct.Struct("<IIIIQQQ")
_SOURCE = Path(__file__).with_name("recorder.c")
_TREE = Path(__file__).parents[2]
# Where a recorded program writes its marks, below the root.
MARKS = "marks"
RUN_SECONDS = 240.0


class Event(NamedTuple):
    """One call that took effect.

    kind: C created, W written, T cut or lengthened to `length`, A allocated, S and D synced as
    by fsync and fdatasync, Y a directory's names synced; U unlinked, L linked from `path` to
    `other`, R renamed so, M a directory made, X one removed. file: the inode's number. Paths are
    relative to the root.
    """

    kind: str
    path: str
    other: str
    file: int
    offset: int
    length: int
    data: bytes


def compiled(directory: Path) -> Path:
    """The library that records; the test ends without a compiler."""
    if not sys.platform.startswith("linux") or sysconfig.get_config_var("SIZEOF_VOID_P") != 8:
        missing("calls of the system are recorded on 64-bit Linux alone")
    library = directory / "recorder.so"
    command = [require("cc"), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra"]
    subprocess.run(
        [*command, "-o", str(library), str(_SOURCE), "-ldl", "-lpthread"],
        check=True,
        capture_output=True,
        text=True,
    )
    return library


def recorded(library: Path, root: Path, program: Sequence[str]) -> list[Event]:
    """Run a program in Python, and what it did below `root`, which is there. program: what
    follows the interpreter's name; the root is its last argument."""
    log = root.with_name(root.name + ".record")
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "CASSQ_RECORD_ROOT": str(root.resolve()),
        "CASSQ_RECORD_LOG": str(log),
        "PYTHONPATH": str(_TREE),
    }
    done = subprocess.run(
        [sys.executable, *program, str(root)],
        env=environment,
        cwd=_TREE,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    events = list(_events(log.read_bytes(), str(root.resolve())))
    assert any(event.path == MARKS for event in events), "nothing was recorded"
    return events


def _events(data: bytes, root: str) -> Iterator[Event]:
    at = 0
    while at < len(data):
        kind, path_size, other_size, size, file, offset, length = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        path, other = data[at : at + path_size], data[at + path_size : at + path_size + other_size]
        at += path_size + other_size
        first, second = (
            _relative(os.fsdecode(name), root) if name else "" for name in (path, other)
        )
        yield Event(chr(kind), first, second, file, offset, length, data[at : at + size])
        at += size


def _relative(path: str, root: str) -> str:
    path = path.removesuffix(" (deleted)")
    return os.path.relpath(path, root) if path != root else "."


class Marks:
    """What a recorded program tells of itself, among its calls: facts as JSON, one a line."""

    def __init__(self, root: Path) -> None:
        self._fd = os.open(root / MARKS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def tell(self, what: str, **facts: Any) -> None:
        """Say that something is about to happen, or has."""
        os.write(self._fd, json.dumps({"what": what, **facts}).encode())


def mark_of(event: Event) -> dict[str, Any] | None:
    """What a program told with this event, if it did."""
    if event.path != MARKS or event.kind != "W":
        return None
    printed: dict[str, Any] = json.loads(event.data)
    return printed
