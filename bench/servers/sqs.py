"""Servers of SQS' protocol: the gateway, ElasticMQ and moto. Each has one core to itself, if there
are two: their clients have the other."""

from __future__ import annotations

import os
import shutil
import sys
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path

from bench.servers.server import MissingServerError, Server, free_port
from cassq.version import __version__
from tests.servers.parts import errors, jars

KIND = "elasticmq"
POM = Path(__file__).with_name("elasticmq-pom.xml")
JAVA = "apt-get install -y openjdk-17-jre-headless maven"
READY_SECONDS = 2.0
# A program's only core is set before it starts, so that all its threads have it.
PIN = """\
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.execvp(sys.argv[2], sys.argv[2:])
"""

ELASTICMQ = """\
include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats {{ enabled = false }}
"""
STORED = """\
messages-storage {{ enabled = true, uri = "jdbc:h2:{directory}/elasticmq" }}
"""


def server_core() -> int:
    """The core that servers run on."""
    return max(os.sched_getaffinity(0))


def client_core() -> int:
    """The core that their clients run on: the same one only if there is no other."""
    return min(os.sched_getaffinity(0))


def pinned(*command: str) -> list[str]:
    """A command that runs on the servers' core alone."""
    return [sys.executable, "-c", PIN, str(server_core()), *command]


class SqsServer(Server):
    """One of them. address: HOST:PORT."""

    ready_path = "/"

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://{self.address}{self.ready_path}", timeout=READY_SECONDS
            ):
                return True
        except urllib.error.HTTPError:
            return True  # it answers
        except OSError:
            return False


class GatewayServer(SqsServer):
    """One process over a directory: an answer means that all is on the disk."""

    name = "gateway"
    ready_path = "/health"

    def find(self) -> None:
        for module in ("httptools", "uvloop", "orjson"):
            try:
                __import__(module)
            except ImportError as error:
                raise MissingServerError(
                    f"{module} is not installed (pip install 'cassq[gateway]')"
                ) from error

    def prepare(self) -> list[str]:
        self.address = f"127.0.0.1:{free_port()}"
        url = f"file://{(self.home / 'queues').resolve()}"
        own = (sys.executable, "-m", "cassq", "--url", url, "gateway", "--listen", self.address)
        return pinned(*own)

    def version(self) -> str:
        return f"cassq gateway {__version__}"


class ElasticMqServer(SqsServer):
    """Messages in memory, as it is used."""

    name = "elasticmq"
    storage = ""

    def find(self) -> None:
        for program in ("java", "mvn"):
            if shutil.which(program) is None:
                raise MissingServerError(f"{program} is not installed ({JAVA})")
        try:
            self._jars = jars.fetch(KIND, POM)
        except errors.MissingServerError as error:
            raise MissingServerError(str(error)) from error

    def prepare(self) -> list[str]:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        configuration = self.home / "elasticmq.conf"
        text = ELASTICMQ.format(port=port) + self.storage.format(directory=self.home)
        configuration.write_text(text)
        return pinned(
            *("java", "-server", "-Xms2g", "-Xmx2g", f"-Dconfig.file={configuration}"),
            *("-cp", jars.class_path(self._jars), "org.elasticmq.server.Main"),
        )

    def version(self) -> str:
        return f"ElasticMQ {jars.version(POM)}"


class ElasticMqStoredServer(ElasticMqServer):
    """Messages in H2 as well, which does not sync each."""

    name = "elasticmq-stored"
    storage = STORED


class MotoServer(SqsServer):
    """Messages in memory."""

    name = "moto"

    def find(self) -> None:
        try:
            __import__("moto.server")
        except ImportError as error:
            raise MissingServerError(
                f"{error.name} is not installed (pip install 'moto[server]')"
            ) from error

    def prepare(self) -> list[str]:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        return pinned(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port))

    def version(self) -> str:
        return f"moto {version('moto')}"
