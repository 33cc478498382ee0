"""What the driver of Cassandra raises, and what is told of it."""

from __future__ import annotations

import pytest
from cassandra import (
    ConsistencyLevel,
    DriverException,
    InvalidRequest,
    OperationTimedOut,
    Unauthorized,
    Unavailable,
    WriteFailure,
    WriteTimeout,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import (
    ConnectionBusy,
    ConnectionException,
    ConnectionShutdown,
    ProtocolError,
    ProtocolVersionUnsupported,
)
from cassandra.protocol import OverloadedErrorMessage

from cassq.cassandra.errors import MissingTableError, OverloadedError, explained
from cassq.errors import BackendError, BackendUnavailableError, BrokenInvariantError


def test_what_no_connection_took_was_not_begun() -> None:
    """A conditional write, too, may be sent again then."""
    exc = NoHostAvailable("none", {"a": ConnectionBusy("full"), "b": ConnectionBusy("full")})
    error = explained(exc, "a,b", conditional=True)
    assert isinstance(error, OverloadedError)
    assert error.retryable
    assert not error.outcome_unknown


@pytest.mark.parametrize(
    "errors",
    [{"a": ConnectionBusy("full"), "b": ConnectionShutdown("gone")}, {}, []],
    ids=["one may have begun it", "nobody was there", "as told at connect"],
)
def test_what_a_connection_may_have_taken_has_an_unknown_outcome(errors: object) -> None:
    error = explained(NoHostAvailable("none", errors), "a,b", conditional=True)
    assert not isinstance(error, OverloadedError)
    assert isinstance(error, BackendUnavailableError)
    assert error.outcome_unknown


HINTS = "Too many in flight hints: 2049 destination: 127.0.0.3 destination hints: 2000"


@pytest.mark.parametrize("conditional", [True, False])
def test_a_server_that_keeps_too_many_hints_may_have_begun_a_conditional_write(
    conditional: bool,
) -> None:
    """It says so before a plain write, and also after a conditional one was decided on."""
    error = explained(OverloadedErrorMessage(0x1001, HINTS, None), "a", conditional=conditional)
    assert error.retryable
    assert error.outcome_unknown == conditional
    assert isinstance(error, OverloadedError) != conditional


@pytest.mark.parametrize(
    "said",
    [
        "CQL Message of size 301119 bytes exceeds allowed maximum of 65536 bytes",
        "Mutation of 5242964 bytes is too large for the maximum size of 4194304",
    ],
)
def test_the_error_about_a_server_that_refuses_large_frames_says_what_to_set(said: str) -> None:
    error = explained(InvalidRequest(said), "a", conditional=False)
    assert isinstance(error, BackendUnavailableError)
    assert not error.retryable
    assert "native_transport_max_message_size" in str(error)


FRAME = 'Error from server: code=2200 [Invalid query] message="{}"'
QUORUM = ConsistencyLevel.LOCAL_QUORUM


FORBIDDEN = (
    *("Error from server", "last_host", "code=", "message=", "errors=", "<Host", "Last error"),
    *("marked down or removed", "Pool", "shutdown", "Failed to initialize", "protocol_version"),
    *("Did not get expected", "_ssl.c"),
)


def failed(cause: Exception) -> NoHostAvailable:
    return NoHostAvailable("none", {"a": cause})


@pytest.mark.parametrize(
    ("exc", "says"),
    [
        (Unavailable("x", QUORUM, 2, 1), "only 1 of the 2 required replicas are up"),
        (
            WriteTimeout("x", 0, consistency=QUORUM, required_responses=2, received_responses=1),
            "got only 1 of 2 required answers",
        ),
        (WriteFailure("x", 0, required_responses=2, received_responses=0), "0 of 2 .* failed"),
        (OperationTimedOut({}, None), "did not answer in time"),
        (NoHostAvailable("none", {}), "cannot be reached: no node is up"),
        (failed(OperationTimedOut({}, None)), "cannot be reached: it did not answer in time"),
        (
            failed(OSError(111, "Tried [...]. Last error: refused")),
            "cannot be reached: refused",
        ),
        (
            failed(OSError(None, "Tried [...]. Last error: timed out")),
            "cannot be reached: it did not answer in time",
        ),
        (
            failed(OSError(1, "Tried [...]. Last error: [SSL: X] no certificate (_ssl.c:1007)")),
            r"cannot be reached: \[SSL: X\] no certificate ",
        ),
        (
            failed(ConnectionException("Host has been marked down or removed")),
            "cannot be reached: it is down",
        ),
        (
            failed(ConnectionException("Pool is shutdown")),
            "cannot be reached: the connection was lost",
        ),
        (
            failed(ConnectionException("Pool for 10.0.0.1:9042 is shutdown")),
            "cannot be reached: the connection was lost",
        ),
        (
            failed(ConnectionException(f"Failed to initialize new connection: {FRAME}")),
            "cannot be reached: {} ",
        ),
        (
            failed(ConnectionException("Did not get expected SupportedMessage response")),
            r"cannot be reached: the connection failed \(ConnectionException\)",
        ),
        (
            failed(ProtocolError("Unexpected response during Connection setup")),
            r"cannot be reached: the connection failed \(ProtocolError\)",
        ),
        (failed(ProtocolVersionUnsupported("a", 5)), "it is older than Cassandra 4.1"),
        (
            failed(
                DriverException(
                    "ProtocolError returned from server while using explicitly set client"
                    " protocol_version 5"
                )
            ),
            "it is older than Cassandra 4.1",
        ),
        (ConnectionShutdown("Connection to a was closed"), "the connection was lost"),
        (OverloadedErrorMessage(0x1001, "busy", None), "is overloaded"),
        (InvalidRequest(FRAME.format("unconfigured table frames")), ": unconfigured table frames "),
        (Unauthorized(FRAME.format("User u has no MODIFY")), ": User u has no MODIFY "),
        (RuntimeError("internals"), "failed in an unexpected way: RuntimeError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_no_text_of_the_driver_is_in_a_message(exc: Exception, says: str) -> None:
    error = explained(exc, "a", conditional=False)
    with pytest.raises(BackendError, match=says):
        raise error
    for words in FORBIDDEN:
        assert words not in str(error)
    if not isinstance(exc, RuntimeError):
        assert error.hint, "it says what to do next"


def test_too_few_replicas_refuse_a_conditional_write_before_it_begins() -> None:
    """So nothing needs to be read back; what helps is to start the others."""
    error = explained(Unavailable("x", QUORUM, 2, 1), "a", conditional=True)
    assert isinstance(error, BackendUnavailableError)
    assert error.retryable
    assert not error.outcome_unknown
    assert "start the nodes" in error.hint
    assert "nodetool status" in error.hint


def test_a_rejected_statement_is_a_bug_and_quotes_the_server() -> None:
    with pytest.raises(BrokenInvariantError, match="rejects a statement: line 1:7 no viable"):
        explained(InvalidRequest(FRAME.format("line 1:7 no viable")), "a", conditional=False)


@pytest.mark.parametrize(
    ("exc", "missing"),
    [
        (InvalidRequest(FRAME.format("unconfigured table meta")), True),
        (InvalidRequest(FRAME.format("keyspace mail does not exist")), True),
        (Unauthorized(FRAME.format("User u has no SELECT permission on <table a.meta>")), False),
    ],
)
def test_a_table_that_is_missing_is_not_one_that_may_not_be_read(
    exc: Exception, missing: bool
) -> None:
    assert isinstance(explained(exc, "a", conditional=False), MissingTableError) is missing
