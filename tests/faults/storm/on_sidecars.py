"""The ground of a storm over four sidecars in four zones, whose catalog is embedded or not."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from typing import ClassVar

import cassq
from cassq.base.clock import Stopwatch
from cassq.errors import BackendError
from tests.faults.storm.deeds import Heal, LeftOutError, Note, down, healing, stop
from tests.faults.storm.ground import Ground, patiently
from tests.faults.storm.on_cassandra import CLOCK_ERROR_SECONDS
from tests.faults.storm.plan import (
    CATALOG_TROUBLES,
    EMBEDDED_TROUBLES,
    HARMFUL,
    SIDECAR_CUTS,
    SIDECAR_TROUBLES,
    Span,
    Step,
)
from tests.faults.storm.proofs import Prover
from tests.servers.kinds.cassandra import CassandraCluster, CassandraNode
from tests.servers.kinds.sidecar import SidecarCluster, SidecarNode
from tests.servers.parts import disk, network
from tests.servers.parts.errors import ServerFailedError
from tests.servers.parts.network import Guest
from tests.servers.parts.node import pause

SIDECARS = 4
DISK_BYTES = 256 << 20
# Longer than any client stands still between making replicas and recording them.
OPTIONS = ["--orphans-after", "40s"]
# Shorter than most troubles: what a sidecar has that is only away is copied elsewhere, too.
REPAIR_AFTER_SECONDS = 3
FLIPS = 8
# Sealed pipes whose replicas are compared.
SAMPLE = 40
# How long repairs may take for one thing less, on a machine that is busy with other things, too.
REPAIR_SECONDS = 240.0
LOOK_SECONDS, ROUND_SECONDS = 1.0, 20.0
# Until nobody else is within a transaction.
LOCK_SECONDS = 30.0
# Lines of what `check` finds.
SHOWN_MAX = 15


class OnSidecars(Ground):
    """nodes: where the catalog is; None for an embedded one. waits_for_orphans: until what nobody
    knows of was removed, too."""

    groups: ClassVar[Mapping[str, list[str]]] = {**Ground.groups, "kept": ["default"]}
    kept: ClassVar[frozenset[str]] = frozenset({"kept"})
    servers = SIDECARS

    def __init__(
        self,
        sidecars: SidecarCluster,
        nodes: CassandraCluster | None,
        *,
        waits_for_orphans: bool = True,
    ) -> None:
        super().__init__(sidecars.url(f"repair_after={REPAIR_AFTER_SECONDS}"))
        self._orphans_go = waits_for_orphans
        self._sidecars = sidecars
        self._nodes = nodes
        self.clock_error = CLOCK_ERROR_SECONDS if nodes is not None else 0.0
        self._flipped: set[str] = set()
        self._suspects: set[str] = set()
        self._guests: dict[str, Guest] = {}
        if sidecars.can_be_cut:
            self._guests = {f"push-{queue}-1": sidecars.guest() for queue in self.groups}
            self.spaces = {name: guest.space for name, guest in self._guests.items()}
        if nodes is None:
            self.not_possible.append("one sidecar cut off from the catalog: that is embedded")
        if not sidecars.can_be_cut:
            self.not_possible.append(f"partitions: {network.obstacle() or 'not asked for'}")
        if sidecars.node(1).disk is None:
            self.not_possible.append(f"full disks: {disk.obstacle() or 'not asked for'}")

    @property
    def description(self) -> str:
        catalog = f"on {self._nodes.size} Cassandra nodes" if self._nodes else "embedded"
        return (
            f"{self._sidecars.size} sidecars, {self._sidecars.replicas} replicas, catalog {catalog}"
        )

    @property
    def troubles(self) -> Mapping[str, Span]:
        found = dict(SIDECAR_TROUBLES)
        found |= EMBEDDED_TROUBLES if self._nodes is None else CATALOG_TROUBLES
        if not self._sidecars.can_be_cut:
            found = {what: span for what, span in found.items() if what not in SIDECAR_CUTS}
        if self._sidecars.node(1).disk is None:
            del found["fill disk of sidecar"]
        return found

    def prepare(self) -> None:
        """Sidecars made what there is to be made when they began."""

    def mend(self, note: Note) -> None:
        if self._nodes is not None:
            self._nodes.mend()
        self._sidecars.mend()
        self._give_up_broken(note)

    # --- harm -----------------------------------------------------------------------------------

    def hurt(self, step: Step, note: Note) -> Heal:
        what = step.what
        if what == "lock catalog":
            return self._lock_catalog(note)
        if what in ("kill all sidecars", "restart all sidecars"):
            return down(note, self._sidecars.nodes, politely="restart" in what)
        node = self._sidecars.node(step.target)
        if what in SIDECAR_CUTS:
            return self._cut(step, node, note)
        if what in HARMFUL:
            return self._harm(step, node, note)
        if "node" in what:
            return self._hurt_catalog(step, note)
        if what.startswith("kill"):
            return down(note, [node])
        if what.startswith("stop"):
            return stop(note, node)
        assert what == "fill disk of sidecar", what
        note(f"the disk of {node.name} is full")
        node.disk.fill()
        return healing(note, f"the disk of {node.name} has room", node.disk.free)

    def _hurt_catalog(self, step: Step, note: Note) -> Heal:
        nodes, node = self._catalog_node(step)
        if step.what == "stop node":
            return stop(note, node)
        return down(note, nodes.nodes if "all" in step.what else [node])

    def _catalog_node(self, step: Step) -> tuple[CassandraCluster, CassandraNode]:
        assert self._nodes is not None
        return self._nodes, self._nodes.node(1 + (step.target - 1) % self._nodes.size)

    def _lock_catalog(self, note: Note) -> Heal:
        """Hold the lock of an embedded one: as if somebody stood still within a transaction."""
        catalog = self._sidecars.home / "catalog" / "catalog.sqlite"
        holder = sqlite3.connect(
            catalog, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False
        )
        holder.execute("BEGIN IMMEDIATE")
        note("the catalog is locked")

        def unlock() -> None:
            holder.execute("ROLLBACK")
            holder.close()

        return healing(note, "the catalog is not locked any more", unlock)

    def _cut(self, step: Step, node: SidecarNode, note: Note) -> Heal:
        what, text, number = step.what, node.name, step.target
        if what == "hide sidecar from clients":
            note(f"cut {text} from clients")
            self._sidecars.hide(number)
            for guest in self._guests.values():
                self._sidecars.hide_from(guest, number)
        elif what == "hide sidecar from a pusher":
            name = random.Random(f"{step}").choice(sorted(self._guests))
            note(f"cut {text} from {name} alone")
            self._sidecars.hide_from(self._guests[name], number)
        elif what == "cut sidecar":
            note(f"cut {text} from the other sidecars")
            self._sidecars.partition(number)
        elif "from catalog" in what:
            assert self._nodes is not None
            hit = range(1, self._sidecars.size + 1) if "all" in what else [number]
            text = "all sidecars" if "all" in what else text
            note(f"cut {text} from the catalog")
            for each in hit:
                self._sidecars.part(each, self._nodes)
        else:
            text = self._cut_catalog(step, note)
        return healing(note, f"healed {text}", self._sidecars.heal)

    def _cut_catalog(self, step: Step, note: Note) -> str:
        """Cut a node of the catalog off from the other two, or from clients; its name."""
        nodes, node = self._catalog_node(step)
        number = nodes.nodes.index(node) + 1
        if step.what == "cut node":
            note(f"cut {node.name} from the other two")
            nodes.partition(number)
        else:
            note(f"cut {node.name} from clients")
            nodes.hide(number)
            for guest in self._guests.values():
                nodes.hide_from(guest, number)
        return node.name

    def _harm(self, step: Step, node: SidecarNode, note: Note) -> Heal:
        """Take from one sidecar what only others have then, once they are seen to have it."""
        self._scrub_flipped(note)
        start = self._down_alone(node, note)
        if step.what == "lose data of sidecar":
            node.lose_data()
            note(f"the data of {node.name} are gone")
            return start
        hit = node.flip_bits(random.Random(f"{step}"), FLIPS)
        self._flipped.add(node.told_name)
        self._suspects.add(node.told_name)
        note(f"bits of {node.name} are flipped: {', '.join(hit)}")

        def start_or_give_up() -> None:
            try:
                start()
            except ServerFailedError:
                note(f"{node.name} does not start with them: its data are removed")
                node.kill()
                node.lose_data()
                start()

        return start_or_give_up

    def _scrub_flipped(self, note: Note) -> None:
        """Have the damage found that bits are, which nobody needs to have read since."""
        with self._proving() as prover:
            while self._flipped:
                name = min(self._flipped)
                count = patiently(partial(prover.scrub, name))
                note(f"{name} is scrubbed: {count} extents are damaged")
                self._flipped.discard(name)

    def _give_up_broken(self, note: Note) -> None:
        """Do what only a person can do: remove the data of one that cannot write any more, since
        flipped bits keep its database from merging tables. Where pipes need it, it is started
        again, which helps for a while. One whose disk is full goes on by itself."""
        for node in self._sidecars.nodes:
            found = node.health() if node.told_name in self._suspects else {}
            if found.get("failure"):
                start = down(note, [node])
                with self._proving() as prover:
                    needed = prover.dependants(node.told_name)
                if needed:
                    note(f"{node.name} writes no more: {needed[0]}")
                else:
                    note(f"{node.name} writes no more: its data are removed")
                    self._suspects.discard(node.told_name)
                    node.lose_data()
                start()

    def _down_alone(self, node: SidecarNode, note: Note) -> Heal:
        """Help with repairs, and kill a sidecar once others have what it has. Raises LeftOutError
        when repairs do not come to that in their time."""
        watch = Stopwatch()
        with self._proving() as prover:
            while True:
                self._give_up_broken(note)
                with contextlib.suppress(BackendError):  # servers are still recovering
                    prover.reap(only=("repair",))
                found = prover.dependants(node.told_name)
                if not found:
                    waited = watch.seconds()
                    start = down(note, [node])
                    # Only now nothing more comes to it that others may not have.
                    found = prover.dependants(node.told_name)
                    if not found:
                        note(f"nothing depends on {node.name}, after {waited:.1f} s")
                        return start
                    start()
                if watch.seconds() > REPAIR_SECONDS:
                    raise LeftOutError(
                        f"after {REPAIR_SECONDS:.0f} s {len(found)} pipes still depend on"
                        f" {node.name}, such as {found[0]}"
                    )
                pause(LOOK_SECONDS)

    @contextlib.contextmanager
    def _proving(self) -> Iterator[Prover]:
        with patiently(lambda: cassq.connect(self.url)) as client:
            prover = Prover(client, self.url)
            try:
                yield prover
            finally:
                prover.close()

    # --- when it is over ------------------------------------------------------------------------

    def proofs(self, note: Note) -> list[str]:
        """Replicas are as many as wanted, good, and equal; and `check` agrees."""
        self._scrub_flipped(note)
        with self._proving() as prover:
            wrong = self._settled(prover, note)
            count, unequal = prover.unequal_replicas(SAMPLE, random.Random(1))
        if not count:
            wrong.append("no sealed pipe was left whose replicas could be compared")
        note(f"the replicas of {count} sealed pipes are compared")
        return wrong + unequal

    def last_proofs(self, note: Note) -> list[str]:
        """Nothing is left of what was consumed."""
        with self._proving() as prover:
            wrong = self._settled(prover, note, alone=True)
            view = prover.view()
        strays = view.strays()
        note(f"{len(strays)} pipes were only begun: the sweep takes them after an hour")
        # Dead letters are in queues of their own, which nobody drained.
        drained = [each for each in view.placements if each.queue_name in self.groups]
        left = [each for each in drained if each.pipe_id not in strays]
        return wrong + [f"{each.pipe_id} was consumed and is still placed" for each in left]

    def _settled(self, prover: Prover, note: Note, *, alone: bool = False) -> list[str]:
        watch, stalled, least = Stopwatch(), Stopwatch(), 0
        while wrong := prover.repaired_within(ROUND_SECONDS, alone=alone and self._orphans_go):
            note(f"{len(wrong)} things are not repaired yet, such as: {wrong[0]}")
            if not least or len(wrong) < least:
                stalled, least = Stopwatch(), len(wrong)
            self._give_up_broken(note)
            if stalled.seconds() > REPAIR_SECONDS:
                break
        note(
            f"all replicas are good, after {watch.seconds():.1f} s" if not wrong else "NOT repaired"
        )
        done = self._sidecars.run("check")
        if done.returncode:
            shown = lines = _lines(done)
            if len(lines) > SHOWN_MAX:
                shown = [*lines[: SHOWN_MAX - 3], "…", *lines[-2:]]
            wrong.append("\n    ".join(["`cassq sidecar check` finds:", *shown]))
        return wrong


def _lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a command printed, without empty lines."""
    return [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
