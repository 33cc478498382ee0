"""Where the queues of a test are, embedded or for those that say so in a keyspace too; and how a
JVM is started for it."""

from __future__ import annotations

import pytest

from tests.contract.keyspaces import on_servers

EMBEDDED, CASSANDRA = "embedded", "cassandra"

BESIDE = pytest.mark.long(reason="Cassandra beside Spark")
everywhere = pytest.mark.parametrize(
    "place_url", [EMBEDDED, *on_servers([CASSANDRA], BESIDE)], indirect=True
)

# What runs for a few minutes is not worth the second compiler's time, nor a parallel collector's.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Of Spark: for how many seconds the JVM and Python wait for each other's first words, by default
# 15. On a busy machine it may take longer.
PATIENT = {"spark.python.authenticate.socketTimeout": "120s"}
