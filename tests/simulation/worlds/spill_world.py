"""A world whose pushers spill: now and then the cluster does not answer them, or does what they ask
and its answer is lost. The simulated directory plays the cluster; a second one is the spool that
all pushers of their machine share.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from cassq.client.backends.embedded import Embedded
from cassq.client.spool import Spool
from cassq.errors import BackendTimeoutError, BackendUnavailableError, CassqError
from cassq.message.frames import Place as At
from tests.integration.fronts import Append
from tests.integration.spilled import StoreWire, Wire
from tests.simulation.actors.client import SteppedClient
from tests.simulation.checks.ledger import BrokenPromiseError
from tests.simulation.checks.model import Sent
from tests.simulation.worlds.scenario import Scenario, draw_scenario, with_breadth, with_desk
from tests.simulation.worlds.scheduler import CalmProcess, Process
from tests.simulation.worlds.simcatalog import Commits
from tests.simulation.worlds.simdisk import Platter, SimDisk
from tests.simulation.worlds.world import World


class SpillWorld(World):
    """One run. Only pushers are cut off, and whoever heals."""

    option = " --only spilling"
    spills = True
    spool_disk_class = SimDisk

    def __init__(
        self, seed: int, scenario: Scenario | None = None, *, verbose: bool = False
    ) -> None:
        rng = random.Random(f"spilling {seed}")
        # A spool's locks are those of real threads; and a lost catalog has a time of its own.
        super().__init__(seed, scenario or draw_spilling(rng), verbose=verbose)
        self.spool_platter = Platter(random.Random(rng.getrandbits(64)))
        self.spool_commits = Commits(random.Random(rng.getrandbits(64)))
        self.spool_commits.tick = self.checker.tick
        self.spool_commits.keeping = self.cuts_left > 0
        self.out_rate = rng.choice((0.005, 0.02))
        self.back_rate = rng.choice((0.005, 0.05))
        self.lost_rate = rng.choice((0.0, 0.05, 0.3))
        self.out = False  # whether the cluster answers no pusher
        self.answers = random.Random(rng.getrandbits(64))

    def open_client(self, process: Process) -> SteppedClient:
        if not process.name.startswith(("pusher", "healer")):
            return super().open_client(process)
        self.check()
        place = SteppedClient(self.spool_of(process), process)
        self._clients.append(place)
        client = SpillingClient(self._wired(self.embedded(process)), process, place)
        self._clients.append(client)
        return client

    def spool_of(self, process: Process) -> Embedded:
        """The spool's directory."""
        disk = self.spool_disk_class(process, self.spool_platter)
        return self.embedded(process, disk, self.spool_commits)

    def _wired(self, embedded: Embedded) -> Embedded:
        ports = embedded.ports
        wired: Any = {"catalog": Wire(self, ports.catalog), "store": StoreWire(self, ports.store)}
        return embedded._replace(ports=ports._replace(**wired))

    def check(self) -> None:
        if self.out:
            raise BackendUnavailableError("the cluster is gone")

    def around(self, append: Append) -> At:
        self.check()
        end = append()
        if self.answers.random() < self.lost_rate:
            self.scheduler.note(None, "AN ANSWER IS LOST")
            raise BackendTimeoutError("no answer", outcome_unknown=True)
        return end

    # --- mishaps --------------------------------------------------------------------------------

    def befall(self) -> None:
        if self.answers.random() < (self.back_rate if self.out else self.out_rate):
            self.out = not self.out
            self.scheduler.note(None, "OUT OF REACH" if self.out else "IN REACH")

    def mend(self) -> None:
        self.out, self.lost_rate = False, 0.0

    def cut_power(self) -> None:
        super().cut_power()
        self.spool_commits.cut_power()
        self.spool_platter.cut_power()
        self.spool_commits.keeping = self.cuts_left > 0

    # --- the end --------------------------------------------------------------------------------

    def is_quiet(self) -> bool:
        """The spool is empty as well."""
        left = self.spool_commits.connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        if left is not None:
            left = self.spool_commits.connection.execute("SELECT 1 FROM pipes LIMIT 1").fetchone()
        return left is None and super().is_quiet()

    def heal(self) -> None:
        super().heal()
        for sent in self.checker.sent.values():
            if sent.spilled:
                self._check_once(sent)

    def _check_once(self, sent: Sent) -> None:
        """What was acknowledged from the spool is in its queue, once."""
        checker = self.checker
        owners = {group.queue_id for group in checker.groups.values() if group.queue == sent.queue}
        found = [
            (pipe_id, seq)
            for pipe_id, payloads in checker.content.items()
            if any((owner, "") in checker.homes.get(pipe_id, ()) for owner in owners)
            for seq, payload in enumerate(payloads)
            if payload == sent.payload
        ]
        if not found or (len(found) > 1 and not (sent.dedup_id and checker.may_come_twice(sent))):
            raise BrokenPromiseError(
                f"{sent.payload!r}, acknowledged from the spool, is in its queue as {found}"
            )


def draw_spilling(rng: random.Random) -> Scenario:
    """A scenario with an ap queue, whose pushes may be spilled."""
    drawn = with_desk(draw_scenario(rng, rng.choice((["ap"], ["ap"], ["ap", "cp"]))), rng)
    drawn = with_breadth(drawn, rng)
    return replace(drawn, catalog_lost=False, threads=0, popping_threads=0)


class SteppedSpool(Spool):
    """The real one, without its thread."""

    def start(self, *args: Any) -> None:
        self._working = False
        super().start(*args)


class SpillingClient(SteppedClient):
    """The real client with its spool."""

    def __init__(self, embedded: Embedded, process: Process, place: SteppedClient) -> None:
        self.place = place
        super().__init__(embedded, process, SteppedSpool(place.runtime, place.close))

    def maintain(self) -> None:
        super().maintain()
        self.place.maintain()
        process = self.place.process
        healing = isinstance(process, CalmProcess)
        if healing:
            self.place.reaper.reap([queue.row for queue in self.place.queues()])
        if healing or process.rng.random() < 0.3:
            try:
                assert self.spool is not None
                done = self.spool.forward()
            except CassqError as exc:
                process.scheduler.note(process, f"forwarding: {type(exc).__name__}: {exc.message}")
            else:
                if done.count or done.stuck:
                    process.scheduler.note(process, f"forwarded {done}")
