"""The metrics of a worker's processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cassq.inspect.metrics import COUNTER, GAUGE, GROUP, QUEUE, Histogram, Metric
from cassq.worker.journal import TASK_SECONDS, Outcome


def worker_metrics(facts: Mapping[str, Any], *, queue: str, group: str) -> list[Metric | Histogram]:
    """The metrics of all processes of one worker. facts: as `Supervisor.facts` gives them."""
    labels = {QUEUE: queue, GROUP: group}
    tasks = [({**labels, "outcome": str(o)}, facts["outcomes"].get(o, 0)) for o in Outcome]
    processes = [({**labels, "state": state}, facts[state]) for state in ("processes", "ready")]
    replaced = [({**labels, "reason": why}, n) for why, n in sorted(facts["replaced"].items())]
    return [
        Metric("cassq_worker_tasks_total", COUNTER, "Tasks that ended, by how.", tasks),
        Histogram(
            "cassq_worker_task_seconds",
            "Time that a task took.",
            TASK_SECONDS,
            [(labels, facts["buckets"], facts["seconds"])],
        ),
        Metric(
            "cassq_worker_running_tasks", GAUGE, "Tasks that run.", [(labels, facts["running"])]
        ),
        Metric(
            "cassq_worker_stuck_threads",
            GAUGE,
            "Threads whose task ignores its time limit.",
            [(labels, facts["stuck"])],
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
