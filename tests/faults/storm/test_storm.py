"""A short storm, with one of each kind of trouble that the servers of all tests allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.storm.on_cassandra import OnCassandra
from tests.faults.storm.plan import HOUR, Plan, Step
from tests.faults.storm.run import Size, Storm
from tests.servers.kinds.cassandra import CassandraCluster
from tests.servers.kinds.zookeeper import ZooKeeperCluster

pytestmark = pytest.mark.long(reason="a storm")

# Nodes sync their logs every ten seconds, so one that is killed loses what it wrote last. The other
# two have that, unless one of them stood still: so the kill comes first, and the end is polite.
SHORT = Plan(
    seed=1,
    seconds=35.0,
    servers=(
        Step(2.0, "kill node", 1, 4.0),
        Step(9.0, "stop node", 2, 4.0),
        Step(16.0, "stop leading keeper", 1, 3.0),
        Step(22.0, "kill keeper", 1, 2.0),
        Step(27.0, "restart all nodes", 0, 0.0),
    ),
    clients=(
        Step(4.0, "jump clock", 6, 4.0, HOUR),
        Step(9.0, "kill client", 1, 1.0),
        Step(11.0, "stop client", 7, 8.0),  # for longer than it may keep messages
        Step(20.0, "jump clock", 2, 4.0, -HOUR),
        Step(25.0, "kill client", 8, 1.0),
        Step(28.0, "kill client", 14, 1.0),
    ),
    whole=True,
)


def test_a_short_storm_breaks_no_promise(
    cassandra3: CassandraCluster, zookeeper3: ZooKeeperCluster, tmp_path: Path
) -> None:
    # The keyspace is that of the other tests here, since tables are slow to make.
    ground = OnCassandra(cassandra3, zookeeper3, "faults", "these servers share one network")
    report = Storm(ground, tmp_path, Size(pushers=1, calm=4.0)).rage(SHORT)
    report.write(tmp_path)
    assert report.good, report.as_text()
    deeds = [what for _, what in report.nemesis]
    assert deeds.count("all is mended") == 1
    hurt = {"kill -9 cassandra 1", "SIGSTOP cassandra 2", "kill -9 zookeeper 1"}
    hurt |= {"clock of push-cp-1 jumps by +3600 s", "clock of pop-ap-default-1 jumps by -3600 s"}
    hurt |= {"kill -9 push-ap-1", "SIGSTOP pop-cp-default-1", "kill -9 pop-cp-default-2"}
    hurt.add("kill -9 pop-lanes-keyed-1")
    hurt.add("SIGTERM cassandra 1, cassandra 2, cassandra 3")
    assert hurt <= set(deeds), deeds
