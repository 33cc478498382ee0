"""Fairness: how long others wait behind the backlog of one key, and what that costs its owner."""

from __future__ import annotations

import threading
from time import perf_counter

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
    """Threads that share a popper, and are always busy. dwell: seconds from the push of a quiet
    message until it was handed out. done: messages, and how many of them were noisy."""

    def __init__(self, queue: cassq.Queue, group: str) -> None:
        self.dwell: list[float] = []
        self.done = self.noisy = 0
        self._queue = queue
        self._popper = queue.popper(group)
        self._over = threading.Event()
        self._mutex = threading.Lock()

    def run(self, seconds: float, *, others: bool) -> None:
        """Work for a time, in which others may push."""
        threads = [threading.Thread(target=self._work) for _ in range(THREADS)]
        threads += [threading.Thread(target=self._push)] if others else []
        for thread in threads:
            thread.start()
        self._over.wait(seconds)
        self._over.set()
        for thread in threads:
            thread.join()
        self._popper.close()

    def _work(self) -> None:
        while not self._over.is_set():
            for message in self._popper.pop(1, wait=0.5):
                came = perf_counter()
                self._over.wait(WORK)
                message.ack()
                with self._mutex:
                    self.done += 1
                    if message.key == NOISY:
                        self.noisy += 1
                    else:
                        self.dwell.append(came - float(message.payload))

    def _push(self) -> None:
        with self._queue.pusher() as pusher:
            while not self._over.is_set():
                for key in QUIET:
                    pusher.push(b"%.6f" % perf_counter(), key=key)
                    self._over.wait(1 / len(QUIET))


def serve(_gate: Gate, seat: Seat, seconds: float, backlog: int) -> Figures:
    """Consumers at saturation, with a backlog of one key in front: alone, with others in a fair
    group, and with others in one that is not."""
    client = cassq.connect(f"file://{seat.place.directory.resolve()}")
    # Several pipes of the backlog, so that nobody finds the others' in a pipe beside it.
    queue = client.create_queue("fair", max_pushes_per_pipe=max(1, backlog // 10))
    for name in ("alone", "fair", "unfair"):
        queue.create_group(name, fair=name != "unfair")
    payloads = chunk(seat.place.size, BATCH)
    with queue.pusher() as pusher:
        for _ in range(backlog // BATCH):
            pusher.push_many(payloads, keys=[NOISY] * BATCH)
    alone = Consumers(queue, "alone")
    alone.run(seconds, others=False)
    fair = Consumers(queue, "fair")
    fair.run(seconds, others=True)
    unfair = Consumers(queue, "unfair")
    unfair.run(seconds, others=True)
    client.close()
    kept = rate(fair.noisy, seconds) / rate(alone.noisy, seconds)
    return {
        "alone": rate(alone.noisy, seconds),
        "noisy": rate(fair.noisy, seconds),
        "kept": kept,
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
        return [Case("backlog", title)]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("alone", "its messages/s alone", "rate"),
            Column("noisy", "beside the others", "rate"),
            Column("kept", "kept", "ratio"),
            Column("p50_ms", "dwell of the others, p50 ms", "ms"),
            Column("p99_ms", "p99 ms", "ms"),
            Column("came", "of theirs that came", "rate"),
            Column("unfair", "the same without fairness", "rate"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        job = Job(serve, (seat, plan.fair_s, plan.fair_backlog))
        return run([job], SECONDS_MAX)[0]
