"""One Kafka broker that is its own controller (KRaft), from jars that Maven fetches."""

from __future__ import annotations

import base64
import shutil
import subprocess
import uuid
from importlib.metadata import version
from pathlib import Path

from bench.servers.server import (
    MissingServerError,
    Server,
    ServerFailedError,
    accepts,
    free_port,
)
from tests.servers import errors, jars

POM = Path(__file__).with_name("kafka-pom.xml")
INSTALL = "apt-get install -y openjdk-17-jre-headless maven; pip install confluent-kafka"

CONFIGURATION = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=BROKER://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=BROKER://127.0.0.1:{broker_port}
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
log.dirs={directory}
num.partitions=1
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
# The files of a deleted topic go at once, not a minute later under somebody else's measurement.
log.segment.delete.delay.ms=0
"""

# What Kafka's own start script uses.
JAVA_OPTIONS = [
    "-server",
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]


class KafkaServer(Server):
    name = "kafka"

    def find(self) -> None:
        for program in ("java", "mvn"):
            if shutil.which(program) is None:
                raise MissingServerError(f"{program} is not installed ({INSTALL})")
        try:
            import confluent_kafka  # noqa: F401
        except ImportError as error:
            raise MissingServerError(f"{error.name} is not installed ({INSTALL})") from error
        try:
            self._jars = jars.fetch(self.name, POM)
        except errors.MissingServerError as error:
            raise MissingServerError(str(error)) from error

    def prepare(self) -> list[str]:
        self._port = free_port()
        configuration = self.home / "server.properties"
        configuration.write_text(
            CONFIGURATION.format(
                broker_port=self._port,
                controller_port=free_port(),
                directory=self.home / "log",
            )
        )
        classes = ["-cp", f"{self._jars}/*"]
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # A cluster id may not begin with a dash: it would be read as an option.
        cluster = f"c{cluster[1:]}"
        formatted = subprocess.run(
            [
                "java",
                *classes,
                "kafka.tools.StorageTool",
                "format",
                "-t",
                cluster,
                "-c",
                configuration,
            ],
            check=False,
            capture_output=True,
            text=True,
        )
        if formatted.returncode != 0:
            raise ServerFailedError(f"formatting Kafka's log failed:\n{formatted.stderr[-2000:]}")
        self.address = f"127.0.0.1:{self._port}"
        return ["java", *JAVA_OPTIONS, *classes, "kafka.Kafka", str(configuration)]

    def ready(self) -> bool:
        if not accepts(self._port):
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            found = AdminClient({"bootstrap.servers": self.address}).list_topics(timeout=2)
        except KafkaException:
            return False
        return len(found.brokers) == 1

    def version(self) -> str:
        return f"Kafka {jars.version(POM)} (confluent-kafka {version('confluent-kafka')})"
