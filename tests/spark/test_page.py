"""The program that docs/spark.md shows, run as it is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.project.test_docs import PYTHON, ROOT, SPARK, blocks_of

SECONDS_MAX = 900


def run(program: str, directory: Path) -> list[str]:
    """The lines that a program prints, in a directory of its own and with this Python."""
    environment = {key: value for key, value in os.environ.items() if key != "CASSQ_URL"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.long(reason="two programs start Spark, one after the other")
def test_the_first_example_prints_what_the_page_says_and_once(tmp_path: Path) -> None:
    program, printed = blocks_of(SPARK)[:2]
    assert (program.language, printed.language) == (PYTHON, "text")
    assert run(program.text, tmp_path) == printed.text.splitlines()
    again = [line for line in printed.text.splitlines() if not line.startswith("streamed")]
    assert run(program.text, tmp_path) == again, "a second run writes and streams nothing more"
