"""Endurance: many messages pass a queue whose backlog stays bounded; disk and memory must too."""

from __future__ import annotations

from pathlib import Path

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import drain
from bench.measuring.meter import Meter, rss_bytes
from bench.measuring.payloads import chunks
from bench.plan import Plan
from bench.results.figures import growth, rate
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 900.0
SAMPLES = 100


def directory_bytes(directory: Path) -> int:
    """What a directory takes on the disk; files that vanish meanwhile take nothing."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def endure(_gate: Gate, seat: Seat, messages: int, seconds: float, backlog: int) -> Figures:
    peer = seat.peer()
    peer.create()
    load = chunks(seat.place.size, backlog)
    peer.push(load)
    passed, next_sample = 0, 0
    disk: list[float] = []
    memory: list[float] = []
    passing = Meter()
    while passed < messages or passing.wall_s < seconds:
        with passing:
            peer.push(load)
            drain(peer, backlog)
        passed += backlog
        if passed >= next_sample:
            disk.append(directory_bytes(seat.place.directory))
            memory.append(rss_bytes())
            next_sample += messages // SAMPLES
    drain(peer, backlog)
    peer.close()
    grown = {"disk_growth": growth(disk), "rss_growth": growth(memory)} if seconds else {}
    return {
        **grown,
        "rate": rate(passed, passing.wall_s),
        "messages": passed,
        "disk_first_bytes": disk[0],
        "disk_peak_bytes": max(disk),
        "disk_last_bytes": disk[-1],
        "disk_emptied_bytes": directory_bytes(seat.place.directory),
        "rss_first_bytes": memory[0],
        "rss_last_bytes": memory[-1],
        "cpu_s": passing.cpu_s,
    }


class Endurance(Scenario):
    name = "endurance"
    title = "Endurance: disk and memory while messages pass, 100 B"
    headline = "rate"
    alone = True

    def cases(self, plan: Plan) -> list[Case]:
        waiting = f"{plan.endurance_backlog:,} to {2 * plan.endurance_backlog:,} wait"
        return [Case("endurance", f"{plan.endurance_messages:,} messages pass, {waiting}")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("rate", "through/s", "rate"),
            Column("disk_first_bytes", "disk MB at first", "MB"),
            Column("disk_peak_bytes", "at most", "MB"),
            Column("disk_last_bytes", "at last", "MB"),
            Column("disk_emptied_bytes", "emptied", "MB"),
            Column("disk_growth", "peak, last third over the one before", "ratio"),
            Column("rss_first_bytes", "memory MB at first", "MB"),
            Column("rss_last_bytes", "at last", "MB"),
            Column("rss_growth", "peak, last third over the one before", "ratio"),
            Column("cpu_s", "CPU s", "s"),
        ]

    def rounds(self, plan: Plan) -> int:
        return 1

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        arguments = (seat, plan.endurance_messages, plan.endurance_s, plan.endurance_backlog)
        return run([Job(endure, arguments)], SECONDS_MAX)[0]
