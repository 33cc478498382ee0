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
from cassandra.connection import ConnectionBusy, ConnectionException
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
# A server's message for a missing table or keyspace.
_MISSING = re.compile("unconfigured table|(table|[Kk]eyspace) .*does not exist")


class OverloadedError(BackendUnavailableError):
    """A node is overloaded and did not begin the request, which may be retried."""


def explained(exc: Exception, where: str, *, conditional: bool) -> BackendError:
    """Translate a driver's error. conditional: a write was sent once and may have been applied."""
    name = f"Cassandra at {where}"
    if isinstance(exc, OverloadedErrorMessage) and conditional and _HINTS in str(exc):
        text = f"{name} is overloaded: {exc}"
        return BackendUnavailableError(text, outcome_unknown=True)
    if isinstance(exc, OverloadedErrorMessage) or _is_unsent(exc):
        return OverloadedError(f"{name} is overloaded: {exc}")
    if isinstance(exc, Unavailable):
        return BackendUnavailableError(
            f"{name}: {exc.alive_replicas} of {exc.required_replicas} required replicas are up",
            hint="start the other nodes",
        )
    if isinstance(exc, (Timeout, OperationTimedOut, CoordinationFailure)):
        text = f"{name} did not answer in time: {type(exc).__name__}"
        hint = "a node is slow or down; try again"
        return BackendTimeoutError(text, hint=hint, outcome_unknown=conditional)
    if isinstance(exc, (NoHostAvailable, ConnectionException)):
        text = f"{name} cannot be reached: {first_line(exc)}"
        return BackendUnavailableError(text, outcome_unknown=conditional)
    if isinstance(exc, (InvalidRequest, SyntaxException)):
        if _TOO_LARGE.search(str(exc)):
            return BackendUnavailableError(
                f"{name} refuses a request of that size: {first_line(exc)}",
                hint="set native_transport_max_message_size and max_mutation_size to 2 MiB or more",
                retryable=False,
            )
        if _MISSING.search(str(exc)):
            return BackendUnavailableError(
                f"{name}: {first_line(exc)}",
                hint="create its tables: `cassq schema apply --url URL`",
                retryable=False,
            )
        raise BrokenInvariantError(f"{name} rejects a statement: {exc}") from exc
    if isinstance(exc, Unauthorized):
        return BackendUnavailableError(f"{name}: {first_line(exc)}", retryable=False)
    return BackendError(f"{name}: {type(exc).__name__}: {exc}", outcome_unknown=True)


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
    reasons = {str(cause).rpartition("Last error: ")[2] for cause in causes.values()}
    if contact.tls is not None and any("[SSL" in reason for reason in reasons):
        return _no_tls(contact, sorted(reasons))
    return BackendUnavailableError(
        f"no node answers at {contact.label}: {', '.join(sorted(reasons)) or first_line(exc)}",
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
        hint="is TLS on there (client_encryption_options), or a client certificate needed (cert=)?",
    )


def no_data_centre(name: str, there: set[str]) -> ConfigError:
    """The error for a URL with an unknown data centre, or without one where it is needed."""
    return ConfigError(
        f"there is no data centre {name!r}" if name else "there are several data centres",
        hint=f"name the nearest with dc=: {', '.join(sorted(there))}",
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
