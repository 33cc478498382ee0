"""The fixtures of the embedded store's tests."""

from tests.faults.actors import act
from tests.integration.places import directory, place
from tests.integration.stage import client, connect, queue, url

__all__ = ["act", "client", "connect", "directory", "place", "queue", "url"]
