"""The run itself: servers up, scenarios measured round by round with the peers taking turns."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from bench.children import Figures, MeasurementError, Seat
from bench.peers.peer import Place
from bench.peers.roster import peer_class
from bench.plan import Plan
from bench.proof import prove_peer, warm_server
from bench.scenarios.scenario import Case, Scenario
from bench.scores import DISK, Scores
from bench.servers.kafka import KafkaServer
from bench.servers.postgresql import PostgresqlServer
from bench.servers.redis import RedisServer
from bench.servers.server import MissingServerError, Server

SERVERS: dict[str, type[Server]] = {
    server.name: server for server in (RedisServer, PostgresqlServer, KafkaServer)
}
PROOF_MESSAGES = 2_000
PROOF_MESSAGES_UNBATCHED = 200
# The machine is quiet when less than this was used of all its cores, over so long.
QUIET_PERCENT = 10.0
QUIET_SECONDS = 0.15
QUIET_SECONDS_MAX = 3.0
Say = Callable[[str], None]


def await_quiet() -> None:
    """Wait, though not for ever, until the machine has done what the last peer left it to do.

    Servers clear up after their answers: Kafka deletes a topic and PostgreSQL a table's rows while
    somebody else would already be measured.
    """
    deadline = time.monotonic() + QUIET_SECONDS_MAX
    while psutil.cpu_percent(QUIET_SECONDS) > QUIET_PERCENT and time.monotonic() < deadline:
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
        return [server.version() for server in self._servers.values()]

    def _welcome(self, name: str) -> None:
        """Find a peer's library and start its server, or note what is missing."""
        try:
            needed = peer_class(name).traits.server
            if needed is not None and needed not in self._servers:
                self._say(f"starting {needed}")
                server = SERVERS[needed](self.directory / needed)
                self._servers[needed] = self._stack.enter_context(server)
        except ImportError as error:
            self.missing[name] = f"{error.name or error} is not installed"
        except MissingServerError as error:
            self.missing[name] = str(error)

    def _seat(self, peer: str, size: int) -> Seat:
        """A fresh place for one measurement."""
        self._measurements += 1
        label = f"m{self._measurements}"
        directory = self.directory / label
        directory.mkdir()
        needed = None if peer == DISK else peer_class(peer).traits.server
        if needed is None:
            return Seat(peer, Place(directory, label, size))
        server = self._servers[needed]
        return Seat(peer, Place(directory, label, size, server.address, server.pid))

    def prove(self) -> None:
        """Let every peer show that it is a queue at all; whoever cannot takes no further part."""
        for name in self.present:
            traits = peer_class(name).traits
            count = PROOF_MESSAGES if traits.batches else PROOF_MESSAGES_UNBATCHED
            self._say(f"proving {name}")

            def work(seat: Seat, count: int = count) -> Figures:
                prove_peer(seat, count)
                return {}

            if self._attempt("proof", name, 100, work) is None:
                self.missing[name] = f"failed its proof: {self.scores.failures['proof', name]}"
            elif traits.server is not None:
                self._warm(name)

    def _warm(self, name: str) -> None:
        def work(seat: Seat) -> Figures:
            count = min(peer_class(name).traits.warmup_messages, 10 * self.plan.messages)
            warm_server(seat, count, 2 * self.plan.single_s)
            return {}

        self._attempt("warm-up", name, 100, work)

    def run(self, scenario: Scenario) -> None:
        """Measure one scenario: case by case, round by round, the peers taking turns."""
        for case in scenario.cases(self.plan):
            names = [name for name in self.present if scenario.takes_part(case, peer_class(name))]
            for number in range(scenario.rounds(self.plan)):
                if scenario.has_reference:
                    self._attempt(case.key, DISK, case.size, partial(self._refer, scenario, case))
                # Shuffled, the same way in every run: nobody always follows the same other.
                for name in random.Random(number).sample(names, len(names)):
                    self._measure(scenario, case, name, number + 1)

    def _refer(self, scenario: Scenario, case: Case, seat: Seat) -> Figures:
        return scenario.reference(case, seat, self.plan)

    def _measure(self, scenario: Scenario, case: Case, name: str, number: int) -> None:
        def work(seat: Seat) -> Figures:
            return scenario.measure(case, seat, self.plan)

        start = time.monotonic()
        figures = self._attempt(case.key, name, case.size, work)
        headline = (figures or {}).get(scenario.headline)
        shown = "failed" if headline is None else f"{scenario.headline} {headline:,.2f}"
        took = time.monotonic() - start
        self._say(f"{case.key}, round {number}, {name}: {shown} ({took:.1f} s)")

    def _attempt(
        self, case_key: str, name: str, size: int, work: Callable[[Seat], Figures]
    ) -> Figures | None:
        """Do one piece of work at a fresh place, record what came of it, and clear up."""
        seat = self._seat(name, size)
        await_quiet()
        try:
            figures = work(seat)
        except MeasurementError as error:
            self._say(f"{case_key}, {name} failed:\n{error}")
            self.scores.fail(case_key, name, str(error).strip().splitlines()[-1])
            return None
        finally:
            shutil.rmtree(seat.place.directory)
            os.sync()
        self.scores.add(case_key, name, figures)
        return figures
