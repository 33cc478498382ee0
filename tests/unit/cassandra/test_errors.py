"""What the driver of Cassandra raises, and what is told of it."""

from __future__ import annotations

import pytest
from cassandra import InvalidRequest
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionBusy, ConnectionShutdown
from cassandra.protocol import OverloadedErrorMessage

from cassq.cassandra.errors import OverloadedError, explained
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


HINTS = "Too many in flight hints: 2049 destination: 127.0.0.3 destination hints: 2000"


@pytest.mark.parametrize("conditional", [True, False])
def test_a_server_that_keeps_too_many_hints_may_have_begun_a_conditional_write(
    conditional: bool,
) -> None:
    """It says so before a plain write, and also after a conditional one was decided on."""
    told = explained(OverloadedErrorMessage(0x1001, HINTS, None), "a", conditional=conditional)
    assert told.retryable
    assert told.outcome_unknown == conditional
    assert isinstance(told, OverloadedError) != conditional


@pytest.mark.parametrize(
    "said",
    [
        "CQL Message of size 301119 bytes exceeds allowed maximum of 65536 bytes",
        "Mutation of 5242964 bytes is too large for the maximum size of 4194304",
    ],
)
def test_the_error_about_a_server_that_refuses_large_frames_says_what_to_set(said: str) -> None:
    told = explained(InvalidRequest(said), "a", conditional=False)
    assert isinstance(told, BackendUnavailableError)
    assert not told.retryable
    assert "native_transport_max_message_size" in str(told)
