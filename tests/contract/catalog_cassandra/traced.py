"""What a Cassandra node itself says it read: rows and tombstones, request by request."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from cassandra.cluster import ResponseFuture
from cassandra.query import BatchStatement

from cassq.cassandra.contact import REQUEST_SECONDS
from cassq.cassandra.session import Cql

_READ = re.compile(r"Read (\d+) live rows and (\d+) tombstone cells")
_TABLE = re.compile(r'(?:FROM|INTO|UPDATE) (?:"?\w+"?\.)?(\w+)')
TRACE_SECONDS = 60.0


class Read(NamedTuple):
    """What the node scanned of a table: for a SELECT, or for a condition."""

    table: str
    rows: int
    tombstones: int


class Traced(Cql):
    """A session whose requests can be traced. Tracing is slow, and exact: of few requests only."""

    _tracing: threading.Thread | None = None

    def send(self, statement: Any) -> ResponseFuture:
        if threading.current_thread() is not self._tracing:
            return super().send(statement)
        future = self._session.execute_async(statement, timeout=REQUEST_SECONDS, trace=True)
        self._traced.append((_table_of(statement), future))
        return future

    @contextmanager
    def traced(self) -> Iterator[list[Read]]:
        """What is read for the `with` block by this thread; they are
        there after it."""
        found: list[Read] = []
        self._traced: list[tuple[str, ResponseFuture]] = []
        self._tracing = threading.current_thread()
        try:
            yield found
        finally:
            self._tracing = None
        for table, future in self._traced:
            future.result()
            for event in future.get_query_trace(max_wait=TRACE_SECONDS).events:
                if match := _READ.search(event.description):
                    found.append(Read(table, int(match[1]), int(match[2])))


def _table_of(statement: Any) -> str:
    if isinstance(statement, BatchStatement):
        return "claims"  # there are no other conditional batches that are hot
    match = _TABLE.search(statement.prepared_statement.query_string)
    assert match is not None
    return match[1]
