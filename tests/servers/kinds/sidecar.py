"""Storage sidecars: `cassq sidecar serve`, some of them, over a catalog of their own or another's.

    with sidecar.cluster(nodes=4) as sidecars:
        client = cassq.connect(sidecars.url())
        sidecars.node(2).kill()

starts four in zones a to d, over an embedded catalog below their `home`, and ends them.
"""

from __future__ import annotations

import json
import random
import secrets
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar

from cassq.base.clock import SystemClock
from cassq.errors import BackendError
from cassq.sidecar.catalogs import open_catalog
from tests.servers.cluster import Cluster
from tests.servers.parts import disk
from tests.servers.parts.disk import PrivateDisk
from tests.servers.parts.errors import MissingServerError, ServerFailedError
from tests.servers.parts.node import Node

PORT = 9470
HTTP_PORT = 9471
ZONES = ("a", "b", "c", "d")
REPLICAS = 3
_PROBE_SECONDS = 2.0
_COMMAND_SECONDS_MAX = 120.0
_DRAIN_SECONDS = 5
# Of a small disk: as much as must be free for new frames.
_FREE_MIN_BYTES = 4 << 20
# Tables and logs, which hold frames, and the marks of what was synced.
DATA_FILES = ("*.sst", "*.log", "marks")
# The file of marks is large and mostly empty: it is hit as if it had so many bytes.
_MARKS_WEIGHT = 20_000


def cluster(nodes: int = 4, **settings: Any) -> SidecarCluster:
    """Sidecars that are not started yet; see SidecarCluster.

    Cost of their start: 1 to 2 s, and some 70 MiB each.
    """
    return SidecarCluster(nodes, **settings)


class SidecarNode(Node):
    """One sidecar, with its data directory, which may be a small disk of its own."""

    def __init__(
        self,
        name: str,
        address: str,
        home: Path,
        *,
        zone: str,
        options: Sequence[str],
        own_disk: PrivateDisk | None,
    ) -> None:
        super().__init__(name, address, home)
        self.zone = zone
        self.options = list(options)
        self.disk = own_disk

    @property
    def told_name(self) -> str:
        """Its name in the catalog."""
        return self.name.replace(" ", "-")

    @property
    def data(self) -> Path:
        """Its data directory, as seen from outside."""
        return self.disk.place / "data" if self.disk else self.home / "data"

    def configure(self) -> None:
        """All is told in the command line."""

    def command(self) -> list[str]:
        inside = self.disk.mounted / "data" if self.disk else self.data
        return [
            *(self.disk.entry() if self.disk else ()),
            *(sys.executable, "-m", "cassq", "sidecar", "serve"),
            *("--data", str(inside), "--zone", self.zone, "--name", self.told_name),
            *("--listen", f"{self.address}:{PORT}", "--http", f"{self.address}:{HTTP_PORT}"),
            *self.options,
        ]

    def ready(self) -> bool:
        return bool(self.health())

    def health(self) -> dict[str, Any]:
        """What it answers to who asks how it is; empty when it does not answer."""
        url = f"http://{self.address}:{HTTP_PORT}/health"
        try:
            with urllib.request.urlopen(url, timeout=_PROBE_SECONDS) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:  # it is not well, and says so
            return dict(json.load(error))
        except (OSError, HTTPException, ValueError):
            return {}

    def fact(self, name: str) -> Any:
        """One of the things it tells of itself; None when it does not answer."""
        return self.health().get(name)

    # --- harm, while it is down -----------------------------------------------------------------

    def lose_data(self) -> None:
        """Its data directory is gone."""
        self._must_be_down()
        shutil.rmtree(self.data)

    def flip_bits(self, chance: random.Random, flips: int) -> list[str]:
        """Turn bits of some of the files that matter, as a disk does in the dark; what was hit.

        Raises ServerFailedError when there are none.
        """
        self._must_be_down()
        found = [path for kind in DATA_FILES for path in sorted(self.data.rglob(kind))]
        files = [path for path in found if path.stat().st_size]
        if not files:
            raise ServerFailedError(f"{self.name} has no data that could be damaged")
        # Mostly in frames: without its rows a sidecar does not start.
        sizes = [_MARKS_WEIGHT if path.name == "marks" else path.stat().st_size for path in files]
        hit: list[str] = []
        for path in chance.choices(files, sizes, k=flips):
            at = chance.randrange(path.stat().st_size)
            flip_bit(path, at, chance.randrange(8))
            hit.append(f"{path.name} at {at}")
        return hit

    def places_of(self, pattern: bytes) -> list[tuple[Path, int]]:
        """The file and offset of the first of these bytes, in each file that has them."""
        self._must_be_down()
        files = [
            (path, path.read_bytes()) for path in sorted(self.data.rglob("*")) if path.is_file()
        ]
        return [(path, held.index(pattern)) for path, held in files if pattern in held]

    def _must_be_down(self) -> None:
        if self.alive:
            raise ServerFailedError(f"{self.name} runs: its files are its own")


def flip_bit(path: Path, at: int, bit: int) -> None:
    """Turn one bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))


class SidecarCluster(Cluster[SidecarNode]):
    """Sidecars of one catalog.

    catalog: its URL, without a store; by default a directory below `home`. replicas: of each
    pipe. disk_bytes: a file system of this size for each, which can be filled; 0 for none.
    options: more of `cassq sidecar serve`. With partitions they have a token and TLS, since
    their addresses are not of the loopback.
    """

    kind: ClassVar[str] = "sidecar"
    port: ClassVar[int] = PORT

    def __init__(
        self,
        nodes: int,
        *,
        catalog: str = "",
        replicas: int = REPLICAS,
        disk_bytes: int = 0,
        options: Sequence[str] = (),
        **place: Any,
    ) -> None:
        super().__init__(nodes, **place)
        self.replicas = replicas
        self._catalog = catalog
        self._disk_bytes = disk_bytes
        self._options = list(options)
        self._token = ""

    def find(self) -> None:
        for module in ("rocksdict", "msgspec"):
            try:
                __import__(module)
            except ImportError as error:
                raise MissingServerError(f"the Python module {module} is not installed") from error
        if self._disk_bytes and (why := disk.obstacle()):
            raise MissingServerError(f"no disks of their own: {why}")

    def make_nodes(self, addresses: Sequence[str]) -> list[SidecarNode]:
        options = ["--catalog", self.catalog, "--drain-seconds", str(_DRAIN_SECONDS)]
        if not addresses[0].startswith("127."):
            options += self._secured(addresses)
        if self._disk_bytes:
            options += ["--free-min", str(_FREE_MIN_BYTES)]
        options += self._options
        return [
            SidecarNode(
                f"sidecar {number}",
                address,
                self.home / f"node{number}",
                zone=ZONES[(number - 1) % len(ZONES)],
                options=options,
                own_disk=self._own_disk(number),
            )
            for number, address in enumerate(addresses, 1)
        ]

    def _own_disk(self, number: int) -> PrivateDisk | None:
        if not self._disk_bytes:
            return None
        made = PrivateDisk(self.home / f"node{number}" / "disk", self._disk_bytes)
        made.start()
        return made

    def _secured(self, addresses: Sequence[str]) -> list[str]:
        """A token, and a certificate for all of them that is its own authority."""
        self._token = secrets.token_urlsafe(16)
        token_file, cert, key = self.home / "token", self.home / "cert.pem", self.home / "key.pem"
        token_file.touch(0o600)
        token_file.write_text(f"{self._token}\n")
        names = ",".join(f"IP:{address}" for address in addresses)
        command = (
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"),
            *("-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=sidecars"),
            *("-addext", f"subjectAltName={names}", "-keyout", str(key), "-out", str(cert)),
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerFailedError(f"no certificate: {done.stderr.strip()}")
        return [
            *("--token-file", str(token_file)),
            *("--cert", str(cert), "--key", str(key), "--ca", str(cert)),
        ]

    # --- addresses ------------------------------------------------------------------------------

    @property
    def catalog(self) -> str:
        """The catalog's URL, without a store."""
        return self._catalog or f"file:{self.home}/catalog"

    def url(self, path: str = "") -> str:
        """The URL for clients. path: options to add, such as `zone=a`."""
        options = ["store=sidecar", f"replicas={self.replicas}"]
        if self._token:
            cert, key = self.home / "cert.pem", self.home / "key.pem"
            options += [f"sidecar_token={self._token}", "sidecar_tls=full", f"sidecar_ca={cert}"]
            options += [f"sidecar_cert={cert}", f"sidecar_key={key}"]
        more = [path] if path else []
        return f"{self.catalog}{'&' if '?' in self.catalog else '?'}{'&'.join(options + more)}"

    # --- looking --------------------------------------------------------------------------------

    def whole(self) -> bool:
        """All are in the catalog, and live."""
        catalog = open_catalog(self.catalog, SystemClock())
        try:
            rows = {row.name: row for row in catalog.sidecars.listed()}
            now_ms = catalog.now_ms()
        except BackendError:
            return False
        finally:
            catalog.close()
        # What it tells of itself is of this life: a killed one's lease may still hold.
        return all(
            (row := rows.get(node.told_name)) is not None
            and row.alive(now_ms)
            and row.generation == node.fact("generation")
            for node in self.nodes
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`cassq sidecar ...` about this cluster."""
        return subprocess.run(
            [sys.executable, "-m", "cassq", "--url", self.url(), "sidecar", *words],
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS_MAX,
            check=False,
        )

    def stop(self) -> None:
        super().stop()
        for node in self.nodes:
            if node.disk is not None:
                node.disk.stop()
