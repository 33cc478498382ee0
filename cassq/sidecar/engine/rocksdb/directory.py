"""The data directory of a sidecar: its identity, and a lock so that only one process uses it.

identity.json    catalog, name and generation; written once
lock             held by the process that has it open
marks            see `cassq.sidecar.engine.rocksdb.marks`
mend             the number of a damaged table that the next opening mends; rarely there
aside/           damaged tables, until their content is in other tables; rarely there
rocksdb/         RocksDB's files
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import NamedTuple

from cassq.base.os_errors import translated
from cassq.errors import ConfigError, CorruptionError
from cassq.extents.files.disk import Disk

_FORMAT = 1
_OWN = {"lock", "identity.new", "direct"}


class Identity(NamedTuple):
    """The identity of a directory. catalog: the identity of the catalog whose extents it holds.
    name: of the sidecar. generation: made with the directory, never reused."""

    catalog: str
    name: str
    generation: str


class Directory:
    """An open data directory. new: nothing seems to have been stored in it.

    Raises ConfigError if it is open already, here or in another process, or belongs to another
    catalog or sidecar; CorruptionError if its identity cannot be read.
    """

    def __init__(self, path: Path, *, catalog: str, name: str) -> None:
        self.path = path
        self._disk = Disk()
        with translated(f"opening {path}"):
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not self._disk.lock(self._lock):
                raise ConfigError(
                    f"{path} is in use by another sidecar",
                    hint="each sidecar needs its own directory; otherwise stop the other one first",
                )
            self.identity: Identity
            self.new: bool
            self.identity, self.new = self._identify(catalog, name)
        except BaseException:
            os.close(self._lock)
            raise

    def begun(self) -> None:
        """Record durably that data may be stored here from now on."""
        if self.new:
            self.new = False
            self._write(self.identity, new=False)

    @property
    def to_mend(self) -> int | None:
        """The number of the table that the next opening mends; None if there is none. Raises
        BackendError."""
        with translated(f"reading {self.path / 'mend'}"):
            try:
                text = (self.path / "mend").read_text(encoding="ascii", errors="replace").strip()
            except FileNotFoundError:
                return None
        return int(text) if text.isdecimal() else None

    def note_to_mend(self, number: int) -> None:
        """Note a damaged table. Raises BackendError."""
        with translated(f"writing {self.path / 'mend'}"):
            (self.path / "mend").write_text(f"{number}\n", encoding="ascii")

    def mended(self) -> None:
        """Note that nothing is left to mend."""
        with translated(f"removing {self.path / 'mend'}"):
            (self.path / "mend").unlink(missing_ok=True)

    def close(self) -> None:
        """Release it to other processes."""
        os.close(self._lock)

    def _identify(self, catalog: str, name: str) -> tuple[Identity, bool]:
        try:
            text = (self.path / "identity.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            others = sorted(each.name for each in self.path.iterdir() if each.name not in _OWN)
            if others:
                raise ConfigError(
                    f"{self.path} holds {others[0]} but no identity.json",
                    hint="give the sidecar an empty directory",
                ) from None
            identity = Identity(catalog, name, secrets.token_hex(12))
            self._write(identity, new=True)
            return identity, True
        try:
            found = json.loads(text)
            identity = Identity(*(str(found[field]) for field in Identity._fields))
            layout, new = int(found["format"]), bool(found["new"])
        except (ValueError, KeyError, TypeError) as exc:
            raise CorruptionError(
                f"{self.path / 'identity.json'} cannot be read: {exc}",
                hint="start with an empty directory; repairs refill it from other sidecars",
            ) from exc
        if layout != _FORMAT:
            raise ConfigError(f"{self.path} has format {layout}; this cassq supports {_FORMAT}")
        if identity.catalog != catalog:
            raise ConfigError(
                f"{self.path} holds extents of another catalog ({identity.catalog})",
                hint="a sidecar serves one catalog: check --catalog and --data",
            )
        if identity.name != name:
            raise ConfigError(
                f"{self.path} is the directory of the sidecar {identity.name}, not {name}",
                hint=f"placements refer to this name: start it with --name {identity.name}",
            )
        return identity, new

    def _write(self, identity: Identity, *, new: bool) -> None:
        place = self.path / "identity.json"
        temporary = self.path / "identity.new"
        text = json.dumps({"format": _FORMAT, **identity._asdict(), "new": new}, indent=1)
        with translated(f"writing {place}"):
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                os.write(descriptor, text.encode() + b"\n")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.replace(place)
            self._disk.sync_directory(self.path)
