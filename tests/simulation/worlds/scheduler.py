"""The scheduler: runs simulated processes as greenlets of one thread, one at a time.

Every call of a port is a *point*: there the scheduler may take control and let another process
go on, stop this one for long, or end it. A process that was ended gets `Crashed` from every
further point, so nothing it does while it unwinds has an effect.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import greenlet

from cassq.base.clock import Clock, ManualClock
from tests.simulation.checks.model import Errand, Sent

TRACE_LENGTH = 80


class Crashed(BaseException):
    """This simulated process is dead. Not an Exception: no code may handle it."""


class Process:
    """One simulated process. `role` is what runs in it; `faulty` makes its ports fail at times."""

    def __init__(self, scheduler: Scheduler, name: str, role: Callable[[Process], None]) -> None:
        self.scheduler = scheduler
        self.name = name
        self.role = role
        self.rng = random.Random(scheduler.rng.getrandbits(64))
        self.alive = True
        self.owner: Process = self  # of a thread: the process that it is one of
        self.threads: list[Process] = []
        self.wake_ms = 0
        self.fuel = 0
        self.faults = 0  # how many it met
        self.pushing: list[Sent] = []  # what it pushes at the moment
        self.doomed = False  # it crashes as soon as it gives way
        self.errand: Errand | None = None  # what it was asked to do, if it is a clerk
        # Its last commit: as a tick of the checker's, in boot milliseconds, as a number.
        self.committed_tick = self.committed_ms = self.committed_count = 0
        self.files: set[object] = set()
        self.greenlet = greenlet.greenlet(self._run)

    def _run(self) -> None:
        with suppress(Crashed):
            self.role(self)

    def point(self, cost: int = 2) -> None:
        """Where the scheduler may take over; memory accesses cost less than calls."""
        if not self.alive:
            raise Crashed
        self.fuel -= cost
        if self.fuel <= 0:
            self._give_way()

    def doom(self, fuel: int) -> None:
        """Let it crash within so many steps, unless it is spared before."""
        self.doomed, self.fuel = True, fuel

    def spare(self) -> None:
        self.doomed = False

    def _give_way(self) -> None:
        self.scheduler.hub.switch()
        if not self.alive:
            raise Crashed

    def _running(self) -> Process:
        """Which of its threads runs: ports know the process alone."""
        running = self.scheduler.running
        return running if running is not None and running.owner is self else self

    def sleep(self, seconds: float) -> None:
        """Let others go on for that long, or for longer."""
        if not self.alive:
            raise Crashed
        late = self.rng.choice((1.0, 1.0, 1.3, 4.0))
        sleep_ms = max(1, round(seconds * 1000 * late))
        self._running().wake_ms = self.scheduler.clock.boot_ms() + sleep_ms
        self._give_way()

    def fault(self, what: str) -> bool:
        """Whether the port call made now is to fail."""
        rate = self.scheduler.fault_rate
        if not rate or not self.alive or self.rng.random() >= rate:
            return False
        self.meet_fault(what)
        return True

    def meet_fault(self, what: str) -> None:
        """Something fails."""
        for each in (self, *self.threads):
            each.faults += 1
            for sent in each.pushing:
                sent.troubled = True
        self.scheduler.note(self, f"FAULT {what}")


class CalmProcess(Process):
    """The simulation's own hand: never interrupted, never failing; its waits move the clock."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        super().__init__(scheduler, name, lambda _: None)

    def fault(self, what: str) -> bool:
        return False

    def point(self, cost: int = 2) -> None:
        if not self.alive:
            raise Crashed

    def sleep(self, seconds: float) -> None:
        self.scheduler.clock.advance(max(seconds, 0.001))


class ProcessClock(Clock):
    """The machine's clock as one process sees it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._clock = process.scheduler.clock

    def boot_ms(self) -> int:
        return self._clock.boot_ms()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def boot_id(self) -> str:
        return self._clock.boot_id()

    def sleep(self, seconds: float) -> None:
        self._process.sleep(seconds)

    def pause(self, seconds: float) -> None:
        self.sleep(self._process.rng.random() * seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        until_ms = self.boot_ms() + 1000 * seconds
        while not event.is_set() and self.boot_ms() < until_ms:
            self.sleep(0.001)
        return event.is_set()


class Scheduler:
    """Lets processes take turns; every choice comes from one seeded source."""

    def __init__(self, rng: random.Random, *, verbose: bool = False) -> None:
        self.rng = rng
        self.clock = ManualClock()
        self.hub = greenlet.getcurrent()
        self.running: Process | None = None
        self.processes: list[Process] = []
        self.verbose = verbose
        self.ended: Callable[[Process], None] = lambda _: None
        self.trace: deque[str] = deque(maxlen=TRACE_LENGTH)
        self.switches = 0
        self.fault_rate = 0.0
        self.crash_rate = 0.0
        self.pause_rate = 0.0
        self.pause_ms = (10, 5000)
        self.fuel = (1, 40)

    def note(self, process: Process | None, what: str) -> None:
        """A line for the trace."""
        name = process.name if process else "-"
        line = f"{self.switches:6d} {self.clock.boot_ms():8d} ms  {name:<14} {what}"
        self.trace.append(line)
        if self.verbose:
            print(line)

    def start(self, name: str, role: Callable[[Process], None]) -> Process:
        process = Process(self, name, role)
        process.wake_ms = self.clock.boot_ms()
        self.processes.append(process)
        return process

    def moment(self) -> None:
        """A point of whichever process this happens in; none of the simulation's own hand."""
        current = greenlet.getcurrent()
        for process in self.processes:
            if process.greenlet is current:
                process.owner.point()

    def step(self) -> bool:
        """Let one process go on until it gives way; False when none is left."""
        now_ms = self.clock.boot_ms()
        ready = [process for process in self.processes if process.wake_ms <= now_ms]
        if not ready:
            if not self.processes:
                return False
            wake_ms = min(process.wake_ms for process in self.processes)
            self.clock.advance((wake_ms - now_ms) / 1000)
            return True
        rng = self.rng
        process = ready[int(rng.random() * len(ready))]
        process.owner.fuel = rng.randint(*self.fuel)
        self.switches += 1
        self.running = process
        process.greenlet.switch()
        self.running = None
        if process.greenlet.dead:
            self._end(process)
        else:
            self._strike(process)
        self.clock.advance(rng.choice((0, 0, 0.001, 0.001, 0.003)))
        return True

    def _strike(self, process: Process) -> None:
        """Crash or stop the process that gave way, if so it falls."""
        chance = self.rng.random()
        if chance < self.crash_rate or process.owner.doomed:
            self.crash(process)
        elif chance < self.crash_rate + self.pause_rate:
            pause_ms = self.rng.randint(*self.pause_ms)
            process.wake_ms = max(process.wake_ms, self.clock.boot_ms() + pause_ms)
            self.note(process, f"PAUSED for {pause_ms} ms")

    def crash(self, process: Process, *, noted: bool = True) -> None:
        """End a process: whatever it does from now on has no effect."""
        process = process.owner
        if noted:
            self.note(process, "CRASHED")
        every = [process, *process.threads]
        for each in every:
            each.alive = False
        for each in every:
            if each.greenlet:
                each.greenlet.throw(Crashed)
        for each in reversed(every):
            if each in self.processes:
                self._end(each)

    def _end(self, process: Process) -> None:
        """The kernel closes what a process had open."""
        process.alive = False
        self.processes.remove(process)
        if process.owner is not process:
            return
        for file in list(process.files):
            file.abandon()  # type: ignore[attr-defined]
        process.files.clear()
        self.ended(process)
