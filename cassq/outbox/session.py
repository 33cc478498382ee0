"""The port to the database of an outbox, as the relay uses it: statements, in transactions.

An adapter has one connection, for one thread. It opens the connection when it is needed, and again
after it was lost. It never creates a database.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from cassq.errors import BackendUnavailableError, CassqError, ConfigError

NO_TABLES_HINT = "`cassq outbox create --in DSN` makes it, or cassq.Outbox.create(connection)"


class Session(abc.ABC):
    """A connection. Its methods raise BackendError, and ConfigError for a database that does not
    exist or has no outbox."""

    @abc.abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """One transaction that writes: committed durably at the end of the block, or rolled back if
        the block raises."""

    @abc.abstractmethod
    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement with `?` for its parameters; returns its rows. Outside of `transaction`
        it is a transaction of its own."""

    @abc.abstractmethod
    def some(
        self, statement: str, parameters: Sequence[Any], *, size: int, column: int
    ) -> list[tuple[Any, ...]]:
        """The first rows of a query, in bounded memory: stops when the values in this column have
        `size` bytes in total."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection, if it is open."""


def no_outbox(exc: Exception) -> ConfigError:
    """The error for a database without the tables."""
    return ConfigError(f"this database has no outbox: {exc}", hint=NO_TABLES_HINT)


def unavailable(exc: Exception) -> CassqError:
    """The error for a database that does not answer now."""
    return BackendUnavailableError(f"the database of the outbox: {str(exc).strip()}")
