"""A world of tasks with steps. Workers run them, and others send them signals and cancel them,
while they crash, stop, and meet faults and power cuts.

What is demanded: a step that returned is never called again, and has the same result each time; a
sleep is not shortened; each signal ends one wait, and none is lost; a task is run to its end once,
unless it is cancelled, and then never goes on.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

from cassq.catalog.sqlite import SqliteCatalog
from cassq.consumer.delivery import Message
from cassq.errors import BackendError, MessageNotFoundError, OwnershipError
from cassq.model.queues import DEFAULT_GROUP
from cassq.popper import Popper
from cassq.tasks import App, Context
from cassq.tasks.steps.overview import whereabouts
from cassq.tasks.steps.records import CANCELLED
from tests.simulation.actors.client import SteppedClient, close_client, met, open_client
from tests.simulation.checks.ledger import BrokenPromiseError
from tests.simulation.tasks.sim_steps import Records, SimSteps
from tests.simulation.worlds.scenario import Scenario, draw_scenario
from tests.simulation.worlds.schedule_world import TickChecker
from tests.simulation.worlds.scheduler import CalmProcess, Process, ProcessClock
from tests.simulation.worlds.simcatalog import Commits
from tests.simulation.worlds.world import World

TASK = "order"
TASKS_MAX, VERBS_MAX = 5, 6
VERBS = ("step", "step", "step", "sleep", "wait", "wait a while")
SECONDS = (0.05, 1.0, 3.0)  # of sleeps, and of waits that end
FAILS = 0.1  # how often a task fails after a verb
STEP_SECONDS = (0.001, 0.001, 0.001, 1.0)  # some take longer than a claim
SWITCHES_MAX = 800
# A worker that found its claim overdue has it for a minute.
HEALING_ROUNDS_MAX, IDLE_ROUNDS, IDLE_SECONDS = 2000, 30, 5.0

Spot = tuple[str, int]  # a task's id, and the number of a verb in it


class FailedError(Exception):
    """A task fails, to be tried again."""


class StepWorld(World):
    """One run."""

    option = " --only steps"
    steps_class = SimSteps
    cancels = 0.05  # how often a task is cancelled, and not sent a signal

    def __init__(
        self, seed: int, scenario: Scenario | None = None, *, verbose: bool = False
    ) -> None:
        self.records: Records = {}
        rng = random.Random(f"steps {seed}")
        super().__init__(seed, scenario or draw_steps(rng), verbose=verbose)
        self.checker = TickChecker(self)
        self.programs: dict[str, list[tuple[str, float]]] = {}  # task → its verbs, with seconds
        self.values = 0
        self.returned: dict[Spot, Any] = {}  # what steps and waits returned first
        self.began_ms: dict[Spot, int] = {}  # when a sleep or wait was first come to
        self.sent: dict[str, set[int]] = defaultdict(set)  # signals that somebody tried to send
        # Signals whose sending returned, with the time; before that they may be lost.
        self.acked: dict[str, dict[int, int]] = defaultdict(dict)
        self.at: dict[str, int] = {}  # the verb that a task came to last
        self.ended: set[str] = set()
        self.over: set[str] = set()
        self.cancelled: set[str] = set()
        self.cancelling: set[str] = set()  # somebody tried to

    def catalog(self, clock: ProcessClock, process: Process, commits: Commits) -> SqliteCatalog:
        catalog = super().catalog(clock, process, commits)
        catalog.steps = self.steps_class(catalog.steps, process, self.records)
        return catalog

    @property
    def queue(self) -> str:
        return self.scenario.queues[0]

    @property
    def open_tasks(self) -> list[str]:
        return [each for each in self.programs if each not in self.over | self.cancelled]

    def _set_up(self) -> None:
        process = CalmProcess(self.scheduler, "setup")
        client = self.open_client(process)
        client.create_queue(self.queue, **self.scenario.policy[self.queue])
        app = self._app(client, process)
        for number in range(self.rng.randint(2, TASKS_MAX)):
            delay = self.rng.choice((None, None, 0.5))
            handle = app.tasks[TASK].options(delay=delay).push(number)
            count = self.rng.randint(1, VERBS_MAX)
            self.programs[handle.id] = [
                (self.rng.choice(VERBS), self.rng.choice(SECONDS)) for _ in range(count)
            ]
        client.close()
        self.commits.keeping = self.cuts_left > 0
        for number in range(3):
            self.scheduler.start(f"worker{number}", self._work)
        for number in range(2):
            self.scheduler.start(f"sender{number}", self._send)
        self.scheduler.start("reaper", self._reap)

    # --- the task -------------------------------------------------------------------------------

    def _app(self, client: SteppedClient, process: Process) -> App:
        """What a process has of the program."""
        app = App(queue=self.queue)
        app.use(client)

        @app.task(name=TASK)
        def order(ctx: Context, number: int) -> None:
            for at, (verb, seconds) in enumerate(self.programs[ctx.id]):
                self.at[ctx.id] = at
                self._do(process, ctx, at, verb, seconds)
                if not self.healing and process.rng.random() < FAILS:
                    raise FailedError()
            self.ended.add(ctx.id)

        return app

    def _do(self, process: Process, ctx: Context, at: int, verb: str, seconds: float) -> None:
        spot = ctx.id, at
        began_ms = self.began_ms.setdefault(spot, self.scheduler.clock.wall_ms())
        match verb:
            case "step":
                self._same(spot, ctx.step("a", self._call, process, spot))
            case "sleep":
                ctx.sleep("a pause", seconds=seconds)
                self._check_awake(spot, began_ms, seconds)
            case "wait":
                self._check_signal(spot, ctx.wait("go"))
            case "wait a while":
                found = ctx.wait("go", timeout=seconds)
                if found is None:
                    self._check_awake(spot, began_ms, seconds)
                    self._same(spot, None)
                    self._check_none_missed(spot, began_ms)
                else:
                    self._check_signal(spot, found)

    def _call(self, process: Process, spot: Spot) -> int:
        """What a step does."""
        if spot in self.returned:
            raise BrokenPromiseError(f"step {spot} is called again after it returned")
        if spot[0] in self.cancelled:
            raise BrokenPromiseError(f"task {spot[0]} goes on after it was cancelled")
        self.values += 1
        value = self.values
        process.sleep(process.rng.choice(STEP_SECONDS))
        if not self.healing and process.rng.random() < FAILS:
            raise FailedError()
        return value

    def _same(self, spot: Spot, value: Any) -> None:
        first = self.returned.setdefault(spot, value)
        if first != value:
            raise BrokenPromiseError(f"verb {spot} returned {first}, and {value} later")

    def _check_awake(self, spot: Spot, began_ms: int, seconds: float) -> None:
        early_ms = began_ms + round(seconds * 1000) - self.scheduler.clock.wall_ms()
        if early_ms > 0:
            raise BrokenPromiseError(f"sleep or wait {spot} ended {early_ms} ms too early")

    def _check_signal(self, spot: Spot, value: Any) -> None:
        self._same(spot, value)
        if value not in self.sent[spot[0]]:
            raise BrokenPromiseError(f"wait {spot} returned {value}, which nobody sent")
        if value in self._taken(spot):
            raise BrokenPromiseError(f"wait {spot} returned {value}, as another did")

    def _taken(self, but: Spot) -> set[Any]:
        """The signals that ended other waits of a task."""
        verbs = self.programs[but[0]]
        return {
            value
            for spot, value in self.returned.items()
            if spot[0] == but[0] and spot != but and verbs[spot[1]][0] != "step"
        }

    def _check_none_missed(self, spot: Spot, began_ms: int) -> None:
        """A wait that ended without a signal began before each of those that are left was sent."""
        sent = {value for value, at_ms in self.acked[spot[0]].items() if at_ms < began_ms}
        missed = sent - self._taken(spot)
        if missed:
            raise BrokenPromiseError(f"wait {spot} did not see signals {missed}")

    # --- who does it ----------------------------------------------------------------------------

    def _work(self, process: Process) -> None:
        """Run calls for a while."""
        client = open_client(self, process)
        app = self._app(client, process)
        try:
            popper = client.queue(self.queue).popper()
            for _ in range(process.rng.randint(1, 40)):
                for message in popper.pop(process.rng.choice((1, 1, 3))):
                    self._run(process, app, popper, message)
                client.maintain()
                process.sleep(process.rng.choice((0.02, 0.3)))
        except (BackendError, OwnershipError) as exc:
            met(process, "working", exc)
        close_client(self, process, client)

    def _run(self, process: Process, app: App, popper: Popper, message: Message) -> None:
        self.scheduler.note(process, f"runs {message.id}, delivery {message.attempts}")
        try:
            app(message)
        except (FailedError, BackendError, OwnershipError) as exc:
            self.scheduler.note(process, f"failed: {type(exc).__name__} {exc}")
            message.nack(delay=0.1)
        else:
            if message.id in self.ended:
                self.over.add(message.id)
            popper.commit([message])

    def _send(self, process: Process) -> None:
        """Send signals, and cancel a task now and then."""
        client = open_client(self, process)
        app = self._app(client, process)
        for _ in range(process.rng.randint(1, 20)):
            process.sleep(process.rng.choice((0.1, 1.0, 3.0)))
            waiting = self.open_tasks
            if not waiting:
                break
            task_id = process.rng.choice(waiting)
            try:
                if process.rng.random() < self.cancels:
                    self._cancel(process, app, task_id)
                elif len(self.sent[task_id]) < VERBS_MAX:
                    self._signal(process, app, task_id)
            except (BackendError, OwnershipError) as exc:
                met(process, "sending", exc)
        close_client(self, process, client)

    def _signal(self, process: Process, app: App, task_id: str) -> None:
        self.values += 1
        value = self.values
        self.sent[task_id].add(value)
        try:
            done = app.signal(task_id, "go", value)
        except MessageNotFoundError:
            done = False
        self.scheduler.note(process, f"signal {value} to {task_id}: {done}")
        if done:
            self.acked[task_id][value] = self.scheduler.clock.wall_ms()
        elif task_id not in self.ended | self.cancelling:
            raise BrokenPromiseError(f"signal {value} was refused, and task {task_id} goes on")

    def _cancel(self, process: Process, app: App, task_id: str) -> None:
        self.cancelling.add(task_id)
        try:
            done = app.cancel(task_id)
        except MessageNotFoundError:
            done = False
        self.scheduler.note(process, f"cancel {task_id}: {done}")
        if done:
            self.cancelled.add(task_id)

    def _reap(self, process: Process) -> None:
        client = open_client(self, process)
        for _ in range(process.rng.randint(1, 20)):
            try:
                client.reaper.reap([queue._row for queue in client.queues()])
            except (BackendError, OwnershipError) as exc:
                met(process, "reaping", exc)
            process.sleep(process.rng.choice((0.3, 1.0)))
        close_client(self, process, client)

    # --- the end --------------------------------------------------------------------------------

    def heal(self) -> None:
        """Everybody dies; a healthy worker runs what there is, and the tasks that still wait get
        their signals."""
        self.healing = True
        for process in list(self.scheduler.processes):
            self.scheduler.crash(process, noted=False)
        self.commits.keeping = False
        healer = CalmProcess(self.scheduler, "healer")
        client = self.open_client(healer)
        app = self._app(client, healer)
        popper = client.queue(self.queue).popper()
        while True:
            self._run_all(healer, client, app, popper)
            left = self.open_tasks
            if not left:
                break
            for task_id in left:
                if task_id in self.cancelling and self._is_cancelled(client, task_id):
                    self.cancelled.add(task_id)
                    continue
                self._check_waits(task_id)
                self._signal(healer, app, task_id)
        popper.close()
        self._check_left(client)
        self._audit(client, "when all are over")
        client.close()

    def _run_all(
        self, healer: CalmProcess, client: SteppedClient, app: App, popper: Popper
    ) -> None:
        """Run what is due until nothing is for some minutes."""
        idle = 0
        for _ in range(HEALING_ROUNDS_MAX):
            messages = popper.pop(1)
            for message in messages:
                self._run(healer, app, popper, message)
            idle = 0 if messages else idle + 1
            if idle >= IDLE_ROUNDS:
                return
            if idle:
                self.scheduler.clock.advance(IDLE_SECONDS)
                client.maintain()
                client.reaper.reap([queue._row for queue in client.queues()])
        raise BrokenPromiseError("it does not become quiet")

    def _is_cancelled(self, client: SteppedClient, task_id: str) -> bool:
        """Whether a task was cancelled by a process that did not live to know it. Once its pipe is
        retired, nothing tells it from one that is done."""
        return whereabouts(client, self.queue, task_id).state in (CANCELLED, "done")

    def _check_waits(self, task_id: str) -> None:
        """A task that does not go on is in a wait, and there is no signal for that."""
        at = self.at.get(task_id, 0)
        verb, _ = self.programs[task_id][at]
        if verb != "wait":
            raise BrokenPromiseError(f"task {task_id} is lost at verb {at}, a {verb}")
        lost = self.acked[task_id].keys() - self._taken((task_id, at))
        if lost:
            raise BrokenPromiseError(f"task {task_id} waits in spite of signals {lost}")

    def _check_left(self, client: SteppedClient) -> None:
        """No call is left, and each step of a task that ended has returned."""
        queue = client.queue(self.queue)
        # Where taking back what a signal woke failed, it is delivered for nothing when it is due.
        left = [m for m in queue.peek(100) if m.state != "delayed" or m.id in self.open_tasks]
        if left or queue.stats().groups[DEFAULT_GROUP].dead:
            raise BrokenPromiseError(f"calls are left: {left}")
        for task_id in self.over:
            spots = {(task_id, at) for at, (verb, _) in enumerate(self.programs[task_id])}
            slept = {s for s in spots if self.programs[task_id][s[1]][0] == "sleep"}
            if not spots - slept <= self.returned.keys():
                raise BrokenPromiseError(f"task {task_id} left out steps")


def draw_steps(rng: random.Random) -> Scenario:
    """A scenario with one queue, in which there is nothing but the calls of tasks."""
    drawn = draw_scenario(rng, ["ap"])
    policy = {name: settings | {"max_deliveries": 1000} for name, settings in drawn.policy.items()}
    return replace(
        drawn,
        policy=policy,
        groups={"ap": []},
        switches=min(drawn.switches, SWITCHES_MAX),
        jump_rate=0.0,  # sleeps are by the wall clock
        catalog_lost=False,
        audits=0,
    )
