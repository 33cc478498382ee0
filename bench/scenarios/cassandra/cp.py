"""On Cassandra, what strict order costs: batches pushed to a cp queue, and to an ap queue."""

from __future__ import annotations

from time import perf_counter

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.payloads import chunk
from bench.peers.ours.embedded import as_cassq
from bench.plan import SIZES, Plan
from bench.results.figures import rate
from bench.scenarios.cassandra.through import OWN, THREE
from bench.scenarios.scenario import Case, Column, Scenario
from cassq.settings import Consistency

SECONDS_MAX = 300.0
# A conditional write takes as long whatever its size: frames of 300 to 500 KB make the most of it.
FRAME_BYTES = 400_000
# Pushed to one queue before it is the other's turn: that both meet the same machine.
BURST_FRAMES = 10
POLICIES: tuple[Consistency, ...] = ("ap", "cp")


def push_both(_gate: Gate, seat: Seat, seconds: float) -> Figures:
    """Push frames to a queue of each kind in turn; nobody pops."""
    peer = as_cassq(seat.peer())
    peer.create()
    client = peer.client
    load = chunk(seat.place.size, FRAME_BYTES // seat.place.size)
    pushers = {}
    for policy in POLICIES:
        queue = client.create_queue(f"{seat.place.queue}-{policy}", consistency=policy)
        pushers[policy] = queue.pusher()
        pushers[policy].push_many(load)
    pushed: dict[str, int] = dict.fromkeys(POLICIES, 0)
    spent: dict[str, float] = dict.fromkeys(POLICIES, 0.0)
    while min(spent.values()) < seconds:
        for policy, pusher in pushers.items():
            started = perf_counter()
            for _ in range(BURST_FRAMES):
                pusher.push_many(load)
            spent[policy] += perf_counter() - started
            pushed[policy] += BURST_FRAMES * len(load)
    for policy, pusher in pushers.items():
        pusher.close()
        client.delete_queue(f"{seat.place.queue}-{policy}")
    peer.close()
    peer.drop()
    rates: dict[str, float] = {policy: rate(pushed[policy], spent[policy]) for policy in POLICIES}
    return {**rates, "times": rates["ap"] / rates["cp"]}


class CassandraCp(Scenario):
    name = "cassandra-cp"
    title = f"On Cassandra, strict order: pushes in frames of {FRAME_BYTES // 1000} KB"
    headline = "times"
    own = OWN
    alone = True

    def cases(self, plan: Plan) -> list[Case]:
        three = "three nodes, three replicas"
        return [
            *(Case(f"cassandra-cp/{size}", f"one node, {size:,} B", size) for size in SIZES),
            Case("cassandra-cp/three", f"{three}, 100 B", instead=THREE),
        ]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("ap", "ap, push/s", "rate"),
            Column("cp", "cp, push/s", "rate"),
            Column("times", "ap over cp", "ratio"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        return run([Job(push_both, (seat, plan.alternating_s))], SECONDS_MAX)[0]
