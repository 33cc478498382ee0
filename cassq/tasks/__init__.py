"""Tasks: functions whose calls are pushed to a queue, and run by workers. `App` is the start."""

from cassq.errors import TaskFailedError
from cassq.tasks.app import App
from cassq.tasks.handles import Handle
from cassq.tasks.running import Context, current
from cassq.tasks.task import Task
from cassq.worker.handler import Reject, Retry

__all__ = ["App", "Context", "Handle", "Reject", "Retry", "Task", "TaskFailedError", "current"]
