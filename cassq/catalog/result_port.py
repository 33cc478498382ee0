"""The catalog role for results of tasks: values that the pushers of the tasks wait for.

They decide nothing: a result that is lost or late costs its reader time. So they are written
unsynced, and expire.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence


class Results(abc.ABC):
    """Values by key, each kept for a time."""

    @abc.abstractmethod
    def put(self, key: str, value: bytes, kept_seconds: float) -> None:
        """Set a value, replacing any earlier one. Cost: an unsynced write."""

    @abc.abstractmethod
    def put_new(self, key: str, value: bytes, kept_seconds: float) -> bytes:
        """Set a value if none is there; returns the one that is there now. For keys that `put`
        never sets. Cost: an unsynced conditional write."""

    @abc.abstractmethod
    def find(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The values that are there, by key. Cost: one read, or one round trip."""

    def get(self, key: str) -> bytes | None:
        """The value under a key; None if there is none. Cost: as for `find`."""
        return self.find([key]).get(key)

    @abc.abstractmethod
    def drop(self, keys: Sequence[str]) -> None:
        """Remove values."""
