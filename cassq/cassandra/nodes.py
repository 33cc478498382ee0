"""The nodes of a cluster: which of them answer, and their settings."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from cassandra import InvalidRequest, Unauthorized
from cassandra.cluster import ControlConnection, NoHostAvailable, ResponseFuture, Session
from cassandra.connection import ConnectionException
from cassandra.pool import Host

from cassq.base.clock import Clock, Stopwatch
from cassq.cassandra.errors import reasons

logger: logging.Logger = logging.getLogger("cassq")

# How long a node has for its answer, and the pause until a connection to it may be open.
NODE_SECONDS, NODE_PAUSE = 3.0, 0.05

# Settings of the node that answers: a row each.
NODE_SETTINGS = "SELECT name, value FROM system_views.settings WHERE name IN ({})"

SCHEMA_VERSION = "SELECT schema_version FROM system.local"


class Node(NamedTuple):
    """One node. up: it answers; for another data centre, the driver considers it up. settings: the
    requested ones, as far as they are known."""

    address: str
    data_centre: str
    up: bool
    settings: dict[str, str]


def ask_nodes(session: Session, clock: Clock, near: str, settings: Sequence[str]) -> list[Node]:
    """All nodes, by data centre and address. near: the data centre whose nodes are asked; there are
    no connections to others. Cost: a concurrent read at each, and some seconds if one does not
    answer."""
    text = NODE_SETTINGS.format(", ".join(f"'{name}'" for name in settings))
    asking = [
        (host, _ask(session, text, host) if host.datacenter == near else None)
        for host in session.cluster.metadata.all_hosts()
    ]
    found: list[Node] = []
    for host, future in asking:
        settings_there = {} if future is None else _answer(session, clock, text, host, future)
        # None for a server that the driver never contacts: it does not know.
        up = host.is_up is not False if future is None else settings_there is not None
        found.append(Node(host.address, host.datacenter or "", up, settings_there or {}))
    return sorted(found, key=lambda node: (node.data_centre, node.address))


def schemas_differ(session: Session) -> bool:
    """Whether the nodes to which there are connections report different schemas. Each is asked,
    because what one reports of the others may be older than a change that they have just made.
    Cost: a concurrent read at each."""
    asking = [
        (host, _ask(session, SCHEMA_VERSION, host))
        for host, pool in session.get_pool_state().items()
        if pool["open_count"]
    ]
    found: set[object] = set()
    for host, future in asking:
        try:
            found |= {version for (version,) in future.result()}
        except Exception as exc:  # the driver's errors have no common ancestor
            logger.info("cannot read the schema of %s: %s", host.address, ", ".join(reasons(exc)))
    return len(found) > 1


def seem_agreed(control: ControlConnection, clock: Clock, seconds: float) -> bool:
    """Whether all nodes, also those of other data centres, have the same schema within `seconds`,
    according to the node at the other end of the driver's control connection. If that node has just
    died, the driver connects to another one, which is asked instead; False if it finds none. Cost:
    two reads there, repeated until the nodes agree."""
    watch = Stopwatch()
    while True:
        try:
            return bool(control.wait_for_schema_agreement(wait_time=seconds))
        except ConnectionException as exc:
            logger.info("the control connection failed: %s", ", ".join(reasons(exc)))
            if watch.seconds() > max(seconds, NODE_SECONDS):
                return False
            clock.sleep(NODE_PAUSE)


def _ask(session: Session, text: str, host: Host) -> ResponseFuture:
    return session.execute_async(text, host=host, timeout=NODE_SECONDS)


def _answer(
    session: Session, clock: Clock, text: str, host: Host, future: ResponseFuture
) -> dict[str, str] | None:
    """A node's settings; None if it does not answer. Asked again while no connection is open."""
    watch = Stopwatch()
    failure: Exception
    while True:
        try:
            return dict(future.result())
        except (Unauthorized, InvalidRequest) as exc:  # it answers
            logger.info("cannot read the settings of %s: %s", host.address, type(exc).__name__)
            return {}
        except NoHostAvailable as exc:
            failure = exc
            if watch.seconds() > NODE_SECONDS or host.is_up is False:
                break
            clock.sleep(NODE_PAUSE)
            future = _ask(session, text, host)
        except Exception as exc:  # the driver's errors have no common ancestor
            failure = exc
            break
    logger.info("%s does not answer: %s", host.address, ", ".join(reasons(failure)))
    return None
