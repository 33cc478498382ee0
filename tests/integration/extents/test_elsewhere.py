"""The embedded store where what Linux alone has is absent: see `tests/elsewhere`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ELSEWHERE = ROOT / "tests" / "elsewhere"
# What is stored, synced, sealed, rebuilt, locked, waited for, and timed.
CHOSEN = """
    contract/extents/test_files.py
    integration/client/test_directory.py::test_processes_that_make_one_directory_and_queue_at_once_all_succeed
    integration/client/test_lost_catalog.py::test_a_log_that_is_left_is_not_taken_for_the_new_catalog_s
    integration/lifecycle/test_timers.py::test_a_waiting_popper_of_another_client_gets_a_short_delay_in_time
    faults/test_kill.py::test_a_killed_pushers_pipe_is_sealed_at_once_and_read_to_its_end
    faults/consumer/test_pause.py::test_a_stopped_popper_learns_that_it_lost_its_claim
    unit/base/test_clock.py
"""

pytestmark = pytest.mark.embedded_only(reason="it is about the system below the directory")


def elsewhere(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python as it is there."""
    path = os.pathsep.join([str(ELSEWHERE), str(ROOT)])
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )


LOOK = """
import fcntl, os, sys, time
from pathlib import Path
from cassq.base import clock
from cassq.client.backends import embedded
from cassq.extents.files.disk import Disk
for module, name in ((os, "fdatasync"), (os, "posix_fallocate"), (time, "CLOCK_BOOTTIME")):
    assert not hasattr(module, name), name
assert embedded.mounts() == {}
assert clock.SystemClock().boot_id() == clock.SystemClock().boot_id() != ""
raw_ms = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) // 1_000_000
assert 0 <= clock.SystemClock().boot_ms() - raw_ms < 60_000
asked = []
real = fcntl.fcntl
def told(fd, command, *more):
    asked.append(command)
    return real(fd, command, *more)
fcntl.fcntl = told
disk = Disk()
fd = disk.create(Path(sys.argv[1]))
disk.sync_data(fd)
disk.sync(fd)
disk.sync_directory(Path(sys.argv[1]).parent)
assert asked == [fcntl.F_FULLFSYNC] * 3, asked
"""


def test_it_goes_by_what_is_there(tmp_path: Path) -> None:
    done = elsewhere("-c", LOOK, str(tmp_path / "file"))
    assert done.returncode == 0, done.stderr


@pytest.mark.waits(reason="it runs tests in a process whose work it is not told of")
def test_the_embedded_store_keeps_its_promises_there(tmp_path: Path) -> None:
    chosen = [f"tests/{place}" for place in CHOSEN.split()]
    more = [
        "-m",
        "not linux_only",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path / 'there'}",
    ]
    done = elsewhere("-m", "pytest", *more, *chosen)
    assert done.returncode == 0, done.stdout[-5000:]
