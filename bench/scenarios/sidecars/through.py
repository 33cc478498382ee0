"""On sidecars: messages through one synced sidecar, and through three, beside brokers."""

from __future__ import annotations

from typing import ClassVar

from bench.measuring.children import Figures, Job, Seat, run
from bench.peers.peer import Peer
from bench.plan import SIZES, Plan
from bench.results.figures import rate
from bench.scenarios.concurrent import pop_side, push_side
from bench.scenarios.latency import pop_promptly, push_steadily
from bench.scenarios.scenario import Case, Column, Scenario
from bench.scenarios.through import pass_through

SECONDS_MAX = 300.0
OWN = "cassq-sidecars"
SYNCED = ("kafka-synced", "nats-synced")
# Three servers have the same cores between them, and each does all the work.
THREE = {"kafka": "kafka-three", "nats": "nats-three", "sidecars": "sidecars-three"}
THREE_SHARE = 4
MESSAGES_MIN = 200
# One thread that waits until three servers have a message cannot always push 500 a second.
THREADS = 16


class OnSidecars(Scenario):
    name = "sidecars"
    title = "On sidecars: push all, then pop and acknowledge all; both at once; push to delivery"
    headline = "through"
    own = OWN
    peers: ClassVar[tuple[str, ...]] = ("kafka", "nats", "nats-lean", *SYNCED)

    def cases(self, plan: Plan) -> list[Case]:
        three = "three servers, three replicas"
        return [
            *(
                Case(f"sidecars/one/{size}", f"one server, messages of {size:,} B", size)
                for size in SIZES
            ),
            *(
                Case(f"sidecars/three/{size}", f"{three}, messages of {size:,} B", size, False, how)
                for size, how in ((size, THREE) for size in SIZES)
            ),
        ]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("push", "push/s", "rate"),
            Column("pop", "pop + ack/s", "rate"),
            Column("through", "through/s", "rate"),
            Column("both", "both at once/s", "rate"),
            Column("p50_ms", f"push to delivery at {plan.latency_rate}/s, p50 ms", "ms"),
            Column("p99_ms", "p99 ms", "ms"),
            Column("late_ms", "most behind schedule, ms", "ms"),
            Column("messages", "messages through", "rate"),
            Column("cpu_us", "client CPU µs a message", "ratio"),
            Column("server_cpu_us", "servers' CPU µs a message", "ratio"),
            Column("rss_bytes", "client peak MB", "MB"),
            Column("server_rss_bytes", "servers MB", "MB"),
        ]

    def takes_part(self, case: Case, peer: type[Peer]) -> bool:
        # Three brokers answer from memory: two of them have it then, and none has synced it.
        alone = peer.name in SYNCED and bool(case.instead)
        return super().takes_part(case, peer) and not alone

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        share = THREE_SHARE if case.instead else 1
        slowness = seat.peer_class().traits.slowness
        count = max(plan.messages_for(case.size, batches=True) // share // slowness, MESSAGES_MIN)
        (figures,) = run([Job(pass_through, (seat.part("through"), count))], SECONDS_MAX)
        costs = {
            name.replace("_s", "_us"): figures[name] / count * 1e6
            for name in ("cpu_s", "server_cpu_s")
        }
        flow = both_at_once(seat.part("both"), max(count // 2, MESSAGES_MIN))
        return {**figures, **costs, "both": flow, **delays(seat.part("flow"), plan)}


def both_at_once(seat: Seat, count: int) -> float:
    """Messages a second while one process pushes and another pops and acknowledges."""
    pushed, popped = run([Job(push_side, (seat, count)), Job(pop_side, (seat, count))], SECONDS_MAX)
    return rate(count, max(pushed["end"], popped["end"]) - min(pushed["start"], popped["start"]))


def delays(seat: Seat, plan: Plan) -> Figures:
    """From push to delivery, between two processes, at a steady rate."""
    count = int(plan.latency_rate * plan.sidecar_latency_s)
    sides = [
        Job(push_steadily, (seat, count, plan.latency_rate, THREADS)),
        Job(pop_promptly, (seat, count)),
    ]
    pushed, popped = run(sides, SECONDS_MAX)
    return {**pushed, **popped}
