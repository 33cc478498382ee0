"""What a small Cassandra node is configured with, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMITLOG_SYNCS = ("periodic", "batch", "group")
NATIVE_PORT = 9042

# What Cassandra and its libraries reach into behind the strong encapsulation of Java 17.
_EXPORTS = (
    *("java.base/jdk.internal.misc", "java.base/jdk.internal.ref", "java.base/sun.nio.ch"),
    *("java.base/java.lang.ref", "java.management.rmi/com.sun.jmx.remote.internal.rmi"),
    *("java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server", "java.sql/java.sql"),
    *("jdk.unsupported/sun.misc", "jdk.compiler/com.sun.tools.javac.file"),
    "jdk.attach/sun.tools.attach",
)
_OPENS = (
    *("java.base/java.lang.module", "java.base/jdk.internal.loader", "java.base/jdk.internal.ref"),
    *("java.base/jdk.internal.reflect", "java.base/jdk.internal.math", "java.base/sun.nio.ch"),
    *("java.base/jdk.internal.module", "java.base/jdk.internal.util.jar", "java.base/java.io"),
    *("jdk.management/com.sun.management.internal", "java.base/java.nio", "java.base/java.lang"),
    *("java.base/java.lang.reflect", "java.base/java.util", "java.base/java.util.concurrent"),
    "java.base/java.util.concurrent.atomic",
)

LOGBACK = """\
<configuration scan="false">
  <appender name="FILE" class="ch.qos.logback.core.FileAppender">
    <file>{file}</file><append>true</append>
    <encoder><pattern>%d{{ISO8601}} %-5level [%thread] %logger{{20}}: %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="FILE"/></root>
</configuration>
"""


@dataclass(frozen=True)
class CassandraSettings:
    """How a cluster differs from the default.

    `commitlog_sync`: with `periodic` a killed node loses acknowledged writes of the last seconds;
    with `batch` and `group` none. `authentication`: clients must log in, first as `cassandra`
    with the password `cassandra`. `data_centers`: how many nodes dc1, dc2, ... have; all are in
    dc1 by default. `options` overrule any line of cassandra.yaml. `full_jit` is for
    throughput, as servers in production have it: compiled as far as Java can, and all of the heap
    is there from the start, which takes twice the CPU time. `jmx_ports`: of each
    node, on 127.0.0.1, where `nodetool` manages it; empty: none.
    """

    commitlog_sync: str = "periodic"
    authentication: bool = False
    data_centers: tuple[int, ...] = ()
    heap_mib: int = 384
    full_jit: bool = False
    jmx_ports: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self, nodes: int) -> None:
        """Raise ValueError for settings that are none, or not for so many nodes."""
        if self.commitlog_sync not in COMMITLOG_SYNCS:
            known = ", ".join(COMMITLOG_SYNCS)
            raise ValueError(f"commitlog_sync is one of {known}, not {self.commitlog_sync!r}")
        if self.data_centers and (sum(self.data_centers) != nodes or min(self.data_centers) < 1):
            listed = ",".join(map(str, self.data_centers))
            raise ValueError(f"data centres of {listed} nodes are not {nodes} nodes")
        if self.jmx_ports and len(self.jmx_ports) != nodes:
            raise ValueError(f"{len(self.jmx_ports)} ports for nodetool are not {nodes}")
        if self.heap_mib < 128:
            raise ValueError(f"a heap of {self.heap_mib} MiB is too small; 128 is the least")


def places(nodes: int, data_centers: Sequence[int]) -> list[tuple[str, int]]:
    """For each node its data centre and its token.

    Tokens are spread evenly within each data centre; those of the second are one off, for no
    token may be there twice.
    """
    found: list[tuple[str, int]] = []
    for offset, count in enumerate(data_centers or (nodes,)):
        tokens = [-(2**63) + (2 * i + 1) * 2**63 // count + offset for i in range(count)]
        found += ((f"dc{offset + 1}", token) for token in tokens)
    return found


def yaml(
    settings: CassandraSettings, home: Path, address: str, seeds: Sequence[str], token: int
) -> dict[str, Any]:
    """The content of cassandra.yaml, which may be written as JSON."""
    parameters = [{"seeds": ",".join(seeds)}]
    seed_provider = "org.apache.cassandra.locator.SimpleSeedProvider"
    trie = {"trie": {"class_name": "TrieMemtable"}, "default": {"inherits": "trie"}}
    return {
        # One token each and no streaming: the ring is complete as soon as all have met.
        "cluster_name": "cassq",
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "num_tokens": 1,
        "initial_token": str(token),
        "auto_bootstrap": False,
        "seed_provider": [{"class_name": seed_provider, "parameters": parameters}],
        "endpoint_snitch": "GossipingPropertyFileSnitch",
        "dynamic_snitch": False,
        "listen_address": address,
        "rpc_address": address,
        "storage_port": 7000,
        "native_transport_port": NATIVE_PORT,
        "data_file_directories": [str(home / "data")],
        **{f"{name}_directory": str(home / name) for name in _DIRECTORIES},
        **_commitlog(settings.commitlog_sync),
        "commitlog_segment_size": "8MiB",
        "commitlog_total_space": "256MiB",
        # Small: three nodes and the tests fit into 6 GiB together.
        "memtable_heap_space": "96MiB",
        "memtable_offheap_space": "96MiB",
        "memtable_allocation_type": "heap_buffers",
        "networking_cache_size": "32MiB",
        "file_cache_enabled": False,
        "key_cache_size": "8MiB",
        "row_cache_size": "0MiB",
        "counter_cache_size": "0MiB",
        "concurrent_reads": 16,
        "concurrent_writes": 32,
        "concurrent_compactors": 1,
        "compaction_throughput": "0MiB/s",
        "disk_access_mode": "mmap_index_only",
        # The skip-list memtable measures itself for 2 s at every start, the trie does not.
        "memtable": {"configurations": trie},
        # Else a restart waits 10 s for peers while two of three are down.
        "block_for_peers_timeout_in_secs": 1,
        "hinted_handoff_enabled": True,
        "hints_flush_period": "1000ms",
        "auto_snapshot": False,
        # The least: a dead peer is known to be down after 8 to 12 s, not 18.
        "phi_convict_threshold": 5,
        # Fewer round trips for a conditional write, and no time-outs under contention.
        "paxos_variant": "v2",
        **(_AUTHENTICATION if settings.authentication else {}),
        **settings.options,
    }


_DIRECTORIES = ("commitlog", "saved_caches", "hints", "cdc_raw")

_AUTHENTICATION = {
    "authenticator": "PasswordAuthenticator",
    "authorizer": "CassandraAuthorizer",
    "role_manager": "CassandraRoleManager",
}


def _commitlog(sync: str) -> dict[str, str]:
    """When a write is acknowledged: before it is synced (periodic), or after."""
    match sync:
        case "periodic":
            return {"commitlog_sync": sync, "commitlog_sync_period": "10000ms"}
        case "group":
            return {"commitlog_sync": sync, "commitlog_sync_group_window": "5ms"}
        case _:
            return {"commitlog_sync": sync}


def java_options(settings: CassandraSettings, home: Path, replicas: int) -> list[str]:
    """What stands between `java` and the class path.

    `replicas`: how often the system's own tables, as those of the roles, are kept.
    """
    conf = home / "conf"
    options = [
        *(f"-Xmx{settings.heap_mib}m", "-Xss512k", "-XX:+UseSerialGC"),
        *("-XX:MaxDirectMemorySize=256m", "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData"),
        "-Djava.net.preferIPv4Stack=true",
        "-Djdk.attach.allowAttachSelf=true",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *(f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTS),
        *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENS),
        f"-Dcassandra.config=file://{conf}/cassandra.yaml",
        f"-Dcassandra-rackdc.properties=file://{conf}/cassandra-rackdc.properties",
        f"-Dlogback.configurationFile=file:{conf}/logback.xml",
        f"-Dcassandra.triggers_dir={conf}/triggers",
        f"-Dcassandra.storagedir={home}",
        f"-Dcassandra.logdir={home}",
        "-Dcassandra-foreground=yes",
        *(f"-Djna.tmpdir={home}/tmp", f"-Djava.io.tmpdir={home}/tmp"),
        # A quick start. A ring delay below 2 s makes nodes drop each other while they join.
        "-Dcassandra.skip_wait_for_gossip_to_settle=0",
        "-Dcassandra.ring_delay_ms=5000",
        "-Dcassandra.superuser_setup_delay_ms=0",
        "-Dcassandra.consistent.rangemovement=false",
        "-Dcassandra.shutdown_announce_in_ms=0",
        f"-Dcassandra.system_auth.default_rf={replicas}",
    ]
    if settings.full_jit:
        options += [f"-Xms{settings.heap_mib}m", "-XX:+AlwaysPreTouch"]
    else:
        options += ["-Xms64m", "-XX:TieredStopAtLevel=1"]
    return options


def tool_options(home: Path) -> list[str]:
    """The same for `nodetool`, which is a program of its own."""
    return [
        *("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
        "-Djava.net.preferIPv4Stack=true",
        *(f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTS),
        *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENS),
        f"-Dcassandra.storagedir={home}",
        f"-Dcassandra.logdir={home}",
        f"-Dlogback.configurationFile=file:{home}/conf/logback.xml",
    ]
