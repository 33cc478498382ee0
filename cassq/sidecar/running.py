"""A running sidecar: its parts put together on one event loop, from start to stop."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from cassq.base.clock import Clock, Stopwatch
from cassq.extents.protocol.messages import Replicate, Scrub
from cassq.extents.sidecar.net.connection import Access
from cassq.extents.sidecar.net.sidecar_connection import SidecarConnection
from cassq.sidecar.care.replicating import Replicating
from cassq.sidecar.care.scrubbing import Scrubbing
from cassq.sidecar.engine.port import Engine
from cassq.sidecar.engine.replica_state import ReplicaState
from cassq.sidecar.exposure import SidecarCredentials
from cassq.sidecar.load import ByteLoad
from cassq.sidecar.sessions.dispatcher import Dispatcher
from cassq.sidecar.sessions.group_sync import GroupSync
from cassq.sidecar.sessions.handshake import Handshake
from cassq.sidecar.sessions.server import CONNECTIONS_MAX, Server
from cassq.sidecar.status import SidecarStatus

logger: logging.Logger = logging.getLogger("cassq")

# A writer that was asked to leave counts as gone after it has been silent for this long.
QUIET_SECONDS = 1.0
_LOOK_SECONDS = 0.1


class Sidecar:
    """A sidecar over an engine; made within a running loop. The caller closes the engine.

    connections_max: how many connections clients may have.
    """

    def __init__(
        self,
        engine: Engine,
        handshake: Handshake,
        clock: Clock,
        credentials: SidecarCredentials,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self.load: ByteLoad = ByteLoad()
        self.replica_state: ReplicaState = ReplicaState(engine, clock.wall_ms, clock.boot_ms)
        self.scrubbing: Scrubbing = Scrubbing(engine, self.replica_state)
        self.committer: GroupSync = GroupSync(engine.sync)
        self.dispatcher: Dispatcher = Dispatcher(
            engine, self.replica_state, self.committer, self.facts, self.load
        )
        self._access = Access()
        self.replicating: Replicating = Replicating(
            engine,
            self.dispatcher,
            lambda address: SidecarConnection(address, self._access, cluster=handshake.cluster),
            clock,
            self.load,
        )
        self.dispatcher.slow = {Scrub: self.scrubbing, Replicate: self.replicating}
        self.server: Server = Server(handshake, self.dispatcher, connections_max)
        self.status: SidecarStatus = SidecarStatus(handshake, engine, self.load)
        self._engine = engine
        self._client = f"sidecar {handshake.sidecar}"
        self.renew(credentials)

    def facts(self) -> dict[str, Any]:
        """Its report about itself, see `SidecarStatus`."""
        return self.status.facts(self.dispatcher, self.committer, self.server)

    async def start(self, listen: str) -> str:
        """Listen; returns the host:port that it listens at. Raises ConfigError."""
        self.status.address = await self.server.listen(listen)
        return self.status.address

    def renew(self, credentials: SidecarCredentials) -> None:
        """Use these for connections from now on; the existing ones go on."""
        self._access = credentials.access._replace(client=self._client)
        self.server.renew(credentials.tokens, credentials.tls)

    async def drain(self, seconds: float) -> bool:
        """Ask writers to leave; returns whether they did within `seconds`."""
        self.replica_state.draining = True
        watch = Stopwatch()
        while self._busy():
            if watch.seconds() >= seconds:
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True

    async def stop(self) -> None:
        """End all connections and everything under way."""
        await self.server.close()
        await self.dispatcher.close()
        self.committer.close()
        self.scrubbing.close()
        self.replicating.close()

    def _busy(self) -> bool:
        return any(
            replica.final is None
            and not replica.fenced
            and self.replica_state.idle_ms(replica.pipe_id) < QUIET_SECONDS * 1000
            for replica in self._engine.replicas().values()
        )
