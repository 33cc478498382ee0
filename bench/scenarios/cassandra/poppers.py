"""On Cassandra, many poppers of one group share one pipe, each busy with tasks of some time."""

from __future__ import annotations

import itertools
import threading
import time
from time import perf_counter

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import LostMessagesError
from bench.measuring.payloads import chunks
from bench.peers.ours.embedded import as_cassq
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.cassandra.through import OWN
from bench.scenarios.scenario import Case, Column, Scenario
from cassq.settings import Consistency

SECONDS_MAX = 300.0
POPPERS = (10, 100)
PROCESSES = 5
TASK_SECONDS = 0.01
# They start together, connect and learn how long a task takes before anything is counted.
WARM_SECONDS = 4.0


def fill(_gate: Gate, seat: Seat, count: int, consistency: Consistency = "ap") -> Figures:
    """Push more tasks than can be done, all into one pipe."""
    peer = as_cassq(seat.peer())
    peer.create(consistency)
    peer.push(chunks(seat.place.size, count))
    peer.close()
    return {}


def work_off(gate: Gate, seat: Seat, poppers: int, seconds: float) -> Figures:
    """Threads that each take one message after another, work, and ack it; how many tasks they
    finished in so many seconds."""
    peer = as_cassq(seat.peer())
    queue = peer.client.queue(seat.place.queue)
    done: list[int] = []
    failures: list[BaseException] = []

    def work(begin: float) -> None:
        finished = 0
        try:
            with queue.popper() as popper:
                for message in popper:
                    time.sleep(TASK_SECONDS)
                    message.ack()
                    now = perf_counter()
                    if now >= begin + seconds:
                        break
                    finished += now >= begin
        except BaseException as error:
            failures.append(error)
        done.append(finished)

    gate.meet()  # All processes are connected.
    begin = perf_counter() + min(WARM_SECONDS, 3 * seconds)
    workers = [threading.Thread(target=work, args=(begin,)) for _ in range(poppers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    peer.close()
    if failures:
        raise failures[0]
    return {"done": float(sum(done)), "idle": float(done.count(0))}


def clear(_gate: Gate, seat: Seat) -> Figures:
    as_cassq(seat.peer()).drop()
    return {}


class CassandraPoppers(Scenario):
    name = "cassandra-poppers"
    title = f"On Cassandra, poppers of one group on one pipe, tasks of {TASK_SECONDS * 1e3:g} ms"
    headline = "gained"
    own = OWN
    alone = True

    def cases(self, plan: Plan) -> list[Case]:
        title = f"{PROCESSES} processes, each popper a loop over its messages"
        return [Case("cassandra-poppers", title)]

    def columns(self, plan: Plan) -> list[Column]:
        each = [
            (
                Column(f"tasks@{count}", f"{count} poppers, tasks/s", "rate"),
                Column(f"busy@{count}", "at work, % of the time", "share"),
                Column(f"idle@{count}", "poppers that finished none", "rate"),
            )
            for count in POPPERS
        ]
        return [*itertools.chain(*each), Column("gained", "most over fewest, tasks/s", "ratio")]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        figures: Figures = {}
        for count in POPPERS:
            found = with_poppers(seat.part(str(count)), count, plan.alternating_s)
            figures |= {f"{name}@{count}": value for name, value in found.items()}
        gained = figures[f"tasks@{max(POPPERS)}"] / figures[f"tasks@{min(POPPERS)}"]
        return {**figures, "gained": gained}


def with_poppers(seat: Seat, poppers: int, seconds: float) -> Figures:
    """Fill one pipe and let so many poppers share it."""
    most = poppers / TASK_SECONDS
    run([Job(fill, (seat, int(2 * most * (seconds + WARM_SECONDS))))], SECONDS_MAX)
    jobs = [Job(work_off, (seat, poppers // PROCESSES, seconds))] * PROCESSES
    found = run(jobs, SECONDS_MAX)
    run([Job(clear, (seat,))], SECONDS_MAX)
    done = int(sum(figures["done"] for figures in found))
    if not done:
        raise LostMessagesError("no task was finished")
    idle = sum(figures["idle"] for figures in found)
    tasks = rate(done, seconds)
    return {"tasks": tasks, "busy": tasks / most, "idle": idle}
