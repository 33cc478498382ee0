"""How much code an operation runs: files, calls, and calls between files."""

from __future__ import annotations

import json
import subprocess
import sys

from bench.walk import walked
from cassq.message.ranges import RangeSet
from cassq.plurals import counted
from tests.unit.project.test_architecture import files_to_read

# The most files, and calls between files, that an operation may run through.
# On a slow disk a pop, an ack and a nack ask the pace for more: a file, or two calls, more.
SHORT = {"push": (12, 22), "pop(1)": (16, 47), "ack": (8, 14), "nack": (9, 15)}
SHORT |= {"pop(1), prefetched": (8, 18), "flush after ack": (16, 34)}
SHORT["flush after nack"] = (22, 62)


def test_a_walk_counts_what_runs_of_cassq_alone() -> None:
    def call() -> None:
        ranges = RangeSet.run(1, 3)
        json.dumps(list(ranges))
        counted(2, "message")
        RangeSet.run(5, 6)

    walk = walked("call", call)
    assert walk.files == ["message/ranges.py", "plurals.py"]
    assert walk.changes == 2
    assert walk.calls >= 3


def test_the_command_prints_each_operation_once() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.walk", "--list"], capture_output=True, text=True, check=True
    )
    table, _, lists = done.stdout.partition("\n\n")
    rows = [line.split("|")[1:-1] for line in table.splitlines()[2:]]
    names = ["push", "pop(1)", "ack", "flush after ack", "nack", "flush after nack"]
    names.append("pop(1), prefetched")
    assert [row[0].strip() for row in rows] == names
    for _, files, calls, changes in rows:
        assert 0 < int(files) <= int(calls)
        assert int(files) - 1 <= int(changes) < int(calls)
    assert lists.startswith("push:\n")
    assert "\n  producer/pusher.py\n" in lists
    # The page about the architecture names them all.
    walked_files = {line.strip() for line in lists.splitlines() if line.startswith("  ")}
    assert walked_files <= set(files_to_read())
    counts = {row[0].strip(): (int(row[1]), int(row[3])) for row in rows}
    for name, (most_files, most_changes) in SHORT.items():
        assert counts[name][0] <= most_files, name
        assert counts[name][1] <= most_changes, name
