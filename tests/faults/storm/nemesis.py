"""The nemesis: carries a plan out on real servers and clients, and notes what it did when."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from cassq.clock import Stopwatch
from tests.faults.storm.crew import Crew
from tests.faults.storm.plan import Plan, Step
from tests.servers.cassandra import CassandraCluster
from tests.servers.cluster import Cluster
from tests.servers.errors import ServerFailedError
from tests.servers.zookeeper import ZooKeeperCluster

Heal = Callable[[], None]


class Nemesis:
    """Two threads, one for the servers and one for the clients; `run` returns when the plan is
    over and everything is mended.

    done: (seconds since the start, what). failures: what the machine did not do as told.
    """

    def __init__(self, plan: Plan, nodes: CassandraCluster, keepers: ZooKeeperCluster) -> None:
        self._plan = plan
        self._nodes = nodes
        self._keepers = keepers
        self._watch = Stopwatch()
        self.done: list[tuple[float, str]] = []
        self.failures: list[str] = []

    def run(self, crew: Crew) -> None:
        self._watch = Stopwatch()
        tracks = [
            threading.Thread(target=self._track, args=(self._plan.servers, self._hurt_servers)),
            threading.Thread(
                target=self._track,
                args=(self._plan.clients, lambda step: self._hurt_client(crew, step)),
            ),
        ]
        for track in tracks:
            track.start()
        for track in tracks:
            track.join()
        self._wait_until(self._plan.seconds)
        for cluster in (self._nodes, self._keepers):
            try:
                cluster.mend()
            except ServerFailedError:
                self.failures.append(f"not mended: {traceback.format_exc()}")
        self._note("all is mended")
        self.done.sort()

    def seconds(self) -> float:
        """Since the start."""
        return self._watch.seconds()

    def _note(self, what: str) -> None:
        self.done.append((round(self.seconds(), 1), what))

    def _wait_until(self, seconds: float) -> None:
        threading.Event().wait(max(0.0, seconds - self.seconds()))

    def _track(self, steps: tuple[Step, ...], hurt: Callable[[Step], Heal]) -> None:
        """One step after the other, with the plan's pauses between them: servers that are slow to
        start delay what follows. What would begin after the plan's end is left out."""
        lag = 0.0
        for done, step in enumerate(steps):
            self._wait_until(step.at + lag)
            began = self.seconds()
            if began > self._plan.seconds and not self._plan.whole:
                self._note(f"{len(steps) - done} steps are left out: it is too late")
                return
            try:
                with ExitStack() as healing:
                    healing.callback(hurt(step))
                    self._wait_until(began + step.seconds)
            except (ServerFailedError, OSError, AssertionError):
                self.failures.append(f"{step}: {traceback.format_exc()}")
                self._note(f"FAILED: {step.what}")
            lag = max(lag, self.seconds() - step.until)

    # --- clients --------------------------------------------------------------------------------

    def _hurt_client(self, crew: Crew, step: Step) -> Heal:
        name = crew.name(step.target)
        match step.what:
            case "kill client":
                self._note(f"kill -9 {name}")
                crew.kill(step.target)
                return self._healing(f"start {name} anew", crew.replace, step.target)
            case "stop client":
                self._note(f"SIGSTOP {name}")
                crew.stop(step.target)
                return self._healing(f"SIGCONT {name}", crew.go_on, step.target)
            case _:
                self._note(f"clock of {name} jumps by {step.amount:+.0f} s")
                crew.say(step.target, ("jump", step.amount))
                return self._healing(
                    f"clock of {name} is right", crew.say, step.target, ("jump", 0.0)
                )

    def _healing(self, what: str, act: Callable[..., Any], *args: Any) -> Heal:
        def heal() -> None:
            act(*args)
            self._note(what)

        return heal

    # --- servers --------------------------------------------------------------------------------

    def _hurt_servers(self, step: Step) -> Heal:
        kind, _, rest = step.what.partition(" ")
        cluster: Cluster[Any] = self._nodes if "node" in rest else self._keepers
        match kind, "all" in rest:
            case ("kill" | "restart", True):
                return self._down(cluster, step.what, range(1, 4), politely=kind == "restart")
            case "kill", False:
                return self._down(cluster, step.what, [step.target])
            case "stop", _:
                return self._stop(cluster, step)
            case _:
                return self._cut(cluster, step)

    def _down(
        self, cluster: Cluster[Any], what: str, numbers: Any, *, politely: bool = False
    ) -> Heal:
        """SIGKILL, or SIGTERM; all at once."""
        nodes = [cluster.node(number) for number in numbers]
        names = ", ".join(node.name for node in nodes)
        self._note(f"{'SIGTERM' if politely else 'kill -9'} {names}")
        enders = [threading.Thread(target=node.stop if politely else node.kill) for node in nodes]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join()

        def start() -> None:
            for node in nodes:
                node.spawn()
            for node in nodes:
                node.await_ready()
            self._note(f"answers again: {names}")

        return start

    def _stop(self, cluster: Cluster[Any], step: Step) -> Heal:
        node = cluster.node(step.target)
        if "leading" in step.what and isinstance(cluster, ZooKeeperCluster):
            node = cluster.leader()
        self._note(f"SIGSTOP {node.name}")
        node.pause()
        return self._healing(f"SIGCONT {node.name}", node.resume)

    def _cut(self, cluster: Cluster[Any], step: Step) -> Heal:
        node = cluster.node(step.target)
        if "from clients" in step.what:
            self._note(f"cut {node.name} from clients")
            cluster.hide(step.target)
        else:
            self._note(f"cut {node.name} from the other two")
            cluster.partition(step.target)
        return self._healing(f"healed {node.name}", cluster.heal)
