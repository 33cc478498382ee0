"""Celery on cassq, and on Redis: the same tasks and workers, in turns, results beside the queues.

Redis is measured as it is delivered, when it syncs nothing that it has acknowledged, and with each
answer synced; cassq with its default, which syncs, and with `?durability=os`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.plan import Plan
from bench.results.figures import percentile, rate
from bench.scenarios.frameworks.celery_app import made
from bench.scenarios.frameworks.working import RESULTS, at, working
from bench.scenarios.scenario import Case, Column, Scenario
from bench.servers.redis import RedisUrlServer

SECONDS_MAX = 3_600.0
PROCESSES = 2
WARM_TASKS = 200
APP = "bench.scenarios.frameworks.celery_app"


def command(name: str) -> list[str]:
    """The command of a worker."""
    options = ["--concurrency", str(PROCESSES), "--loglevel", "warning", "--hostname", name]
    return [sys.executable, "-m", "celery", "-A", APP, "worker", *options]


def together(app: Any, count: int, *, batch: bool) -> float:
    """The tasks of a group that are done a second, from the call until the last result is here.
    batch: published in a batch of kombu's."""
    from celery import group

    started = perf_counter()
    with ExitStack() as stack:
        producer = None
        if batch:
            producer = stack.enter_context(app.producer_pool.acquire(block=True))
            stack.enter_context(producer.batch())
        tasks = group([app.tasks["nothing"].s(number) for number in range(count)], app=app)
        result = tasks.apply_async(producer=producer)
    result.get(timeout=SECONDS_MAX)
    return rate(count, perf_counter() - started)


def trip(app: Any) -> float:
    """The seconds until one task's result is here."""
    started = perf_counter()
    app.tasks["nothing"].delay(0).get(timeout=SECONDS_MAX)
    return perf_counter() - started


def measured(_gate: Gate, directory: Path, count: int, trips: int) -> Figures:
    """All brokers, with a worker each; those of the others idle."""
    figures: Figures = {}
    with ExitStack() as stack:
        queues = f"cassq+file://{directory.resolve()}"
        places = {
            "synced": (f"{queues}/synced",) * 2,
            "os": (f"{queues}/os?durability=os",) * 2,
        }
        for name, synced in (("redis", False), ("always", True)):
            server = stack.enter_context(RedisUrlServer(directory / name, synced=synced))
            places[name] = (f"{server.url}/0", f"{server.url}/1")
        apps: dict[str, Any] = {}
        for name, (broker, results) in places.items():
            log = directory / f"{name}.log"
            stack.enter_context(working(log, command(name), at(broker, **{RESULTS: results})))
            apps[name] = made(broker, results)
        for app in apps.values():
            trip(app)
            together(app, WARM_TASKS, batch=True)
        for name, app in apps.items():
            figures[f"{name}_single"] = together(app, count, batch=False)
            figures[f"{name}_batch"] = together(app, count, batch=True)
        seconds: dict[str, list[float]] = {name: [] for name in apps}
        for _ in range(trips):
            for name, app in apps.items():
                seconds[name].append(trip(app))
    for name, each in seconds.items():
        figures[f"{name}_p50_ms"] = 1000 * percentile(each, 0.50)
        figures[f"{name}_p99_ms"] = 1000 * percentile(each, 0.99)
    return figures


def compared(figures: Figures) -> Figures:
    """With what the targets are about: cassq, which syncs, over Redis, which does not."""
    return {
        **figures,
        "times": figures["synced_single"] / figures["redis_single"],
        "batch_times": figures["synced_batch"] / figures["redis_batch"],
        "p99_times": figures["synced_p99_ms"] / figures["redis_p99_ms"],
    }


class Celery(Scenario):
    name = "celery"
    title = f"Celery: a group of tasks that do nothing, {PROCESSES} prefork processes"
    headline = "times"
    alone = True
    parts: ClassVar[Mapping[str, str]] = {
        "synced": "cassq",
        "os": "cassq, `durability=os`",
        "redis": "Redis as it is delivered, nothing synced",
        "always": "Redis, `appendfsync always`",
    }

    def cases(self, plan: Plan) -> list[Case]:
        count, trips = plan.celery_tasks, plan.celery_trips
        return [Case("celery", f"{count:,} tasks from the call to the last result; {trips} trips")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("single", "a group: tasks/s", "rate"),
            Column("batch", "in a batch: tasks/s", "rate"),
            Column("p50_ms", "a single task and its result, ms: median", "ms"),
            Column("p99_ms", "p99", "ms"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        jobs = [Job(measured, (seat.place.directory, plan.celery_tasks, plan.celery_trips))]
        return compared(run(jobs, SECONDS_MAX)[0])
