"""On Cassandra, worker processes of one group share one pipe, and take one message at a time."""

from __future__ import annotations

import time
from time import perf_counter

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import LostMessagesError
from bench.peers.ours.embedded import as_cassq
from bench.plan import Plan
from bench.results.figures import percentile, rate
from bench.scenarios.cassandra.poppers import clear, fill
from bench.scenarios.cassandra.through import OWN, THREE
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 300.0
# How long a worker waits for a message at most: of a cp queue, until all others had their turns.
TURN_SECONDS_MAX = 60.0
PROCESSES = 8
TASK_SECONDS = 0.005
MOST = PROCESSES / TASK_SECONDS
COMMITS_MOST = MOST / 2  # all of them are conditional writes of one partition
# They learn how long a task takes before anything is counted.
WARM_SECONDS = 2.0
# Of a cp queue they take one message after another: one has the lock, and passes it on.
IN_ORDER = "cassandra-workers/cp"
# How a worker settles what it popped.
WAYS = {"acks": "pop one, ack it", "commits": "pop one, commit it"}


def work(gate: Gate, seat: Seat, way: str, seconds: float) -> Figures:
    """Pop one, work, settle it, and the next: how many in so many seconds, and how long pop and
    settling took, together, at the 99th percentile."""
    peer = as_cassq(seat.peer())
    popper = peer.client.queue(seat.place.queue).popper()
    gate.meet()  # All processes are connected.
    begin = perf_counter() + min(WARM_SECONDS, 3 * seconds)
    taken: list[float] = []
    while (begun := perf_counter()) < begin + seconds:
        messages = popper.pop(1, TURN_SECONDS_MAX)
        if not messages:
            raise LostMessagesError("a message did not come")
        time.sleep(TASK_SECONDS)
        if way == "commits":
            popper.commit(messages)
        else:
            messages[0].ack()
        if begun >= begin:
            taken.append((perf_counter() - begun - TASK_SECONDS) * 1e3)
    popper.close()
    peer.close()
    return {"done": float(len(taken)), "p99_ms": percentile(taken, 0.99) if taken else 0.0}


def _work(seat: Seat, kind: str, way: str, seconds: float) -> list[Figures]:
    """What each process did in so many seconds."""
    most = MOST if way == "acks" else COMMITS_MOST
    run([Job(fill, (seat, int(1.5 * most * (seconds + WARM_SECONDS)), kind))], SECONDS_MAX)
    found = run([Job(work, (seat, way, seconds))] * PROCESSES, SECONDS_MAX + seconds)
    run([Job(clear, (seat,))], SECONDS_MAX)
    return found


class CassandraWorkers(Scenario):
    name = "cassandra-workers"
    title = f"On Cassandra, workers that take one message at a time, {TASK_SECONDS * 1e3:g} ms each"
    headline = "acks"
    own = OWN
    alone = True

    def __init__(self) -> None:
        self._warm: set[str] = set()  # the servers that are warm

    def cases(self, plan: Plan) -> list[Case]:
        workers = f"{PROCESSES} processes on one pipe, ideal {MOST:,.0f}/s"
        return [
            Case(self.name, f"one node, {workers}"),
            Case(f"{self.name}/three", f"three nodes, {workers}", instead=THREE),
            Case(IN_ORDER, f"one node, {PROCESSES} processes on a pipe of a cp queue, in turns"),
        ]

    def columns(self, plan: Plan) -> list[Column]:
        each = [
            (
                Column(way, f"{title}, messages/s", "rate"),
                Column(f"{way}_p99_ms", "slowest process' p99 without the work, ms", "ms"),
            )
            for way, title in WAYS.items()
        ]
        return [column for columns in each for column in columns]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        kind = "cp" if case.key == IN_ORDER else "ap"
        if plan.workers_warm_s and seat.place.address not in self._warm:
            self._warm.add(seat.place.address)
            _work(seat.part("warm"), kind, "commits", plan.workers_warm_s)
        figures: Figures = {}
        for way in WAYS:
            seconds = plan.alternating_s
            found = _work(seat.part(way), kind, way, seconds)
            figures[way] = rate(int(sum(each["done"] for each in found)), seconds)
            figures[f"{way}_p99_ms"] = max(each["p99_ms"] for each in found)
        return figures
