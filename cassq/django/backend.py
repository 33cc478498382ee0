"""The backend: enqueues tasks at once, at the commit, or in the transaction; and runs them.

It is an app of `cassq.tasks` with one task for each queue of the backend; a call of it carries the
path of a Django task's function. So what holds for tasks of cassq holds here too.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

import django
from django.db import close_old_connections, connections, transaction
from django.utils import timezone
from django.utils.crypto import get_random_string

from cassq.base.arguments import DELAY_MAX_SECONDS, check_seconds
from cassq.django.framework import (
    BaseTaskBackend,
    TaskContext,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from cassq.django.records import Enqueued, RunOutcome, TaskRecords, as_result
from cassq.errors import CassqError, ConfigError
from cassq.model.queues import QueuePolicy
from cassq.outbox.outbox import Outbox
from cassq.settings import QueueSettings
from cassq.tasks.app import App
from cassq.tasks.calls import Call
from cassq.tasks.task import Pushed, When
from cassq.worker.handler import Reject, Retry

logger: logging.Logger = logging.getLogger("cassq")

WHENS = ("commit", "now", "outbox")
_OPTIONS = ("url", "enqueue", "database", "retries", "results_kept", "queues")
RESULTS_SECONDS = 86_400.0
CRASHES_MAX = 5  # deliveries besides the retries, for workers that died


class Backend(BaseTaskBackend):
    """Django's tasks in queues of cassq, one for each of the backend's `QUEUES`.

    OPTIONS: url: as for `cassq.connect`. enqueue: "commit", the default, pushes when the
    transaction commits; "now" at once; "outbox" writes to an outbox in the transaction. database:
    the alias of the database of that transaction. retries: seconds to wait before each further
    attempt of a task that failed; none by default. results_kept: how many seconds results are kept,
    a day by default. queues: settings of queues that the backend creates. Raises ConfigError for
    other options.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = [name for name in self.options if name not in _OPTIONS]
        if unknown:
            raise ConfigError(
                f"task backend {alias!r} has the option {unknown[0]!r}, which does not exist",
                hint=f"the options are {', '.join(_OPTIONS)}",
            )
        self._when: str = self.options.get("enqueue", "commit")
        if self._when not in WHENS:
            raise ConfigError(
                f"enqueue of task backend {alias!r} must be {', '.join(WHENS)}, not {self._when!r}"
            )
        self._retries: Sequence[float] = self.options.get("retries", ())
        for seconds in self._retries:
            check_seconds("retries", seconds, DELAY_MAX_SECONDS)
        self._database: str = self.options.get("database", "default")
        self._kept: float = self.options.get("results_kept", RESULTS_SECONDS)
        if not self.queues:
            raise ConfigError(
                f"task backend {alias!r} has no queues", hint="leave out QUEUES, or name some in it"
            )
        most = max(QueuePolicy().max_deliveries, len(self._retries) + CRASHES_MAX)
        given: Mapping[str, QueueSettings] = self.options.get("queues", {})
        settings: dict[str, QueueSettings] = {
            name: {"max_deliveries": most, **given.get(name, {})}
            for name in sorted({*self.queues, *given})
        }
        self.app: App = App(self.options.get("url"), queues=settings, results_kept=self._kept)

        def execute(enqueued: dict[str, Any]) -> None:
            self._execute(enqueued)

        for name in sorted(self.queues):
            self.app.task(name=_task_name(name), queue=name)(execute)

    @cached_property
    def _worker_id(self) -> str:
        return f"{os.uname().nodename}-{os.getpid()}"

    @property
    def _records(self) -> TaskRecords:
        return TaskRecords(self.app.client, self._kept)

    # --- enqueueing ---------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a call, as the option `enqueue` says; returns its result, with the status READY.

        Raises Django's InvalidTask, TypeError for arguments that JSON cannot hold, and the errors
        of `Pusher.push`; with "commit", those are raised by the commit.
        """
        self.validate_task(task)
        run_after = task.run_after
        if run_after is not None and timezone.is_naive(run_after):
            run_after = timezone.make_aware(run_after)
        enqueued = Enqueued(
            id=get_random_string(32),
            path=task.module_path,
            backend=self.alias,
            queue=task.queue_name,
            priority=task.priority,
            run_after=None if run_after is None else run_after.isoformat(),
            enqueued_at=timezone.now().isoformat(),
            args=normalize_json(list(args)),
            kwargs=normalize_json(dict(kwargs)),
        )
        call = Call(_task_name(task.queue_name), (), {"enqueued": asdict(enqueued)})
        pushed = Pushed(task.queue_name, call, When(due=run_after), priority=_level(task.priority))
        result = as_result(enqueued, None)
        match self._when:
            case "now":
                self._push(enqueued, pushed)
            case "commit":
                transaction.on_commit(partial(self._push, enqueued, pushed), using=self._database)
            case _:
                self._push_to_outbox(enqueued, pushed)
        task_enqueued.send(type(self), task_result=result)
        return result

    def _push(self, enqueued: Enqueued, pushed: Pushed) -> None:
        records = self._records
        records.keep(enqueued.id, enqueued)
        try:
            self.app.push_calls([pushed])
        except CassqError:
            records.drop(enqueued.id)
            raise

    def _push_to_outbox(self, enqueued: Enqueued, pushed: Pushed) -> None:
        Outbox(connections[self._database]).push(
            pushed.queue,
            self.app.codec.call(pushed.call),
            due=pushed.when.due,
            priority=pushed.priority,
        )
        transaction.on_commit(partial(self._note, enqueued), using=self._database)

    def _note(self, enqueued: Enqueued) -> None:
        """Record a task that is in the outbox, for `get_result`. If the queues cannot be reached,
        `get_result` finds the task only once it has begun."""
        try:
            self._records.keep(enqueued.id, enqueued)
        except CassqError as exc:
            logger.warning("the state of task %s is not kept: %s", enqueued.id, exc)

    def get_result(self, result_id: str) -> Any:
        """The result with this id. Raises Django's TaskResultDoesNotExist, also if it has
        expired."""
        return self._records.result(result_id)

    # --- running ------------------------------------------------------------------------------

    def _execute(self, enqueued: dict[str, Any]) -> None:
        """Call the function of a task, in a worker."""
        close_old_connections()  # as Django does around a request, because threads live long
        try:
            self._run(Enqueued(**enqueued))
        finally:
            close_old_connections()

    def _run(self, enqueued: Enqueued) -> None:
        records, now = self._records, timezone.now().isoformat()
        if records.is_unknown(enqueued.id):
            records.keep(enqueued.id, enqueued)
        ran = records.ran(enqueued.id) or RunOutcome(TaskResultStatus.RUNNING.value, now, now, [])
        if ran.finished_at is not None and ran.status == TaskResultStatus.SUCCESSFUL:
            return  # the worker that ran it died before it could ack
        ran.status, ran.last_attempted_at = TaskResultStatus.RUNNING.value, now
        ran.worker_ids.append(self._worker_id)
        records.keep(enqueued.id, ran)
        result = as_result(enqueued, ran)
        task_started.send(type(self), task_result=result)
        try:
            context = [TaskContext(task_result=result)] if result.task.takes_context else []
            value = normalize_json(result.task.call(*context, *result.args, **result.kwargs))
        except (Exception, SystemExit) as exc:
            self._failed(enqueued, ran, exc)
        else:
            ran.status, ran.value = TaskResultStatus.SUCCESSFUL.value, value
            self._finished(enqueued, ran)

    def _failed(self, enqueued: Enqueued, ran: RunOutcome, exc: BaseException) -> None:
        kind = type(exc)
        path = f"{kind.__module__}.{kind.__qualname__}"
        text = "".join(traceback.format_exception(exc))
        ran.errors.append({"exception_class_path": path, "traceback": text})
        failures = len(ran.errors)
        if failures <= len(self._retries):
            ran.status = TaskResultStatus.READY.value
            self._records.keep(enqueued.id, ran)
            raise Retry(f"{kind.__name__}: {exc}", delay=self._retries[failures - 1]) from exc
        ran.status = TaskResultStatus.FAILED.value
        self._finished(enqueued, ran)
        raise Reject(f"{kind.__name__}: {exc}") from exc

    def _finished(self, enqueued: Enqueued, ran: RunOutcome) -> None:
        ran.finished_at = timezone.now().isoformat()
        self._records.keep(enqueued.id, ran)
        task_finished.send(type(self), task_result=as_result(enqueued, ran))


def app_of_settings() -> App:
    """The app of cassq's only backend in Django's settings (DJANGO_SETTINGS_MODULE). Raises
    ConfigError if there is no such backend, or more than one."""
    django.setup()
    found = [backend for backend in task_backends.all() if isinstance(backend, Backend)]
    if len(found) != 1:
        raise ConfigError(
            f"Django's settings have {len(found)} task backends of cassq, and a worker needs one",
            hint="for several, write app = task_backends['ALIAS'].app in a module of your own, and"
            " run `cassq worker MODULE:app`",
        )
    app: App = found[0].app
    return app


def _task_name(queue: str) -> str:
    return f"django.{queue}"


def _level(priority: int) -> int:
    """The cassq priority, 0 to 9, for a Django priority, -100 to 100."""
    return round((priority + 100) * 9 / 200)
