"""Proofs about replicas on real sidecars: what the catalog says is asked of each sidecar itself."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any
from urllib.parse import parse_qsl

import cassq
from cassq.base.clock import Stopwatch
from cassq.client.backends.sidecar_options import settings_of
from cassq.errors import BackendError
from cassq.extents.protocol.messages import List, ListedExtent, Request, Scrub
from cassq.extents.sidecar.net.connection import Access
from cassq.extents.sidecar.net.connection_pool import ConnectionPool
from cassq.extents.sidecar.net.network import Patience, SidecarCall
from cassq.model.sidecar_rows import Placement, ReplicaAt
from tests.faults.storm.replicas import ReplicaView, complaints, dependants, orphans, unequal
from tests.servers.parts.node import pause

ASK_SECONDS = 20.0
LOOK_SECONDS = 0.5
PAGE = 500


class Prover:
    """Looks at all sidecars of a client's catalog. url: the client's."""

    def __init__(self, client: cassq.Client, url: str) -> None:
        settings = settings_of(dict(parse_qsl(url.partition("?")[2])))
        catalog = client.ports.catalog
        access = Access(settings.token, settings.tls, "prover")
        self._client = client
        self._network = ConnectionPool(catalog.sidecars.listed, catalog.records.identity, access)

    def repaired_within(self, seconds: float, *, alone: bool = False) -> list[str]:
        """Reap until there is nothing to complain of; else what there still is then. alone:
        sidecars are to hold nothing else, too."""
        watch = Stopwatch()
        while True:
            found = self._attempt(alone)
            if not found or watch.seconds() > seconds:
                return found
            pause(LOOK_SECONDS)

    def reap(self, only: Collection[str] | None = None) -> None:
        """Do once what a reaper does, or some of its passes. Raises BackendError."""
        self._client.reaper.reap(only=only)

    def _attempt(self, alone: bool) -> list[str]:
        try:
            self.reap()
            view = self.view()
        except BackendError as error:
            return [f"it could not be looked at: {error}"]
        return [*complaints(view), *(orphans(view) if alone else ())]

    def dependants(self, name: str) -> list[str]:
        """What would be lost now with all that a sidecar has; it may be down."""
        try:
            return list(dependants(self.view(without=name), name))
        except BackendError as error:
            return [f"it could not be looked at: {error}"]

    def view(self, without: str = "") -> ReplicaView:
        """What is where at this moment. without: a sidecar that is not asked. Raises
        BackendError."""
        catalog = self._client.ports.catalog
        rows = catalog.sidecars.listed()
        placements = list(catalog.sidecars.placements())
        return ReplicaView(
            placements,
            {row.name: row.generation for row in rows},
            {
                row.name: {extent.pipe_id: extent for extent in self.held(row.name)}
                for row in rows
                if row.name != without
            },
            frozenset(catalog.pipes.ids()),  # looked for later, as they are made later
        )

    def held(self, name: str) -> list[ListedExtent]:
        """What a sidecar tells of all its replicas. Raises BackendError."""
        found: list[ListedExtent] = []
        after = ""
        while True:
            page = self._ask(name, "", List(after, PAGE, "")).extents
            found += page
            if len(page) < PAGE:
                return found
            after = found[-1].pipe_id

    def unequal_replicas(self, most: int, chance: random.Random) -> tuple[int, list[str]]:
        """Scrub all replicas of so many sealed pipes, some with messages among them; how many
        there were, and what is wrong with them."""
        sealed = [each for each in self.view().sealed() if each.end]
        sample = chance.sample(sealed, min(most, len(sealed)))
        digests = [
            (each.pipe_id, {at.sidecar: self._digest(each, at) for at in each.replicas})
            for each in sample
        ]
        return len(sample), list(unequal(digests))

    def scrub(self, name: str) -> int:
        """Have a sidecar read all that it holds, as it does by itself in a day; how many of its
        extents are damaged then. Raises BackendError."""
        held = [extent for extent in self.held(name) if not extent.copying]
        found = [self._scrubbed(extent.pipe_id, ReplicaAt(name, ""), extent.end) for extent in held]
        return sum(1 for stretches in found if any(damage for _, damage, _ in stretches))

    def _digest(self, placement: Placement, replica: ReplicaAt) -> str:
        """Of all frames of a replica, stretch by stretch; why there is none where its sidecar does
        not have it, as after its directory was lost and nothing was repaired yet."""
        assert placement.end is not None
        try:
            stretches = self._scrubbed(placement.pipe_id, replica, placement.end)
        except BackendError as error:
            return f"cannot be read: {error}"
        return " ".join(f"{seq}:{damage or digest}" for seq, damage, digest in stretches)

    def _scrubbed(self, pipe_id: str, replica: ReplicaAt, end: int) -> list[tuple[int, str, str]]:
        """Where each stretch ends, what is wrong with it, and its digest."""
        found: list[tuple[int, str, str]] = []
        seq = 0
        while seq < end:
            done = self._ask(replica.sidecar, replica.generation, Scrub(pipe_id, seq))
            found.append((done.seq, done.damage, done.digest))
            if done.seq <= seq:
                break
            seq = done.seq
        return found

    def close(self) -> None:
        self._network.close()

    def _ask(self, name: str, generation: str, request: Request) -> Any:
        (answer,) = self._network.exchange(
            [SidecarCall(name, generation, [request])], Patience(ASK_SECONDS, 0.0, 1)
        )
        if answer.error is not None:
            raise answer.error
        return answer.replies[0]
