"""Single: messages pushed one at a time, each durable before the next, beside the bare disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.disk import synced_appends, synced_overwrites
from bench.measuring.meter import Meter
from bench.measuring.payloads import chunk
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 120.0
THREADS = 16
WARMUP_SHARE = 0.3
PAYLOADS = 1_000


def push_until(lane: Callable[[bytes], None], size: int, seconds: float) -> int:
    """Push one message after another; how many were acknowledged."""
    payloads = chunk(size, PAYLOADS)
    pushed = 0
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        lane(payloads[pushed % PAYLOADS])
        pushed += 1
    return pushed


def push_from_threads(gate: Gate, seat: Seat, threads: int, seconds: float, first: bool) -> Figures:
    """Single pushes from some threads of this process, as others may do beside it."""
    peer = seat.peer()
    if first:
        peer.create()
    gate.meet()  # The queue is there.
    lanes = [peer.lane() for _ in range(threads)]
    # A log that still grows takes longer than one that is written over again.
    for lane in lanes:
        push_until(lane, seat.place.size, seconds * WARMUP_SHARE / threads)
    counts: list[int] = []
    failures: list[BaseException] = []

    def work(lane: Callable[[bytes], None]) -> None:
        try:
            counts.append(push_until(lane, seat.place.size, seconds))
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(lane,)) for lane in lanes]
    gate.meet()  # All lanes are open.
    meter = Meter(seat.place.server_pid)
    with meter:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    if failures:
        raise failures[0]
    gate.meet()  # Nobody pushes any more.
    peer.close()
    if first:
        peer.drop()
    per_push = {
        f"{name[:-1]}us": value / sum(counts) * 1e6
        for name, value in meter.costs().items()
        if name.endswith("_s")
    }
    return {
        "rate": rate(sum(counts), meter.wall_s),
        "rss_bytes": meter.costs()["rss_bytes"],
        **per_push,
    }


def write_to_disk(gate: Gate, seat: Seat, number: int, seconds: float) -> Figures:
    """The bare disk: appends and overwrites, each synced."""
    own = seat.place.directory / str(number)
    own.mkdir()
    gate.meet()
    append = rate(*synced_appends(own, seconds))
    gate.meet()
    return {"append": append, "overwrite": rate(*synced_overwrites(own, seconds))}


class Single(Scenario):
    name = "single"
    title = "Single durable pushes, 100 B"
    headline = "one"
    has_reference = True

    def cases(self, plan: Plan) -> list[Case]:
        return [Case("single", "pushes a second")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("one", "1 thread", "rate"),
            Column("sixteen", f"{THREADS} threads", "rate"),
            Column("two_processes", "2 processes", "rate"),
            Column("overwrite", "overwriting", "rate"),
            Column("two_overwrite", "overwriting, 2 processes", "rate"),
            Column("cpu_us", "client CPU µs a push", "rate"),
            Column("server_cpu_us", "server CPU µs a push", "rate"),
            Column("rss_bytes", "client peak MB", "MB"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        seconds = plan.single_s

        def pushers(label: str, threads: int, processes: int) -> list[Figures]:
            own = seat.part(label)
            return run(
                [
                    Job(push_from_threads, (own, threads, seconds, number == 0))
                    for number in range(processes)
                ],
                SECONDS_MAX,
            )

        (one,) = pushers("one", 1, 1)
        two = pushers("two", 1, 2)
        (sixteen,) = pushers("sixteen", THREADS, 1)
        return {
            **one,
            "one": one["rate"],
            "sixteen": sixteen["rate"],
            "two_processes": sum(side["rate"] for side in two),
            "rss_bytes": sixteen["rss_bytes"],
        }

    def reference(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        def writers(label: str, count: int) -> list[Figures]:
            own = seat.part(label)
            jobs = [Job(write_to_disk, (own, number, plan.single_s)) for number in range(count)]
            return run(jobs, SECONDS_MAX)

        (alone,) = writers("disk-one", 1)
        together = writers("disk-two", 2)
        return {
            "one": alone["append"],
            "overwrite": alone["overwrite"],
            "two_processes": sum(side["append"] for side in together),
            "two_overwrite": sum(side["overwrite"] for side in together),
        }
