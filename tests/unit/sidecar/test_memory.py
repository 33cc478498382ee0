"""What a large frame needed in memory is there for the next one."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from cassq.sidecar.memory import keep_memory
keep = {keep} and keep_memory()
def work(count):
    for _ in range(count):
        buffers = [bytearray(4 << 20) for _ in range(10)]
work(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work(20)
print(bool(keep), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep: bool) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(keep=keep)], capture_output=True, text=True, check=True
    )
    kept, count = done.stdout.split()
    return kept, int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_memory_that_was_used_is_not_mapped_again() -> None:
    kept, count = faults(keep=True)
    assert kept == "True"
    assert count < 2000
    assert faults(keep=False)[1] > 10 * count
