"""Translates the errors of the Cassandra driver into cassq's own."""

from __future__ import annotations

import re

from cassandra import (
    AuthenticationFailed,
    CoordinationFailure,
    InvalidRequest,
    OperationTimedOut,
    Timeout,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import (
    ConnectionBusy,
    ConnectionException,
    ConnectionShutdown,
    ProtocolVersionUnsupported,
)
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import OverloadedErrorMessage, SyntaxException

from cassq.cassandra.contact import Contact
from cassq.errors import (
    BackendError,
    BackendTimeoutError,
    BackendUnavailableError,
    BrokenInvariantError,
    ConfigError,
)

# In the answer of a server that holds too many writes for nodes that are down. It may come after a
# conditional write was accepted, before it is sent to the replicas.
_HINTS = "in flight hints"
# OpenSSL's message for a trusted certificate with another name or address.
_NOT_FOR_HOST = "certificate is not valid for"
# A server's message for a request larger than its settings allow.
_TOO_LARGE = re.compile("exceeds allowed maximum|too large for the maximum")
# The server's sentence in the text of a driver's error.
_SAID = re.compile(r'message="(.*)"', re.DOTALL)
_START_NODES = "start the nodes that are down (`nodetool status` lists them), then try again"
_TOO_OLD = "it is older than Cassandra 4.1"
# Parts of the driver's texts about a node, where it has no type for the cause, and plain words.
_CAUSES = {
    "marked down or removed": "it is down",
    "shutdown": "the connection was lost",  # of a pool of connections
    "explicitly set client protocol_version": _TOO_OLD,
}
# Where OpenSSL's message was made.
_SSL_PLACE = re.compile(r" \(_ssl\.c:\d+\)$")
# A server's message for a missing table or keyspace.
_MISSING = re.compile("unconfigured table|(table|[Kk]eyspace) .*does not exist")


class OverloadedError(BackendUnavailableError):
    """A node is overloaded and did not begin the request, which may be retried."""


class MissingTableError(BackendUnavailableError):
    """The keyspace lacks a table, or does not exist."""


def explained(exc: Exception, where: str, *, conditional: bool) -> BackendError:
    """Translate a driver's error. conditional: a write was sent once and may have been applied."""
    name = f"Cassandra at {where}"
    if isinstance(exc, OverloadedErrorMessage) and conditional and _HINTS in str(exc):
        text = f"{name} is overloaded: it keeps too many writes for nodes that are down"
        return BackendUnavailableError(text, hint=_START_NODES, outcome_unknown=True)
    if isinstance(exc, OverloadedErrorMessage) or _is_unsent(exc):
        return OverloadedError(f"{name} is overloaded", hint="try again later, with fewer clients")
    if isinstance(exc, Unavailable):
        return BackendUnavailableError(
            f"{name}: only {exc.alive_replicas} of the {exc.required_replicas} required replicas"
            " are up",
            hint=_START_NODES,
        )
    if isinstance(exc, (Timeout, OperationTimedOut, CoordinationFailure)):
        hint = "a node is slow or down; try again"
        text = f"{name} {_lateness(exc)}"
        return BackendTimeoutError(text, hint=hint, outcome_unknown=conditional)
    if isinstance(exc, (NoHostAvailable, ConnectionException)):
        text = f"{name} cannot be reached: {', '.join(reasons(exc))}"
        hint = "is it running, and is the network up? try again"
        return BackendUnavailableError(text, hint=hint, outcome_unknown=conditional)
    if isinstance(exc, (InvalidRequest, SyntaxException)):
        if _TOO_LARGE.search(str(exc)):
            return BackendUnavailableError(
                f"{name} refuses a request of this size: {server_said(exc)}",
                hint="set native_transport_max_message_size and max_mutation_size to 2 MiB or more",
                retryable=False,
            )
        if _MISSING.search(str(exc)):
            return MissingTableError(
                f"{name}: {server_said(exc)}",
                hint="create its tables: `cassq schema apply --url URL`",
                retryable=False,
            )
        raise BrokenInvariantError(f"{name} rejects a statement: {server_said(exc)}") from exc
    if isinstance(exc, Unauthorized):
        return BackendUnavailableError(
            f"{name}: {server_said(exc)}",
            hint="grant it to this user, as docs/operations.md lists",
            retryable=False,
        )
    return BackendError(
        f"{name} failed in an unexpected way: {type(exc).__name__}", outcome_unknown=True
    )


def _lateness(exc: Exception) -> str:
    """The part of an error about answers that came too late, or replicas that failed."""
    if isinstance(exc, (Timeout, CoordinationFailure)):
        came = f"{exc.received_responses or 0} of {exc.required_responses or 0}"
        failed = isinstance(exc, CoordinationFailure)
        why = "some failed" if failed else "some did not answer in time"
        return f"got only {came} required answers from replicas: {why}"
    return "did not answer in time"


def reasons(exc: Exception) -> list[str]:
    """Why nodes could not be reached, each reason once."""
    errors = exc.errors if isinstance(exc, NoHostAvailable) else None
    causes = list(errors.values()) if isinstance(errors, dict) else []
    if not causes:
        return ["no node is up" if isinstance(exc, NoHostAvailable) else _reason(exc)]
    return sorted({_reason(cause) for cause in causes})


def _reason(cause: object) -> str:
    """One node's reason, in a few words."""
    if isinstance(cause, (ConnectionShutdown, ConnectionResetError, BrokenPipeError)):
        return "the connection was lost"
    if isinstance(cause, (OperationTimedOut, TimeoutError)):
        return "it did not answer in time"
    if isinstance(cause, (ConnectionBusy, NoConnectionsAvailable)):
        return "its connections are full"
    if isinstance(cause, ProtocolVersionUnsupported):
        return _TOO_OLD
    text = str(cause)
    if match := _SAID.search(text):
        return match[1]
    if isinstance(cause, OSError) and cause.strerror:
        found = _SSL_PLACE.sub("", cause.strerror.rpartition("Last error: ")[2])
        if found:
            return "it did not answer in time" if found == "timed out" else found
    words = next((words for part, words in _CAUSES.items() if part in text), None)
    return words or f"the connection failed ({type(cause).__name__})"


def server_said(exc: Exception) -> str:
    """The sentence of the server in an error, without the driver's frame around it."""
    match = _SAID.search(str(exc))
    return match[1] if match else first_line(exc)


def unconnected(exc: BaseException, contact: Contact, data_centres: set[str]) -> BaseException:
    """The error for a session that could not be opened. data_centres: as the cluster reported."""
    if not isinstance(exc, Exception):
        return exc
    errors = exc.errors if isinstance(exc, NoHostAvailable) else None
    causes = errors if isinstance(errors, dict) else {}
    if any(isinstance(each, AuthenticationFailed) for each in (exc, *causes.values())):
        return ConfigError(
            f"Cassandra at {contact.label} rejects the user {contact.user!r}",
            hint="give user and password in the URL: cassandra://USER:PASSWORD@HOST/KEYSPACE",
        )
    if data_centres and contact.data_centre and contact.data_centre not in data_centres:
        return no_data_centre(contact.data_centre, data_centres)
    if isinstance(exc, UnresolvableContactPoints):
        return BackendUnavailableError(f"{','.join(contact.hosts)}: no such host", retryable=False)
    found = reasons(exc)
    if contact.tls is not None and any("[SSL" in reason for reason in found):
        return _no_tls(contact, found)
    return BackendUnavailableError(
        f"no node answers at {contact.label}: {', '.join(found)}",
        hint="is Cassandra running there, and is the port right?",
    )


def _no_tls(contact: Contact, reasons: list[str]) -> ConfigError:
    """The error for a server that answers, but not over TLS."""
    if any(_NOT_FOR_HOST in reason for reason in reasons):
        return ConfigError(
            f"the certificate of Cassandra at {contact.label} is for another host:"
            f" {', '.join(reasons)}",
            hint="use the host names in the certificates; tls=ca does not check the name",
        )
    if any("CERTIFICATE_VERIFY_FAILED" in reason for reason in reasons):
        return ConfigError(
            f"the certificate of Cassandra at {contact.label} is not trusted: {', '.join(reasons)}",
            hint="give the PEM file of its certificate authority with ca=",
        )
    return ConfigError(
        f"Cassandra at {contact.label} refuses TLS with these settings: {', '.join(reasons)}",
        hint="is TLS enabled there (client_encryption_options), or is a client certificate required"
        " (cert=)?",
    )


def no_data_centre(name: str, there: set[str]) -> ConfigError:
    """The error for a URL with an unknown data centre, or without one where it is needed."""
    return ConfigError(
        f"there is no data centre {name!r}" if name else "there are several data centres",
        hint=f"give the nearest one with dc=: {', '.join(sorted(there))}",
    )


def _is_unsent(exc: Exception) -> bool:
    """Whether no connection took the request, because nodes have not yet read earlier ones."""
    errors = exc.errors if isinstance(exc, NoHostAvailable) else None
    return (
        isinstance(errors, dict)
        and bool(errors)
        and all(
            isinstance(each, (ConnectionBusy, NoConnectionsAvailable)) for each in errors.values()
        )
    )


def first_line(exc: BaseException) -> str:
    """The first line of an error's message."""
    return str(exc).splitlines()[0] if str(exc) else type(exc).__name__
