"""The catalog role for steps of tasks: what each task has done, and where its message is.

Unlike results, these records decide what runs: a recorded step never runs again, and of a task's
messages only the one at the recorded place runs. So writes are synced, and `add` and `change` are
conditional.
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
        """Durably put `new` in place of `old`; False if the value is no longer `old`. Cost: a
        conditional write."""

    @abc.abstractmethod
    def keep(self, task_id: str, kept_seconds: float) -> None:
        """Keep all records of a task for this long from now, whatever earlier calls said. Cost: a
        synced write; on networked catalogs a read, and a conditional write of all records."""
