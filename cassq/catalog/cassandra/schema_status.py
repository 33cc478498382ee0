"""The state of a keyspace, and what an operator should do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cassq.cassandra.nodes import Node
from cassq.cassandra.session import Cql
from cassq.catalog import schema_files
from cassq.catalog.cassandra.notes import Notes
from cassq.catalog.cassandra.replication import obstacle, repair_due, replicas_of, servers, spread
from cassq.catalog.cassandra.schema import LOOK_SECONDS, read_version
from cassq.errors import BackendError

REPLICAS_MIN = 3  # for a quorum without one of them
COMMITLOG_SYNC, PAXOS_VARIANT = "commitlog_sync", "paxos_variant"
# With these, all later reads agree with the answer of a conditional write.
PAXOS_SAFE = ("v1", "v2")
LOCKS, STORE = "locks", "store"


class Status(NamedTuple):
    """The state of a keyspace. version: None without tables, or if they cannot be read. replicas:
    by data centre; "" is for all.

    nodes: with their `commitlog_sync` and `paxos_variant`, if known. trouble: why the tables cannot
    be read. locks, store: used by all clients; None before the first. repair_due: the last changed
    replication, if a repair has been due since that change.
    """

    keyspace: str
    exists: bool
    version: int | None
    known_version: int
    replicas: Mapping[str, int]
    agreed: bool
    nodes: Sequence[Node]
    trouble: str = ""
    locks: str | None = None
    store: str | None = None
    repair_due: str | None = None

    @property
    def usable(self) -> bool:
        """Whether this cassq can work with the keyspace as it is."""
        return self.version == self.known_version and not self.trouble

    def setting(self, name: str) -> dict[str, list[str]]:
        """The values of a server setting → the addresses of the nodes that have them."""
        values: dict[str, list[str]] = {}
        for node in self.nodes:
            if name in node.settings:
                values.setdefault(node.settings[name], []).append(node.address)
        return values


def status(cql: Cql, *, directory: Path | None = None) -> Status:
    """The state of the keyspace; the session may lack one. Cost: some reads, one at each node."""
    keyspace, replicas = cql.contact.keyspace, replicas_of(cql)
    nodes = cql.nodes(COMMITLOG_SYNC, PAXOS_VARIANT)
    found = Status(
        keyspace=keyspace,
        exists=replicas is not None,
        version=None,
        known_version=schema_files.latest_version("cassandra", directory=directory),
        replicas=replicas or {},
        agreed=cql.schema_agreed(LOOK_SECONDS),
        nodes=nodes,
    )
    if replicas is None:
        return found
    cql.use(keyspace)
    missing = obstacle(replicas, nodes)
    if missing is not None:
        return found._replace(trouble=str(missing))
    try:
        version = read_version(cql)
        if version is None:
            return found
        notes = Notes(cql).all()
        due = repair_due(cql)
    except BackendError as exc:
        return found._replace(trouble=str(exc))
    return found._replace(
        version=version, locks=notes.get(LOCKS), store=notes.get(STORE), repair_due=due
    )


def advice(found: Status) -> list[str]:
    """Advice and warnings about a keyspace, the most urgent first."""
    lines: list[str] = []
    if not found.exists:
        lines.append("there is no such keyspace: `cassq schema apply --replication ...` creates it")
    elif found.trouble:
        lines.append(f"it cannot be used now: {found.trouble}")
    elif found.version is None:
        lines.append("it has no tables of cassq: create them with `cassq schema apply`")
    elif found.version < found.known_version:
        lines.append("upgrade it with `cassq schema apply`")
    elif found.version > found.known_version:
        lines.append("it was written by a newer cassq: use that")
    if found.repair_due:
        lines.append(
            f"a repair is due since the replication was changed to {found.repair_due}: run"
            f" `nodetool repair --full {found.keyspace}` on each server, then `cassq schema change"
            f" --replication {found.repair_due} --repaired`"
        )
    if not found.agreed:
        lines.append(
            "the servers do not agree on the tables: `nodetool describecluster` shows which differ"
        )
    return [*lines, *_of_replication(found), *_of_paxos(found), *_of_sync(found)]


def _of_replication(found: Status) -> list[str]:
    if not found.exists:
        return []
    lines: list[str] = []
    there = Counter(node.data_centre for node in found.nodes)
    replicas = spread(found.replicas, found.nodes)
    for name, count in replicas.items():
        if 0 < there[name] < count and not found.trouble:
            lines.append(
                f"data centre {name} has {servers(there[name])} for {count} replicas: start more"
                f" servers, or lower it with `cassq schema change --replication {there[name]}`"
            )
    if min(replicas.values(), default=0) < REPLICAS_MIN:
        lines.append(f"with fewer than {REPLICAS_MIN} replicas, queues stop when a server fails")
    return lines


def _of_paxos(found: Status) -> list[str]:
    values = found.setting(PAXOS_VARIANT)
    lines = [
        f"paxos_variant is {value} on {_those(addresses)}: reads may miss acknowledged changes,"
        " and acknowledged work may be lost; set it to v2"
        for value, addresses in values.items()
        if value not in PAXOS_SAFE
    ]
    if "v1" in values:
        lines.append(
            f"paxos_variant is v1 on {_those(values['v1'])}: conditional writes take twice as many"
            " round trips as with v2; set it to v2 on all servers"
        )
    return lines


def _of_sync(found: Status) -> list[str]:
    values = found.setting(COMMITLOG_SYNC)
    if "periodic" not in values:
        return []
    where = _those(values["periodic"])
    return [
        (
            f"commitlog_sync is periodic on {where}: servers that lose power at the same time may"
            " lose the last seconds of acknowledged writes; set it to batch or group"
        )
    ]


def _those(addresses: Sequence[str]) -> str:
    return ", ".join(addresses)
