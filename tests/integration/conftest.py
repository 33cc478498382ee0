"""The fixtures of the tests of the whole: all but `directory` fit any place of queues."""

from tests.faults.actors import act
from tests.integration.places import behaviour_keyspace, behaviour_sidecars, directory, place
from tests.integration.stage import client, connect, queue, url

__all__ = [
    "act",
    "behaviour_keyspace",
    "behaviour_sidecars",
    "client",
    "connect",
    "directory",
    "place",
    "queue",
    "url",
]
