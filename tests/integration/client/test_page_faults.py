"""The memory of large frames is kept for the next ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cassq
from tests.integration.client import page_faults


@pytest.mark.linux_only(reason="only the GNU C library keeps memory so")
def test_large_pushes_take_no_new_memory_from_the_system(client: cassq.Client) -> None:
    words = [sys.executable, "-m", page_faults.__name__, client.url]
    taken, of_payloads = map(int, subprocess.check_output(words).split())
    assert taken < of_payloads / 5
