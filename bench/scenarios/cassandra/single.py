"""On Cassandra, a message at a time: how long a push takes, and how long a pop and its commit."""

from __future__ import annotations

from time import perf_counter
from typing import ClassVar

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import PATIENCE_SECONDS, LostMessagesError
from bench.measuring.payloads import chunk
from bench.plan import Plan
from bench.results.figures import percentile, rate
from bench.scenarios.cassandra.through import KAFKA, OWN, THREE
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 120.0
PAYLOADS = 1_000
WARMUP_SHARE = 0.2


def one_at_a_time(_gate: Gate, seat: Seat, seconds: float) -> Figures:
    """Push one, pop it, commit it, and the next; each step is done when it returns."""
    peer = seat.peer()
    peer.create()
    lane = peer.lane(wakes=True)
    payloads = chunk(seat.place.size, PAYLOADS)
    pushes: list[float] = []
    pops: list[float] = []
    started = perf_counter()
    while perf_counter() - started < seconds * (1 + WARMUP_SHARE):
        begun = perf_counter()
        lane(payloads[len(pushes) % PAYLOADS])
        pushed = perf_counter()
        if len(peer.pop(1, PATIENCE_SECONDS)) != 1:
            raise LostMessagesError(f"message {len(pushes)} did not come")
        peer.ack()
        pushes.append((pushed - begun) * 1e3)
        pops.append((perf_counter() - pushed) * 1e3)
    peer.close()
    peer.drop()
    warm = int(len(pushes) * WARMUP_SHARE)
    pushes, pops = pushes[warm:], pops[warm:]
    return {
        "rate": rate(len(pushes), (sum(pushes) + sum(pops)) / 1e3),
        **{f"push_p{share}_ms": percentile(pushes, share / 100) for share in (50, 99)},
        **{f"pop_p{share}_ms": percentile(pops, share / 100) for share in (50, 99)},
    }


class CassandraSingle(Scenario):
    name = "cassandra-single"
    title = "On Cassandra, a message at a time: push one, pop it, commit it, 100 B"
    headline = "push_p50_ms"
    higher_is_better = False
    own = OWN
    peers: ClassVar[tuple[str, ...]] = ("cassandra-rows", *KAFKA)

    def cases(self, plan: Plan) -> list[Case]:
        return [
            Case("cassandra-single", "one node"),
            Case("cassandra-single/three", "three nodes, three replicas", instead=THREE),
        ]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("push_p50_ms", "push, p50 ms", "ms"),
            Column("push_p99_ms", "p99 ms", "ms"),
            Column("pop_p50_ms", "pop and commit, p50 ms", "ms"),
            Column("pop_p99_ms", "p99 ms", "ms"),
            Column("rate", "messages/s", "rate"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        return run([Job(one_at_a_time, (seat, plan.alternating_s))], SECONDS_MAX)[0]
