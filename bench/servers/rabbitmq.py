"""RabbitMQ, one node with quorum queues, which sync before they confirm."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

from bench.servers.members import together
from bench.servers.server import MissingServerError, Server, accepts, free_ports

INSTALL = "RabbitMQ 4: apt-get install -y rabbitmq-server, from Debian 13; pip install amqp"

# Debian's command on the PATH starts it as another user only.
DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
# The disk is shared with everything else on the machine.
disk_free_limit.absolute = 100MB
"""


class RabbitmqServer(Server):
    name = "rabbitmq"
    ready_seconds_max = 120.0

    def find(self) -> None:
        found = str(DEBIAN) if DEBIAN.exists() else shutil.which("rabbitmq-server")
        epmd = shutil.which("epmd")
        if found is None or epmd is None:
            raise MissingServerError(f"rabbitmq-server is not installed ({INSTALL})")
        try:
            import amqp  # noqa: F401
        except ImportError as error:
            raise MissingServerError(f"{error.name} is not installed ({INSTALL})") from error
        self._program, self._epmd = found, epmd

    def prepare(self) -> list[str]:
        self._port, names, distribution = free_ports(3)
        configuration = self.home / "rabbitmq.conf"
        configuration.write_text(CONFIGURATION.format(port=self._port))
        (self.home / "enabled_plugins").write_text("[].")
        self.environment = {
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "HOME": str(self.home),  # the cookie of its nodes is there
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONFIG_FILE": str(configuration),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.home / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.home / "data"),
            "RABBITMQ_LOG_BASE": str(self.home / "log"),
            "RABBITMQ_LOGS": "-",
        }
        self.address = f"127.0.0.1:{self._port}"
        # With a daemon of names of its own, which would stay when the node has ended.
        names_daemon = [self._epmd, "-port", str(names), "-address", "127.0.0.1"]
        return together(self, {"epmd": names_daemon, "rabbitmq": [self._program]})

    def ready(self) -> bool:
        import amqp

        if not accepts(self._port):
            return False
        try:
            with amqp.Connection(self.address) as connection:
                self._release = connection.server_properties["version"]
                return True
        except (OSError, amqp.AMQPError):
            return False

    def version(self) -> str:
        return f"RabbitMQ {self._release} (py-amqp {version('amqp')})"
