"""Kafka brokers that are their own controllers (KRaft), from jars that Maven fetches."""

from __future__ import annotations

import base64
import shutil
import subprocess
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from bench.servers.members import together
from bench.servers.server import (
    MissingServerError,
    Server,
    ServerFailedError,
    accepts,
    free_ports,
)
from tests.servers.parts import errors, jars

KIND = "kafka"
POM = Path(__file__).with_name("kafka-pom.xml")
INSTALL = "apt-get install -y openjdk-17-jre-headless maven; pip install confluent-kafka"

CONFIGURATION = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=BROKER://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=BROKER://127.0.0.1:{broker_port}
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
log.dirs={directory}
num.partitions=1
default.replication.factor={replicas}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync}
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
    nodes: ClassVar[int] = 1

    def find(self) -> None:
        for program in ("java", "mvn"):
            if shutil.which(program) is None:
                raise MissingServerError(f"{program} is not installed ({INSTALL})")
        try:
            import confluent_kafka  # noqa: F401
        except ImportError as error:
            raise MissingServerError(f"{error.name} is not installed ({INSTALL})") from error
        try:
            self._jars = jars.fetch(KIND, POM)
        except errors.MissingServerError as error:
            raise MissingServerError(str(error)) from error

    def prepare(self) -> list[str]:
        ports = free_ports(2 * self.nodes)
        self._ports, controllers = ports[: self.nodes], ports[self.nodes :]
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers, 1))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # A cluster id may not begin with a dash: it would be read as an option.
        cluster = f"c{cluster[1:]}"
        commands = {}
        for node, (port, controller) in enumerate(zip(self._ports, controllers, strict=True), 1):
            configuration = self.home / f"server-{node}.properties"
            configuration.write_text(
                CONFIGURATION.format(
                    node=node,
                    voters=voters,
                    broker_port=port,
                    controller_port=controller,
                    replicas=self.nodes,
                    in_sync=self.nodes // 2 + 1,
                    directory=self.home / f"log-{node}",
                )
            )
            self._format(cluster, configuration)
            commands[f"kafka-{node}"] = [
                "java",
                *JAVA_OPTIONS,
                *self._classes,
                "kafka.Kafka",
                str(configuration),
            ]
        self.address = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return together(self, commands)

    @property
    def _classes(self) -> list[str]:
        return ["-cp", f"{self._jars}/*"]

    def _format(self, cluster: str, configuration: Path) -> None:
        tool = ["java", *self._classes, "kafka.tools.StorageTool"]
        formatted = subprocess.run(
            [*tool, "format", "-t", cluster, "-c", str(configuration)],
            check=False,
            capture_output=True,
            text=True,
        )
        if formatted.returncode != 0:
            raise ServerFailedError(f"formatting Kafka's log failed:\n{formatted.stderr[-2000:]}")

    def ready(self) -> bool:
        if not all(map(accepts, self._ports)):
            return False
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            found = AdminClient({"bootstrap.servers": self.address}).list_topics(timeout=2)
        except KafkaException:
            return False
        return len(found.brokers) == self.nodes

    def version(self) -> str:
        brokers = "" if self.nodes == 1 else f"{self.nodes} brokers, "
        return f"Kafka {jars.version(POM)} ({brokers}confluent-kafka {version('confluent-kafka')})"


class KafkaThreeServer(KafkaServer):
    """Three brokers, and everything on each: an answer waits for all that keep up, two at least."""

    name = "kafka-three"
    nodes = 3
