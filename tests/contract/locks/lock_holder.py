"""A process that takes locks as it is told to, line by line: one to be stopped and killed.

    python -m tests.contract.locks.lock_holder URL DIRECTORY OWNER

Each line it reads is a command, and answered by a line:

    acquire NAME TTL_MS   its token, or 0 while another has the lock
    held                  0 or 1, then how often a loss was told
    contend NAME TURNS    the number of turns it had; the others' witness is in DIRECTORY
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cassq.locks.port import Lock, Locker
from tests.contract.lock_servers import locker_at
from tests.integration.deadlines import DEADLINE_SECONDS

ROOT = Path(__file__).resolve().parents[3]
WITNESS, TOKENS = "inside", "tokens"
_FOR_EVER_MS = 10**9


def serve(locker: Locker, directory: Path) -> None:
    """Do what the lines say."""
    lock: Lock | None = None
    losses: list[Lock] = []
    for line in sys.stdin:
        match line.split():
            case ["acquire", name, ttl_ms]:
                lock = locker.acquire(name, int(ttl_ms), losses.append)
                answer = f"{lock.token if lock else 0}"
            case ["held"]:
                # The lock is asked before the losses are looked at.
                held = lock is not None and lock.held()
                answer = f"{held:d} {len(losses)}"
            case ["contend", name, turns]:
                answer = f"{contend(locker, directory, name, int(turns))}"
            case _:
                raise ValueError(line)
        print(answer, flush=True)


def contend(locker: Locker, directory: Path, name: str, turns: int) -> int:
    """Take the lock so many times; two inside at once are a FileExistsError for one of them."""
    for _ in range(turns):
        lock = None
        while lock is None:
            lock = locker.acquire(name, _FOR_EVER_MS, wait_ms=1000)
        os.close(os.open(directory / WITNESS, os.O_CREAT | os.O_EXCL))
        with (directory / TOKENS).open("a") as tokens:
            tokens.write(f"{lock.token}\n")
        (directory / WITNESS).unlink()
        lock.release()
    return turns


class LockHolder:
    """The other end of it."""

    def __init__(self, url: str, directory: Path, owner: str) -> None:
        command = [sys.executable, "-m", __name__, url, str(directory), owner]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, *words: object) -> None:
        """Write a command, for an answer that is read later."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def answer(self) -> list[int]:
        """The next answer's numbers; the process has a deadline of its own, for its servers'."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process ended"
        return [int(word) for word in line.split()]

    def ask(self, *words: object) -> list[int]:
        """A command's answer."""
        self.tell(*words)
        return self.answer()


@contextmanager
def lock_holder(url: str, directory: Path, owner: str) -> Iterator[LockHolder]:
    """A process that is killed in the end."""
    holder = LockHolder(url, directory, owner)
    try:
        yield holder
    finally:
        holder.process.kill()
        holder.process.wait(DEADLINE_SECONDS)
        for pipe in (holder.process.stdin, holder.process.stdout):
            if pipe is not None:
                pipe.close()


if __name__ == "__main__":
    opened, catalog = locker_at(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
    serve(opened, Path(sys.argv[2]))
    opened.close()
    catalog.close()
