"""Conditional writes without an answer: never guessed at, always read back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cassq.base.clock import ManualClock
from cassq.cassandra.session import KEYSPACE, Row, Statement, settled
from cassq.catalog import schema_files
from cassq.catalog.cassandra import CassandraCatalog, schema
from cassq.catalog.cassandra.partition import claim_rows
from cassq.errors import BackendError, BackendTimeoutError
from cassq.message.frames import Place
from cassq.model import claims
from cassq.model.rows import Cursor

KEY = ("g", "p")
CURSOR = Cursor(*KEY, ack=Place(0, 0), chain=Place(0, 0), epoch=1)
CHAIN = Place(10, 100)


def no_answer() -> BackendError:
    return BackendTimeoutError("no answer", outcome_unknown=True)


def raising(error: BackendError) -> Callable[[], bool]:
    def act() -> bool:
        raise error

    return act


@pytest.mark.parametrize("there", [True, False])
def test_what_is_found_afterwards_decides(there: bool) -> None:
    assert settled(raising(no_answer()), lambda: there) is there


@pytest.mark.parametrize("answer", [True, False])
def test_an_answer_is_taken_as_it_is(answer: bool) -> None:
    assert settled(lambda: answer, raising(no_answer())) is answer


def test_an_error_with_a_certain_outcome_is_raised() -> None:
    with pytest.raises(BackendError, match="refused"):
        settled(raising(BackendError("refused")), lambda: True)


def test_when_no_replica_can_be_read_the_first_error_is_raised() -> None:
    with pytest.raises(BackendError, match="no answer") as caught:
        settled(raising(no_answer()), raising(BackendError("nobody is there")))
    assert caught.value.outcome_unknown


class Partition:
    """A session with one partition of claims: what a node that works holds. applied: whether a
    batch without an answer is applied; late: only what is read linearized tells of it."""

    def __init__(self, *, applied: bool, late: bool = False) -> None:
        self.contact = SimpleNamespace(keyspace="k")
        self.time = SimpleNamespace(now_ms=lambda: 1_000)
        self.applied = applied
        self.late = late
        self.answers: list[bool] = [False]  # whether the next batches are answered
        self.chain = (0, 0)
        self.mark = ""
        self.batches = 0
        self.serial_reads = 0

    def read(self, text: str, values: Sequence[Any] = (), *, serial: bool = False) -> list[Row]:
        self.serial_reads += serial
        if text == schema.VERSION:
            return [(str(schema_files.latest_version("cassandra")),)]
        if text == schema.TABLES:
            return [("meta",)]
        if text == KEYSPACE:
            return []
        seen = serial or not self.late
        if text == claim_rows.MARK:
            return [(self.mark,)] if self.mark and seen else []
        assert text == claim_rows.CLAIMS
        chain = self.chain if seen else (0, 0)
        return [(claim_rows.ANCHOR, *[None] * 12, 0, 0, *chain, 1, "", 0)]

    def apply_batch(self, statements: Sequence[Statement]) -> bool:
        self.batches += 1
        answered = self.answers.pop(0) if self.answers else True
        fits = self.chain == (0, 0)
        if fits and (answered or self.applied):
            self.chain = tuple(CHAIN)
            self.mark = next(v[0] for text, v in statements if text == claim_rows.PUT_MARK)
        if not answered:
            raise no_answer()
        return fits

    def close(self) -> None:
        """Nothing is held."""


def claim(session: Partition) -> bool:
    """Claim the first ten messages of the partition."""
    catalog = CassandraCatalog(session, ManualClock())  # type: ignore[arg-type]
    row = claims.first(CURSOR, CHAIN, "me", 9, lambda: "v")
    return catalog.claims.claim(CURSOR, CHAIN, [row])


def test_a_batch_without_an_answer_that_was_applied_counts_once() -> None:
    session = Partition(applied=True)
    assert claim(session)
    assert session.batches == 1
    assert session.chain == tuple(CHAIN)


def test_a_batch_without_an_answer_that_was_not_applied_is_written_again() -> None:
    session = Partition(applied=False)
    assert claim(session)
    assert session.batches == 2
    assert session.chain == tuple(CHAIN), "it is there when it is said to be"


def test_what_a_batch_came_to_is_read_with_all_that_was_begun_before() -> None:
    session = Partition(applied=True, late=True)
    assert claim(session)
    assert session.serial_reads >= 2
    assert session.batches == 1


def test_what_another_has_claimed_meanwhile_is_not_ours() -> None:
    session = Partition(applied=False)
    session.chain = (7, 70)
    assert not claim(session)
