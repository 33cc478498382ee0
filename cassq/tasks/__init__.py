"""Tasks: functions whose calls are pushed to a queue, and run by workers. `App` is the start."""

from cassq.tasks.app import App
from cassq.tasks.running import Context, current
from cassq.tasks.task import Handle, Task
from cassq.worker.handler import Reject, Retry

__all__ = ["App", "Context", "Handle", "Reject", "Retry", "Task", "current"]
