"""Opens the locker at a URL: `zookeeper://...` or `hazelcast://...`."""

from __future__ import annotations

from cassq import extras
from cassq.base.clock import Clock
from cassq.errors import ConfigError
from cassq.locks.port import Locker
from cassq.locks.tokens import NextToken


def open_locker(url: str, clock: Clock, *, next_token: NextToken | None = None) -> Locker:
    """The locker at a URL, connected.

    next_token: numbers the locks of a Hazelcast without CP, which has no fences.
    Raises ConfigError for an invalid URL, wrong credentials or settings,
    MissingExtraError without the driver, and BackendUnavailableError if no server answers
    within about ten seconds.
    """
    scheme, colon, _ = url.partition("://")
    match scheme if colon else "":
        case "zookeeper":
            with extras.wanted("locks in ZooKeeper need", "kazoo", "zookeeper"):
                from cassq.locks.zookeeper import open_zookeeper
            return open_zookeeper(url, clock)
        case "hazelcast":
            with extras.wanted("locks in Hazelcast need", "hazelcast-python-client", "hazelcast"):
                from cassq.locks.hazelcast import open_hazelcast
            return open_hazelcast(url, clock, next_token)
        case _:
            # Only the scheme: the rest may contain a password.
            raise ConfigError(
                f"{(scheme if colon else url)!r} is not a supported lock service",
                hint="use zookeeper://host:2181/cassq or hazelcast://host:5701/cluster-name;"
                " without a URL locks are leases in the catalog",
            )
