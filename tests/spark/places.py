"""Where the queues of a test are: embedded, and for those that say so in a keyspace too."""

from __future__ import annotations

import pytest

from tests.contract.keyspaces import on_servers

EMBEDDED, CASSANDRA = "embedded", "cassandra"

BESIDE = pytest.mark.long(reason="Cassandra beside Spark")
everywhere = pytest.mark.parametrize(
    "place_url", [EMBEDDED, *on_servers([CASSANDRA], BESIDE)], indirect=True
)
