"""A session with Cassandra that fails where a test says so, before or after the effect."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from cassandra.cluster import ResponseFuture

from cassq.base.clock import Clock
from cassq.cassandra.session import Contact, Cql, Row
from cassq.errors import BackendError, BackendTimeoutError
from cassq.extents.cassandra import statements


def no_answer() -> BackendError:
    return BackendTimeoutError("no answer", outcome_unknown=True)


class ShakyCql(Cql):
    """Counts what is sent, once if a busy server has to be sent it again. waited: without telling
    what is acknowledged, which another thread does now and then. lost: answers to conditional
    writes that get lost from now on; unsent: conditional writes that do not even arrive; failing:
    what the next plain writes that are waited for raise, after they were applied; mute: it cannot
    tell of the ends of extents."""

    def __init__(self, contact: Contact, clock: Clock, keyspace: str) -> None:
        self.sent = 0
        self.waited = 0
        self.lost = 0
        self.unsent = 0
        self.failing: list[BackendError] = []
        self.mute = False
        self.landed = 0
        self.before_apply: Callable[[], object] = lambda: None
        self.before_result: Callable[[], object] = lambda: None
        self.binders: set[threading.Thread] = set()
        self.texts: Counter[str] = Counter()
        super().__init__(contact, clock, keyspace=keyspace)

    def send(self, statement: Any) -> ResponseFuture:
        self.sent += 1
        marking = self._qualified(statements.TELL_ACKED)
        prepared = getattr(statement, "prepared_statement", None)  # a batch has none
        self.waited += prepared is None or prepared.query_string != marking
        return super().send(statement)

    def again(self, statement: Any) -> ResponseFuture:
        future = super().again(statement)
        self.sent -= 1
        self.waited -= 1
        return future

    def bound(self, text: str, values: Sequence[Any]) -> Any:
        self.texts[text] += 1
        if self.mute and text in (statements.TELL_ACKED, statements.TELL_CLOSED):
            raise no_answer()
        self.binders.add(threading.current_thread())
        return super().bound(text, values)

    def apply(self, text: str, values: Sequence[Any] = ()) -> tuple[bool, Row]:
        self.texts[text] += 1
        self.before_apply()
        if self.unsent:
            self.unsent -= 1
            raise no_answer()
        answer = super().apply(text, values)
        if self.lost:
            self.lost -= 1
            raise no_answer()
        return answer

    def result(self, future: ResponseFuture, *, conditional: bool = False) -> list[Row]:
        rows = super().result(future, conditional=conditional)
        self.landed += 1
        self.before_result()
        if self.failing:
            raise self.failing.pop(0)
        return rows
