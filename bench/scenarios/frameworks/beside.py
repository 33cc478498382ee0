"""Frameworks of tasks, each used as its documentation says: tasks that do nothing, pushed and run.

A process pushes them, one at a time in each of eight threads, or of a hundred tasks of an event
loop where the framework is made for one; then one process runs and acks them. huey and cassq run in
the process that pushed, timed from the call that begins; the others by their command, timed from
the first task to the last, without its start. None keeps results.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import ClassVar

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.frameworks.working import BROKER, pushed, ran
from bench.scenarios.scenario import Case, Column, Scenario
from bench.scenarios.tasks import LOOP_TASKS, THREADS, of_cassq, of_huey
from bench.servers.postgresql import PostgresqlServer
from bench.servers.redis import RedisUrlServer

SECONDS_MAX = 900.0
APPS = "bench.scenarios.frameworks"


def pushed_in_loop(push: Callable[[int], Awaitable[object]], count: int) -> Awaitable[float]:
    """The tasks pushed a second, one at a time in each task of a loop."""

    async def some(first: int) -> None:
        for number in range(first, count, LOOP_TASKS):
            await push(number)

    async def all_of_them() -> float:
        started = perf_counter()
        await asyncio.gather(*(some(first) for first in range(LOOP_TASKS)))
        return rate(count, perf_counter() - started)

    return all_of_them()


def of_celery(directory: Path, broker: str, count: int) -> Figures:
    """With the pool `solo`, the quickest for tasks that do nothing."""
    from bench.scenarios.frameworks.celery_app import made

    push = pushed(made(broker, None).tasks["nothing"].delay, count, THREADS)
    options = ["--pool", "solo", "--loglevel", "warning", "--without-gossip", "--without-mingle"]
    command = [sys.executable, "-m", "celery", "-A", f"{APPS}.celery_app", "worker", *options]
    return {"push": push, "run": ran(directory, command, broker, count, SECONDS_MAX)}


def of_dramatiq(directory: Path, broker: str, count: int) -> Figures:
    from bench.scenarios.frameworks.dramatiq_app import nothing

    push = pushed(nothing.send, count, THREADS)
    options = ["--processes", "1", "--threads", str(THREADS)]
    command = [sys.executable, "-m", "dramatiq", f"{APPS}.dramatiq_app", *options]
    return {"push": push, "run": ran(directory, command, broker, count, SECONDS_MAX)}


def of_taskiq(directory: Path, broker: str, count: int) -> Figures:
    from bench.scenarios.frameworks.taskiq_app import broker as brokers
    from bench.scenarios.frameworks.taskiq_app import nothing

    async def push_all() -> float:
        await brokers.startup()
        found = await pushed_in_loop(nothing.kiq, count)
        await brokers.shutdown()
        return found

    push = asyncio.run(push_all())
    command = [sys.executable, "-m", "taskiq", "worker", "--workers", "1"]
    command += [f"{APPS}.taskiq_app:broker"]
    return {"push": push, "run": ran(directory, command, broker, count, SECONDS_MAX)}


def of_procrastinate(directory: Path, broker: str, count: int) -> Figures:
    from bench.scenarios.frameworks.procrastinate_app import app, nothing

    async def push_all() -> float:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            return await pushed_in_loop(lambda number: nothing.defer_async(number=number), count)

    push = asyncio.run(push_all())
    command = [sys.executable, "-m", "procrastinate", "--app", f"{APPS}.procrastinate_app.app"]
    command += ["worker", "--concurrency", str(LOOP_TASKS)]
    return {"push": push, "run": ran(directory, command, broker, count, SECONDS_MAX)}


OF = {
    "celery": of_celery,
    "dramatiq": of_dramatiq,
    "taskiq": of_taskiq,
    "procrastinate": of_procrastinate,
}


def at_server(_gate: Gate, name: str, directory: Path, broker: str, count: int) -> Figures:
    """One framework, in a process that knows its broker by its environment, as workers do."""
    os.environ[BROKER] = broker
    return OF[name](directory, broker, count)


def of_ours(_gate: Gate, url: str, count: int) -> Figures:
    return of_cassq(url, count)


def of_hueys(_gate: Gate, directory: Path, count: int) -> Figures:
    return of_huey(directory, count)


def alone(name: str, function: Callable[..., Figures], *arguments: object) -> Figures:
    """What one framework measures in a process of its own, by its name."""
    (found,) = run([Job(function, arguments)], SECONDS_MAX)
    return {f"{name}_{figure}": value for figure, value in found.items()}


class Frameworks(Scenario):
    name = "frameworks"
    title = "Frameworks of tasks: functions that do nothing, pushed one at a time and run"
    headline = "times"
    alone = True
    parts: ClassVar[Mapping[str, str]] = {
        "cassq_async": "cassq, async",
        "cassq": "cassq, threads",
        "os_async": "cassq, `durability=os`, async",
        "os": "cassq, `durability=os`, threads",
        "huey": "huey on SQLite, synced, threads",
        "celery": "Celery on Redis, solo",
        "dramatiq": "Dramatiq on Redis, threads",
        "taskiq": "taskiq on Redis streams, async",
        "procrastinate": "procrastinate on PostgreSQL, async",
    }

    def cases(self, plan: Plan) -> list[Case]:
        return [Case("frameworks", f"{plan.framework_tasks:,} tasks, one process")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("push", "pushed/s", "rate"),
            Column("run", "run and acked/s", "rate"),
            Column("both", "both, one after the other", "rate"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        home, count = seat.place.directory, plan.framework_tasks
        found: Figures = {}
        for name, query in (("cassq", ""), ("os", "?durability=os")):
            url = f"file://{home.resolve()}/{name}{query}"
            ours = alone(name, of_ours, url, count)
            ours[f"{name}_async_push"] = ours.pop(f"{name}_soon")
            ours[f"{name}_async_run"] = ours.pop(f"{name}_async")
            found |= ours
        (home / "huey").mkdir()
        found |= alone("huey", of_hueys, home / "huey", count)
        for name in ("celery", "dramatiq", "taskiq"):
            with RedisUrlServer(home / name, synced=False) as redis:
                found |= alone(name, at_server, name, home / name, f"{redis.url}/0", count)
        with PostgresqlServer(home / "procrastinate") as server:
            place = home / "worker"
            place.mkdir()
            found |= alone(
                "procrastinate", at_server, "procrastinate", place, server.address, count
            )
        for name in self.parts:
            found[f"{name}_both"] = 1 / (1 / found[f"{name}_push"] + 1 / found[f"{name}_run"])
        found["times"] = found["cassq_both"] / found["celery_both"]
        return found
