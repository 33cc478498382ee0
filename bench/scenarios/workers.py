"""Workers: processes that take one message, acknowledge it, durably, and take the next."""

from __future__ import annotations

from time import perf_counter

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import PATIENCE_SECONDS, LostMessagesError
from bench.measuring.payloads import chunks
from bench.plan import Plan
from bench.results.figures import percentile, rate
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 120.0
PROCESSES = 4
# More than any peer takes in a second, from all processes.
PER_SECOND_MOST = 20_000
# Messages that each process takes before anything is counted.
WARMUP = 20


def fill(_gate: Gate, seat: Seat, count: int) -> Figures:
    peer = seat.peer()
    peer.create()
    peer.push(chunks(seat.place.size, count))
    peer.settle()
    peer.close()
    return {}


def take_singly(gate: Gate, seat: Seat, seconds: float) -> Figures:
    """Pop one, acknowledge it, and the next: how many, and how long each took."""
    peer = seat.peer()

    def take() -> None:
        if not (peer.pop(1) or peer.pop(1, PATIENCE_SECONDS)):
            raise LostMessagesError("a message did not come")
        peer.ack()

    for _ in range(WARMUP):
        take()
    taken: list[float] = []
    gate.meet()  # All processes are connected, and have warmed up.
    begin = perf_counter()
    begun = begin
    while begun < begin + seconds:
        take()
        now = perf_counter()
        taken.append((now - begun) * 1e3)
        begun = now
    gate.meet()  # Nobody takes any more.
    peer.close()
    return {
        "rate": rate(len(taken), begun - begin),
        "p50_ms": percentile(taken, 0.5),
        "p99_ms": percentile(taken, 0.99),
    }


def clear(_gate: Gate, seat: Seat) -> Figures:
    seat.peer().drop()
    return {}


class Workers(Scenario):
    name = "workers"
    title = f"Workers: {PROCESSES} processes pop one message, acknowledge it, and take the next"
    headline = "rate"
    peers = ("sqlite", "redis")

    def cases(self, plan: Plan) -> list[Case]:
        return [Case("workers", "messages of 100 B")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("rate", "messages/s", "rate"),
            Column("least", "of the slowest process", "rate"),
            Column("p50_ms", "p50 ms", "ms"),
            Column("p99_ms", "slowest process' p99 ms", "ms"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        own, seconds = seat.part("workers"), plan.workers_s
        run([Job(fill, (own, int(PER_SECOND_MOST * seconds) + PROCESSES * WARMUP))], SECONDS_MAX)
        found = run([Job(take_singly, (own, seconds))] * PROCESSES, SECONDS_MAX)
        run([Job(clear, (own,))], SECONDS_MAX)
        rates = [each["rate"] for each in found]
        return {
            "rate": sum(rates),
            "least": min(rates),
            "p50_ms": percentile([each["p50_ms"] for each in found], 0.5),
            "p99_ms": max(each["p99_ms"] for each in found),
        }
