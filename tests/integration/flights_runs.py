"""Runs of the examples on real flights, and what holds of each of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Flights = Callable[..., subprocess.CompletedProcess[str]]


def run_example(
    script: str, *options: str | Path, seconds: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of the examples. script: in the folder of the flights, or a whole path."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "flights" / script), *map(str, options)],
        env={**os.environ, **environment, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )


def summary(out: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return loaded


def assert_seen(
    flights: Flights, finished: Path, tmp_path: Path, plant: Callable[[Path], None], check: str
) -> None:
    """What `plant` does to a finished run is seen by the check for it, and by no other."""
    kept = tmp_path / "kept"
    shutil.copytree(finished / "kept", kept, ignore=shutil.ignore_patterns("bells"))
    plant(kept)
    done = flights("--check", "--dir", kept, "--out", tmp_path / "out")
    assert done.returncode == 1, done.stdout
    totals = summary(tmp_path / "out")
    assert not totals["passed"]
    assert [name.startswith(check) for name, wrong in totals["checks"].items() if wrong] == [True]


def assert_left_alone(flights: Flights, tmp_path: Path) -> None:
    """A directory with something in it is refused, and stays as it is."""
    (tmp_path / "letter.txt").write_text("dear reader")
    done = flights("--dir", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 2, done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
