"""A session that counts what it sends, and how often a thread has waited for Cassandra."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from cassq.cassandra.session import Row, Statement
from cassq.errors import BackendError
from tests.contract.cassandra_place import BorrowedCql, Keyspace


class CountingCql(BorrowedCql):
    """waited: how often the thread that made it has waited for an answer, or for several at once:
    what was sent before it last waited came meanwhile. sent: the statements that any thread has
    sent, by `kind_of`. texts: those of reads. What a busy server has to be sent again counts once.
    """

    def __init__(self, keyspace: Keyspace) -> None:
        super().__init__(keyspace)
        self._thread = threading.get_ident()
        self.waited = 0
        self.sent: Counter[tuple[str, str]] = Counter()
        self.texts: list[str] = []
        self._waited_before: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def count(self) -> None:
        self.waited += threading.get_ident() == self._thread

    def send(self, statement: Any) -> Any:
        self.sent[statement.kind] += 1
        future = super().send(statement)
        self._waited_before[future] = self.waited
        return future

    def again(self, statement: Any) -> Any:
        future = super().again(statement)
        self.sent[statement.kind] -= 1
        return future

    def read_many(
        self, statements: Iterable[Statement], *, serial: bool = False
    ) -> list[list[Row]]:
        found = list(statements)
        if found:
            self.count()
        self.texts += [text for text, _ in found]
        return super().read_many(found, serial=serial)

    def write_many(self, statements: Iterable[Statement]) -> None:
        found = list(statements)
        if found:
            self.count()
        super().write_many(found)

    def apply(self, text: str, values: Sequence[Any] = ()) -> tuple[bool, Row]:
        self.count()
        return super().apply(text, values)

    def apply_batch(self, statements: Sequence[Statement]) -> bool:
        self.count()
        return super().apply_batch(statements)

    def apply_many(self, statements: Iterable[Statement]) -> list[bool | None]:
        found = list(statements)
        if found:
            self.count()
        return super().apply_many(found)

    def apply_batches(self, batches: Iterable[Sequence[Statement]]) -> list[bool | None]:
        found = list(batches)
        if found:
            self.count()
        return super().apply_batches(found)

    def answers_of(self, batches: Iterable[Sequence[Statement]]) -> list[bool | BackendError]:
        found = list(batches)
        if found:
            self.count()
        return super().answers_of(found)

    def result(self, future: Any, *, conditional: bool = False) -> list[Row]:
        rows = super().result(future, conditional=conditional)
        if self._waited_before.get(future, self.waited) == self.waited:
            self.count()
        return rows
