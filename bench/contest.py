"""The run itself: servers up, scenarios measured round by round with the peers taking turns."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from bench.measuring.children import Figures, MeasurementError, Seat
from bench.measuring.proof import prove_peer, warm_server
from bench.peers.peer import Place
from bench.peers.roster import peer_class
from bench.plan import Plan
from bench.results.scores import DISK, Scores
from bench.scenarios.scenario import Case, Scenario
from bench.servers.cassandra import (
    CassandraPeriodicServer,
    CassandraServer,
    CassandraThreeServer,
)
from bench.servers.kafka import KafkaServer, KafkaThreeServer
from bench.servers.nats import NatsServer, NatsSyncedServer, NatsThreeServer
from bench.servers.postgresql import PostgresqlServer
from bench.servers.rabbitmq import RabbitmqServer
from bench.servers.redis import RedisServer
from bench.servers.server import MissingServerError, Server
from bench.servers.sidecars import SidecarFourServer, SidecarServer, SidecarThreeServer
from bench.servers.sqs import ElasticMqServer, ElasticMqStoredServer, GatewayServer, MotoServer

SERVERS: dict[str, type[Server]] = {
    server.name: server
    for server in (
        *(RedisServer, RabbitmqServer, PostgresqlServer, KafkaServer),
        *(KafkaThreeServer, NatsServer, NatsSyncedServer, NatsThreeServer),
        *(SidecarServer, SidecarThreeServer, SidecarFourServer),
        *(CassandraServer, CassandraPeriodicServer, CassandraThreeServer),
        *(GatewayServer, ElasticMqServer, ElasticMqStoredServer, MotoServer),
    )
}
PROOF, WARM_UP = Case("proof", "the proof"), Case("warm-up", "the warm-up")
# A server for some cases only gets less to warm up on: it must not take longer than they do.
WARM_UP_SHARE = 4
PROOF_MESSAGES = 2_000
PROOF_MESSAGES_UNBATCHED = 200
# The machine is quiet when less than this was used of all its cores, over so long.
QUIET_PERCENT = 10.0
QUIET_SECONDS = 0.15
Say = Callable[[str], None]


def await_quiet(seconds: float) -> None:
    """Wait, so long at most, until the machine has done what the last peer left it to do.

    Servers clear up after their answers: Kafka deletes a topic and PostgreSQL a table's rows while
    somebody else would already be measured.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and psutil.cpu_percent(QUIET_SECONDS) > QUIET_PERCENT:
        pass


class Contest:
    """One run over some peers, with its servers; a context manager that ends and clears all."""

    def __init__(self, directory: Path, plan: Plan, peers: Sequence[str], say: Say) -> None:
        self.directory = directory
        self.plan = plan
        self.peers = list(peers)
        self.scores = Scores()
        self.missing: dict[str, str] = {}
        self._say = say
        self._servers: dict[str, Server] = {}
        self._versions: list[str] = []
        self._stack = ExitStack()
        self._measurements = 0

    def __enter__(self) -> Self:
        try:
            for name in self.peers:
                self._welcome(name)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def present(self) -> list[str]:
        """The peers that are not missing."""
        return [name for name in self.peers if name not in self.missing]

    def server_versions(self) -> list[str]:
        """Of all servers that ran, be it for one scenario."""
        return self._versions

    def _welcome(self, name: str) -> None:
        """Find a peer's library and start its server, or note what is missing."""
        try:
            peer_class(name).find()
            needed = peer_class(name).traits.server
            if needed is not None and needed not in self._servers:
                self._start(needed, self._stack)
        except ImportError as error:
            self.missing[name] = f"{error.name or error} is not installed"
        except MissingServerError as error:
            self.missing[name] = str(error)

    def _start(self, name: str, stack: ExitStack) -> None:
        """Start a server that runs until the stack is closed."""
        self._say(f"starting {name}")
        server = stack.enter_context(SERVERS[name](self.directory / name))
        stack.callback(self._servers.pop, name)
        self._servers[name] = server
        # A server of some cases may run more than once.
        if (version := server.version()) not in self._versions:
            self._versions.append(version)

    def _start_instead(self, scenario: Scenario, case: Case, stack: ExitStack) -> None:
        """Start the servers of this case alone, and get them up to speed."""
        for usual, name in case.instead.items():
            peers = [peer for peer in self._takers(scenario, case) if self._needs(peer) == usual]
            if peers and name not in self._servers:
                self._start(name, stack)
                for peer in peers:
                    self._warm(peer, case)

    def _needs(self, peer: str) -> str | None:
        return None if peer == DISK else peer_class(peer).traits.server

    def _takers(self, scenario: Scenario, case: Case) -> list[str]:
        if scenario.needs_own and scenario.own not in self.present:
            return []
        return [name for name in self.present if scenario.takes_part(case, peer_class(name))]

    def _seat(self, peer: str, case: Case) -> Seat:
        """A fresh place for one measurement."""
        self._measurements += 1
        label = f"m{self._measurements}"
        directory = self.directory / label
        directory.mkdir()
        needed = self._needs(peer)
        if needed is None:
            return Seat(peer, Place(directory, label, case.size))
        server = self._servers[case.instead.get(needed, needed)]
        return Seat(peer, Place(directory, label, case.size, server.address, server.pid))

    def prove(self) -> None:
        """Let every peer show that it is a queue at all; whoever cannot takes no further part."""
        for name in self.present:
            traits = peer_class(name).traits
            count = PROOF_MESSAGES if traits.batches else PROOF_MESSAGES_UNBATCHED
            self._say(f"proving {name}")

            def work(seat: Seat, count: int = count) -> Figures:
                prove_peer(seat, count)
                return {}

            if self._attempt(PROOF, name, work) is None:
                self.missing[name] = f"failed its proof: {self.scores.failures[PROOF.key, name]}"
            elif traits.server is not None:
                self._warm(name, WARM_UP)

    def _warm(self, name: str, like: Case) -> None:
        case = replace(WARM_UP, instead=like.instead)

        def work(seat: Seat) -> Figures:
            count = min(peer_class(name).traits.warmup_messages, 10 * self.plan.messages)
            count //= WARM_UP_SHARE if like.instead else 1
            warm_s = 0.0 if peer_class(name).traits.soon_warm else self.plan.warm_s
            warm_server(seat, count, 2 * self.plan.single_s, warm_s)
            return {}

        self._attempt(case, name, work)

    def run(self, scenario: Scenario) -> None:
        """Measure one scenario: case by case, round by round, the peers taking turns."""
        with ExitStack() as stack:
            for case in scenario.cases(self.plan):
                self._start_instead(scenario, case, stack)
                self._run_case(scenario, case)

    def _run_case(self, scenario: Scenario, case: Case) -> None:
        names = self._takers(scenario, case)
        for number in range(scenario.rounds(self.plan)):
            if scenario.has_reference:
                self._attempt(case, DISK, partial(self._refer, scenario, case))
            # Shuffled, the same way in every run: nobody always follows the same other.
            for name in random.Random(number).sample(names, len(names)):
                self._measure(scenario, case, name, number + 1)

    def _refer(self, scenario: Scenario, case: Case, seat: Seat) -> Figures:
        return scenario.reference(case, seat, self.plan)

    def _measure(self, scenario: Scenario, case: Case, name: str, number: int) -> None:
        def work(seat: Seat) -> Figures:
            return scenario.measure(case, seat, self.plan)

        start = time.monotonic()
        figures = self._attempt(case, name, work)
        headline = (figures or {}).get(scenario.headline)
        # Some cases measure other things than the scenario's first.
        shown = "done" if headline is None else f"{scenario.headline} {headline:,.2f}"
        shown = "failed" if figures is None else shown
        took = time.monotonic() - start
        self._say(f"{case.key}, round {number}, {name}: {shown} ({took:.1f} s)")

    def _attempt(self, case: Case, name: str, work: Callable[[Seat], Figures]) -> Figures | None:
        """Do one piece of work at a fresh place, record what came of it, and clear up."""
        seat = self._seat(name, case)
        await_quiet(self.plan.quiet_s)
        try:
            figures = work(seat)
        except MeasurementError as error:
            self._say(f"{case.key}, {name} failed:\n{error}")
            self.scores.fail(case.key, name, str(error).strip().splitlines()[-1])
            return None
        finally:
            shutil.rmtree(seat.place.directory)
            os.sync()
        self.scores.add(case.key, name, figures)
        return figures
