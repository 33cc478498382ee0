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

# What a server says that holds too many writes for nodes that are gone. It may say so after a
# conditional write was decided on, when it is about to send it to the replicas.
_HINTS = "in flight hints"
# What OpenSSL says about a trusted certificate for another name or address.
_NOT_FOR_HOST = "certificate is not valid for"
# What a server says about a request that its settings do not allow.
_TOO_LARGE = re.compile("exceeds allowed maximum|too large for the maximum")
# What a server says about a missing table or keyspace.
_MISSING = re.compile("unconfigured table|(table|[Kk]eyspace) .*does not exist")


class OverloadedError(BackendUnavailableError):
    """A node is overloaded, and has begun nothing: it may be asked again, for less."""


def explained(exc: Exception, where: str, *, conditional: bool) -> BackendError:
    """A driver's error as ours. conditional: the write was sent once, and may have been applied."""
    name = f"Cassandra at {where}"
    if isinstance(exc, OverloadedErrorMessage) and conditional and _HINTS in str(exc):
        told = f"{name} is overloaded: {exc}"
        return BackendUnavailableError(told, outcome_unknown=True)
    if isinstance(exc, OverloadedErrorMessage) or _is_unsent(exc):
        return OverloadedError(f"{name} is overloaded: {exc}")
    if isinstance(exc, Unavailable):
        return BackendUnavailableError(
            f"{name}: {exc.alive_replicas} of {exc.required_replicas} replicas are there",
            hint="it goes on when they are back",
        )
    if isinstance(exc, (Timeout, OperationTimedOut, CoordinationFailure)):
        told = f"{name} did not answer in time: {type(exc).__name__}"
        hint = "a node is slow or gone; try again"
        return BackendTimeoutError(told, hint=hint, outcome_unknown=conditional)
    if isinstance(exc, (NoHostAvailable, ConnectionException)):
        told = f"{name} cannot be reached: {first_line(exc)}"
        return BackendUnavailableError(told, outcome_unknown=conditional)
    if isinstance(exc, (InvalidRequest, SyntaxException)):
        if _TOO_LARGE.search(str(exc)):
            return BackendUnavailableError(
                f"{name} takes no requests of that size: {first_line(exc)}",
                hint="native_transport_max_message_size and max_mutation_size are at least 2 MiB",
                retryable=False,
            )
        if _MISSING.search(str(exc)):
            return BackendUnavailableError(
                f"{name}: {first_line(exc)}",
                hint="make its tables: `cassq schema apply --url URL`",
                retryable=False,
            )
        raise BrokenInvariantError(f"{name} refuses a statement: {exc}") from exc
    if isinstance(exc, Unauthorized):
        return BackendUnavailableError(f"{name}: {first_line(exc)}", retryable=False)
    return BackendError(f"{name}: {type(exc).__name__}: {exc}", outcome_unknown=True)


def unconnected(exc: BaseException, contact: Contact, data_centres: set[str]) -> BaseException:
    """Why a session could not be opened. data_centres: those that the cluster reported."""
    if not isinstance(exc, Exception):
        return exc
    errors = exc.errors if isinstance(exc, NoHostAvailable) else None
    causes = errors if isinstance(errors, dict) else {}
    if any(isinstance(each, AuthenticationFailed) for each in (exc, *causes.values())):
        return ConfigError(
            f"Cassandra at {contact.told} refuses the user {contact.user!r}",
            hint="give them in the URL: cassandra://USER:PASSWORD@HOST/KEYSPACE",
        )
    if data_centres and contact.data_centre and contact.data_centre not in data_centres:
        return no_data_centre(contact.data_centre, data_centres)
    if isinstance(exc, UnresolvableContactPoints):
        return BackendUnavailableError(f"{','.join(contact.hosts)}: no such host", retryable=False)
    reasons = {str(cause).rpartition("Last error: ")[2] for cause in causes.values()}
    if contact.tls is not None and any("[SSL" in reason for reason in reasons):
        return _no_tls(contact, sorted(reasons))
    return BackendUnavailableError(
        f"nobody answers at {contact.told}: {', '.join(sorted(reasons)) or first_line(exc)}",
        hint="is Cassandra running there, and is the port right?",
    )


def _no_tls(contact: Contact, reasons: list[str]) -> ConfigError:
    """The error for a server that answers, but TLS with it fails."""
    if any(_NOT_FOR_HOST in reason for reason in reasons):
        return ConfigError(
            f"the certificate of Cassandra at {contact.told} is for another address:"
            f" {', '.join(reasons)}",
            hint="name the hosts as their certificates do; tls=ca does not look at the address",
        )
    if any("CERTIFICATE_VERIFY_FAILED" in reason for reason in reasons):
        return ConfigError(
            f"the certificate of Cassandra at {contact.told} is not trusted: {', '.join(reasons)}",
            hint="ca= names the PEM file of who signed it",
        )
    return ConfigError(
        f"Cassandra at {contact.told} does not speak TLS as asked for: {', '.join(reasons)}",
        hint="is it switched on there (client_encryption_options), and does it ask for cert=?",
    )


def no_data_centre(name: str, there: set[str]) -> ConfigError:
    """The error for a URL whose data centre is not there, or that must name one and does not."""
    return ConfigError(
        f"there is no data centre {name!r}" if name else "there are several data centres",
        hint=f"say with dc= which is near: {', '.join(sorted(there))}",
    )


def _is_unsent(exc: Exception) -> bool:
    """Whether no connection took the request: nodes have not yet read what was sent before."""
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
