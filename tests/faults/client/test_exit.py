"""Exits: a program that ends without closing anything leaves its queues in order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cassq
from tests.integration.deadlines import DEADLINE_SECONDS
from tests.integration.stage import Connect, drain, payloads

ROOT = Path(__file__).resolve().parents[3]

BEGIN = """
import sys, threading
import cassq
client = cassq.connect(sys.argv[1])
queue = client.create_queue("jobs", claim_timeout=3600, lease=3600)
pusher, popper = queue.pusher(), queue.popper()
pusher.push_many([b"acked", b"held"])
acked, held = popper.pop(2)
acked.ack()
futures = [pusher.push_soon(b"soon") for _ in range(100)]
"""

ENDINGS = {
    "falls off the end": ("", 0),
    "exits": ("sys.exit(3)", 3),
    "fails": ("raise LookupError('mine')", 1),
    "has a thread that pushes": (
        """
def push():
    while True:
        pusher.push(b"on and on")
threading.Thread(target=push, daemon=True).start()
""",
        0,
    ),
    "has threads that wait": (
        """
for _ in range(3):
    threading.Thread(target=lambda: queue.popper("default").pop(1, wait=3600), daemon=True).start()
threading.Thread(target=lambda: list(popper), daemon=True).start()
""",
        0,
    ),
}


def run(url: str, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_that_ends_without_closing_leaves_nothing_open(
    url: str, connect: Connect, ending: str
) -> None:
    script, code = ENDINGS[ending]
    done = run(url, BEGIN + script)
    assert done.returncode == code, done.stderr
    queue = connect().queue("jobs")
    stats = queue.stats()
    assert stats.pipes["open"] + stats.pipes["ready"] == 0
    assert stats.groups["default"].pending == 0  # what was held was given back
    found = payloads(drain(queue.popper()))
    assert b"acked" not in found
    assert b"held" in found
    assert found.count(b"soon") == 100
    assert queue.audit().findings == []


def test_a_program_that_uses_its_client_after_closing_it_ends_too(url: str) -> None:
    done = run(
        url, BEGIN + "client.close()\ntry:\n    pusher.push(b'x')\nfinally:\n    print('end')"
    )
    assert done.returncode == 1
    assert done.stdout == "end\n"
    assert "ClosedError" in done.stderr


def test_importing_and_ending_touches_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import cassq"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_many_pushers_and_poppers_opened_and_closed_leave_no_descriptors(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    def round_() -> int:
        for _ in range(20):
            with queue.pusher() as pusher, queue.popper() as popper:
                pusher.push(b"x")
                popper.commit(popper.pop(10))
        return len(os.listdir("/proc/self/fd"))

    before = round_()
    after = [round_() for _ in range(5)]
    assert max(after) <= before + 2
    assert len(client.runtime.open) <= 4
