"""ZooKeeper: one server, or an ensemble of several, from the jars of its Maven release.

    with zookeeper.cluster(nodes=3) as servers:
        KazooClient(hosts=servers.hosts)
        servers.leader().kill()

starts three on addresses of their own, and ends them.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.servers.cluster import Cluster
from tests.servers.parts import jars
from tests.servers.parts.addresses import joined
from tests.servers.parts.errors import ServerFailedError
from tests.servers.parts.java import find_java
from tests.servers.parts.node import Node

CLIENT_PORT = 2181
_PEER_PORT = 2888
_ELECTION_PORT = 3888
_PROBE_SECONDS = 2.0
# Half a second: sessions may be as short as two of them, so that a test sees one expire soon.
_TICK_MS = 500

_ALONE = "org.apache.zookeeper.server.ZooKeeperServerMain"
_IN_ENSEMBLE = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

_LOGBACK = """\
<configuration scan="false">
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{ISO8601} %-5level [%thread] %logger{20}: %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT"/></root>
</configuration>
"""


def cluster(nodes: int = 1, **place: Any) -> ZooKeeperCluster:
    """An ensemble that is not started yet.

    `place`: `home`, `subnet` and `partitions`, as for every Cluster. Cost of its start: 1 to 3 s,
    and 60 to 110 MiB a server. Sessions last 1 to 60 s, as clients ask for.
    """
    return ZooKeeperCluster(nodes, **place)


def configuration(home: Path, address: str, members: Sequence[str]) -> str:
    """The content of zoo.cfg; `members` are the addresses of all servers, in their order."""
    lines = [
        f"dataDir={home / 'data'}",
        f"clientPortAddress={address}",
        f"clientPort={CLIENT_PORT}",
        f"tickTime={_TICK_MS}",
        f"minSessionTimeout={2 * _TICK_MS}",
        "maxSessionTimeout=60000",
        # In ticks: how long a follower may take to connect and catch up, and to fall behind.
        "initLimit=20",
        "syncLimit=10",
        "maxClientCnxns=0",
        "preAllocSize=1024",
        "admin.enableServer=false",
        "4lw.commands.whitelist=srvr,ruok,mntr,cons,dump",
    ]
    if len(members) > 1:
        ports = f"{_PEER_PORT}:{_ELECTION_PORT}"
        lines += [f"server.{number}={each}:{ports}" for number, each in enumerate(members, 1)]
    return "\n".join(lines) + "\n"


class ZooKeeperNode(Node):
    """One server; what it acknowledged is synced below `home`."""

    def __init__(self, name: str, address: str, home: Path, *, members: Sequence[str]) -> None:
        super().__init__(name, address, home)
        self.members = list(members)

    def configure(self) -> None:
        data = self.home / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{self.members.index(self.address) + 1}\n")
        (self.home / "zoo.cfg").write_text(configuration(self.home, self.address, self.members))
        (self.home / "logback.xml").write_text(_LOGBACK)

    def command(self) -> list[str]:
        return [
            find_java(),
            *("-Xmx96m", "-Xss256k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-XX:-UsePerfData", "-Djava.net.preferIPv4Stack=true"),
            "-Dzookeeper.jmx.log4j.disable=true",
            # Empty containers are removed soon, so that a test can see it.
            "-Dznode.container.checkIntervalMs=1000",
            f"-Dlogback.configurationFile=file:{self.home}/logback.xml",
            *("-cp", jars.class_path(jars.jar_directory("zookeeper"))),
            _ALONE if len(self.members) == 1 else _IN_ENSEMBLE,
            str(self.home / "zoo.cfg"),
        ]

    def ready(self) -> bool:
        return self.mode() != ""

    def mode(self) -> str:
        """`leader`, `follower` or `standalone`; "" while it serves nobody."""
        for line in self.ask("srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ").strip()
        return ""

    def status(self) -> dict[str, Any]:
        shown = super().status()
        return shown | {"mode": self.mode()} if self.state == "running" else shown

    def ask(self, word: str) -> str:
        """The answer to a four-letter word; "" when there is none."""
        try:
            with socket.create_connection((self.address, CLIENT_PORT), _PROBE_SECONDS) as wire:
                wire.settimeout(_PROBE_SECONDS)
                wire.sendall(word.encode())
                with wire.makefile("rb") as answer:
                    return answer.read().decode()
        except OSError:
            return ""


class ZooKeeperCluster(Cluster[ZooKeeperNode]):
    """An ensemble, or one server by itself."""

    kind: ClassVar[str] = "zookeeper"
    port: ClassVar[int] = CLIENT_PORT

    def find(self) -> None:
        find_java()
        jars.fetch(self.kind)

    def make_nodes(self, addresses: Sequence[str]) -> list[ZooKeeperNode]:
        return [
            ZooKeeperNode(
                f"zookeeper {number}", address, self.home / f"node{number}", members=addresses
            )
            for number, address in enumerate(addresses, 1)
        ]

    def whole(self) -> bool:
        """One leads and all others follow it."""
        modes = sorted(node.mode() for node in self.nodes)
        if self.size == 1:
            return modes == ["standalone"]
        return modes == ["follower"] * (self.size - 1) + ["leader"]

    def leader(self) -> ZooKeeperNode:
        """The server that leads. Raises ServerFailedError when there is none at the moment."""
        for node in self.nodes:
            if node.alive and node.mode() in ("leader", "standalone"):
                return node
        raise ServerFailedError("no ZooKeeper server leads at the moment")

    @property
    def hosts(self) -> str:
        """All servers, as ZooKeeper's clients take them."""
        return joined(self.contact_points, CLIENT_PORT)

    def url(self, path: str = "cassq") -> str:
        """`zookeeper://h1:2181,h2:2181/PATH`."""
        return f"zookeeper://{self.hosts}/{path}"
