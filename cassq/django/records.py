"""What is kept of a task: when it was enqueued, its runs, and its result.

A task has two records, each with one writer: the enqueuer, and the worker that runs the task. So
neither overwrites what the other wrote. They are stored as results of tasks, see
`cassq.catalog.result_port`: nothing is decided by them, and they expire.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.module_loading import import_string

from cassq.client.client import Client
from cassq.django.framework import (
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from cassq.errors import BackendError

logger: logging.Logger = logging.getLogger("cassq")


@dataclass(slots=True)
class Enqueued:
    """A task as it was enqueued. path: of its function; times in ISO format."""

    id: str
    path: str
    backend: str
    queue: str
    priority: int
    run_after: str | None
    enqueued_at: str
    args: list[Any]
    kwargs: dict[str, Any]


@dataclass(slots=True)
class RunOutcome:
    """The runs of a task, and its result. errors: class and traceback of each failed attempt."""

    status: str
    started_at: str
    last_attempted_at: str
    worker_ids: list[str]
    finished_at: str | None = None
    errors: list[dict[str, str]] = field(default_factory=list)
    value: Any = None


class TaskRecords:
    """The records of a client's tasks. kept: how many seconds they are kept."""

    def __init__(self, client: Client, kept: float) -> None:
        self._results = client.ports.catalog.results
        self._kept = kept

    def keep(self, task_id: str, record: Enqueued | RunOutcome) -> None:
        """Write a record. An error of the backend is only logged: it does not fail the task."""
        try:
            self._results.put(_key(task_id, type(record)), _as_json(record), self._kept)
        except BackendError as exc:
            logger.warning("the state of task %s is not kept: %s", task_id, exc)

    def drop(self, task_id: str) -> None:
        """Forget a task that could not be enqueued."""
        self._results.drop([_key(task_id, Enqueued)])

    def is_unknown(self, task_id: str) -> bool:
        """Whether the enqueuer's record is missing, as may happen for a task from an outbox."""
        return self._results.get(_key(task_id, Enqueued)) is None

    def ran(self, task_id: str) -> RunOutcome | None:
        """The runs of a task so far; None before the first."""
        raw = self._results.get(_key(task_id, RunOutcome))
        return None if raw is None else RunOutcome(**json.loads(raw))

    def result(self, task_id: str) -> Any:
        """A task's result. Raises Django's TaskResultDoesNotExist. Cost: one read."""
        keys = [_key(task_id, kind) for kind in (Enqueued, RunOutcome)]
        found = self._results.find(keys)
        first, second = (found.get(key) for key in keys)
        if first is None:
            raise TaskResultDoesNotExist(task_id)
        ran = None if second is None else RunOutcome(**json.loads(second))
        return as_result(Enqueued(**json.loads(first)), ran)


def as_result(enqueued: Enqueued, ran: RunOutcome | None) -> Any:
    """What is known of a task, as Django's TaskResult."""
    task = import_string(enqueued.path).using(
        priority=enqueued.priority, queue_name=enqueued.queue, backend=enqueued.backend
    )
    if enqueued.run_after is not None:
        task = task.using(run_after=parse_datetime(enqueued.run_after))
    result = TaskResult(
        task=task,
        id=enqueued.id,
        status=TaskResultStatus.READY if ran is None else TaskResultStatus(ran.status),
        enqueued_at=parse_datetime(enqueued.enqueued_at),
        started_at=None if ran is None else parse_datetime(ran.started_at),
        last_attempted_at=None if ran is None else parse_datetime(ran.last_attempted_at),
        finished_at=None if not ran or not ran.finished_at else parse_datetime(ran.finished_at),
        args=enqueued.args,
        kwargs=enqueued.kwargs,
        backend=enqueued.backend,
        errors=[] if ran is None else [TaskError(**error) for error in ran.errors],
        worker_ids=[] if ran is None else list(ran.worker_ids),
    )
    if ran is not None:
        object.__setattr__(result, "_return_value", ran.value)  # it is frozen
    return result


def _key(task_id: str, kind: type[Enqueued | RunOutcome]) -> str:
    return f"django:{task_id}:{kind.__name__.lower()}"


def _as_json(record: Enqueued | RunOutcome) -> bytes:
    return json.dumps(asdict(record), ensure_ascii=False).encode()
