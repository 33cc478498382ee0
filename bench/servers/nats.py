"""NATS servers with JetStream in files, built by Go from the pinned release."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from bench.servers.members import together
from bench.servers.server import MissingServerError, Server, accepts, free_ports
from tests.servers.parts.jars import cache_directory, exclusively

MODULE, RELEASE = "github.com/nats-io/nats-server/v2", "v2.15.2"
INSTALL = "Go from https://go.dev/dl, the newest; pip install nats-py"
BUILD_SECONDS_MAX = 900
REQUEST_SECONDS = 2.0

CONFIGURATION = """\
server_name: {name}
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{directory}", max_file_store: 64GB{sync} }}
"""
CLUSTER = """\
cluster {{ name: bench, listen: 127.0.0.1:{port}, routes: [{routes}] }}
"""


def built() -> Path:
    """The server's program, built the first time. Raises MissingServerError."""
    place = cache_directory() / f"nats-server-{RELEASE}"
    program = place / "nats-server"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        raise MissingServerError(f"nats-server is built by Go, which is not installed ({INSTALL})")
    with exclusively("nats"):
        if not program.exists():
            _build(go, place)
    return program


def _build(go: str, place: Path) -> None:
    fresh = place.with_name(f"{place.name}.partial")
    shutil.rmtree(fresh, ignore_errors=True)  # of one that was killed; the lock is ours
    try:
        made = subprocess.run(
            [go, "install", f"{MODULE}@{RELEASE}"],
            check=False,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS_MAX,
            env={**os.environ, "GOBIN": str(fresh)},
        )
        if made.returncode != 0:
            said = " ".join(made.stderr.split())[-400:]
            raise MissingServerError(f"Go could not build nats-server: {said} ({INSTALL})")
        fresh.rename(place)
    except subprocess.TimeoutExpired as error:
        raise MissingServerError(f"Go took more than {BUILD_SECONDS_MAX} s") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


class NatsServer(Server):
    """One server as it comes: it answers at once, and syncs its files every two minutes."""

    name = "nats"
    nodes: ClassVar[int] = 1
    synced: ClassVar[bool] = False

    def find(self) -> None:
        try:
            import nats  # noqa: F401
        except ImportError as error:
            raise MissingServerError(f"{error.name} is not installed ({INSTALL})") from error
        self._program = built()

    def prepare(self) -> list[str]:
        ports = free_ports(2 * self.nodes)
        self._ports, routes = ports[: self.nodes], ports[self.nodes :]
        routes_url = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        commands = {}
        for number, (port, route) in enumerate(zip(self._ports, routes, strict=True), 1):
            name = f"nats-{number}"
            text = CONFIGURATION.format(
                name=name,
                port=port,
                directory=self.home / name,
                sync=", sync_interval: always" if self.synced else "",
            )
            if self.nodes > 1:
                text += CLUSTER.format(port=route, routes=routes_url)
            file = self.home / f"{name}.conf"
            file.write_text(text)
            commands[name] = [str(self._program), "-c", str(file)]
        self.address = ",".join(f"nats://127.0.0.1:{port}" for port in self._ports)
        return together(self, commands)

    def ready(self) -> bool:
        return all(map(accepts, self._ports)) and asyncio.run(self._answers())

    async def _answers(self) -> bool:
        """Whether a stream can be made on all servers: they have found each other, and a leader."""
        import nats
        from nats.errors import Error
        from nats.js.api import StorageType, StreamConfig

        try:
            connection = await nats.connect(self.address.split(","), allow_reconnect=False)
        except (OSError, Error):
            return False
        try:
            streams = connection.jetstream(timeout=REQUEST_SECONDS)
            await streams.add_stream(
                StreamConfig(
                    name="ready",
                    subjects=["ready"],
                    storage=StorageType.FILE,
                    num_replicas=self.nodes,
                )
            )
            return bool(await streams.delete_stream("ready"))
        except Error:
            return False
        finally:
            await connection.close()

    def version(self) -> str:
        servers = "" if self.nodes == 1 else f"{self.nodes} servers, "
        synced = "sync_interval always, " if self.synced else ""
        return f"NATS {RELEASE[1:]} ({servers}{synced}nats-py {version('nats-py')})"


class NatsSyncedServer(NatsServer):
    """One server that syncs every write before it answers."""

    name = "nats-synced"
    synced = True


class NatsThreeServer(NatsServer):
    """Three servers, and everything on each; an answer waits for two of them."""

    name = "nats-three"
    nodes = 3
