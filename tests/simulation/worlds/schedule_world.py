"""A world whose processes push the ticks of a schedule, change it, and pop their messages, while
they crash, stop, and meet faults, power cuts and jumps of the wall clock. Each tick must be one
message, and no update may be lost.
"""

from __future__ import annotations

import random
from dataclasses import replace

from cassq.errors import BackendError, OwnershipError
from cassq.model.schedules import TICK_HEADER, iso_time, next_step
from cassq.settings import ScheduleSettings
from tests.simulation.actors.client import SteppedClient, close_client, met, open_client
from tests.simulation.checks.checker import Checker
from tests.simulation.checks.ledger import BrokenPromiseError
from tests.simulation.worlds.scenario import Scenario, draw_scenario
from tests.simulation.worlds.scheduler import CalmProcess, Process
from tests.simulation.worlds.world import World

NAME = "tidy"
# With clocks that jump by an hour, ticks are farther apart.
INTERVAL_SECONDS, INTERVAL_OF_JUMPS_SECONDS = 1.0, 300.0
HEALING_ROUNDS_MAX = 1000
HEALING_SECONDS = 1.0
HEALING_JUMP_SECONDS = 4 * 3600.0
SWITCHES_MAX = 600


class TickChecker(Checker):
    """It knows no messages: the world itself follows the ticks."""

    def look(self) -> None:
        """Nothing is followed from commit to commit."""


class ScheduleWorld(World):
    """One run."""

    option = " --only schedules"

    def __init__(
        self, seed: int, scenario: Scenario | None = None, *, verbose: bool = False
    ) -> None:
        rng = random.Random(f"schedules {seed}")
        super().__init__(seed, scenario or draw_schedules(rng), verbose=verbose)
        self.checker = TickChecker(self)
        jumps = self.scenario.jump_rate > 0
        self.interval = INTERVAL_OF_JUMPS_SECONDS if jumps else INTERVAL_SECONDS
        self.first_ms = 0
        self.seen: dict[str, str] = {}  # tick → the id of its message
        self.change = self.changed = 0  # the last update that was begun, and that returned
        self.leveled = self.scenario.queues == ["ap"]

    def _set_up(self) -> None:
        client = self.open_client(CalmProcess(self.scheduler, "setup"))
        (name,) = self.scenario.queues
        client.create_queue(name, **self.scenario.policy[name])
        schedule = client.create_schedule(NAME, name, every=self.interval, missed="all")
        self.first_ms = round(schedule.next(1)[0].timestamp() * 1000)
        client.close()
        self.commits.keeping = self.cuts_left > 0
        for number in range(3):
            self.scheduler.start(f"reaper{number}", self._push_ticks)
        for number in range(2):
            self.scheduler.start(f"popper{number}", self._pop_ticks)
        self.scheduler.start("changer", self._change)

    # --- who does it ----------------------------------------------------------------------------

    def _push_ticks(self, process: Process) -> None:
        """Run passes for a while, over all queues under leases, or without."""
        client = open_client(self, process)
        for _ in range(process.rng.randint(1, 20)):
            try:
                whole = process.rng.random() < 0.3
                rows = None if whole else [queue._row for queue in client.queues()]
                only = None if process.rng.random() < 0.3 else ("schedule",)
                for action in client.reaper.reap(rows, only=only):
                    self.scheduler.note(process, f"{action.verb}: {action.outcome} {action.detail}")
            except (BackendError, OwnershipError) as exc:
                met(process, "reaping", exc)
            process.sleep(process.rng.choice((0.02, 0.3, 1.0)))
        close_client(self, process, client)

    def _change(self, process: Process) -> None:
        """Change what is pushed for a while, now and then."""
        client = open_client(self, process)
        for _ in range(process.rng.randint(1, 20)):
            self.change += 1
            settings: ScheduleSettings = {"payload": b"%d" % self.change}
            if self.leveled:
                settings["priority"] = process.rng.choice((0, 0, 5))
            try:
                client.schedule(NAME).update(**settings)
                self.changed = self.change
            except BackendError as exc:
                met(process, "changing", exc)
            process.sleep(process.rng.choice((0.3, 1.0, 3.0)))
        close_client(self, process, client)

    def _pop_ticks(self, process: Process) -> None:
        """Pop and commit for a while, so that pipes are retired."""
        client = open_client(self, process)
        try:
            popper = client.queue(self.scenario.queues[0]).popper()
            for _ in range(process.rng.randint(1, 20)):
                self._take(popper)
                process.sleep(process.rng.choice((0.02, 0.3)))
        except (BackendError, OwnershipError) as exc:
            met(process, "popping", exc)
        close_client(self, process, client)

    def _take(self, popper: object) -> int:
        """Pop some messages, compare them with those seen before, and commit them."""
        messages = popper.pop(10)  # type: ignore[attr-defined]
        for message in messages:
            tick = message.headers[TICK_HEADER]
            before = self.seen.setdefault(tick, str(message.id))
            if before != message.id:
                raise BrokenPromiseError(f"the tick of {tick} is {before}, and {message.id} too")
        popper.commit(messages)  # type: ignore[attr-defined]
        return len(messages)

    # --- the end --------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everybody dies; a healthy process pushes what is due, and pops all."""
        self.healing = True
        for process in list(self.scheduler.processes):
            self.scheduler.crash(process, noted=False)
        self.commits.keeping = False
        if self.scenario.jump_rate:
            self.scheduler.clock.jump_wall(HEALING_JUMP_SECONDS)  # it may have been set back
        client = self.open_client(CalmProcess(self.scheduler, "healer"))
        queue = client.queue(self.scenario.queues[0])
        popper = queue.popper()
        for _ in range(HEALING_ROUNDS_MAX):
            client.reaper.reap([queue._row])
            found = self._take(popper)
            group = queue.stats().groups["default"]
            if not (found or group.waiting or group.pending or self._is_due(client)):
                break
            if not found:
                self.scheduler.clock.advance(HEALING_SECONDS)
        else:
            raise BrokenPromiseError(f"it does not become quiet: {self.checker.leftovers()}")
        self._audit(client, "when drained")
        self._check_all(client)
        client.close()

    def _is_due(self, client: SteppedClient) -> bool:
        row = client.ports.catalog.records.schedule(NAME)
        return row is None or next_step(row, client.ports.catalog.wall_ms()) is not None

    def _check_all(self, client: SteppedClient) -> None:
        """All ticks that were passed have come, and no others."""
        row = client.ports.catalog.records.schedule(NAME)
        if row is None or row.firing is not None:
            raise BrokenPromiseError(f"the schedule is left as {row}")
        if not self.changed <= int(row.payload or b"0") <= self.change:
            raise BrokenPromiseError(f"update {self.changed} is lost: the schedule is {row}")
        passed = range(self.first_ms, row.next_ms, round(self.interval * 1000))
        expected = {iso_time(tick_ms) for tick_ms in passed}
        if set(self.seen) != expected:
            lost, invented = expected - set(self.seen), set(self.seen) - expected
            raise BrokenPromiseError(f"ticks are lost: {lost}, or invented: {invented}")


def draw_schedules(rng: random.Random) -> Scenario:
    """A scenario with one queue, on which nothing but ticks is pushed."""
    drawn = draw_scenario(rng, rng.choice((["ap"], ["cp"])))
    policy = {name: settings | {"max_deliveries": 1000} for name, settings in drawn.policy.items()}
    switches = min(drawn.switches, SWITCHES_MAX)
    return replace(drawn, policy=policy, switches=switches, catalog_lost=False, audits=0)
