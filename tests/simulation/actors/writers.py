"""The writers among the actors: they fill staged pipes and publish them, as drivers of Spark do.

All writers of a queue write one batch of messages after another under one id, each batch until it
is published. They get in each other's way: who was begun later is the younger, and leads. Tasks
have losers: what they filled must never be seen, nor what was staged by a try that was not
published.
"""

from __future__ import annotations

from collections.abc import Sequence

from cassq.errors import BackendError, OwnershipError
from cassq.message.batches import Batch
from cassq.model.priorities import Level
from cassq.model.rows import WriteRow
from cassq.producer import staging
from cassq.producer.staging import Stage, StagedPipe
from tests.simulation.actors.client import SteppedClient, met, open_client
from tests.simulation.checks.model import Sent
from tests.simulation.worlds.scheduler import Process
from tests.simulation.worlds.world import World

LEASE_MS = 1500
WRITE_ID = "the stream"
TASKS_MAX = 3


def write_all(world: World, name: str, process: Process) -> None:
    """Write batch after batch until the scenario has had its messages; then beat on."""
    client = open_client(world, process)
    writer = Writer(world, process, client, name)
    while True:
        try:
            if process.rng.random() < world.scenario.doom:
                process.doom(process.rng.randint(1, 120))
            writer.turn()
            process.spare()
            client.maintain()
        except (BackendError, OwnershipError) as exc:
            met(process, "writing", exc)
            writer = Writer(world, process, client, name)  # started again: a younger one
        finally:
            process.spare()
        process.sleep(process.rng.choice((0.0, 0.01, 0.1, 0.3)))


class Writer:
    """A driver and its tasks, in one process."""

    def __init__(self, world: World, process: Process, client: SteppedClient, name: str) -> None:
        self._world = world
        self._process = process
        self._client = client
        self._name = name
        self._driver = ""

    def turn(self) -> None:
        """Begin a batch, or go on with the one that is not published yet."""
        ports, rng = self._client.ports, self._process.rng
        if not self._driver:
            self._driver = ports.ids.new(ports.catalog.now_ms())
        ports.catalog.writes.beat_driver(self._driver, LEASE_MS)
        number, batch = self._batch()
        if not batch:
            return
        row = self._client.queue(self._name)._row
        write = staging.begin(ports, row, WRITE_ID, number, self._driver)
        if staging.is_over(write, number):
            self._over(number)
            return
        pipes = self._fill(write, batch)
        if rng.random() < 0.15:
            self._process.scheduler.note(self._process, f"aborts batch {number}")
            staging.abort(ports, write)
            return
        if not staging.publish(ports, row, write, pipes):
            return  # another was faster
        ids = [f"{pipe.id}:{seq}" for pipe in pipes for seq in range(pipe.messages)]
        self._process.scheduler.note(self._process, f"published batch {number}: {ids}")
        self._world.checker.pushed(batch, ids)
        if rng.random() < 0.6:  # else it is begun again, as after a crash
            self._over(number)

    def _batch(self) -> tuple[int, list[Sent]]:
        """The batch that is to be written, made when the one before is over."""
        world, rng = self._world, self._process.rng
        number, batch = world.writing.get(self._name, (0, []))
        if not batch and world.pushed < world.scenario.messages:
            wall_ms = self._process.scheduler.clock.wall_ms()
            begun = world.checker.tick()
            for _ in range(rng.choice((1, 3, 10))):
                world.pushed += 1
                text = f"plain:{world.pushed}:{self._process.name}:written".encode()
                batch.append(Sent(text, self._name, begun, {}, None, wall_ms))
            priority = rng.choice((0, 1, 9)) if world.scenario.priorities else 0
            for sent in batch:
                sent.priority = priority
                world.checker.push(sent)
            world.writing[self._name] = number, batch
        return number, batch

    def _over(self, number: int) -> None:
        """It was published, by whomever; whose batch comes next is whoever's that looks next."""
        if self._world.writing[self._name][0] == number:
            self._world.writing[self._name] = number + 1, []

    def _fill(self, write: WriteRow, batch: Sequence[Sent]) -> list[StagedPipe]:
        """Tasks of a part each, some of them tried twice."""
        rng = self._process.rng
        step = -(-len(batch) // rng.randint(1, TASKS_MAX))
        filled: list[StagedPipe] = []
        for at in range(0, len(batch), step):
            part = batch[at : at + step]
            while rng.random() < 0.3:
                self._attempt(write, part[: rng.randint(1, len(part))], whole=rng.random() < 0.5)
            filled += self._attempt(write, part, whole=True)
        return filled

    def _attempt(self, write: WriteRow, part: Sequence[Sent], *, whole: bool) -> list[StagedPipe]:
        stage = Stage(self._client.ports, self._client.queue(self._name)._row, write)
        for sent in part:
            level = Level(sent.priority, 0)
            stage.append(Batch([sent.payload], sent.wall_ms), level=level)
        return stage.finish() if whole else []
