"""Where a Cassandra cluster is, and how to connect to it."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from cassandra import (
    ConsistencyLevel,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, ExecutionProfile
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    RoundRobinPolicy,
    TokenAwarePolicy,
)
from cassandra.query import tuple_factory

from cassq.cassandra.connecting import ConnectBudget, PatientCluster
from cassq.cassandra.connection import connection_class
from cassq.cassandra.speculation import SPECULATE_SECONDS, Speculation

REQUEST_SECONDS = 5.0
# A plain write counts only if it was answered within this time after its stamp; other clients rely
# on it, so no client may wait longer for an answer.
STALE_SECONDS = 10.0
# How long a connection may take to open is a request's timeout, within these limits: the handshake
# is several requests, and in one of them the server checks a password, which is slow.
CONNECT_SECONDS_MIN, CONNECT_SECONDS = 1.0, 10.0
# The pauses between attempts to reconnect to a node, at first and at most, for ever. The driver's
# own pauses grow to ten minutes, so a node back from a long outage would go unnoticed that long.
AGAIN_SECONDS, AGAIN_SECONDS_MAX = 0.5, 5.0
# A node that was silent for the first time gets a heartbeat request; if it does not answer within
# the second time, it is avoided. Until then each conditional write that it should coordinate waits
# for the timeout: the driver ignores other servers' reports that a node is down while connections
# to it are open.
SILENT_SECONDS, NO_SIGN_SECONDS = 5.0, 10.0

CONSISTENCIES: dict[str, int] = {
    "local_quorum": ConsistencyLevel.LOCAL_QUORUM,
    "quorum": ConsistencyLevel.QUORUM,
    "each_quorum": ConsistencyLevel.EACH_QUORUM,
    "local_one": ConsistencyLevel.LOCAL_ONE,
    "one": ConsistencyLevel.ONE,
    "all": ConsistencyLevel.ALL,
}
SERIALS: dict[str, int] = {
    "local_serial": ConsistencyLevel.LOCAL_SERIAL,
    "serial": ConsistencyLevel.SERIAL,
}


# The warning in an answer from a server that will not read from us for a while.
HELD_UP = "Request breached"


def _is_news(record: logging.LogRecord) -> bool:
    """False for a log record about an event that the driver's caller gets as an error, or counts
    anyway."""
    if record.msg == "Server warning: %s":
        return HELD_UP not in record.getMessage()
    return record.msg not in ("Error preparing query:", "Host %s error: %s.")


for _name in ("cassandra.cluster", "cassandra.protocol"):
    logging.getLogger(_name).addFilter(_is_news)


@dataclass(frozen=True, slots=True)
class Contact:
    """Where a cluster is, and how to connect to it.

    hosts: contact points. data_centre: the local one; "" where there is only one. tls: None for no
    TLS. consistency, serial: names in `CONSISTENCIES` and `SERIALS`. timeout: how many seconds a
    request waits for its answer, at most `STALE_SECONDS`. speculate: see `Speculation`.
    """

    hosts: tuple[str, ...]
    keyspace: str
    port: int = 9042
    data_centre: str = ""
    user: str = ""
    password: str = ""
    tls: ssl.SSLContext | None = None
    consistency: str = "local_quorum"
    serial: str = "local_serial"
    timeout: float = REQUEST_SECONDS
    speculate: float = SPECULATE_SECONDS

    @property
    def label(self) -> str:
        """The address for messages, without the password."""
        return f"{','.join(self.hosts)}:{self.port}/{self.keyspace}"


def cluster(
    contact: Contact, stamp: Callable[[], int], speculation: Speculation, budget: ConnectBudget
) -> PatientCluster:
    """The driver's cluster, not yet connected. stamp: returns the timestamps of plain writes, in
    microseconds."""
    connect_seconds = min(CONNECT_SECONDS, max(contact.timeout, CONNECT_SECONDS_MIN))
    local = (
        DCAwareRoundRobinPolicy(contact.data_centre) if contact.data_centre else RoundRobinPolicy()
    )
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(local),
        retry_policy=FallthroughRetryPolicy(),
        consistency_level=CONSISTENCIES[contact.consistency],
        serial_consistency_level=SERIALS[contact.serial],
        request_timeout=contact.timeout,
        row_factory=tuple_factory,
        speculative_execution_policy=speculation,
    )
    auth = PlainTextAuthProvider(contact.user, contact.password) if contact.user else None
    return PatientCluster(
        list(contact.hosts),
        port=contact.port,
        connection_class=connection_class(),
        auth_provider=auth,
        ssl_context=contact.tls,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ExponentialReconnectionPolicy(
            AGAIN_SECONDS, AGAIN_SECONDS_MAX, max_attempts=None
        ),
        idle_heartbeat_interval=SILENT_SECONDS,
        idle_heartbeat_timeout=NO_SIGN_SECONDS,
        # Otherwise a request of some 10 KB waits for the acknowledgement of its first part.
        sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        budget=budget,
        connect_timeout=connect_seconds,
        # Of each request by which the driver learns about the cluster.
        control_connection_timeout=connect_seconds,
        protocol_version=5,
        # A node that does not know a statement says so and learns it; one that is down delays none.
        prepare_on_all_hosts=False,
        # The driver would read the tables of all keyspaces at each start, and again after each
        # change; `Cql` asks for the replication of its own keyspace, and for agreement.
        schema_metadata_enabled=False,
        schema_event_refresh_window=-1,
        max_schema_agreement_wait=0,
        compression=False,
        timestamp_generator=stamp,
        application_name="cassq",
    )
