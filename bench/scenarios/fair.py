"""Fairness: how long others wait behind the backlog of one key, and what that costs its owner."""

from __future__ import annotations

import threading
from time import perf_counter, process_time

import cassq
from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.payloads import chunk
from bench.plan import Plan
from bench.results.figures import percentile, rate
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 600.0
BATCH = 10_000
THREADS = 8
WORK = 0.005  # seconds
NOISY = b"a"
QUIET = [bytes([letter]) for letter in b"bcdefghijklmnopqrstuvwxyz"]  # one message a second each


class Consumers:
    """Threads that share a popper, and are always busy. others: the queue to which the others push.
    dwell: seconds from the push of a quiet message until it was handed out. noisy: how many of the
    noisy messages were done. spent: processor time in seconds."""

    def __init__(self, queue: cassq.Queue, group: str, others: cassq.Queue) -> None:
        self.dwell: list[float] = []
        self.noisy = 0
        self.spent = 0.0
        self._others = others
        self._popper = queue.popper(group)
        self._over = threading.Event()
        self._mutex = threading.Lock()

    def run(self, seconds: float) -> None:
        """Work for a time, in which the others push."""
        threads = [threading.Thread(target=self._work) for _ in range(THREADS)]
        threads.append(threading.Thread(target=self._push))
        before = process_time()
        for thread in threads:
            thread.start()
        self._over.wait(seconds)
        self._over.set()
        for thread in threads:
            thread.join()
        self.spent = process_time() - before
        self._popper.close()

    def _work(self) -> None:
        while not self._over.is_set():
            for message in self._popper.pop(1, wait=0.5):
                came = perf_counter()
                self._over.wait(WORK)
                message.ack()
                with self._mutex:
                    if message.key == NOISY:
                        self.noisy += 1
                    else:
                        self.dwell.append(came - float(message.payload))

    def _push(self) -> None:
        with self._others.pusher() as pusher:
            while not self._over.is_set():
                for key in QUIET:
                    pusher.push(b"%.6f" % perf_counter(), key=key)
                    self._over.wait(1 / len(QUIET))


def serve(_gate: Gate, seat: Seat, seconds: float, backlog: int) -> Figures:
    """Consumers at saturation, with a backlog of one key in front: alone, while the others push to
    another queue; with them in a fair group; and with them in one that is not. So the difference
    between the first two is what fairness costs, and not what pushes cost the machine."""
    client = cassq.connect(f"file://{seat.place.directory.resolve()}")
    # Several pipes of the backlog, so that nobody finds the others' in a pipe beside it.
    queue = client.create_queue("fair", max_pushes_per_pipe=max(1, backlog // 10))
    for name in ("alone", "fair", "unfair"):
        queue.create_group(name, fair=name != "unfair")
    payloads = chunk(seat.place.size, BATCH)
    with queue.pusher() as pusher:
        for _ in range(backlog // BATCH):
            pusher.push_many(payloads, keys=[NOISY] * BATCH)
    alone = Consumers(queue, "alone", client.create_queue("beside"))
    alone.run(seconds)
    fair = Consumers(queue, "fair", queue)
    fair.run(seconds)
    unfair = Consumers(queue, "unfair", queue)
    unfair.run(seconds)
    client.close()
    kept = rate(fair.noisy, seconds) / rate(alone.noisy, seconds)
    return {
        "alone": rate(alone.noisy, seconds),
        "noisy": rate(fair.noisy, seconds),
        "kept": kept,
        "kept_cpu": (alone.spent / alone.noisy) / (fair.spent / fair.noisy),
        "p50_ms": 1000 * percentile(fair.dwell, 0.5),
        "p99_ms": 1000 * percentile(fair.dwell, 0.99),
        "came": float(len(fair.dwell)),
        "unfair": float(len(unfair.dwell)),
    }


class Fair(Scenario):
    name = "fair"
    title = "Fair groups: a backlog of one key in front, and 25 others that push a message a second"
    headline = "kept"
    alone = True

    def cases(self, plan: Plan) -> list[Case]:
        title = f"{plan.fair_backlog:,} messages of 100 B wait, 8 consumers with 5 ms of work"
        return [Case("fair", title)]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("alone", "its messages/s alone", "rate"),
            Column("noisy", "beside the others", "rate"),
            Column("kept", "kept", "ratio"),
            Column("kept_cpu", "of messages a second of processor time", "ratio"),
            Column("p50_ms", "dwell of the others, p50 ms", "ms"),
            Column("p99_ms", "p99 ms", "ms"),
            Column("came", "of theirs that came", "rate"),
            Column("unfair", "the same without fairness", "rate"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        job = Job(serve, (seat, plan.fair_s, plan.fair_backlog))
        return run([job], SECONDS_MAX)[0]
