"""Storage sidecars of one machine, with their catalog in a directory beside them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import cassq
from bench.measuring.sightings import Sightings
from bench.servers.members import together
from bench.servers.server import MissingServerError, Server, accepts, free_ports
from cassq.errors import CassqError
from cassq.version import __version__

INSTALL = "pip install 'cassq[sidecar-server]'"
REPLICAS_MAX = 3
READY = "ready"


def url_of(catalog: Path, replicas: int) -> str:
    """What a client connects to."""
    return f"file://{catalog.resolve()}?store=sidecar&replicas={replicas}"


def zone_of(number: int) -> str:
    """The zone of a sidecar, the first of which is number 1."""
    return f"zone-{number}"


class SidecarServer(Server):
    """One sidecar: an extent has one replica, on disk before a push returns."""

    name = "sidecars"
    nodes: ClassVar[int] = 1

    @property
    def catalog(self) -> Path:
        return self.home / "catalog"

    def find(self) -> None:
        for module in ("rocksdict", "msgspec"):
            try:
                __import__(module)
            except ImportError as error:
                raise MissingServerError(f"{module} is not installed ({INSTALL})") from error

    def prepare(self) -> list[str]:
        self._ports = free_ports(self.nodes)
        self.address = url_of(self.catalog, min(self.nodes, REPLICAS_MAX))
        commands = {}
        for number, port in enumerate(self._ports, 1):
            name = f"sidecar-{number}"
            commands[name] = [
                *(sys.executable, "-m", "cassq", "sidecar", "serve"),
                *("--data", str(self.home / name), "--listen", f"127.0.0.1:{port}"),
                *("--catalog", f"file://{self.catalog.resolve()}", "--zone", zone_of(number)),
                *("--name", name),
            ]
        return together(self, commands)

    def ready(self) -> bool:
        if not all(map(accepts, self._ports)):
            return False
        try:
            if self._registered() < self.nodes:
                return False
            with cassq.connect(self.address) as client:
                client.create_queue(READY)
                with client.queue(READY).pusher() as pusher:
                    pusher.push(b"")
                client.delete_queue(READY)
        except CassqError:
            return False
        return True

    def _registered(self) -> int:
        seen = Sightings(self.address)
        try:
            return len(seen.sidecars())
        finally:
            seen.close()

    def version(self) -> str:
        sidecars = "one sidecar" if self.nodes == 1 else f"{self.nodes} sidecars"
        return f"cassq {__version__} ({sidecars})"


class SidecarThreeServer(SidecarServer):
    """Three sidecars: an extent has a replica on each, all on disk before a push returns."""

    name = "sidecars-three"
    nodes = 3


class SidecarFourServer(SidecarServer):
    """Four sidecars, three of which have an extent; so there is another place when one is gone."""

    name = "sidecars-four"
    nodes = 4
