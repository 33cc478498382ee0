"""Sidecars for tests: real servers on loopback sockets, each in a thread of this process."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any

from cassq.base.clock import SystemClock
from cassq.extents.protocol.messages import Append, Request
from cassq.extents.sidecar.net.connection import Access
from cassq.extents.sidecar.net.connection_pool import ConnectionPool
from cassq.extents.sidecar.net.network import CallResult, Patience, SidecarCall
from cassq.message.frames import Extras, encode, pipe_key
from cassq.model.sidecar_rows import SidecarRow, SidecarState
from cassq.sidecar.engine.port import Engine
from cassq.sidecar.exposure import SidecarCredentials
from cassq.sidecar.running import Sidecar
from cassq.sidecar.sessions.handshake import Handshake
from tests.integration.deadlines import joined
from tests.simulation.worlds.memory_engine import MemoryEngine

CLUSTER = "the-cluster"
PATIENCE = Patience(20.0, 20.0, 1)


class SharedMemoryEngine(MemoryEngine):
    """One whose syncs may come from another thread."""

    def __init__(self, generation: str = "memory-1", **options: Any) -> None:
        super().__init__(generation, **options)
        self._lock = threading.RLock()

    def sync(self) -> None:
        with self._lock:
            super().sync()

    def _change(self, pipe_id: str, change: Any) -> None:
        with self._lock:
            super()._change(pipe_id, change)


class Running:
    """A sidecar in a thread with a loop of its own. loop: runs it, asyncio's or uvloop's."""

    def __init__(
        self,
        name: str = "a",
        engine: Engine | None = None,
        *,
        listen: str = "127.0.0.1:0",
        tls: ssl.SSLContext | None = None,
        access: Access = Access(),  # noqa: B008 - it is immutable
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
        **handshake: Any,
    ) -> None:
        self.engine = engine or SharedMemoryEngine(f"{name}-1")
        self.handshake = Handshake(name, self.engine.generation, "z", CLUSTER, **handshake)
        self.tls = tls
        self.access = access
        self.address = ""
        self.sidecar: Sidecar
        self._listen = listen
        self._loop = new_loop()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"sidecar-{name}", daemon=True)
        self._thread.start()
        assert self._ready.wait(30)
        if self._error is not None:
            joined("the sidecar", self._thread)
            raise self._error

    def row(self, **changes: Any) -> SidecarRow:
        fields = {
            "name": self.handshake.sidecar,
            "address": self.address,
            "zone": "z",
            "generation": self.engine.generation,
            "state": SidecarState.UP,
            "lease_ms": 10_000,
            "free_bytes": 1 << 40,
            "total_bytes": 1 << 40,
            "extents": 0,
            "load": 0,
            "read_only": False,
            "damaged": 0,
        }
        return SidecarRow(**(fields | changes))

    def run(self, work: Callable[[], Any]) -> Any:
        """What `work` returns, called in the sidecar's loop; a coroutine is awaited."""

        async def run() -> Any:
            result = work()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.run(self.sidecar.stop)
            self._loop.call_soon_threadsafe(self._loop.stop)
            joined("the sidecar", self._thread)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._start())
        except BaseException as exc:
            self._error = exc
        self._ready.set()
        if self._error is None:
            self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _start(self) -> None:
        credentials = SidecarCredentials(self.handshake.tokens, self.tls, self.access)
        self.sidecar = Sidecar(self.engine, self.handshake, SystemClock(), credentials)
        self.address = await self.sidecar.start(self._listen)


def links_to(
    *sidecars: Running,
    access: Access = Access(),  # noqa: B008 - it is immutable
    cluster: str = CLUSTER,
) -> ConnectionPool:
    return ConnectionPool(lambda: [each.row() for each in sidecars], lambda: cluster, access)


def call(
    links: ConnectionPool, sidecar: str, *requests: Request, patience: Patience = PATIENCE
) -> CallResult:
    (answer,) = links.exchange([SidecarCall(sidecar, "", requests)], patience)
    return answer


def reply(links: ConnectionPool, sidecar: str, request: Request) -> Any:
    """The reply to one request, which must not be refused."""
    answer = call(links, sidecar, request)
    if answer.error is not None:
        raise answer.error
    return answer.replies[0]


def append(
    pipe_id: str, base_seq: int, payloads: Sequence[bytes], *, epoch: int = 1, acked: int = 0
) -> Append:
    header, body = encode(base_seq, payloads, Extras(1), pipe_key=pipe_key(pipe_id))
    return Append(pipe_id, epoch, base_seq, len(payloads), acked, [header, body])
