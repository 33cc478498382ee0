"""Cassandra: one node or several, from the jars of its Maven release.

    with cassandra.cluster(nodes=3, commitlog_sync="batch") as servers:
        connect(servers.contact_points, servers.port)
        servers.node(2).kill()

starts three on addresses of their own, and ends them.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.servers.cluster import Cluster
from tests.servers.kinds import cassandra_config, cql
from tests.servers.kinds.cassandra_config import NATIVE_PORT, CassandraSettings
from tests.servers.parts import jars
from tests.servers.parts.addresses import claim_subnet
from tests.servers.parts.errors import ServerFailedError
from tests.servers.parts.java import find_java
from tests.servers.parts.node import Node

_NODETOOL_CLASS, _NODETOOL_SECONDS = "org.apache.cassandra.tools.NodeTool", 300.0
_PROBE_SECONDS = 5.0
_MAIN_CLASS = "org.apache.cassandra.service.CassandraDaemon"
# A table that is kept on three nodes: read at ALL, it tells that they see one another.
_ON_ALL = (
    "SELECT status FROM system_distributed.view_build_status"
    " WHERE keyspace_name = 'none' AND view_name = 'none'"
)


def cluster(
    nodes: int = 1,
    *,
    home: Path | None = None,
    subnet: str | None = None,
    partitions: bool = False,
    **settings: Any,
) -> CassandraCluster:
    """A cluster that is not started yet; the keywords are the fields of CassandraSettings.

    Cost of its start: 2 to 5 s for one node, 7 to 15 s for three, 200 to 430 MiB a node.
    """
    place = {"home": home, "subnet": subnet, "partitions": partitions}
    return CassandraCluster(nodes, CassandraSettings(**settings), **place)


class CassandraNode(Node):
    """One node; its data is below `home`."""

    def __init__(
        self,
        name: str,
        address: str,
        home: Path,
        *,
        settings: CassandraSettings,
        seeds: Sequence[str],
        data_center: str,
        token: int,
        jmx_port: int = 0,
    ) -> None:
        super().__init__(name, address, home)
        self.settings = settings
        self.seeds = list(seeds)
        self.data_center = data_center
        self.token = token
        self.jmx_port = jmx_port
        self.archive_options: list[str] = []

    def configure(self) -> None:
        conf = self.home / "conf"
        for folder in ("conf/triggers", "data", "tmp"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        content = cassandra_config.yaml(
            self.settings, self.home, self.address, self.seeds, self.token
        )
        (conf / "cassandra.yaml").write_text(json.dumps(content, indent=1))
        (conf / "cassandra-rackdc.properties").write_text(f"dc={self.data_center}\nrack=rack1\n")
        (conf / "logback.xml").write_text(
            cassandra_config.LOGBACK.format(file=self.home / "system.log")
        )

    def command(self) -> list[str]:
        replicas = min(3, len(self.seeds))
        options = cassandra_config.java_options(self.settings, self.home, replicas)
        if self.jmx_port:
            options.append(f"-Dcassandra.jmx.local.port={self.jmx_port}")
        path = jars.class_path(jars.jar_directory("cassandra"))
        return [find_java(), *options, *self.archive_options, "-cp", path, _MAIN_CLASS]

    def ready(self) -> bool:
        return self.answer("SELECT key FROM system.local") is not None

    def answer(self, text: str, consistency: int = cql.ONE) -> bytes | None:
        """The body of a query's result; None when there is none in some seconds."""
        try:
            return cql.query(
                self.address, NATIVE_PORT, text, consistency=consistency, seconds=_PROBE_SECONDS
            )
        except (OSError, cql.CqlError):
            return None

    def nodetool(self, *words: str) -> str:
        """What `nodetool` prints. Raises ServerFailedError with it, if it fails."""
        done = subprocess.run(
            [
                *(find_java(), *cassandra_config.tool_options(self.home)),
                *("-cp", jars.class_path(jars.jar_directory("cassandra")), _NODETOOL_CLASS),
                *("-h", "127.0.0.1", "-p", str(self.jmx_port), *words),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=_NODETOOL_SECONDS,
            cwd=self.home,
            env={**os.environ, "HOME": str(self.home)},  # it keeps a history there
        )
        if done.returncode:
            raise ServerFailedError(f"nodetool {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def log_files(self) -> list[Path]:
        return [*super().log_files(), self.home / "system.log"]


class CassandraCluster(Cluster[CassandraNode]):
    """A ring in which every node has one token and the same share."""

    kind: ClassVar[str] = "cassandra"
    port: ClassVar[int] = NATIVE_PORT

    def __init__(self, nodes: int, settings: CassandraSettings, **place: Any) -> None:
        super().__init__(nodes, **place)
        settings.check(nodes)
        self.settings = settings

    def find(self) -> None:
        find_java()
        jars.fetch(self.kind)
        make_archive()

    def make_nodes(self, addresses: Sequence[str]) -> list[CassandraNode]:
        places = cassandra_config.places(self.size, self.settings.data_centers)
        made = []
        jmx_ports = self.settings.jmx_ports or [0] * len(addresses)
        for number, (address, (data_center, token), jmx_port) in enumerate(
            zip(addresses, places, jmx_ports, strict=True), 1
        ):
            node = CassandraNode(
                f"cassandra {number}",
                address,
                self.home / f"node{number}",
                settings=self.settings,
                seeds=addresses,
                data_center=data_center,
                token=token,
                jmx_port=jmx_port,
            )
            node.archive_options = archive_options()
            made.append(node)
        return made

    def whole(self) -> bool:
        """Each sees as many peers as there are, up, and all have the same schema."""
        if self.size == 1:
            return True
        schemas = {node.answer("SELECT schema_version FROM system.local") for node in self.nodes}
        peers = {node.answer("SELECT count(*) FROM system.peers_v2") for node in self.nodes}
        # A count is the last eight bytes of its result.
        counted = {answer[-8:] for answer in peers if answer} == {(self.size - 1).to_bytes(8)}
        # With fewer nodes than replicas, "all" would ask for one that is not there.
        level = cql.ALL if self.size >= 3 else cql.QUORUM
        seen = all(node.answer(_ON_ALL, level) is not None for node in self.nodes)
        return len(schemas) == 1 and None not in peers and counted and seen

    def url(self, path: str = "cassq") -> str:
        """`cassandra://h1,h2/KEYSPACE`, with name and password where there are some."""
        user = f"{cql.SUPERUSER}:{cql.SUPERUSER}@" if self.settings.authentication else ""
        return f"cassandra://{user}{','.join(self.contact_points)}/{path}"

    def status(self) -> dict[str, Any]:
        shown = super().status()
        shown["data_centers"] = [node.data_center for node in self.nodes]
        if self.settings.authentication:
            shown |= {"user": cql.SUPERUSER, "password": cql.SUPERUSER}
        return shown


# --- the class archive: what a start loads, ready to be mapped ------------------------------------


def archive_file() -> Path:
    """Where the classes that a start loads are kept, for this Java and these jars."""
    release = Path(os.path.realpath(find_java())).parents[1] / "release"
    # An archive is good for one build of Java; each tells of itself in this file.
    mark = hashlib.sha256(release.read_bytes() if release.exists() else b"").hexdigest()[:8]
    return jars.cache_directory() / f"{jars.jar_directory('cassandra').name}-java-{mark}.jsa"


def archive_options() -> list[str]:
    """The JVM falls back to loading from jars if the archive does not fit."""
    if not archive_file().exists():
        return []
    return [f"-XX:SharedArchiveFile={archive_file()}", "-Xshare:auto"]


def make_archive() -> None:
    """Start a node once and keep the classes it loaded: every later start is 1 to 2 s quicker.

    Any number of processes may ask at once. Cost: 10 s the first time, and 54 MiB of disk.
    """
    if archive_file().exists():
        return
    with jars.exclusively("cassandra-archive"):
        if archive_file().exists():
            return
        fresh = archive_file().with_suffix(".partial")
        fresh.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="cassq-archive.") as home:
            _write_archive(Path(home), fresh)
        fresh.rename(archive_file())


def _write_archive(home: Path, file: Path) -> None:
    subnet = claim_subnet()
    (address,) = subnet.addresses(1)
    ((data_center, token),) = cassandra_config.places(1, ())
    node = CassandraNode(
        "cassandra, to learn its classes",
        address,
        home,
        settings=CassandraSettings(),
        seeds=[address],
        data_center=data_center,
        token=token,
    )
    node.archive_options = [f"-XX:ArchiveClassesAtExit={file}"]
    try:
        node.start()
        node.stop()
    finally:
        node.kill()
        subnet.release()
    if not file.exists():
        raise ServerFailedError(f"Java wrote no class archive:\n{node.log_tail()}")
