"""Handlers: what it costs to have a function called for every message, in threads."""

from __future__ import annotations

from time import perf_counter

import cassq
from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.payloads import chunk
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 300.0
BATCH = 1_000
THREADS = 8


def fill(queue: cassq.Queue, size: int, count: int) -> None:
    payloads = chunk(size, BATCH)
    with queue.pusher() as pusher:
        for _ in range(count // BATCH):
            pusher.push_many(payloads)


def iterate(queue: cassq.Queue, count: int) -> float:
    """The bare loop: the seconds until all are acked, durably."""
    started, left = perf_counter(), count
    with queue.popper() as popper:
        for message in popper:
            message.ack()
            left -= 1
            if not left:
                break
    return perf_counter() - started


def nothing(_message: cassq.Message) -> None:
    """Do nothing."""


def handle(queue: cassq.Queue, count: int, threads: int) -> float:
    """The same through a worker."""
    started = perf_counter()
    queue.run(nothing, concurrency=threads, max_tasks=count)
    return perf_counter() - started


def pass_through(_gate: Gate, seat: Seat, count: int) -> Figures:
    """The same messages in each way, one after another."""
    with cassq.connect(f"file://{seat.place.directory.resolve()}") as client:
        queue = client.create_queue("handlers")
        fill(queue, seat.place.size, count)
        loop = rate(count, iterate(queue, count))
        fill(queue, seat.place.size, count)
        eight = rate(count, handle(queue, count, THREADS))
        fill(queue, seat.place.size, count)
        one = rate(count, handle(queue, count, 1))
    return {"loop": loop, "eight": eight, "one": one, "kept": eight / loop}


class Handlers(Scenario):
    name = "handlers"
    title = "Handlers: a function that does nothing, called for every message"
    headline = "kept"
    alone = True

    def cases(self, plan: Plan) -> list[Case]:
        return [Case("handlers", "messages of 100 B, one process")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("loop", "acked/s by a loop over a popper, which claims ahead", "rate"),
            Column("eight", f"by queue.run, {THREADS} threads", "rate"),
            Column("kept", "kept", "ratio"),
            Column("one", "by queue.run, 1 thread", "rate"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        return run([Job(pass_through, (seat, plan.handler_messages))], SECONDS_MAX)[0]
