"""A contestant that is used from Spark: the few verbs that its source and sink are reduced to."""

from __future__ import annotations

import abc
import shutil
from pathlib import Path
from typing import Any, ClassVar

from bench.peers.peer import Peer
from bench.servers.server import MissingServerError

INSTALL = "apt-get install -y openjdk-17-jre-headless"


class InSpark(Peer):
    """Its other verbs are for the proof and the warm-up."""

    # The column that payloads come back in.
    column: ClassVar[str] = "payload"

    @classmethod
    def find(cls) -> None:
        if shutil.which("java") is None:
            raise MissingServerError(f"java is not installed ({INSTALL})")

    @classmethod
    def connector(cls) -> list[Path]:
        """What Spark has to load for it."""
        return []

    def meet(self, spark: Any) -> None:
        """Called once in each session."""

    @abc.abstractmethod
    def make(self) -> None:
        """Make the queue that Spark writes to."""

    @abc.abstractmethod
    def write(self, frame: Any) -> None:
        """Write all rows of a frame with a column `payload`; durable when it returns."""

    @abc.abstractmethod
    def read(self, spark: Any, *, payload_only: bool) -> Any:
        """A frame of all that is there, with all its columns or payloads alone."""

    @abc.abstractmethod
    def follow(self, spark: Any) -> Any:
        """Payloads alone, as a stream."""


def as_in_spark(peer: Peer) -> InSpark:
    """The same peer, for what only Spark asks; TypeError if it is another."""
    if not isinstance(peer, InSpark):
        raise TypeError(f"{peer.name} is not used from Spark")
    return peer
