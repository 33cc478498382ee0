"""Opening the backends that a URL names, without the threads of a client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from cassq import extras
from cassq.base.clock import Clock
from cassq.client.backends.embedded import Embedded, directory_of, open_directory
from cassq.client.backends.stores import CASSANDRA, FILES, STORE_OPTIONS, sidecars_of
from cassq.errors import ConfigError, QueueNotFoundError
from cassq.model.queues import check_queue_name
from cassq.model.rows import QueueRow

if TYPE_CHECKING:
    from cassq.cassandra.contact import Contact


def open_place(url: str, clock: Clock) -> Embedded:
    """Open the backends at a URL, which must exist; a spool that it names is not used. Raises as
    `connect`."""
    scheme, rest, options = parts(url)
    match scheme:
        case "file":
            return open_local(rest, options, clock, create=False)
        case "cassandra":
            return keyspace_of(rest, options)[1](clock)
        case _:
            raise not_a_queue_url(url)


def parts(url: str) -> tuple[str, str, dict[str, str]]:
    """The scheme of a URL (empty if it has none), what follows it up to `?`, and the options."""
    scheme, colon, rest = url.partition(":")
    rest, _, query = rest.partition("?")
    return scheme if colon else "", rest, dict(parse_qsl(query, keep_blank_values=True))


def not_a_queue_url(url: str) -> ConfigError:
    """The error for an unknown scheme. A URL that may hold a password is not repeated."""
    named = "it" if "@" in url else repr(url.partition("?")[0])
    return ConfigError(
        f"{named} is not a queue URL",
        hint="write file:cassq-data, file:///var/lib/cassq or cassandra://host/keyspace",
    )


def open_local(rest: str, options: dict[str, str], clock: Clock, *, create: bool) -> Embedded:
    """Open a directory. rest, options: of the URL."""
    durability = options.pop("durability", "disk")
    unknown = [name for name in options if name not in STORE_OPTIONS]
    if unknown:
        raise ConfigError(f"the URL has an unknown option {unknown[0]!r}")
    sidecars = sidecars_of(options, FILES)
    return open_directory(directory_of(rest), clock, durability, create=create, sidecars=sidecars)


def keyspace_of(rest: str, options: dict[str, str]) -> tuple[Contact, Callable[..., Embedded]]:
    """How to reach a keyspace, and a function that opens it: `open_keyspace` without its first two
    arguments. rest, options: of the URL; they are checked here."""
    if "durability" in options:
        raise ConfigError(
            "durability cannot be set for Cassandra, whose servers decide it",
            hint="set their commitlog_sync: `cassq schema status` shows it",
        )
    with extras.wanted(*extras.CASSANDRA):
        from cassq.client.backends.cluster import contact_of, open_keyspace
    contact = contact_of(rest, options)
    sidecars_of(options, CASSANDRA)  # refuses wrong options before anything is opened
    return contact, partial(open_keyspace, rest, options)


def row_named(name: str, find: Callable[[str], QueueRow | None]) -> QueueRow:
    """The row that `find` returns for a queue. Raises QueueNotFoundError and InvalidNameError."""
    if not isinstance(name, str) or "~" not in name:  # dead letters have longer names
        check_queue_name(name)
    row = find(name)
    if row is None:
        check_queue_name(name.replace("~", "."))
        raise QueueNotFoundError(f"there is no queue {name!r}")
    return row
