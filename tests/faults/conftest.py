"""The fixtures of the embedded store's tests."""

from tests.faults.actors import act
from tests.integration.stage import client, connect, directory, queue, url

__all__ = ["act", "client", "connect", "directory", "queue", "url"]
