"""The names that the backend needs, from `django.tasks` or the package django-tasks."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cassq.extras import wanted


def _home() -> str:
    """The package to import from. Raises MissingExtraError if there is none."""
    try:
        import_module("django.tasks")
    except ModuleNotFoundError:
        with wanted("tasks of Django before 6.0 need", "django-tasks", "django"):
            import_module("django_tasks")
        return "django_tasks"
    return "django.tasks"


def _named(module: str, name: str) -> Any:
    return getattr(import_module(f"{HOME}{module}"), name)


HOME = _home()

BaseTaskBackend: Any = _named(".backends.base", "BaseTaskBackend")
Task: Any = _named(".base", "Task")
TaskContext: Any = _named(".base", "TaskContext")
TaskError: Any = _named(".base", "TaskError")
TaskResult: Any = _named(".base", "TaskResult")
TaskResultStatus: Any = _named(".base", "TaskResultStatus")
TaskResultDoesNotExist: Any = _named(".exceptions", "TaskResultDoesNotExist")
task_backends: Any = _named("", "task_backends")
task_enqueued: Any = _named(".signals", "task_enqueued")
task_started: Any = _named(".signals", "task_started")
task_finished: Any = _named(".signals", "task_finished")
_json = import_module("django.utils.json" if HOME == "django.tasks" else "django_tasks.utils")
normalize_json: Any = _json.normalize_json
