"""What a large frame needed in memory is there for the next one, until many clients have left."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys

import pytest

from cassq.base.rare_log import RareLog
from cassq.sidecar.sessions.acceptor import MANY, Acceptor
from cassq.sidecar.sessions.incoming import Incoming

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


def end(acceptor: Acceptor, count: int) -> None:
    """Have connections come, and end."""
    for _ in range(count):
        here, there = socket.socketpair()
        incoming = Incoming(acceptor.connections, here, "a test")
        incoming.end()
        incoming.gone()
        here.close()
        there.close()


def test_memory_is_returned_after_many_connections_have_ended() -> None:
    acceptor = Acceptor(lambda incoming: pytest.fail("none is made"), RareLog(), 100)
    end(acceptor, MANY - 1)
    acceptor.sweep()
    assert acceptor.connections.ended == MANY - 1, "few may come again"
    end(acceptor, 1)
    acceptor.sweep()
    assert acceptor.connections.ended == 0
    assert not acceptor.connections.open
