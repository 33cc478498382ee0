"""A scene on sidecars: a queue of a test's own, actors that push to it, and what came of it all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import cassq
from cassq.extents.protocol.messages import ListedExtent
from cassq.model.sidecar_rows import Placement, SidecarRow
from tests.faults.actors import Act, Actor
from tests.faults.crashes import Oracle, finish
from tests.faults.storm.proofs import Prover
from tests.integration.deadlines import eventually
from tests.servers.kinds.sidecar import SidecarCluster, SidecarNode

PATIENCE = 60.0
PART = "tests.faults.sidecar.parts"
# Leases are short, so that what clients left behind is soon looked after.
POLICY = {"lease": 2.0, "claim_timeout": 5.0, "max_deliveries": 1000}


class Hearer(Oracle):
    """An oracle of messages that are made longer by dots."""

    def hear(self, report: tuple[Any, ...]) -> None:
        match report:
            case ("got" | "commit" | "committed" | "lost" as word, group, list() as found):
                report = (word, group, [payload.rstrip(b".") for payload in found])
        super().hear(report)


class Scene:
    """What a test of sidecars has: a client, queues of names that no other test has, actors."""

    def __init__(self, sidecars: SidecarCluster, act: Act, name: str) -> None:
        self.sidecars = sidecars
        self.url = sidecars.url()
        self.client = cassq.connect(self.url)
        self.prover = Prover(self.client, self.url)
        self.oracle = Hearer()
        self.actors: list[Actor] = []
        self._act = act
        self._name = name
        self._queues: list[cassq.Queue] = []

    def queue(self, name: str = "jobs", **policy: Any) -> cassq.Queue:
        """A queue of this test's own."""
        made = self.client.create_queue(f"{self._name}.{name}", **(POLICY | policy))
        self._queues.append(made)
        return made

    # --- who pushes -----------------------------------------------------------------------------

    def pushes(self, queue: cassq.Queue, name: str, size: int = 100) -> Actor:
        """Start somebody who pushes until the end, and wait for the first acknowledgement."""
        actor = self._act(f"{PART}:push", self.url, queue.name, name, size)
        self.actors.append(actor)
        actor.expect("ready", seconds=PATIENCE)
        self.goes_on(actor)
        return actor

    def goes_on(self, actor: Actor, count: int = 10) -> None:
        """Wait until it was acknowledged some more."""
        least = len(actor.reports("ok")) + count
        eventually("more is pushed", lambda: len(actor.reports("ok")) >= least, seconds=PATIENCE)

    def end(self) -> None:
        """Tell all to stop, and hear what they did."""
        for actor in self.actors:
            if actor.alive:
                actor.say("enough")
        for actor in self.actors:
            if actor.alive:
                actor.join(seconds=PATIENCE)
            actor.listen()
            for found in actor.heard:
                self.oracle.hear(found)
        self.actors.clear()

    def nothing_is_lost(self) -> None:
        """End all, drain the queues, and look for what was acknowledged."""
        self.end()
        for queue in self._queues:
            finish(self.client, queue, self.oracle, ["default"])
        self.oracle.judge(["default"])
        assert sum(queue.audit().pushed for queue in self._queues) >= len(self.oracle.acked)

    # --- where it is ----------------------------------------------------------------------------

    def placements(self, queue: cassq.Queue) -> list[Placement]:
        """Where the pipes of a queue are, oldest first."""
        found = [
            p for p in self.client.ports.catalog.sidecars.placements() if p.queue_name == queue.name
        ]
        return sorted(found, key=lambda each: each.pipe_id)

    def open_pipe(self, queue: cassq.Queue) -> Placement:
        """The pipe that is pushed to: of those that are not sealed, the first that has something.

        The next one may be opened ahead of its time.
        """

        def written() -> list[Placement]:
            ends = {
                extent.pipe_id: extent.end
                for node in self.sidecars.nodes
                if node.state == "running"
                for extent in self.prover.held(node.told_name)
            }
            found = self.placements(queue)
            return [each for each in found if each.end is None and ends.get(each.pipe_id)]

        return eventually("a pipe is written to", written)[0]

    def placement(self, pipe_id: str) -> Placement:
        """Where a pipe is now."""
        (found,) = self.client.ports.catalog.sidecars.placements_of([pipe_id])
        assert found is not None
        return found

    def end_of(self, pipe: Placement) -> int | None:
        """The end that is recorded of a pipe by now."""
        return self.placement(pipe.pipe_id).end

    def settled(self, node: SidecarNode, pipe: Placement) -> ListedExtent | None:
        """What a sidecar tells of its replica, once it knows that there is an end."""
        held = self.prover.held(node.told_name)
        return next((t for t in held if t.pipe_id == pipe.pipe_id and t.final >= 0), None)

    def has(self, placement: Placement, node: SidecarNode) -> bool:
        """Whether a sidecar is to have a replica."""
        return node.told_name in {each.sidecar for each in placement.replicas}

    def row(self, node: SidecarNode) -> SidecarRow:
        """What the catalog knows of a sidecar."""
        rows = self.client.ports.catalog.sidecars.listed()
        return next(row for row in rows if row.name == node.told_name)

    def is_alive(self, node: SidecarNode) -> bool:
        """Whether the catalog takes a sidecar for alive."""
        return self.row(node).alive(self.client.ports.catalog.now_ms())

    def node_of(self, name: str) -> SidecarNode:
        """The process of a sidecar."""
        return next(node for node in self.sidecars.nodes if node.told_name == name)

    def repaired(self, seconds: float = PATIENCE) -> None:
        """Reap until all replicas are good."""
        if found := self.prover.repaired_within(seconds):
            logs = "\n".join(node.log_tail() for node in self.sidecars.nodes)
            pytest.fail(f"not repaired within {seconds:.0f} s: {found}\n{logs}")

    def close(self) -> None:
        self.prover.close()
        self.client.close()


Make = Callable[[SidecarCluster], Scene]


@pytest.fixture
def scene_on(act: Act, request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes the scene of a test on some sidecars."""
    with ExitStack() as stack:

        def make(sidecars: SidecarCluster) -> Scene:
            scene = Scene(sidecars, act, request.node.name.replace("[", ".").rstrip("]")[:60])
            stack.callback(scene.close)
            return scene

        yield make


@pytest.fixture
def scene(sidecars4: SidecarCluster, scene_on: Make) -> Scene:
    """On the sidecars that tests share."""
    return scene_on(sidecars4)
