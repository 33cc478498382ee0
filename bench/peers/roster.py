"""Which peers there are, and how one is had by its name."""

from __future__ import annotations

import importlib

from bench.peers.peer import Peer

# Modules are imported when their peer takes part: its library may not be installed.
MODULES = {
    "cassq": ("cassq", "CassqPeer"),
    "sqlite": ("sqlite", "SqlitePeer"),
    "litequeue": ("litequeue", "LitequeuePeer"),
    "persist-queue": ("persistqueue", "PersistqueuePeer"),
    "huey": ("huey", "HueyPeer"),
    "redis": ("redis", "RedisPeer"),
    "postgresql": ("postgresql", "PostgresqlPeer"),
    "postgresql-held": ("postgresql", "PostgresqlHeldPeer"),
    "kafka": ("kafka", "KafkaPeer"),
    "kafka-synced": ("kafka", "KafkaSyncedPeer"),
    "kafka-share": ("kafka_share", "KafkaSharePeer"),
    "cassandra-rows": ("cassandra_rows", "CassandraRowsPeer"),
    "cassandra-rows-batched": ("cassandra_rows_batched", "CassandraRowsBatchedPeer"),
    "nats": ("nats", "NatsPeer"),
    "nats-lean": ("nats", "NatsLeanPeer"),
    "nats-synced": ("nats", "NatsSyncedPeer"),
    "cassq-sidecars": ("cassq_sidecars", "CassqSidecarsPeer"),
    "cassq-cassandra": ("cassq_cassandra", "CassqCassandraPeer"),
    "cassq-spark": ("spark", "CassqSparkPeer"),
    "cassq-spark-rows": ("spark", "CassqSparkRowsPeer"),
    "kafka-spark": ("spark_kafka", "KafkaSparkPeer"),
    "kafka-spark-synced": ("spark_kafka", "KafkaSparkSyncedPeer"),
    "cassq-spark-cassandra": ("spark", "CassqSparkCassandraPeer"),
    "cassq-spark-rows-cassandra": ("spark", "CassqSparkRowsCassandraPeer"),
}

USUAL = tuple(MODULES)


def peer_class(name: str) -> type[Peer]:
    """The class of a peer; ImportError if its library is missing."""
    module, class_name = MODULES[name]
    found: type[Peer] = getattr(importlib.import_module(f"bench.peers.{module}"), class_name)
    return found
