"""On Cassandra, a message at a time: how long a push, a pop and a commit take, and all three."""

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
STEPS = ("push", "pop", "commit")


def one_at_a_time(_gate: Gate, seat: Seat, seconds: float) -> Figures:
    """Push one, pop it, commit it, and the next; each step is done when it returns."""
    peer = seat.peer()
    peer.create()
    lane = peer.lane(wakes=True)
    payloads = chunk(seat.place.size, PAYLOADS)
    turns: list[tuple[float, float, float]] = []
    started = perf_counter()
    while (begun := perf_counter()) - started < seconds * (1 + WARMUP_SHARE):
        lane(payloads[len(turns) % PAYLOADS])
        pushed = perf_counter()
        if len(peer.pop(1, PATIENCE_SECONDS)) != 1:
            raise LostMessagesError(f"message {len(turns)} did not come")
        popped = perf_counter()
        peer.ack()
        turns.append((pushed - begun, popped - pushed, perf_counter() - popped))
    peer.close()
    peer.drop()
    turns = turns[int(len(turns) * WARMUP_SHARE) :]
    steps = dict(zip(STEPS, zip(*turns, strict=True), strict=True))
    wholes = [sum(turn) for turn in turns]
    return {
        "rate": rate(len(turns), sum(wholes)),
        **{
            f"{step}_p{share}_ms": percentile(taken, share / 100) * 1e3
            for step, taken in (*steps.items(), ("turn", wholes))
            for share in (50, 99)
        },
    }


class CassandraSingle(Scenario):
    name = "cassandra-single"
    title = "On Cassandra, a message at a time: push one, pop it, commit it, 100 B"
    headline = "turn_p50_ms"
    higher_is_better = False
    own = OWN
    peers: ClassVar[tuple[str, ...]] = ("cassandra-rows", *KAFKA)

    def __init__(self) -> None:
        self._warm: set[tuple[str, str]] = set()  # the servers that are warm, each with its peer

    def cases(self, plan: Plan) -> list[Case]:
        return [
            Case("cassandra-single", "one node"),
            Case("cassandra-single/three", "three nodes, three replicas", instead=THREE),
        ]

    def columns(self, plan: Plan) -> list[Column]:
        titles = dict(zip((*STEPS, "turn"), (*STEPS, "all three"), strict=True))
        each = [
            (
                Column(f"{step}_p50_ms", f"{title}, p50 ms", "ms"),
                Column(f"{step}_p99_ms", "p99 ms", "ms"),
            )
            for step, title in titles.items()
        ]
        return [
            *(column for columns in each for column in columns),
            Column("rate", "messages/s", "rate"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        server = seat.place.address, seat.peer_name
        if plan.turns_warm_s and server not in self._warm:
            self._warm.add(server)
            _take_turns(seat.part("warm"), plan.turns_warm_s)
        return _take_turns(seat, plan.alternating_s)


def _take_turns(seat: Seat, seconds: float) -> Figures:
    return run([Job(one_at_a_time, (seat, seconds))], SECONDS_MAX + seconds)[0]
