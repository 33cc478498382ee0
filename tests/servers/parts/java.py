"""Which Java runs the servers: one of version 17, found where it commonly is."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.servers.parts.errors import MissingServerError

# Cassandra 5.0 runs on 11 and 17 and refuses newer ones; the other two run on 17 as well.
JAVA_VERSION = 17
INSTALL = "Debian and Ubuntu: apt install openjdk-17-jdk-headless maven"


@functools.cache
def find_java() -> str:
    """The path of the first Java 17 among $JAVA_HOME, the PATH and /usr/lib/jvm.

    Raises MissingServerError. Cost: a process for each Java looked at, once.
    """
    looked: list[str] = []
    for path in _candidates():
        version = java_version(path)
        if version == JAVA_VERSION:
            return path
        looked.append(f"{path} is version {version or 'unknown'}")
    found = "; ".join(looked) or "no java was found"
    raise MissingServerError(
        f"the servers need Java {JAVA_VERSION}: {found} (set JAVA_HOME, or install it; {INSTALL})"
    )


def _candidates() -> Iterator[str]:
    seen: set[str] = set()
    paths = [shutil.which("java")]
    if home := os.environ.get("JAVA_HOME"):
        paths.insert(0, shutil.which("java", path=str(Path(home) / "bin")))
    paths += [str(path) for path in sorted(Path("/usr/lib/jvm").glob("*17*/bin/java"))]
    for path in paths:
        if path is not None and (real := os.path.realpath(path)) not in seen:
            seen.add(real)
            yield path


def java_version(path: str) -> int:
    """The major version of a Java; 0 where it does not start."""
    try:
        shown = subprocess.run(
            [path, "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', shown.stderr)
    return int(match[1]) if match else 0
