"""Source files that a worker has loaded: it restarts when one of them changes.

Only the program's own files are watched: those below the current directory that are not of
installed packages. They are polled, which costs a system call for each, and works on every file
system.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_INSTALLED = ("site-packages", "dist-packages")


# What changes when a file is written: its time, size and inode; zeros if it is gone.
State = tuple[int, int, int]


def loaded_sources(directory: Path) -> dict[str, State]:
    """The files below `directory` of the modules that are loaded now, each with its state."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return own_sources((file for file in files if file), directory)


def own_sources(files: Iterable[str], directory: Path) -> dict[str, State]:
    """The states of those files that are the program's own, by absolute path."""
    here, library = directory.resolve(), Path(sysconfig.get_path("stdlib"))
    found: dict[str, State] = {}
    for file in files:
        path = Path(file).absolute()
        installed = any(part in _INSTALLED for part in path.parts) or path.is_relative_to(library)
        if path.resolve().is_relative_to(here) and not installed and path.suffix == ".py":
            found[str(path)] = _state(str(path))
    return found


class WatchedFiles:
    """Files that may change."""

    def __init__(self) -> None:
        self._seen: dict[str, State] = {}

    def add(self, files: Mapping[str, Sequence[int]]) -> None:
        """Watch these too. files: their states when they were loaded."""
        for file, (time_ns, size, inode) in files.items():
            self._seen.setdefault(file, (time_ns, size, inode))

    def changed(self) -> list[str]:
        """The files that changed since they were added, or since the last call."""
        found: list[str] = []
        for file, before in self._seen.items():
            now = _state(file)
            if now != before:
                self._seen[file] = now
                found.append(file)
        return found


def _state(file: str) -> State:
    try:
        found = Path(file).stat()
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino
