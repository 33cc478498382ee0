"""Which peers there are, and how one is had by its name."""

from __future__ import annotations

import importlib

from bench.peers.peer import Peer

# Modules are imported when their peer takes part: its library may not be installed.
MODULES = {
    "cassq": ("ours.embedded", "CassqPeer"),
    "sqlite": ("embedded.sqlite", "SqlitePeer"),
    "sqlite-unleased": ("embedded.sqlite", "SqliteUnleasedPeer"),
    "litequeue": ("embedded.litequeue", "LitequeuePeer"),
    "persist-queue": ("embedded.persistqueue", "PersistqueuePeer"),
    "huey": ("embedded.huey", "HueyPeer"),
    "redis": ("servers.redis", "RedisPeer"),
    "postgresql": ("servers.postgresql", "PostgresqlPeer"),
    "postgresql-held": ("servers.postgresql", "PostgresqlHeldPeer"),
    "kafka": ("servers.kafka", "KafkaPeer"),
    "kafka-synced": ("servers.kafka", "KafkaSyncedPeer"),
    "kafka-share": ("servers.kafka_share", "KafkaSharePeer"),
    "cassandra-rows": ("servers.cassandra_rows", "CassandraRowsPeer"),
    "cassandra-rows-batched": ("servers.cassandra_rows_batched", "CassandraRowsBatchedPeer"),
    "nats": ("servers.nats", "NatsPeer"),
    "nats-lean": ("servers.nats", "NatsLeanPeer"),
    "nats-synced": ("servers.nats", "NatsSyncedPeer"),
    "rabbitmq": ("servers.rabbitmq", "RabbitmqPeer"),
    "cassq-sidecars": ("ours.sidecars", "CassqSidecarsPeer"),
    "cassq-cassandra": ("ours.cassandra", "CassqCassandraPeer"),
    "cassq-gateway": ("servers.sqs", "GatewayPeer"),
    "elasticmq": ("servers.sqs", "ElasticMqPeer"),
    "elasticmq-stored": ("servers.sqs", "ElasticMqStoredPeer"),
    "moto": ("servers.sqs", "MotoPeer"),
    "cassq-spark": ("spark.cassq", "CassqSparkPeer"),
    "cassq-spark-rows": ("spark.cassq", "CassqSparkRowsPeer"),
    "kafka-spark": ("spark.kafka", "KafkaSparkPeer"),
    "kafka-spark-synced": ("spark.kafka", "KafkaSparkSyncedPeer"),
    "cassq-spark-cassandra": ("spark.cassq", "CassqSparkCassandraPeer"),
    "cassq-spark-rows-cassandra": ("spark.cassq", "CassqSparkRowsCassandraPeer"),
}

USUAL = tuple(MODULES)


def peer_class(name: str) -> type[Peer]:
    """The class of a peer; ImportError if its library is missing."""
    module, class_name = MODULES[name]
    found: type[Peer] = getattr(importlib.import_module(f"bench.peers.{module}"), class_name)
    return found
