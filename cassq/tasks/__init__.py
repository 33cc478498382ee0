"""Tasks: functions whose calls are pushed to a queue, and run by workers. `App` is the start."""

from cassq.errors import StepMismatchError, TaskFailedError
from cassq.tasks.app import App
from cassq.tasks.handles import Handle
from cassq.tasks.running import current
from cassq.tasks.steps.context import Context
from cassq.tasks.task import Task
from cassq.worker.handler import Reject, Retry

__all__ = [
    "App",
    "Context",
    "Handle",
    "Reject",
    "Retry",
    "StepMismatchError",
    "Task",
    "TaskFailedError",
    "current",
]
