"""What the driver of Cassandra raises, and what is told of it."""

from __future__ import annotations

import pytest
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionBusy, ConnectionShutdown

from cassq.cql_errors import OverloadedError, explained
from cassq.errors import BackendUnavailableError


def test_what_no_connection_took_was_not_begun() -> None:
    """A conditional write, too, may be sent again then."""
    exc = NoHostAvailable("none", {"a": ConnectionBusy("full"), "b": ConnectionBusy("full")})
    told = explained(exc, "a,b", conditional=True)
    assert isinstance(told, OverloadedError)
    assert told.retryable
    assert not told.outcome_unknown


@pytest.mark.parametrize(
    "errors",
    [{"a": ConnectionBusy("full"), "b": ConnectionShutdown("gone")}, {}, []],
    ids=["one may have begun it", "nobody was there", "as told at connect"],
)
def test_what_a_connection_may_have_taken_has_an_unknown_outcome(errors: object) -> None:
    told = explained(NoHostAvailable("none", errors), "a,b", conditional=True)
    assert not isinstance(told, OverloadedError)
    assert isinstance(told, BackendUnavailableError)
    assert told.outcome_unknown
