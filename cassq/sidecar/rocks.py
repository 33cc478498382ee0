"""The engine of a data directory: RocksDB, opened for one catalog and one name."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from cassq.base.os_errors import translated
from cassq.errors import ConfigError
from cassq.sidecar.engine.port import Engine
from cassq.sidecar.engine.rocksdb.engine import RocksEngine
from cassq.sidecar.serving import Opener

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[KMGT]?(?:i?B)?)", re.IGNORECASE)
_UNITS = "KMGT"


def opener(free_min: str) -> Opener:
    """Return a function that opens data directories. free_min: space to leave free on their disk,
    in bytes, with a unit (500MB, 2GiB), or as a share (5%); below that the sidecar is read-only.

    Raises ConfigError for anything else.
    """
    size, part = _parsed(free_min)

    def open_it(path: Path, cluster: str, name: str) -> Engine:
        room = size
        if part:
            with translated(f"opening {path}"):
                path.mkdir(parents=True, exist_ok=True)
                disk = os.statvfs(path)
            room = int(part * disk.f_blocks * disk.f_frsize)
        return RocksEngine(path, catalog=cluster, name=name, free_min=room)

    return Opener(identity_of, open_it)


def identity_of(path: Path) -> tuple[str, str] | None:
    """The catalog's identity and the sidecar's name that a data directory was made for; None if it
    is new or unreadable, in which case opening it reports the problem."""
    try:
        identity = json.loads((path / "identity.json").read_text(encoding="utf-8"))
        return str(identity["catalog"]), str(identity["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _parsed(text: str) -> tuple[int, float]:
    """Bytes and a share of the disk; one of them is 0."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"--free-min {text!r} is not a size", hint="write bytes, 500MB, 2GiB or 5%"
        )
    number, unit = float(match[1]), match[2].upper()
    if unit == "%":
        if number >= 100:
            raise ConfigError(f"--free-min {text!r} leaves no space", hint="write 5%, or a size")
        return 0, number / 100
    power = _UNITS.find(unit[:1]) + 1 if unit and unit != "B" else 0
    return int(number * (1024 if "I" in unit else 1000) ** power), 0.0
