"""Serving: one process of the gateway, from its options to its end.

On a signal it accepts no more connections, answers the requests it has, ends waits for messages,
and closes its client. The files of credentials and certificates are read again when they change,
and on request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple

from cassq.base.arguments import split_address
from cassq.base.clock import Clock, SystemClock
from cassq.base.rare_log import RareLog
from cassq.base.tls import is_loopback, load_own, loading
from cassq.errors import ConfigError, UsageError
from cassq.gateway.actions.service import ActionService
from cassq.gateway.plain.answering import PlainAnswering
from cassq.gateway.plain.service import PlainService
from cassq.gateway.wire.answering import Answering, Health
from cassq.gateway.wire.counts import Counts
from cassq.gateway.wire.credentials import Credentials
from cassq.gateway.wire.listening import CONNECTIONS_MAX, Listener, listening_sockets
from cassq.gateway.wire.signatures import Verifier
from cassq.worker.eventloop.loops import raised_files

logger: logging.Logger = logging.getLogger("cassq")

# Open files that connections must leave for the client: its catalog, pipes and locks.
FILES_RESERVED = 512


class GatewayOptions(NamedTuple):
    """How to serve. cert, key: for TLS; None: no TLS. grace: how many seconds requests may go on
    after a signal."""

    credentials: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    grace: float = 30.0


class ServingPlace(NamedTuple):
    """Where a process serves. sockets: listening already. counts_fd, slot: see `Counts`."""

    sockets: Sequence[socket.socket]
    counts_fd: int
    slot: int


def check_exposure(listen: str, *, credentials: bool, insecure: bool) -> tuple[str, int]:
    """The host and port, unless strangers could get in. insecure: whether the user explicitly
    accepts that risk. Raises UsageError for an invalid address, ConfigError for an exposed one."""
    address = split_address(listen)
    if address is None:
        raise UsageError(
            f"--listen: {listen!r} is not an address", hint="write HOST:PORT, as in 127.0.0.1:9324"
        )
    if not (is_loopback(address[0]) or credentials or insecure):
        raise ConfigError(
            "a gateway without credentials listens on loopback addresses only, not on"
            f" {address[0]}: anyone could use its queues",
            hint="give --credentials FILE; in a network that you trust: --insecure",
        )
    return address


def open_sockets(listen: str, processes: int) -> list[list[socket.socket]]:
    """For each process, sockets that listen at this address. Raises ConfigError, or UsageError."""
    address = split_address(listen)
    assert address is not None, "it was checked"
    try:
        return listening_sockets(*address, processes)
    except OSError as exc:
        raise ConfigError(
            f"the gateway cannot listen at {listen}: {exc.strerror or exc}",
            hint="choose another port with --listen; is another gateway running there?",
        ) from exc


def server_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The TLS context; None: no TLS. Raises ConfigError."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("TLS needs both --tls-cert and --tls-key")
    with loading({f"--tls-cert {cert}": cert, f"--tls-key {key}": key}):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        load_own(context, cert, key)
    return context


class Certificate:
    """A process's TLS context, from the present certificate and key files. Raises ConfigError."""

    def __init__(self, cert: Path | None, key: Path | None) -> None:
        self._files = [each for each in (cert, key) if each is not None]
        self._state = self._times()
        self._cert, self._key = cert, key
        self.tls: ssl.SSLContext | None = server_tls(cert, key)

    def refresh(self, *, anyway: bool = False) -> None:
        """Read the files again if they have changed. anyway: even if not. If they cannot be used,
        the former certificate stays."""
        if not self._files:
            return
        state = self._times()
        if state == self._state and not anyway:
            return
        self._state = state
        try:
            self.tls = server_tls(self._cert, self._key)
        except ConfigError as exc:
            logger.error("the former certificate stays in use: %s", exc)
            return
        logger.warning("new connections use the certificate that was read again")

    def _times(self) -> list[int]:
        return [os.stat(each).st_mtime_ns if each.exists() else 0 for each in self._files]


def _refresh(credentials: Credentials | None, certificate: Certificate, *, anyway: bool) -> None:
    """Read changed files again. anyway: read all of them."""
    if credentials is not None:
        credentials.refresh(anyway=anyway)
    certificate.refresh(anyway=anyway)


def health_of(listener: Listener) -> Health:
    """What /health says of a process."""
    facts = {
        "pid": os.getpid(),
        "connections": listener.connections,
        "requests": listener.requests,
        "stopping": listener.closing,
    }
    return Health(not listener.closing, facts)


async def serve(
    opening: AbstractAsyncContextManager[ActionService],
    options: GatewayOptions,
    place: ServingPlace,
    stop: asyncio.Event,
    renew: asyncio.Event,
    *,
    ready: Callable[[], None],
    each_second: Callable[[], object] = lambda: None,
    clock: Clock | None = None,
) -> bool:
    """Serve until `stop` is set. opening: opens the service. renew: when it is set, all files are
    read again, even if they seem unchanged. ready: called when it serves. Returns whether all
    requests were answered. Raises ConfigError for files that cannot be used, and what `opening`
    raises."""
    clock = clock or SystemClock()
    credentials = None if options.credentials is None else Credentials(options.credentials)
    verifier = None if credentials is None else Verifier(credentials)
    certificate = Certificate(options.cert, options.key)
    counts, log = Counts(place.counts_fd, place.slot), RareLog()
    files_max = raised_files()
    connections_max = min(CONNECTIONS_MAX, max(files_max - FILES_RESERVED, files_max // 4))
    async with opening as service:
        answering = Answering(
            service,
            counts,
            clock,
            plain=PlainAnswering(PlainService(service.host), counts, clock, verifier, log),
            verifier=verifier,
            scheme="http" if certificate.tls is None else "https",
            health=lambda: health_of(listener),
            log=log,
        )

        def look() -> None:
            _refresh(credentials, certificate, anyway=renew.is_set())
            renew.clear()
            listener.tls = certificate.tls
            answering.flush()
            counts.connections(listener.connections, listener.refused)
            listener.refused = 0
            each_second()

        listener = Listener(
            answering,
            clock,
            tls=certificate.tls,
            connections_max=connections_max,
            each_second=look,
        )
        listener.open(place.sockets)
        try:
            ready()
            await stop.wait()
        finally:
            well = await listener.stop(options.grace)
            counts.connections(0, listener.refused)
        if not well:
            logger.warning("the gateway stops while requests are being answered")
    return well
