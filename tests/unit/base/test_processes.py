"""Names of processes, and whether these are gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cassq.base.clock import ManualClock
from cassq.base.processes import is_gone, process_name
from tests.integration.deadlines import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

TELL = """
import sys
from cassq.base.clock import ManualClock
from cassq.base.processes import process_name
print(process_name(ManualClock()), flush=True)
sys.stdin.read()
"""


def test_a_process_is_gone_when_it_has_ended_and_not_before() -> None:
    clock = ManualClock()
    command = [sys.executable, "-c", TELL]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        name = process.stdout.readline().decode().strip()
        assert name != process_name(clock)
        assert not is_gone(name, clock)
        process.stdin.close()
        eventually("its end, which its parent has not noticed", lambda: is_gone(name, clock))
        process.wait()
        assert is_gone(name, clock)


def test_what_cannot_be_known_is_not_gone() -> None:
    clock = ManualClock()
    mine = process_name(clock)
    boot_id, namespace, pid, started = mine.split("/")
    assert int(pid) == os.getpid()
    assert not is_gone(mine, clock)
    # The same process id was given to a later process.
    assert is_gone(f"{boot_id}/{namespace}/{pid}/{int(started) - 1}", clock)
    unknown = f"{boot_id}/{namespace}/{2**30}/{started}"
    assert is_gone(unknown, clock)
    assert not is_gone(unknown.replace(boot_id, "another"), clock)
    assert not is_gone(unknown.replace(namespace, "pid:[1]"), clock)
    for name in ("", "x", f"{boot_id}/{namespace}", f"{boot_id}/{namespace}/-1/5", "///"):
        assert not is_gone(name, clock)
