"""An event loop: what pushing, running and acking cost in the tasks of one process."""

from __future__ import annotations

import asyncio
from time import perf_counter

import cassq.aio
from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.payloads import chunk
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.handlers import handle
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 300.0
TASKS = 1_000
CONCURRENCY = 100
THREADS = 8


async def push(queue: cassq.aio.Queue, size: int, count: int) -> float:
    """Seconds until all are durable, each pushed by an await of its own, in tasks side by side."""
    payloads = chunk(size, TASKS)

    async def work(payload: bytes) -> None:
        for _ in range(count // TASKS):
            await queue.push(payload)

    started = perf_counter()
    await asyncio.gather(*(work(payload) for payload in payloads))
    return perf_counter() - started


async def nothing(_message: cassq.aio.Message) -> None:
    """Do nothing."""


async def run_all(queue: cassq.aio.Queue, count: int) -> float:
    """Seconds until each was given to a task of a worker, and its ack is durable."""
    started = perf_counter()
    await queue.run(nothing, concurrency=CONCURRENCY, max_tasks=count)
    return perf_counter() - started


async def iterate(queue: cassq.aio.Queue, count: int) -> float:
    """The same by one task, which iterates over a popper and acks."""
    started, left = perf_counter(), count
    async with queue.popper() as popper:
        async for message in popper:
            await message.ack()
            left -= 1
            if not left:
                break
    return perf_counter() - started


async def measured(seat: Seat, count: int) -> Figures:
    async with cassq.aio.connect(f"file://{seat.place.directory.resolve()}") as client:
        queue = await client.create_queue("aio")
        pushed = await push(queue, seat.place.size, count)
        ran = await run_all(queue, count)
        await push(queue, seat.place.size, count)
        iterated = await iterate(queue, count)
        await push(queue, seat.place.size, count)
        threads = await client.call(handle, queue.sync, count, THREADS)
    return {
        "push": rate(count, pushed),
        "run": rate(count, ran),
        "both": rate(count, pushed + ran),
        "loop": rate(count, iterated),
        "threads": rate(count, threads),
    }


def pass_through(_gate: Gate, seat: Seat, count: int) -> Figures:
    """The same messages in each way, one after another."""
    return asyncio.run(measured(seat, count))


class Aio(Scenario):
    name = "aio"
    title = "An event loop: tasks that push, and async functions that do nothing"
    headline = "run"
    alone = True

    def cases(self, plan: Plan) -> list[Case]:
        return [Case("aio", "messages of 100 B, one process")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("push", f"pushed/s by {TASKS:,} tasks, one await each", "rate"),
            Column("run", f"run and acked/s by queue.run, {CONCURRENCY} tasks", "rate"),
            Column("both", "both, one after the other", "rate"),
            Column("loop", "acked/s by async for", "rate"),
            Column("threads", f"by queue.run, {THREADS} threads", "rate"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        return run([Job(pass_through, (seat, plan.handler_messages))], SECONDS_MAX)[0]
