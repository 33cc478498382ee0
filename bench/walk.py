"""How much code an operation runs: `python -m bench.walk [--list]`.

Counts, for a push, a pop of one message, its ack or nack, the write that makes this durable, and a
pop of a message that an earlier one prefetched, in the steady state of an embedded queue: the
functions of cassq that run, the files they are in, and how often the next function called is in
another file. A reader of the code follows the same path.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import cassq

PACKAGE = Path(cassq.__file__).parent
ROUNDS = 60
FEW = 8  # waiting messages: too few to prefetch some


class Walk(NamedTuple):
    """files: in the order in which they were first entered, relative to the package."""

    name: str
    files: list[str]
    calls: int
    changes: int


def walked(name: str, call: Callable[[], object]) -> Walk:
    """What this thread runs of cassq during a call."""
    entered: list[str] = []
    package = f"{PACKAGE}/"

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(package):
            entered.append(path.removeprefix(package))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    changes = sum(one != other for one, other in pairwise(entered))
    return Walk(name, list(dict.fromkeys(entered)), len(entered), changes)


def walks(directory: Path) -> list[Walk]:
    """Of each operation, in a new queue in `directory`: of many alike the most usual one."""
    found: dict[str, list[Walk]] = {}

    def walk(name: str, call: Callable[[], object]) -> None:
        found.setdefault(name, []).append(walked(name, call))

    with cassq.connect(f"file://{directory}") as client:
        queue = client.create_queue("walk")
        pusher, popper = queue.pusher(), queue.popper()
        pusher.push_many([b"waits"] * FEW)
        for _ in range(ROUNDS):
            pusher.push_many([b"waits"] * 3)
            walk("push", lambda: pusher.push(b"payload"))
            for what in ("ack", "nack"):
                taken: list[cassq.Message] = []
                before = popper.pop(1)  # does what is done only every so many milliseconds
                walk("pop(1)", lambda taken=taken: taken.extend(popper.pop(1)))  # type: ignore[misc]
                walk(what, getattr(taken[0], what))
                walk(f"flush after {what}", popper.flush)
                popper.commit(before)
        many = client.create_queue("many")
        many.pusher().push_many([b"waits"] * 100 * ROUNDS)
        popper = many.popper()
        for _ in range(ROUNDS):
            taken = []
            walk("pop(1), prefetched", lambda taken=taken: taken.extend(popper.pop(1)))  # type: ignore[misc]
            taken[0].ack()
            popper.flush()
    return [_usual(each) for each in found.values()]


def _usual(same: list[Walk]) -> Walk:
    ways = Counter((tuple(walk.files), walk.changes) for walk in same)
    ((files, changes), _), *_ = ways.most_common(1)
    return next(walk for walk in same if (tuple(walk.files), walk.changes) == (files, changes))


def main() -> None:
    """Print a table; with --list the files, too."""
    parser = argparse.ArgumentParser(prog="python -m bench.walk", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the files, in order")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = walks(Path(directory) / "queues")
    print("| operation | files | calls | calls between files |")
    print("| --- | ---: | ---: | ---: |")
    for walk in found:
        print(f"| {walk.name} | {len(walk.files)} | {walk.calls} | {walk.changes} |")
    if arguments.list:
        for walk in found:
            print(f"\n{walk.name}:", *walk.files, sep="\n  ")


if __name__ == "__main__":
    main()
