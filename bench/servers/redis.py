"""Redis with an append-only file that is synced before every answer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench.servers.server import MissingServerError, Server, free_port

INSTALL = "apt-get install -y redis-server; pip install redis hiredis"

CONFIGURATION = """\
bind 127.0.0.1
port {port}
unixsocket {socket}
daemonize no
dir {directory}
save ""
appendonly yes
appendfsync always
# A rewrite of the log forks and competes with whoever is measured: left out, in Redis' favour.
auto-aof-rewrite-percentage 0
maxmemory-policy noeviction
"""


class RedisServer(Server):
    name = "redis"

    def find(self) -> None:
        if shutil.which("redis-server") is None:
            raise MissingServerError(f"redis-server is not installed ({INSTALL})")
        try:
            import hiredis  # noqa: F401
            import redis  # noqa: F401
        except ImportError as error:
            raise MissingServerError(f"{error.name} is not installed ({INSTALL})") from error

    def prepare(self) -> list[str]:
        socket = self.home / "redis.sock"
        configuration = self.home / "redis.conf"
        configuration.write_text(
            CONFIGURATION.format(port=free_port(), socket=socket, directory=self.home)
        )
        self.address = str(socket)
        return ["redis-server", str(configuration)]

    def ready(self) -> bool:
        import redis

        if not Path(self.address).exists():
            return False
        client = redis.Redis(unix_socket_path=self.address)
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
        finally:
            client.close()

    def version(self) -> str:
        import redis

        text = subprocess.run(
            ["redis-server", "--version"], check=True, capture_output=True, text=True
        ).stdout
        number = next(word[2:] for word in text.split() if word.startswith("v="))
        return f"Redis {number} (redis-py {redis.__version__})"


class RedisUrlServer(RedisServer):
    """Redis on a port of 127.0.0.1, for clients that take a URL. synced: with an append-only file
    that is synced before every answer; otherwise as it is delivered, without such a file. url:
    without the number of a database."""

    name = "redis-url"

    def __init__(self, home: Path, *, synced: bool) -> None:
        super().__init__(home)
        self._synced = synced
        self.url = ""

    def prepare(self) -> list[str]:
        command = super().prepare()
        port = free_port()
        self.url = f"redis://127.0.0.1:{port}"
        only = "yes" if self._synced else "no"
        return [*command, "--port", str(port), "--appendonly", only]
