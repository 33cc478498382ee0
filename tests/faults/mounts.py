"""Small and read-only file systems, mounted for one test; only root may."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.servers.parts.disk import SmallDisk

Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path, needs: Callable[[str], str]) -> Iterator[Mount]:
    """Mounts under this test's directory; all are taken down with it.

    A test that uses it is marked `may_skip`: it needs root.
    """
    command = needs("mount")
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    with ExitStack() as stack:

        def mounted(name: str, *options: str) -> Path:
            place = tmp_path / name
            place.mkdir(exist_ok=True)
            done = subprocess.run(
                [command, *options, str(place)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", "-l", str(place)], check=False)
            return place

        yield mounted


@pytest.fixture
def small_disk(mount: Mount) -> SmallDisk:
    return SmallDisk(mount("small", "-t", "tmpfs", "-o", "size=4m", "tmpfs"))
