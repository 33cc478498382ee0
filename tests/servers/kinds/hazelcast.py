"""Hazelcast: one member, or several with the CP subsystem, from the jar of its Maven release.

    with hazelcast.cluster(nodes=3) as servers:
        HazelcastClient(cluster_name=servers.cluster_name, cluster_members=servers.members)
        servers.node(2).kill()

starts three on addresses of their own, and ends them. Members keep everything in memory: one that
was killed comes back empty, and is filled from the others' backups.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.servers.cluster import Cluster
from tests.servers.parts import jars
from tests.servers.parts.addresses import joined
from tests.servers.parts.java import find_java
from tests.servers.parts.node import Node

MEMBER_PORT = 5701
CLUSTER_NAME = "cassq"
# Consensus needs this many; with fewer members there is no CP subsystem.
CP_MEMBERS_MIN = 3
SESSION_SECONDS = 5
_MAIN_CLASS = "com.hazelcast.core.server.HazelcastMemberStarter"
_CP = "/hazelcast/rest/cp-subsystem"
# Those that agree on locks, as clients call them; they find together when the first asks.
_LOCKS_GROUP = "default"
# Cluster name and password, as its REST interface wants them with a change.
_CREDENTIALS = f"{CLUSTER_NAME}&"
_PROBE_SECONDS = 5.0


def cluster(
    nodes: int = 1, *, session_seconds: int = SESSION_SECONDS, **place: Any
) -> HazelcastCluster:
    """A cluster that is not started yet; three members and more have the CP subsystem.

    `session_seconds`: a lock of CP passes on when its holder was silent for so long.
    `place`: `home`, `subnet` and `partitions`, as for every Cluster. Cost of its
    start: 2 to 4 s for one member, some 11 s for three with CP, and 120 MiB each.
    """
    return HazelcastCluster(nodes, session_seconds=session_seconds, **place)


def configuration(address: str, members: Sequence[str], session_seconds: int) -> dict[str, Any]:
    """The content of hazelcast.yaml, which may be written as JSON."""
    with_cp = len(members) >= CP_MEMBERS_MIN
    return {
        "hazelcast": {
            "cluster-name": CLUSTER_NAME,
            "properties": {
                "hazelcast.phone.home.enabled": False,
                "hazelcast.logging.type": "jdk",
                # On its own address alone, which it would not find among the interfaces'.
                "hazelcast.local.localAddress": address,
                "hazelcast.socket.bind.any": False,
                "hazelcast.shutdownhook.policy": "TERMINATE",
                "hazelcast.operation.thread.count": 2,
                "hazelcast.io.thread.count": 1,
                "hazelcast.wait.seconds.before.join": 0,
            },
            "network": {
                "port": {"port": MEMBER_PORT, "auto-increment": False},
                "join": {
                    "auto-detection": {"enabled": False},
                    "multicast": {"enabled": False},
                    "tcp-ip": {"enabled": True, "member-list": list(members)},
                },
                # How a member is asked whether it is ready.
                "rest-api": {
                    "enabled": True,
                    "endpoint-groups": {
                        "HEALTH_CHECK": {"enabled": True},
                        "CLUSTER_READ": {"enabled": True},
                        "CP": {"enabled": with_cp},
                    },
                },
            },
            "jet": {"enabled": False},
            "cp-subsystem": _cp_subsystem(len(members), session_seconds) if with_cp else {},
        }
    }


def _cp_subsystem(members: int, session_seconds: int) -> dict[str, int]:
    return {
        "cp-member-count": members,
        "group-size": members if members % 2 else members - 1,
        "session-time-to-live-seconds": session_seconds,
        "session-heartbeat-interval-seconds": 1,
        "missing-cp-member-auto-removal-seconds": max(60, session_seconds),
    }


class HazelcastNode(Node):
    """One member; it has no data but in memory."""

    def __init__(
        self, name: str, address: str, home: Path, *, members: Sequence[str], session_seconds: int
    ) -> None:
        super().__init__(name, address, home)
        self.members = list(members)
        self.session_seconds = session_seconds
        # Started again, with CP still trusting the one that it was.
        self.returned = False
        self._spawned = False

    def spawn(self) -> None:
        super().spawn()
        self.returned, self._spawned = self._spawned, True

    def configure(self) -> None:
        content = configuration(self.address, self.members, self.session_seconds)
        (self.home / "hazelcast.yaml").write_text(json.dumps(content, indent=1))

    def command(self) -> list[str]:
        opened = (
            *("java.base/java.lang", "java.base/sun.nio.ch", "java.management/sun.management"),
            "jdk.management/com.sun.management.internal",
        )
        return [
            find_java(),
            *("-Xmx128m", "-Xss256k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-XX:-UsePerfData", "-Djava.net.preferIPv4Stack=true"),
            *("--add-modules", "java.se"),
            "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
            *(f"--add-opens={name}=ALL-UNNAMED" for name in opened),
            f"-Dhazelcast.config={self.home}/hazelcast.yaml",
            *("-cp", jars.class_path(jars.jar_directory("hazelcast"))),
            _MAIN_CLASS,
        ]

    def ready(self) -> bool:
        return self.health().get("nodeState") == "ACTIVE"

    def health(self) -> dict[str, Any]:
        """What it says of itself and its cluster; {} when it does not answer."""
        found = self.ask("GET", "/hazelcast/health")
        return found if isinstance(found, dict) else {}

    def cp_members(self) -> dict[str, str]:
        """The addresses of the CP members by their ids; {} until they have found together."""
        return _addresses(self.ask("GET", f"{_CP}/members") or [])

    def leads_locks(self) -> bool:
        """Whether those that agree on locks have a leader, whom a majority answers. No member knows
        of one for half a minute after the leader stood still for as long: the others trust it, and
        it does not trust itself."""
        return self.ask("GET", f"{_CP}/groups/{_LOCKS_GROUP}/sessions") is not None

    def locks_members(self) -> dict[str, str]:
        """The same of those that agree on locks; {} before a client asked for the first."""
        group = self.ask("GET", f"{_CP}/groups/{_LOCKS_GROUP}") or {}
        return _addresses(group.get("members", []))

    def readmit(self, through: HazelcastNode) -> None:
        """Have another member strike out the one that this was, and CP take this one in.

        CP does neither by itself, the one for a minute and the other at all: a member that comes
        back is a new one.
        """
        for former, address in through.cp_members().items():
            if address == self.address:
                through.ask("POST", f"{_CP}/members/{former}/remove", _CREDENTIALS)
        if self.ask("POST", f"{_CP}/members", _CREDENTIALS) is not None:
            self.returned = False

    def ask(self, method: str, path: str, body: str | None = None) -> Any:
        """The decoded answer of its REST interface; None when there is none that is good."""
        wire = http.client.HTTPConnection(self.address, MEMBER_PORT, timeout=_PROBE_SECONDS)
        try:
            wire.request(method, path, body)
            answer = wire.getresponse()
            answered = answer.read()
            if answer.status != http.HTTPStatus.OK:
                return None
            return json.loads(answered) if answered else {}
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            wire.close()


def _addresses(members: list[dict[str, str]]) -> dict[str, str]:
    return {each["uuid"]: each["address"].partition("]")[0].lstrip("[") for each in members}


class HazelcastCluster(Cluster[HazelcastNode]):
    """Members that back each other up, and agree on locks when there are three or more."""

    kind: ClassVar[str] = "hazelcast"
    port: ClassVar[int] = MEMBER_PORT
    cluster_name: ClassVar[str] = CLUSTER_NAME

    def __init__(
        self,
        nodes: int,
        *,
        session_seconds: int = SESSION_SECONDS,
        **place: Any,
    ) -> None:
        super().__init__(nodes, **place)
        if session_seconds < 2:
            raise ValueError("a session lasts 2 seconds at least: a heartbeat comes each second")
        self.session_seconds = session_seconds

    def find(self) -> None:
        find_java()
        jars.fetch(self.kind)

    def make_nodes(self, addresses: Sequence[str]) -> list[HazelcastNode]:
        return [
            HazelcastNode(
                f"hazelcast {number}",
                address,
                self.home / f"node{number}",
                members=addresses,
                session_seconds=self.session_seconds,
            )
            for number, address in enumerate(addresses, 1)
        ]

    def whole(self) -> bool:
        """All are members of one cluster, nothing is on its way between them, and locks are had."""
        if not all(self._joined(node) for node in self.nodes):
            return False
        return not self.has_cp or (self._cp_is_whole() and self.nodes[0].leads_locks())

    def _cp_is_whole(self) -> bool:
        trusted = sorted(self.nodes[0].cp_members().values())
        return trusted == self.contact_points and not any(node.returned for node in self.nodes)

    def _joined(self, node: HazelcastNode) -> bool:
        health = node.health()
        return health.get("clusterSize") == self.size and bool(health.get("clusterSafe"))

    @property
    def has_cp(self) -> bool:
        """Whether there are locks with fencing tokens here."""
        return self.size >= CP_MEMBERS_MIN

    def help_along(self) -> None:
        """Take members that came back into CP again; then have them agree on locks."""
        if not self.has_cp or not all(self._joined(node) for node in self.nodes):
            return
        trusted = [node for node in self.nodes if not node.returned]
        for node in self.nodes:
            if node.returned and trusted:
                node.readmit(through=trusted[0])
        if self._cp_is_whole() and not self.nodes[0].locks_members():
            self._ask_for_a_lock()

    def _ask_for_a_lock(self) -> None:
        """Let those who agree on locks find together, which they do for clients alone."""
        # Here, as most who read this file start no Hazelcast.
        from hazelcast import HazelcastClient
        from hazelcast.errors import HazelcastError

        with contextlib.suppress(HazelcastError):  # then the next time
            client = HazelcastClient(
                cluster_name=CLUSTER_NAME,
                cluster_members=self.members,
                cluster_connect_timeout=_PROBE_SECONDS,
                invocation_timeout=_PROBE_SECONDS,
            )
            try:
                client.cp_subsystem.get_lock("first")
            finally:
                client.shutdown()

    def mend(self) -> None:
        """As for every cluster; but with CP all start anew when any was killed: a majority that
        was lost is lost for good, and what is left of one may find no leader for minutes."""
        if self.has_cp and any(node.returned or not node.alive for node in self.nodes):
            for node in self.nodes:
                node.kill()
            for node in self.nodes:
                node.spawn()
                node.returned = False
        super().mend()

    @property
    def members(self) -> list[str]:
        """Every member's address with its port, as the client takes them."""
        return joined(self.contact_points, MEMBER_PORT).split(",")

    def url(self, path: str = CLUSTER_NAME) -> str:
        """`hazelcast://h1:5701,h2:5701/CLUSTER`."""
        return f"hazelcast://{','.join(self.members)}/{path}"

    def status(self) -> dict[str, Any]:
        return super().status() | {"cluster_name": CLUSTER_NAME}
