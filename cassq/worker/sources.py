"""Source files that a worker has loaded, to start anew when one of them changes.

Only the program's own are watched: files below the current directory that are not installed
packages. They are looked at in intervals, which costs a system call for each and works on every
file system.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_INSTALLED = ("site-packages", "dist-packages")


# What differs when a file was written anew: its time, size and inode; zeros if it is gone.
State = tuple[int, int, int]


def loaded_sources(directory: Path) -> dict[str, State]:
    """The files below `directory` of the modules that are loaded now, each with its state."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return own_sources((file for file in files if file), directory)


def own_sources(files: Iterable[str], directory: Path) -> dict[str, State]:
    """Those of the files that are the program's own, by their absolute paths."""
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
        """The files that are not as they were when they were added, or at the last look."""
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
