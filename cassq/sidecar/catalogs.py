"""Opening only the catalog of a URL: a sidecar has no queues, pushers or poppers of its own."""

from __future__ import annotations

from urllib.parse import parse_qsl

from cassq import extras
from cassq.base.clock import Clock
from cassq.base.os_errors import translated
from cassq.catalog.port import Catalog
from cassq.catalog.sqlite import SqliteCatalog
from cassq.client.backends.embedded import (
    CATALOG,
    agree_on_directory,
    check_contents,
    check_file_system,
    directory_of,
    mounts,
)
from cassq.client.backends.stores import SIDECAR, STORE_OPTIONS
from cassq.errors import ConfigError
from cassq.extents.files.disk import Disk


def open_catalog(url: str, clock: Clock) -> Catalog:
    """The catalog of a URL of queues. A missing directory is made, so that sidecars can start
    before the first client. From then on sidecars keep the messages of this place; other store
    options of the URL do not matter here.

    Raises ConfigError for a URL or place that cannot be used, or that keeps messages itself,
    MissingExtraError without the driver, BackendUnavailableError when it does not answer.
    """
    scheme, _, rest = url.partition(":")
    rest, _, query = rest.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    options = {key: value for key, value in given.items() if not _is_of_store(key)}
    match scheme:
        case "file":
            return _open_directory(rest, options, clock)
        case "cassandra":
            return _open_keyspace(rest, options, clock)
    raise ConfigError(
        "--catalog is not a URL of queues",
        hint="write file:///var/lib/cassq or cassandra://host/keyspace, as for clients",
    )


def _is_of_store(option: str) -> bool:
    return option == "spill" or option in STORE_OPTIONS


def _open_directory(rest: str, options: dict[str, str], clock: Clock) -> Catalog:
    directory = directory_of(rest)
    durable = options.pop("durability", "disk") == "disk"
    if options:
        raise ConfigError(f"the URL has an unknown option {min(options)!r}")
    with translated(f"opening {directory}"):
        check_file_system(directory, mounts())
        check_contents(directory)
        Disk().make_directory(directory)
    catalog = SqliteCatalog(directory / CATALOG, clock, durable=durable)
    try:
        agree_on_directory(catalog, SIDECAR, directory)
    except BaseException:
        catalog.close()
        raise
    return catalog


def _open_keyspace(rest: str, options: dict[str, str], clock: Clock) -> Catalog:
    with extras.wanted(*extras.CASSANDRA):
        from cassq.cassandra.session import Cql
        from cassq.catalog.cassandra import CassandraCatalog
        from cassq.client.backends.agreement import Agreement
        from cassq.client.backends.cluster import contact_of
    contact = contact_of(rest, options)
    cql = Cql(contact, clock, keyspace=contact.keyspace)
    try:
        catalog = CassandraCatalog(cql, clock)
        Agreement(cql, catalog).on_store(SIDECAR)
        return catalog
    except BaseException:
        cql.close()
        raise
