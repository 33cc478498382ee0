"""The outbox's statements, and row ids as texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.errors import InvalidPayloadError, UsageError
from cassq.outbox.table import (
    Row,
    as_text,
    check_dialect,
    from_text,
    in_style,
    runs,
    stored_headers,
)


@given(st.sets(st.integers(1, 60), min_size=1).map(sorted))
def test_ids_come_back_from_their_text(ids: list[int]) -> None:
    assert from_text(as_text(ids)) == tuple(ids)


def test_only_consecutive_ids_are_a_run() -> None:
    assert list(runs([3, 4, 5, 8, 10, 11])) == [(3, 5), (8, 8), (10, 11)]
    assert list(runs([])) == []
    assert as_text([3, 4, 5, 8]) == "3-5,8"


def test_parameters_are_marked_as_a_driver_wants_them() -> None:
    assert in_style("a = ? AND b = ?", lambda _: "%s") == "a = %s AND b = %s"
    assert in_style("a = ? AND b = ?", lambda number: f":p{number}") == "a = :p0 AND b = :p1"


def test_a_message_says_which_row_it_comes_from() -> None:
    row = Row(7, "jobs", b"1", None, None, None, 0, 0)
    assert stored_headers(row, "ab") == b'{"cassq-outbox":"ab:7"}'
    own = row._replace(headers=b'{"a": "b"} ')
    assert stored_headers(own, "ab") == b'{"a":"b","cassq-outbox":"ab:7"}'
    for headers in (b"[]", b"{", b'{"a": 1}', b"\xff"):
        with pytest.raises(InvalidPayloadError, match="row 7 of cassq_outbox is not a message"):
            stored_headers(row._replace(headers=headers), "ab")


def test_an_unknown_kind_of_database_is_refused() -> None:
    with pytest.raises(UsageError, match="not in 'mysql'"):
        check_dialect("mysql")
