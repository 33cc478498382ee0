"""The ground of a storm over Cassandra and ZooKeeper: catalog, frames and locks are theirs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from cassq.base.clock import SystemClock
from cassq.catalog.cassandra import schema
from cassq.client.backends.cluster import open_session
from tests.faults.storm.deeds import Heal, Note, down, healing, stop
from tests.faults.storm.ground import Ground, patiently
from tests.faults.storm.plan import CUTS, SERVER_TROUBLES, Span, Step
from tests.servers.cluster import Cluster
from tests.servers.kinds.cassandra import CassandraCluster
from tests.servers.kinds.zookeeper import ZooKeeperCluster

# Of a client's time, which it measures from the answers of servers in trouble.
CLOCK_ERROR_SECONDS = 0.25


class OnCassandra(Ground):
    """Three nodes and three keepers. obstacle: why their networks cannot be cut; "" if they can."""

    clock_error = CLOCK_ERROR_SECONDS

    def __init__(
        self, nodes: CassandraCluster, keepers: ZooKeeperCluster, keyspace: str, obstacle: str
    ) -> None:
        self._bare_url = nodes.url(keyspace)
        super().__init__(f"{self._bare_url}?locks={keepers.url(keyspace)}")
        self._nodes = nodes
        self._keepers = keepers
        if obstacle:
            self.not_possible.append(f"partitions: {obstacle}")

    @property
    def description(self) -> str:
        return (
            f"{self._nodes.size} Cassandra nodes,"
            f" commitlog_sync {self._nodes.settings.commitlog_sync};"
            f" {self._keepers.size} ZooKeeper servers"
        )

    @property
    def troubles(self) -> Mapping[str, Span]:
        possible = SERVER_TROUBLES.keys() - (CUTS if self.not_possible else set())
        return {what: span for what, span in SERVER_TROUBLES.items() if what in possible}

    def prepare(self) -> None:
        prepare_keyspace(self._bare_url)

    def mend(self, note: Note) -> None:
        self._nodes.mend()
        self._keepers.mend()

    def hurt(self, step: Step, note: Note) -> Heal:
        kind, _, rest = step.what.partition(" ")
        cluster: Cluster[Any] = self._nodes if "node" in rest else self._keepers
        match kind, "all" in rest:
            case ("kill" | "restart", True):
                return down(note, cluster.nodes, politely=kind == "restart")
            case "kill", False:
                return down(note, [cluster.node(step.target)])
            case "stop", _:
                leading = "leading" in rest
                return stop(note, self._keepers.leader() if leading else cluster.node(step.target))
            case _:
                return self._cut(cluster, step, note)

    def _cut(self, cluster: Cluster[Any], step: Step, note: Note) -> Heal:
        node = cluster.node(step.target)
        if "from clients" in step.what:
            note(f"cut {node.name} from clients")
            cluster.hide(step.target)
        else:
            note(f"cut {node.name} from the other two")
            cluster.partition(step.target)
        return healing(note, f"healed {node.name}", cluster.heal)


def prepare_keyspace(url: str) -> None:
    """Make the keyspace of a bare URL, and its tables, on three nodes of one data centre."""
    clock = SystemClock()
    with closing(open_session(url, clock)) as session:
        patiently(lambda: schema.apply(session, clock, {"dc1": 3}))
