"""The platter: what of a record is surely on the disk at a moment, and what may be.

A power cut keeps what was synced. Of what was not, any part may be there: of each file any of its
writes since, each whole or by sectors; of the names in a directory any of the changes since. So a
legal state is the durable one and, in their order, some of those changes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from tests.powercuts.record import MARKS, Event

SECTOR = 512
# SQLite makes this one anew when nobody has it open; mapped, its bytes are not in the record.
_NEVER_KEPT = ("-shm",)


class File:
    """One file: `durable` for certain, and what was done to it since its last sync."""

    __slots__ = ("durable", "pending")

    def __init__(self) -> None:
        self.durable = bytearray()
        self.pending: list[Event] = []

    def sync(self) -> None:
        for event in self.pending:
            _do(self.durable, event)
        self.pending.clear()


class Platter:
    """What a disk holds of a record, event after event. At the beginning the root is durable."""

    def __init__(self) -> None:
        self._files: dict[int, File] = {}  # by inode, as numbered at the moment
        self.names: dict[str, File | None] = {}  # durable; None: a directory
        self.pending: list[tuple[Event, File | None]] = []  # changes of names

    def add(self, event: Event) -> None:
        """Something was done."""
        if event.path == MARKS or event.path.endswith(_NEVER_KEPT):
            return
        match event.kind:
            case "C":
                self._files[event.file] = File()
                self.pending.append((event, self._files[event.file]))
            case "W" | "T" | "A":
                self._file(event).pending.append(event)
            case "S" | "D":
                self._file(event).sync()
            case "Y":
                mine = [c for c in self.pending if event.path in _directories(c[0])]
                self.pending = [c for c in self.pending if c not in mine]
                for change in mine:
                    _rename(self.names, *change)
            case "L" | "R":
                self.pending.append((event, self._file(event)))
            case _:
                self.pending.append((event, None))

    def file(self, path: str) -> File | None:
        """The file that durably has this name."""
        return self.names.get(path)

    def _file(self, event: Event) -> File:
        return self._files.setdefault(event.file, File())

    def leave(self, directory: Path, rng: random.Random, pages: dict[str, list[bytes]]) -> None:
        """Make a state that a power cut may leave now, in an empty directory.

        pages: of files that are mapped, by path: what was in them at times; any of it may be there.
        """
        names = dict(self.names)
        for change in _some(self.pending, rng):
            _rename(names, *change)
        for path in sorted(names):
            file, target = names[path], directory / path
            if not _has_parent(names, path):
                continue
            if file is None:
                target.mkdir()
                continue
            data = bytearray(file.durable)
            for event in _some(file.pending, rng):
                _do(data, _torn(event, rng))
            seen = pages.get(path, [])
            if seen and data:
                data = bytearray(rng.choice([bytes(data), *seen, seen[-1]]))
            target.write_bytes(data)


def _some(changes: Iterable, rng: random.Random) -> list:  # type: ignore[type-arg]
    """Some of the changes, in their order: often none, or all."""
    fate = rng.random()
    if fate < 0.35:
        return []
    if fate < 0.55:
        return list(changes)
    share = rng.random()
    return [change for change in changes if rng.random() < share]


def _torn(event: Event, rng: random.Random) -> Event:
    """A write as it may be: now and then only some of its sectors."""
    if event.kind != "W" or rng.random() < 0.7:
        return event
    edges = range(-event.offset % SECTOR, len(event.data), SECTOR)
    first, last = sorted(rng.choice([0, *edges, len(event.data)]) for _ in range(2))
    return event._replace(offset=event.offset + first, data=event.data[first:last])


def _do(data: bytearray, event: Event) -> None:
    """Do to a file's bytes what was done."""
    match event.kind:
        case "W":
            end = event.offset + len(event.data)
            if event.data:
                data.extend(bytes(max(0, end - len(data))))
                data[event.offset : end] = event.data
        case "T":
            del data[event.length :]
            data.extend(bytes(event.length - len(data)))
        case "A":
            data.extend(bytes(max(0, event.offset + event.length - len(data))))


def _rename(names: dict[str, File | None], event: Event, file: File | None) -> None:
    """Do to the names what was done."""
    match event.kind:
        case "C":
            names[event.path] = file
        case "L":
            names[event.other] = file
        case "R":
            names.pop(event.path, None)
            names[event.other] = file
        case "U" | "X":
            names.pop(event.path, None)
        case "M":
            names[event.path] = None


def _directories(event: Event) -> set[str]:
    """The directories whose names a change is about."""
    paths = [event.path, event.other] if event.kind == "R" else [event.other or event.path]
    return {str(Path(path).parent) for path in paths}


def _has_parent(names: dict[str, File | None], path: str) -> bool:
    parents = [str(parent) for parent in Path(path).parents if str(parent) != "."]
    return all(parent in names for parent in parents)
