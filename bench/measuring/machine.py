"""The machine and the software of a run, as the results name them."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from cassq.version import __version__ as cassq_version

EMBEDDED = ("cassq", "litequeue", "persist-queue", "huey")


def processor() -> str:
    """What the kernel calls the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def file_system(directory: Path) -> str:
    """The type of the file system that holds a directory."""
    whole = directory.resolve()
    holders = [
        part for part in psutil.disk_partitions(all=True) if whole.is_relative_to(part.mountpoint)
    ]
    return max(holders, key=lambda part: len(part.mountpoint)).fstype if holders else "unknown"


def library(name: str) -> str:
    """Name and version of a package, also of this one when it runs from its sources."""
    if name == "cassq":
        return f"cassq {cassq_version}"
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} (not installed as a package)"


def described(directory: Path, servers: Sequence[str], peers: Sequence[str]) -> list[str]:
    """One line a fact."""
    memory = psutil.virtual_memory().total / 2**30
    libraries = [library(name) for name in EMBEDDED if name in peers]
    return [
        f"Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"Machine: {len(os.sched_getaffinity(0))} cores ({processor()}), {memory:.0f} GB of memory",
        f"System: {platform.system()} {platform.release()}, data on {file_system(directory)}",
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        *([", ".join(libraries)] if libraries else []),
        *([", ".join(servers)] if servers else []),
    ]
