"""The catalog role for steps of tasks: what each has done, and where its call is.

Unlike results they decide: a step that is recorded never runs again, and a call runs only from the
place that its record names. So each write is conditional, and synced.
"""

from __future__ import annotations

import abc


class Steps(abc.ABC):
    """Records of tasks: values by the task's id and a key, each kept for a time."""

    @abc.abstractmethod
    def find(self, task_id: str) -> dict[str, bytes]:
        """All records of a task, by key, as the last write left them. Cost: one read."""

    @abc.abstractmethod
    def add(self, task_id: str, key: str, value: bytes, kept_seconds: float) -> bytes:
        """Durably insert a record, if there is none with its key. Returns the value that is there
        now. Cost: a conditional write."""

    @abc.abstractmethod
    def change(self, task_id: str, key: str, old: bytes, new: bytes, kept_seconds: float) -> bool:
        """Durably put `new` in place of `old`; False if the value is not `old` any more. Cost: a
        conditional write."""

    @abc.abstractmethod
    def keep(self, task_id: str, kept_seconds: float) -> None:
        """Keep all records of a task for so long from now, whatever was said before. Cost: a
        synced write; on networked catalogs a read, and a conditional write of all records."""
