"""Serving: a sidecar as a process, from its options to its end.

A new sidecar needs the catalog to start; others can start without it. On a signal it asks writers
to leave, waits for them, notifies the catalog, and closes its engine. When a full disk has room
again, everything is restarted but the process, its catalog and its HTTP server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cassq.base.clock import Clock, SystemClock
from cassq.base.tls import is_loopback
from cassq.catalog.port import Catalog
from cassq.errors import BackendError, ConfigError
from cassq.extents.sidecar.net.connection import host_and_port
from cassq.model.sidecar_rows import ReplicaAt, SidecarRow, SidecarState
from cassq.sidecar.care.orphan_collector import SAFE_MS, OrphanCollector, ScrubPass
from cassq.sidecar.care.reopening import Reopening, damage_of
from cassq.sidecar.catalog_thread import CatalogThread
from cassq.sidecar.catalogs import open_catalog
from cassq.sidecar.engine.port import Engine
from cassq.sidecar.exposure import SidecarCredentials, check_exposure, read_credentials
from cassq.sidecar.memory import keep_memory
from cassq.sidecar.registration import LEASE_MS, Registration
from cassq.sidecar.running import Sidecar
from cassq.sidecar.sessions.handshake import Handshake
from cassq.sidecar.sessions.http import HttpServer
from cassq.sidecar.sessions.server import CONNECTIONS_MAX
from cassq.sidecar.status import count_extents, healthy, metrics
from cassq.worker.eventloop.loops import loop_factory, raised_files

logger: logging.Logger = logging.getLogger("cassq")

DRAIN_SECONDS = 30.0
# Open files that connections leave to RocksDB (512 tables, see its options), logs, the catalog,
# HTTP, and copies from other sidecars.
FILES_RESERVED = 512 + 256
_WILDCARDS = ("0.0.0.0", "::", "")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SidecarOptions(NamedTuple):
    """How to run a sidecar. data: its directory. listen, http: HOST:PORT; `http` "" for none.
    advertise: where clients reach it, "" for `listen`. catalog: a URL of queues. name: "" for the
    one in its directory or, in a new one, `listen`. token_file, tls: see `read_credentials`.
    drain_seconds: how long writers may take to leave. orphan_ms: how long an extent without a
    placement is kept."""

    data: Path
    listen: str
    catalog: str
    zone: str
    name: str = ""
    advertise: str = ""
    token_file: Path | None = None
    tls: Mapping[str, Path] = {}
    insecure: bool = False
    http: str = ""
    drain_seconds: float = DRAIN_SECONDS
    orphan_ms: int = SAFE_MS


class Opener(NamedTuple):
    """Opens engines. identity: returns the catalog's identity and the sidecar's name that a
    directory was made for; None for a new one. open: opens a directory for this catalog and name.
    """

    identity: Callable[[Path], tuple[str, str] | None]
    open: Callable[[Path, str, str], Engine]


class ServingAddress(NamedTuple):
    """Where a running sidecar is reached. http: "" for none. open_to_all: it demands neither a
    token nor TLS."""

    name: str
    address: str
    http: str
    open_to_all: bool


def serve(
    options: SidecarOptions,
    opener: Opener,
    *,
    ready: Callable[[ServingAddress], None],
    clock: Clock | None = None,
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run a sidecar until SIGTERM or SIGINT; a second one ends it without waiting for writers.
    On SIGHUP it reads its token and certificates again. Call it in the main thread. ready: called
    when it serves and, if the catalog can be reached, is registered there.

    Raises ConfigError for options, a directory, or a catalog that cannot be used.
    """
    clock = clock or SystemClock()
    # A SIGHUP that came before its handler is set would end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    connections_max = connections_allowed(raised_files())
    keep_memory()
    credentials = read_credentials(options.token_file, options.tls)
    check_exposure(
        options.listen,
        token=bool(credentials.tokens),
        tls=credentials.tls is not None,
        ca="ca" in options.tls,
        insecure=options.insecure,
    )
    catalog, cluster, name = _identify(options, opener, clock)
    try:
        engine = opener.open(options.data, cluster, name)
    except BaseException:
        if catalog is not None:
            catalog.close()
        raise
    handshake = Handshake(name, engine.generation, options.zone, cluster)
    reopening = Reopening(lambda: opener.open(options.data, cluster, name), clock)
    running = _Running(
        *(options, engine, handshake, clock, catalog, credentials, ready, reopening),
        connections_max,
    )
    try:
        if catalog is not None:
            _wait_for_name(catalog, ReplicaAt(name, engine.generation), clock)
        with asyncio.Runner(loop_factory=new_loop or loop_factory()) as runner:
            runner.run(running.run())
    finally:
        running.engine.close()


def connections_allowed(files_max: int) -> int:
    """How many connections of clients there may be at once. files_max: the limit of open files."""
    if files_max == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, max(files_max - FILES_RESERVED, files_max // 4))


def _identify(
    options: SidecarOptions, opener: Opener, clock: Clock
) -> tuple[Catalog | None, str, str]:
    """The catalog, None if it is away; its identity; and the sidecar's name."""
    known = opener.identity(options.data)
    default = options.listen
    if known is None and not options.name and host_and_port(default)[1] == 0:
        raise ConfigError(
            "with port 0 a sidecar has no permanent name", hint="give the sidecar a --name"
        )
    catalog: Catalog | None = None
    try:
        catalog = open_catalog(options.catalog, clock)
        cluster = catalog.records.identity()
    except BackendError as exc:
        if catalog is not None:
            catalog.close()
        if known is None:
            raise
        logger.warning("the catalog cannot be reached, so the sidecar starts without it: %s", exc)
        catalog, cluster = None, known[0]
    return catalog, cluster, options.name or (known[1] if known else default)


def _wait_for_name(catalog: Catalog, me: ReplicaAt, clock: Clock) -> None:
    """Wait until the name is free; raises ConfigError if another sidecar with that name is running.
    One that has just died, whose name this one takes over with a new directory, seems to run until
    its lease expires."""
    first: SidecarRow | None = None
    while True:
        rows = [row for row in catalog.sidecars.listed() if row.name == me.sidecar]
        if not rows or rows[0].generation == me.generation:
            return
        if not rows[0].alive(catalog.now_ms()):
            return
        first = first or rows[0]
        if rows[0].seen_ms != first.seen_ms:
            raise ConfigError(
                f"another sidecar {me.sidecar!r} is running at {rows[0].address}",
                hint="give this sidecar another --name; each data directory needs its own",
            )
        clock.sleep(0.2)


class _Running:
    """The process' parts, on its loop. engine: the one that is open."""

    def __init__(
        self,
        options: SidecarOptions,
        engine: Engine,
        handshake: Handshake,
        clock: Clock,
        catalog: Catalog | None,
        credentials: SidecarCredentials,
        ready: Callable[[ServingAddress], None],
        reopening: Reopening,
        connections_max: int,
    ) -> None:
        self.engine = engine
        self._connections_max = connections_max
        self._options = options
        self._handshake = handshake
        self._clock = clock
        self._opened = catalog
        self._credentials = credentials
        self._ready = ready
        self._reopening = reopening
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        self._sidecar: Sidecar
        self._listen = options.listen
        self._advertised = ""
        self._http = ""
        # Of the previous engine: the requested state, and the replicas known to be damaged.
        self._state = SidecarState.UP
        self._damage: dict[str, tuple[str, bool]] = {}

    async def run(self) -> None:
        """Run until a signal."""
        options = self._options
        catalog = CatalogThread(
            self._handshake.cluster,
            lambda: open_catalog(options.catalog, self._clock),
            self._opened,
        )
        http = HttpServer(self._told, healthy, self._metrics)
        self._take_signals()
        try:
            while await self._serve(catalog, http):
                self._damage |= damage_of(self.engine)
                opened = await self._reopening.opened(self.engine, self._stop)
                if opened is None:
                    return
                self.engine = opened
        finally:
            await http.close()
            catalog.close()

    async def _serve(self, catalog: CatalogThread, http: HttpServer) -> bool:
        """Serve the engine's replicas until a signal, or until the engine must be reopened; returns
        whether it must."""
        engine, handshake = self.engine, self._handshake
        self._sidecar = sidecar = Sidecar(
            engine, handshake, self._clock, self._credentials, self._connections_max
        )
        sidecar.status.catalog, sidecar.status.reopened = catalog, self._reopening.times
        learn, state = sidecar.status.learn, self._state
        registration = Registration(
            catalog, sidecar.replica_state, self._row, learn, lambda: engine.failure, state
        )
        for pipe_id, (damage, behind) in self._damage.items():
            sidecar.replica_state.found(pipe_id, damage, behind=behind)
        sidecar.replica_state.note_found()
        tasks: list[asyncio.Task[None]] = []
        again = False
        try:
            self._listen = await sidecar.start(self._listen)
            self._advertised = _advertised(self._options, self._listen)
            if self._options.http and not self._http:
                self._http = await http.listen(self._options.http)
                if not is_loopback(host_and_port(self._http)[0]):
                    logger.warning(
                        "anyone who can connect to %s can read the sidecar's status", self._http
                    )
            await registration.beat()
            tasks += map(_task, (registration.run(), *self._housekeeping(sidecar, catalog)))
            self._tell_ready()
            again = await self._is_to_restart()
            if not again:
                registration.stopping()
                await self._drained(sidecar)
        finally:
            await _cancelled(tasks)
            if not again:
                with contextlib.suppress(BackendError):
                    await registration.leave()
            await sidecar.stop()
            self._state = registration.state
        return again

    def _housekeeping(
        self, sidecar: Sidecar, catalog: CatalogThread
    ) -> Sequence[Coroutine[Any, Any, None]]:
        me = ReplicaAt(self._handshake.sidecar, self._handshake.generation)
        touched_ms, orphan_ms = sidecar.replicating.touched_ms, self._options.orphan_ms
        collector = OrphanCollector(
            self.engine, sidecar.dispatcher, catalog, me, self._clock, touched_ms, orphan_ms
        )
        return collector.run(), ScrubPass(self.engine, sidecar.scrubbing).run()

    def _tell_ready(self) -> None:
        """Report that it serves, or serves again."""
        if self._reopening.times:
            extents = count_extents(self.engine)
            logger.warning(
                "the sidecar continues: %d extents, %d damaged", extents.total, extents.damaged
            )
        else:
            tokens, tls, _ = self._credentials
            name, open_to_all = self._handshake.sidecar, not tokens and tls is None
            self._ready(ServingAddress(name, self._advertised, self._http, open_to_all))

    async def _is_to_restart(self) -> bool:
        """Wait for a signal, or until a starved engine can reopen; returns whether it can."""
        stop = asyncio.ensure_future(self._stop.wait())
        wanted = asyncio.ensure_future(self._reopening.wanted(self.engine))
        await asyncio.wait((stop, wanted), return_when=asyncio.FIRST_COMPLETED)
        again = wanted.done() and not stop.done()
        if again:
            wanted.result()
        await _cancelled([stop, wanted])
        return again

    async def _drained(self, sidecar: Sidecar) -> None:
        """Wait for writers to leave, at most until a second signal."""
        drain = asyncio.ensure_future(sidecar.drain(self._options.drain_seconds))
        now = asyncio.ensure_future(self._now.wait())
        await asyncio.wait((drain, now), return_when=asyncio.FIRST_COMPLETED)
        if not (drain.done() and drain.result()):
            logger.warning("the sidecar stops while extents are being written")
        await _cancelled([drain, now])

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def take() -> None:
            (self._now if self._stop.is_set() else self._stop).set()

        for signum in _SIGNALS:
            loop.add_signal_handler(signum, take)
        loop.add_signal_handler(signal.SIGHUP, self._renew)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def _renew(self) -> None:
        """Read the token and the certificates again, and keep the former ones if they are bad."""
        try:
            self._credentials = read_credentials(self._options.token_file, self._options.tls)
        except ConfigError as exc:
            logger.error("the former token and certificates stay in use: %s", exc)
            return
        self._sidecar.renew(self._credentials)
        logger.warning("new connections use what was read again: %s", self._credentials)

    def _row(self) -> SidecarRow:
        extents, space = count_extents(self.engine), self._sidecar.status.space()
        return SidecarRow(
            name=self._handshake.sidecar,
            address=self._advertised,
            zone=self._handshake.zone,
            generation=self._handshake.generation,
            state=SidecarState.UP,
            lease_ms=LEASE_MS,
            free_bytes=space.free,
            total_bytes=space.total,
            extents=extents.total,
            load=self._sidecar.load.rate(),
            read_only=self.engine.read_only,
            damaged=extents.deficient,
            http=self._http,
        )

    def _told(self) -> dict[str, Any]:
        return self._sidecar.facts()

    def _metrics(self) -> bytes:
        from cassq import extras

        with extras.wanted("metrics need", "prometheus-client", "metrics"):
            from cassq.inspect.prometheus import as_text
        return as_text(lambda: metrics(self._told(), self._sidecar.scrubbing))


def _advertised(options: SidecarOptions, bound: str) -> str:
    """The address that clients get to connect to."""
    if options.advertise:
        return options.advertise
    if host_and_port(bound)[0] in _WILDCARDS:
        raise ConfigError(
            f"{bound} is not an address that a client can connect to",
            hint="give --advertise HOST:PORT, or one address with --listen",
        )
    return bound


def _task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task whose failure is logged at once, because nothing awaits it."""
    task = asyncio.get_running_loop().create_task(work)

    def log_failure(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and (failed := done.exception()) is not None:
            logger.error(
                "a part of the sidecar failed; the sidecar continues without it", exc_info=failed
            )

    task.add_done_callback(log_failure)
    return task


async def _cancelled(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
