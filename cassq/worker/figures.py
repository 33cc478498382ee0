"""The metrics of a worker's processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cassq.inspect.metrics import COUNTER, GAUGE, GROUP, QUEUE, Histogram, Metric
from cassq.worker.journal import TASK_SECONDS, Outcome


def worker_metrics(facts: Mapping[str, Any], groups: Mapping[str, str]) -> list[Metric | Histogram]:
    """The metrics of all processes of one worker. facts: from `Supervisor.facts`. groups: for each
    queue, the consumer group whose messages the worker takes."""
    of: list[tuple[dict[str, str], Mapping[str, Any]]] = [
        ({QUEUE: queue, GROUP: groups[queue]}, each) for queue, each in facts["queues"].items()
    ]
    tasks = [
        ({**labels, "outcome": str(o)}, each["outcomes"].get(o, 0))
        for labels, each in of
        for o in Outcome
    ]
    processes = [
        ({**labels, "state": state}, each[state])
        for labels, each in of
        for state in ("processes", "ready")
    ]
    replaced = [
        ({**labels, "reason": why}, count)
        for labels, each in of
        for why, count in sorted(each["replaced"].items())
    ]
    return [
        Metric("cassq_worker_tasks_total", COUNTER, "Tasks that ended, by how.", tasks),
        Histogram(
            "cassq_worker_task_seconds",
            "Time that a task took.",
            TASK_SECONDS,
            [(labels, each["buckets"], each["seconds"]) for labels, each in of],
        ),
        Metric(
            "cassq_worker_running_tasks",
            GAUGE,
            "Tasks that run.",
            [(labels, each["running"]) for labels, each in of],
        ),
        Metric(
            "cassq_worker_stuck_threads",
            GAUGE,
            "Threads whose task ignores its time limit.",
            [(labels, each["stuck"]) for labels, each in of],
        ),
        Metric(
            "cassq_worker_processes",
            GAUGE,
            "Processes: how many there should be, and how many take messages.",
            processes,
        ),
        Metric(
            "cassq_worker_replaced_processes_total",
            COUNTER,
            "Processes that were replaced, by why.",
            replaced,
        ),
    ]
