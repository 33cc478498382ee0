"""On Cassandra, what small batches cost: messages pushed and popped in batches of two sizes."""

from __future__ import annotations

from itertools import count, islice
from time import perf_counter

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import LostMessagesError
from bench.measuring.payloads import chunk
from bench.peers.ours.embedded import as_cassq
from bench.plan import SIZES, Plan
from bench.results.figures import rate
from bench.scenarios.cassandra.through import OWN
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 300.0
SMALL, LARGE = 5_000, 50_000
POP_SECONDS = 10.0


def pass_both(_gate: Gate, seat: Seat, seconds: float) -> Figures:
    """Pass one large batch, and as many messages in small ones, through a queue in turn."""
    peer = as_cassq(seat.peer())
    peer.create()
    load = chunk(seat.place.size, LARGE)
    spent: dict[int, float] = dict.fromkeys((SMALL, LARGE), 0.0)
    passed: dict[int, int] = dict.fromkeys(spent, 0)
    queue = peer.client.queue(seat.place.queue)
    with queue.pusher() as pusher, queue.popper() as popper:
        for turn in count():  # the first one does not count
            for size in spent:
                began = perf_counter()
                left = iter(load)
                while batch := list(islice(left, size)):
                    pusher.push_many(batch)
                found = 0
                while found < LARGE:
                    messages = popper.pop(size, POP_SECONDS)
                    if not messages:
                        raise LostMessagesError(f"{LARGE - found} messages did not come")
                    popper.commit(messages)
                    found += len(messages)
                if turn:
                    spent[size] += perf_counter() - began
                    passed[size] += found
            if min(spent.values()) >= seconds:
                break
    peer.close()
    peer.drop()
    small, large = (rate(passed[size], spent[size]) for size in (SMALL, LARGE))
    return {"small": small, "large": large, "share": small / large}


class CassandraBatches(Scenario):
    name = "cassandra-batches"
    title = f"On Cassandra: through, in batches of {SMALL:,} and of {LARGE:,}, one process"
    headline = "share"
    own = OWN
    alone = True

    def cases(self, plan: Plan) -> list[Case]:
        return [Case(f"cassandra-batches/{size}", f"one node, {size:,} B", size) for size in SIZES]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("small", f"batches of {SMALL:,}, through/s", "rate"),
            Column("large", f"batches of {LARGE:,}, through/s", "rate"),
            Column("share", "small over large", "ratio"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        return run([Job(pass_both, (seat, plan.alternating_s))], SECONDS_MAX)[0]
