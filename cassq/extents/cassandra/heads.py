"""Heads of extents on Cassandra: one row each, changed only by conditional writes.

After a conditional write without an answer the row is read back, linearized with that write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cassq.cassandra.session import Cql, Row
from cassq.cassandra.tries import UNSURE_MAX, unanswered
from cassq.errors import BackendUnavailableError
from cassq.extents.cassandra import statements
from cassq.extents.port import missing


class Head(NamedTuple):
    """The head of an extent. See `extents` in the schema."""

    pipe_id: str
    extent: str
    queue_name: str
    strict: bool
    home: str
    buckets: int
    sealed: bool


def head_of(row: Row) -> Head:
    """The head in a row."""
    pipe_id, extent, queue_name, strict, home, buckets, sealed = row
    return Head(pipe_id, extent, queue_name, strict, home, buckets, bool(sealed))


class Heads:
    """The heads of all extents."""

    def __init__(self, cql: Cql) -> None:
        self._cql = cql

    def create(self, head: Head) -> None:
        """Add a head; BackendUnavailableError when the pipe has one already.
        Cost: one conditional write."""
        values = (head.pipe_id, head.extent, head.queue_name, head.strict, head.home)
        there: Head | None = None

        def is_there() -> bool:
            nonlocal there
            there = self.find(head.pipe_id, serial=True)
            return there is not None

        what = f"pipe {head.pipe_id} has an extent"
        self._cql.apply_until(statements.CREATE_HEAD, values, is_there, what)
        if there is not None and there.extent != head.extent:
            raise BackendUnavailableError(
                f"pipe {head.pipe_id} has an extent already", retryable=False
            )

    def find(self, pipe_id: str, *, serial: bool = False) -> Head | None:
        """A pipe's head, if it has one. Cost: one read."""
        return self.find_many([pipe_id], serial=serial)[0]

    def find_many(self, pipe_ids: Sequence[str], *, serial: bool = False) -> list[Head | None]:
        """The heads of several pipes. Cost: one read each, concurrently."""
        asked = [(statements.READ_HEAD, (pipe_id,)) for pipe_id in pipe_ids]
        found = self._cql.read_many(asked, serial=serial)
        return [head_of(rows[0]) if rows else None for rows in found]

    def get(self, pipe_id: str) -> Head:
        """A pipe's head; ExtentMissingError when there is none. Cost: one read."""
        head = self.find(pipe_id)
        if head is None:
            raise missing(pipe_id)
        return head

    def all(self) -> list[Head]:
        """Every head, oldest first. Cost: reads the table."""
        return sorted(head_of(row) for row in self._cql.read(statements.LIST_HEADS))

    def begin_bucket(self, head: Head, bucket: int) -> bool:
        """Note that its writer moves on to `bucket`; False when the extent is sealed or gone.
        Cost: one conditional write."""
        values = (bucket + 1, head.pipe_id, head.extent, bucket)
        writes = True

        def is_over() -> bool:
            nonlocal writes
            there = self.find(head.pipe_id, serial=True)
            writes = there is not None and there.extent == head.extent and not there.sealed
            return not writes or there is None or there.buckets == bucket + 1

        what = f"pipe {head.pipe_id} began another bucket"
        self._cql.apply_until(statements.BEGIN_BUCKET, values, is_over, what)
        return writes

    def seal(self, head: Head | None, pipe_id: str) -> Head:
        """Prevent further buckets, and acknowledgements of plain writes.
        Cost: one conditional write, none when it is sealed."""
        for _ in self._cql.attempts(UNSURE_MAX):
            if head is None:
                raise missing(pipe_id)
            if head.sealed:
                return head
            values = (pipe_id, head.extent, head.buckets)
            if self._cql.apply_settled(statements.SEAL_HEAD, values, lambda: False):
                return head._replace(sealed=True)
            head = self.find(pipe_id, serial=True)
        raise unanswered(f"pipe {pipe_id} is sealed")

    def drop(self, head: Head) -> None:
        """Remove a head. Cost: one conditional write."""

        def is_gone() -> bool:
            there = self.find(head.pipe_id, serial=True)
            return there is None or there.extent != head.extent

        what = f"the extent of pipe {head.pipe_id} is removed"
        self._cql.apply_until(statements.DROP_HEAD, (head.pipe_id, head.extent), is_gone, what)
