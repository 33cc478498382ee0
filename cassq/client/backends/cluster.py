"""Opening a Cassandra keyspace: parses its URL, and assembles the ports.

cassandra://USER:PASSWORD@HOST1,HOST2:9042/KEYSPACE?dc=...&consistency=...&locks=...&tls=...
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote

from cassq.base.clock import Clock
from cassq.base.counters import Requests
from cassq.base.ids import Ids
from cassq.base.sharing import Background, Sharing
from cassq.base.tls import tls_of
from cassq.cassandra.contact import REQUEST_SECONDS, SERIALS, STALE_SECONDS, Contact
from cassq.cassandra.session import Cql
from cassq.cassandra.speculation import SPECULATE_SECONDS
from cassq.cassandra.tries import PATIENCE_SECONDS
from cassq.catalog.cassandra import CassandraCatalog
from cassq.client.backends.agreement import Agreement
from cassq.client.backends.embedded import Embedded
from cassq.client.backends.stores import CASSANDRA, SIDECAR, STORE_OPTIONS, sidecars_of
from cassq.doorbell import PollingDoorbell
from cassq.errors import ConfigError
from cassq.extents.cassandra import CassandraStore
from cassq.extents.port import ExtentStore
from cassq.lifecycle.ports import Ports, TimedLife
from cassq.locks.turns import Turns

logger: logging.Logger = logging.getLogger("cassq")

PORT = 9042
APART_MS = 5_000  # a larger difference between a client's clock and the servers' is logged
OPTIONS = (
    *("dc", "consistency", "serial", "locks", "spill", "tls", "ca", "cert", "key"),
    *("timeout", "patience", "speculate"),
    *STORE_OPTIONS,
)
# Any two of these quorums share a replica, so that each reads what the other wrote.
QUORUMS = ("local_quorum", "quorum")
# The patience of a client that can spill.
SPILL_PATIENCE_SECONDS = 3.0
# What timeout= and patience= in the URL may be, in seconds; a timeout is at most `STALE_SECONDS`.
TIMEOUT_SECONDS_MIN, PATIENCE_SECONDS_MIN, PATIENCE_SECONDS_MAX = 0.1, 0.5, 600.0
_EXAMPLE = "cassandra://host1,host2/keyspace"

_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@/?#\s]+))(?::(?P<port>\d+))?")
_KEYSPACE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")


def open_keyspace(
    rest: str,
    options: Mapping[str, str],
    clock: Clock,
    life: TimedLife | None = None,
    requests: Requests | None = None,
) -> Embedded:
    """Open the queues of a keyspace whose tables `cassq schema apply` created. rest, options: of
    the URL, as in `contact_of`. life: the client's, if it has one. requests: counts the outcomes
    of requests.

    Raises ConfigError for an invalid URL, credentials, keyspace or data centre, and
    BackendUnavailableError if no server answers. Cost: about fifteen requests.
    """
    contact = contact_of(rest, options)
    patience, life = patience_of(options), life or TimedLife(clock)
    cql = Cql(
        contact,
        clock,
        keyspace=contact.keyspace,
        patience=patience,
        call=life.call,
        requests=requests,
    )
    try:
        _compare_clocks(cql, clock)
        catalog = CassandraCatalog(cql, clock)
        ids, agreed = Ids(), Agreement(cql, catalog)
        agreed.on_quorums()
        sidecars = sidecars_of(options, CASSANDRA, agreed.store)
        agreed.on_store(CASSANDRA if sidecars is None else SIDECAR)
        upkeep = None
        if sidecars is None:
            store: ExtentStore = CassandraStore(cql, clock)
        else:
            sidecars = sidecars._replace(patience=patience)
            from cassq.extents.sidecar import open_sidecar_store

            replicated = open_sidecar_store(catalog, clock, ids, sidecars, requests=cql.requests)
            store, upkeep = replicated, replicated.upkeep
        locker = agreed.open_locker(options.get("locks", ""), clock, ids)
    except BaseException:
        cql.close()
        raise
    sharing = Sharing[Any, Any, Any](Background())
    turns = Turns(catalog.leases, locker, clock, ids.client)
    ports = Ports(catalog, store, locker, clock, ids, life, sharing, cql.requests, upkeep, turns)
    return Embedded(ports, lambda _queue_id: PollingDoorbell(), lambda: (cql.abandon(), store))


def _compare_clocks(cql: Cql, clock: Clock) -> None:
    """Warn of a wrong wall clock: queues do not depend on it, but times shown to people do."""
    ahead_ms = clock.wall_ms() - cql.time.now_ms()
    if abs(ahead_ms) >= APART_MS:
        logger.warning(
            "the clock of this machine is %.0f seconds %s that of Cassandra at %s: queues use the"
            " servers' time, but messages show the time of this clock; correct it",
            abs(ahead_ms) / 1000,
            "ahead of" if ahead_ms > 0 else "behind",
            cql.contact.label,
        )


def open_session(url: str | None, clock: Clock) -> Cql:
    """Open a session with the cluster of a URL; the keyspace need not exist.

    Raises as `open_keyspace`, and ConfigError for a URL of another scheme.
    """
    contact, patience = _contact_and_patience(url)
    return Cql(contact, clock, patience=patience)


def _contact_and_patience(url: str | None) -> tuple[Contact, float]:
    scheme, _, rest = (url or "").partition(":")
    rest, _, query = rest.partition("?")
    if scheme != "cassandra":
        raise ConfigError(
            "only a Cassandra keyspace has a schema to manage",
            hint=f"name it with --url or CASSQ_URL: {_EXAMPLE}",
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    return contact_of(rest, options), patience_of(options)


@contextmanager
def opened_agreement(url: str | None, clock: Clock) -> Iterator[Agreement]:
    """The agreement of the clients of a URL's keyspace, to be shown or changed. Raises as
    `open_keyspace`."""
    contact, patience = _contact_and_patience(url)
    cql = Cql(contact, clock, keyspace=contact.keyspace, patience=patience)
    try:
        yield Agreement(cql, CassandraCatalog(cql, clock))
    finally:
        cql.close()


def contact_of(rest: str, options: Mapping[str, str]) -> Contact:
    """How to reach the servers of a URL. rest: its part between `cassandra:` and `?`.

    Raises ConfigError, which never shows a password.
    """
    place, _, keyspace = rest.removeprefix("//").partition("/")
    who, at, listed = place.rpartition("@")
    user, colon, password = who.partition(":")
    if not rest.startswith("//") or not listed:
        raise ConfigError("the URL names no server", hint=f"write {_EXAMPLE}")
    if at and not (user and colon and password):
        raise ConfigError(
            f"the URL of {listed} has no user and password before the @",
            hint="write cassandra://user:password@host/keyspace; %40 is an @ in a password",
        )
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise ConfigError(
            f"the URL of {listed} has an unknown option {unknown[0]!r}",
            hint=f"it may have {', '.join(OPTIONS)}",
        )
    if not _KEYSPACE.fullmatch(keyspace):
        raise ConfigError(
            f"{keyspace!r} in the URL of {listed} is not the name of a keyspace"
            if keyspace
            else f"the URL of {listed} names no keyspace",
            hint=f"write {_EXAMPLE}; the name is a letter and up to 47 letters, digits and _",
        )
    hosts, port = _hosts(listed)
    return Contact(
        hosts=hosts,
        keyspace=keyspace,
        port=port,
        data_centre=options.get("dc", ""),
        user=unquote(user),
        password=unquote(password),
        tls=tls_of(options),
        consistency=_one_of(options, "consistency", QUORUMS),
        serial=_one_of(options, "serial", tuple(SERIALS)),
        timeout=_seconds(options, "timeout", REQUEST_SECONDS, TIMEOUT_SECONDS_MIN, STALE_SECONDS),
        speculate=_seconds(options, "speculate", SPECULATE_SECONDS, 0.0, STALE_SECONDS),
    )


def patience_of(options: Mapping[str, str]) -> float:
    """How many seconds failing servers may delay a call of this client."""
    usual = SPILL_PATIENCE_SECONDS if "spill" in options else PATIENCE_SECONDS
    return _seconds(options, "patience", usual, PATIENCE_SECONDS_MIN, PATIENCE_SECONDS_MAX)


def _seconds(
    options: Mapping[str, str], name: str, usual: float, least: float, most: float
) -> float:
    """An option in seconds."""
    text = options.get(name)
    if text is None:
        return usual
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not least <= seconds <= most:
        raise ConfigError(
            f"{name} must be a number of seconds from {least:g} to {most:g}, not {text!r}",
            hint=f"leave it out for {usual:g}",
        )
    return seconds


def _hosts(listed: str) -> tuple[tuple[str, ...], int]:
    """The hosts, and the port that they share."""
    hosts: list[str] = []
    ports: set[int] = set()
    for host in listed.split(","):
        match = _HOST.fullmatch(host.strip())
        if match is None or not 0 < int(match["port"] or PORT) < 65536:
            raise ConfigError(f"{host!r} is not a host name", hint=f"write host or host:{PORT}")
        hosts.append(match["six"] or match["name"])
        if match["port"]:
            ports.add(int(match["port"]))
    if len(ports) > 1:
        raise ConfigError(
            f"{listed} has several ports", hint="all servers of a cluster listen on one port"
        )
    return tuple(hosts), ports.pop() if ports else PORT


def _one_of(options: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """An option with one of these values; the first is the default."""
    value = options.get(name, allowed[0]).lower()
    if value not in allowed:
        raise ConfigError(
            f"{name} must be {' or '.join(allowed)}, not {options[name]!r}",
            hint="with any other, a reader could miss acknowledged messages"
            if name == "consistency"
            else "",
        )
    return value
