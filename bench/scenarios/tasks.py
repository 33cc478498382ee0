"""Tasks: functions that do nothing, pushed and run, beside huey with its files synced.

huey forgets a task when it hands it out; cassq acks it when it has run. Both push one at a time, in
eight threads, and run in eight threads of one process.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from time import perf_counter

from huey import SqliteHuey

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.frameworks.working import pushed
from bench.scenarios.scenario import Case, Column, Scenario
from cassq.tasks import App

SECONDS_MAX = 300.0
THREADS = 8
LOOP_TASKS = 100


def of_cassq(url: str, count: int) -> Figures:
    with App(url) as app:

        @app.task(name="nothing")
        def nothing(number: int) -> None:
            """Do nothing."""

        @app.task(name="soon", queue="soon")
        async def soon(number: int) -> None:
            """Do nothing."""

        async def push_soon() -> None:
            async def some(first: int) -> None:
                for number in range(first, count, LOOP_TASKS):
                    await soon.push_async(number)

            await asyncio.gather(*(some(first) for first in range(LOOP_TASKS)))

        def ran(queue: str, most: int) -> float:
            started = perf_counter()
            app.run(queue, concurrency=most, max_tasks=count)
            return rate(count, perf_counter() - started)

        figures = {"push": pushed(nothing.push, count, THREADS), "run": ran("tasks", THREADS)}
        started = perf_counter()
        asyncio.run(push_soon())
        figures["soon"] = rate(count, perf_counter() - started)
        figures["async"] = ran("soon", LOOP_TASKS)
    return {**figures, "both": 1 / (1 / figures["soon"] + 1 / figures["async"])}


def of_huey(directory: Path, count: int) -> Figures:
    path = directory / "huey.db"
    huey = SqliteHuey(filename=str(path), fsync=True, timeout=60, results=False)
    left, done = [count], threading.Event()
    lock = threading.Lock()

    def nothing(number: int) -> None:
        with lock:
            left[0] -= 1
            if not left[0]:
                done.set()

    task = huey.task(name="nothing")(nothing)
    push = pushed(task, count, THREADS)
    consumer = huey.create_consumer(workers=THREADS, periodic=False, check_worker_health=False)
    started = perf_counter()
    consumer.start()
    done.wait(SECONDS_MAX)
    seconds = perf_counter() - started
    consumer.stop(graceful=True)
    return {"push": push, "run": rate(count, seconds)}


def pass_through(_gate: Gate, seat: Seat, count: int) -> Figures:
    """The same tasks by each, one after the other."""
    directory = seat.place.directory
    ours, theirs = of_cassq(f"file://{directory.resolve()}", count), of_huey(directory, count)
    pair = 1 / (1 / ours["push"] + 1 / ours["run"])
    peer = 1 / (1 / theirs["push"] + 1 / theirs["run"])
    theirs = {f"huey_{figure}": value for figure, value in theirs.items()}
    return {**ours, **theirs, "times": pair / peer, "async_times": ours["both"] / peer}


class Tasks(Scenario):
    name = "tasks"
    title = "Tasks: functions that do nothing, pushed one at a time and run"
    headline = "times"
    alone = True

    def cases(self, plan: Plan) -> list[Case]:
        return [Case("tasks", f"{THREADS} threads, one process")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("push", "cassq: pushed/s", "rate"),
            Column("run", "run and acked/s", "rate"),
            Column("soon", f"async: pushed/s by {LOOP_TASKS} tasks", "rate"),
            Column("async", "run and acked/s", "rate"),
            Column("both", "both, one after the other", "rate"),
            Column("huey_push", "huey: pushed/s", "rate"),
            Column("huey_run", "run/s", "rate"),
            Column("times", "pushed and run, cassq / huey", "ratio"),
            Column("async_times", "async, cassq / huey", "ratio"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        return run([Job(pass_through, (seat, plan.task_count))], SECONDS_MAX)[0]
