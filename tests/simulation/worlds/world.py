"""The world: one seed's machine, its processes and its mishaps, from first push to last check."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cassq.base.ids import Ids
from cassq.catalog.sqlite import SqliteCatalog
from cassq.client.backends.embedded import Embedded, adopt
from cassq.errors import ClaimLostError
from cassq.extents.files.disk import PAGE
from cassq.extents.files.store import SUFFIX, FilesStore
from cassq.inspect.audit import audit_queue
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.locks.lease import LeaseLocker
from cassq.locks.turns import Turns
from cassq.model.queues import QueuePolicy, rate_of
from tests.catalog_parts import put_part
from tests.simulation.actors.client import SimDoorbell, SteppedClient
from tests.simulation.actors.threads import SimLife, SimLock
from tests.simulation.checks.checker import Checker
from tests.simulation.checks.ledger import BrokenPromiseError
from tests.simulation.checks.model import Delivery, Sent
from tests.simulation.worlds.pieces import in_pieces
from tests.simulation.worlds.scenario import Scenario, broad, draw_scenario
from tests.simulation.worlds.scheduler import CalmProcess, Process, ProcessClock, Scheduler
from tests.simulation.worlds.simcatalog import Commits, SimConnection, SimLog
from tests.simulation.worlds.simdisk import Platter, SimDisk

DRAIN_SECONDS = 150.0  # a burial that was interrupted is taken up again after 30
# What was given back with the wall clock ahead stays delayed, if it is set back over a reboot.
SET_BACK_SECONDS = 20 * 3600.0
DRAIN_STEP = 0.5  # in seconds, when nothing can be popped ...
LATE_STEP = 60.0  # ... and after the time in which all else is drained
ROUNDS_MAX = 2000


class World:
    """One run."""

    disk_class = SimDisk
    connection_class = SimConnection
    log_class = SimLog
    catalog_part: type[Any] | None = None  # in the place of the catalog's own
    store_class = FilesStore
    client_class = SteppedClient
    option = ""  # of the command that runs it again
    spills = False  # whether pushers put into a spool what no quorum takes
    ends_lag = False  # what is acknowledged may be known later to others

    def __init__(
        self, seed: int, scenario: Scenario | None = None, *, verbose: bool = False
    ) -> None:
        self.seed = seed
        rng = self.rng = random.Random(seed)
        drawn = draw_scenario(rng)
        self.scenario = scenario or broad(drawn, seed)
        self.scheduler = Scheduler(random.Random(rng.getrandbits(64)), verbose=verbose)
        self.platter = Platter(random.Random(rng.getrandbits(64)))
        self.commits = Commits(random.Random(rng.getrandbits(64)))
        self.checker = Checker(self)
        self.cuts_left = self.scenario.cuts
        self.cut_wanted = False  # now: somebody was just told that something is done
        self.down: list[tuple[int, str, Callable[[Process], None]]] = []
        self.pushed = 0
        self.orders: dict[str, list[Sent]] = defaultdict(list)  # messages with a dedup id, by queue
        self.writing: dict[str, tuple[int, list[Sent]]] = {}  # by queue: a batch, not published
        self.delayed: dict[str, list[Sent]] = defaultdict(list)  # those that were acknowledged
        # Of each queue: receipts, of whatever delivery, and the deliveries.
        self.receipts: dict[str, list[tuple[str, Delivery]]] = defaultdict(list)
        self.restarts = 0
        self.healing = False
        self.scheduler.ended = self._ended
        self._clients: list[SteppedClient] = []

    # --- a process's ports ----------------------------------------------------------------------

    def open_client(self, process: Process) -> SteppedClient:
        """What `cassq.connect` does for a directory, over the simulated disk."""
        client = self.client_class(self.embedded(process), process)
        self._clients.append(client)  # kept, as a process's memory is until it ends
        return client

    def embedded(
        self, process: Process, disk: SimDisk | None = None, commits: Commits | None = None
    ) -> Embedded:
        """A directory as a process opens it: the world's, or the one on this disk."""
        disk = disk or self.disk_class(process, self.platter)
        commits = commits or self.commits
        clock = ProcessClock(process)
        ids = Ids(random.Random(process.rng.getrandbits(64)))
        pipes = Path("sim/pipes")
        disk.make_directory(pipes)
        catalog = self.catalog(clock, process, commits)
        kind = in_pieces(self.store_class, self.scenario)
        store = kind(pipes, clock, durability="disk", disk=disk)
        adopt(catalog, store, ids)
        life, locker = self.life_of(process, catalog), LeaseLocker(catalog, ids.client)
        kept = Turns(catalog.leases, locker, clock, ids.client) if self.scenario.turns else None
        ports = Ports(catalog, store, locker, clock, ids, life, turns=kept)
        return Embedded(ports, lambda _: SimDoorbell(process), catalog.abandon)

    def catalog(self, clock: ProcessClock, process: Process, commits: Commits) -> SqliteCatalog:
        """The catalog as a process opens it."""
        parts: dict[str, Any] = {
            "connect": lambda: self.connection_class(process, commits),
            "log": lambda: self.log_class(process, commits),
        }
        catalog = SqliteCatalog(Path("sim/catalog.sqlite"), clock, **parts)
        if self.catalog_part is not None:
            put_part(catalog, self.catalog_part)
        catalog.claims.reserves = self.scenario.reserving
        return catalog

    def life_of(self, process: Process, catalog: SqliteCatalog) -> Lifecycle:
        """What guards a client, and makes its catalog's lock one for greenlets."""
        if not self.scenario.threaded:
            return Lifecycle()
        catalog._db._lock = SimLock(process)  # type: ignore[assignment]
        catalog._db._log_lock = SimLock(process)  # type: ignore[assignment]
        return SimLife(process)

    @property
    def calm(self) -> bool:
        """Whether nothing has happened to anybody, so far."""
        return self.scenario.calm and not self.healing

    def sick_check(self, queue: str) -> bool:
        """Whether a queue keeps trying while nothing succeeds."""
        policy = self.scenario.policy.get(queue)
        return bool(policy["sick_check"]) if policy else QueuePolicy().sick_check

    def max_deliveries(self, queue: str) -> int:
        policy = self.scenario.policy.get(queue)
        return int(policy["max_deliveries"]) if policy else QueuePolicy().max_deliveries

    def stored(self, pipe_id: str, end_seq: int) -> bytes:
        """The frames of a pipe, one after another, as far as they are needed; read from its
        file."""
        inode = self.platter.names.get(f"{pipe_id}{SUFFIX}")
        return bytes(inode.live[PAGE:]) if inode else b""

    def tempt(self, process: Process) -> None:
        """Somebody was told that something is done: often the power is cut just then."""
        if self.cuts_left and process.rng.random() < self.scenario.doom:
            self.cut_wanted = True
            process.sleep(0.0)

    # --- the run --------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises BrokenPromiseError, or whatever the code under test should not have raised."""
        self.begin()
        self.go_on()
        self.heal()

    def begin(self) -> None:
        """Make the queues, and start everybody."""
        scenario, scheduler = self.scenario, self.scheduler
        scheduler.fault_rate = scenario.fault_rate
        scheduler.crash_rate = scenario.crash_rate
        scheduler.pause_rate = scenario.pause_rate
        scheduler.pause_ms, scheduler.fuel = scenario.pause_ms, scenario.fuel
        self._set_up()

    def go_on(self) -> None:
        """Let them do what they do, and meet what they meet."""
        scenario, scheduler = self.scenario, self.scheduler
        cut_at = self._next_cut(0, scenario.switches)
        audits = sorted(self.rng.randint(0, scenario.switches) for _ in range(scenario.audits))
        while scheduler.switches < scenario.switches:
            self.befall()
            self._restart()
            if not scheduler.step() and not self.down:
                break
            if audits and scheduler.switches >= audits[0]:
                self.audit(f"at switch {audits.pop(0)}")
            if self.rng.random() < scenario.jump_rate:
                seconds = self.rng.choice((-3600, 3600))
                scheduler.note(None, f"WALL CLOCK by {seconds} s")
                scheduler.clock.jump_wall(seconds)
            if (scheduler.switches >= cut_at or self.cut_wanted) and self.cuts_left:
                self.cut_power()
                cut_at = self._next_cut(scheduler.switches, scenario.switches)

    def befall(self) -> None:
        """What else there is in the world has its turn."""

    def mend(self) -> None:
        """What else there is in the world is well from now on."""

    def _next_cut(self, now: int, last: int) -> int:
        """Often soon after the last: in the middle of the recovery."""
        if now and self.rng.random() < 0.5:
            return now + self.rng.randint(0, 25)
        return self.rng.randint(now, max(last, now + 1))

    def _set_up(self) -> None:
        from tests.simulation.actors import actors

        client = self.open_client(CalmProcess(self.scheduler, "setup"))
        for name in self.scenario.queues:
            queue = client.create_queue(name, **self.scenario.policy[name])
            for group, exclusive in self.scenario.groups[name]:
                queue.create_group(group, exclusive=exclusive)
            if self.scenario.keys:
                queue.create_group("keyed", **self.scenario.keyed_group)
        client.close()
        self.commits.keeping = self.cuts_left > 0
        self.commits.tick, self.commits.watch = self.checker.tick, self.checker.look
        self.checker.look()
        for name, role in actors.cast(self):
            self.scheduler.start(name, role)

    def _ended(self, process: Process) -> None:
        if not self.healing:
            at_ms = self.scheduler.clock.boot_ms() + self.rng.choice((1, 20, 500, 3000))
            self.down.append((at_ms, process.name, process.role))

    def _restart(self) -> None:
        now_ms = self.scheduler.clock.boot_ms()
        if self.down and not self.scheduler.processes:
            earliest = min(at_ms for at_ms, _, _ in self.down)
            self.scheduler.clock.advance(max(0, earliest - now_ms) / 1000)
            now_ms = self.scheduler.clock.boot_ms()
        for entry in [entry for entry in self.down if entry[0] <= now_ms]:
            self.down.remove(entry)
            self.restarts += 1
            self.scheduler.start(entry[1], entry[2])

    def cut_power(self) -> None:
        """Everything dies, and what was not synced may be gone."""
        scheduler = self.scheduler
        scheduler.note(None, "POWER CUT")
        self.cuts_left -= 1
        self.cut_wanted = False
        for process in list(scheduler.processes):
            scheduler.crash(process, noted=False)
        kept = self.commits.cut_power()
        lost = self.platter.cut_power()
        scheduler.note(None, f"power is back: {lost}, commits up to {kept}")
        self.commits.keeping = self.cuts_left > 0
        scheduler.clock.reboot()
        self.checker.power_cut(kept)
        self.down = [(self.rng.randint(0, 50), name, role) for _, name, role in self.down]
        if self.scenario.audits:
            self.audit("after a power cut")

    def end(self) -> None:
        """Let go of every process, so that none outlives the run."""
        self.healing = True
        for process in list(self.scheduler.processes):
            self.scheduler.crash(process, noted=False)
        self._clients.clear()

    # --- healing --------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everybody dies, healthy ones take over, everything is drained; then it must add up."""
        scheduler = self.scheduler
        if self.cuts_left and self.rng.random() < 0.7:
            self.cut_power()
        self.healing = True
        for process in list(scheduler.processes):
            scheduler.crash(process, noted=False)
        self.commits.keeping = False
        if self.scenario.catalog_lost:
            scheduler.note(None, "THE CATALOG IS LOST")
            self.commits.lose()
            self.checker.catalog_lost()
        scheduler.note(None, "HEALING")
        self.mend()
        client = self.open_client(CalmProcess(scheduler, "healer"))
        self._audit(client, "after the last crash")
        self._drain(client)
        self._audit(client, "when drained")
        client.close()
        self.checker.finish()

    def is_quiet(self) -> bool:
        """Whether nothing is left anywhere."""
        return self.checker.is_quiet()

    def audit(self, when: str) -> None:
        """The ledger must balance between any two steps of anybody."""
        self.scheduler.note(None, f"AUDIT {when}")
        client = self.open_client(CalmProcess(self.scheduler, "auditor"))
        self._audit(client, when)
        client.close()

    def _audit(self, client: SteppedClient, when: str) -> None:
        for queue in client.queues():
            audit = audit_queue(client.ports, queue._row)
            if not audit.balanced:
                raise BrokenPromiseError(
                    f"audit of {queue.name} {when}: {'; '.join(audit.findings)}"
                )

    def _drain(self, client: SteppedClient) -> None:
        """Pop and commit until nothing is left, in bounded time."""
        clock = self.scheduler.clock
        started_ms = clock.boot_ms()
        set_back = self.scenario.jump_rate and self.scenario.cuts
        prompt = DRAIN_SECONDS + self._rate_seconds()
        limit = SET_BACK_SECONDS + prompt if set_back else prompt
        poppers: dict[tuple[str, str], Any] = {}
        for _ in range(ROUNDS_MAX):
            found = 0
            for queue in client.queues():
                for group in queue.groups():
                    key = (queue.name, group.name)
                    if key not in poppers:
                        poppers[key] = queue.popper(group.name)
                    found += self._drain_group(client, poppers[key])
            client.maintain()
            client.reaper.reap([queue._row for queue in client.queues()])
            if not found and self.is_quiet():
                break
            if not found:
                late = clock.boot_ms() - started_ms >= prompt * 1000
                clock.advance(LATE_STEP if late else DRAIN_STEP)
            if clock.boot_ms() - started_ms > limit * 1000:
                raise BrokenPromiseError(
                    f"not drained after {limit:.0f} s: {self.checker.leftovers()}"
                )
        else:
            raise BrokenPromiseError(f"not drained after {ROUNDS_MAX} rounds")
        for popper in poppers.values():
            popper.close()

    def _rate_seconds(self) -> float:
        """How long a group may take for all messages because of its rate, or that of keys: it is
        asked once in a step, and a key then has one message at most."""
        rates = [policy.get("rate") for policy in self.scenario.policy.values()]
        rates.append(self.scenario.rate_per_key)
        allowed = [rate_of(rate) for rate in rates if rate is not None]
        steps = (math.ceil(ms / most / (1000 * DRAIN_STEP)) for most, ms in allowed)
        return self.pushed * DRAIN_STEP * max(steps, default=0)

    def _drain_group(self, client: SteppedClient, popper: Any) -> int:
        found = 0
        while True:
            started_ms = self.scheduler.clock.boot_ms()
            messages = popper.pop(64)
            if not messages:
                return found
            found += len(messages)
            batch = self.checker.delivered(popper, None, messages, started_ms)
            self.checker.settling(batch)
            try:
                popper.commit(messages)
            except ClaimLostError as exc:
                raise BrokenPromiseError("a healthy popper, alone, lost its claim") from exc
            self.checker.committed(batch)
