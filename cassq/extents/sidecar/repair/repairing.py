"""Repairing: the Upkeep of extents on sidecars."""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from cassq.base.clock import Clock
from cassq.base.ids import Ids
from cassq.catalog.port import Catalog
from cassq.errors import BackendError
from cassq.extents.protocol.messages import (
    EXTENTS_MAX,
    Drop,
    Ends,
    Info,
    List,
    ListedExtent,
    RefusedError,
)
from cassq.extents.replicas.fleet import Fleet, Need, ReplicaStanding, fleet_of, mended
from cassq.extents.replicas.upkeep import RepairOutcome, Upkeep
from cassq.extents.sidecar.net.network import CallResult, Network, Patience, SidecarCall
from cassq.extents.sidecar.repair.copying import Copying, CopyStep
from cassq.extents.sidecar.repair.pace import CopyPace
from cassq.extents.sidecar.settings import Settings
from cassq.model.sidecar_rows import Placement, ReplicaAt, SidecarRow
from cassq.plurals import counted

logger: logging.Logger = logging.getLogger("cassq")

AT_ONCE = 4
STEP_SECONDS = 2.0
ASK_SECONDS = 10.0
# Held by the client that copies, until the time that its copied bytes take at the rate is over.
COPYING_LEASE = "repair:copying"
LEASE_MS = 5000
# How long a sidecar that failed as a target is avoided, if there is another.
AVOID_MS = 60_000
# For how long a sidecar that did not answer is not asked for its extents: each page would wait for
# it.
SILENT_MS = 60_000


class Repairing(Upkeep):
    """Maintains the replicas of the extents of a catalog. Thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        network: Network,
        clock: Clock,
        ids: Ids,
        settings: Settings,
        rng: random.Random,
    ) -> None:
        self.after_ms: int = round(settings.repair_after * 1000)
        self._catalog = catalog
        self._network = network
        self._clock = clock
        self._ids = ids
        self._pace = CopyPace(clock, settings.repair_rate)
        self._rng = rng
        self._mutex = threading.Lock()
        self._copies: dict[str, Copying] = {}
        self._avoid: dict[str, int] = {}  # by name: until when, in boot time
        self._after: dict[str, str] = {}  # by name: where to continue listing damaged replicas
        self._silent: dict[str, int] = {}  # by name: until when, in boot time

    def fleet(self) -> Fleet:
        return fleet_of(self._catalog.sidecars.listed(), self._catalog.now_ms(), self.after_ms)

    # --- asking ---------------------------------------------------------------------------------

    def damaged(self, fleet: Fleet) -> Mapping[str, list[ReplicaAt]]:
        rows = [r for r in fleet.sidecars.values() if r.damaged and r.alive(fleet.now_ms)]
        calls = [
            _call(row, List(self._after.get(row.name, ""), EXTENTS_MAX, "damaged")) for row in rows
        ]
        found: dict[str, list[ReplicaAt]] = {}
        for row, answer in zip(rows, self._exchange(calls, STEP_SECONDS), strict=True):
            if answer.error is not None:
                continue  # it is asked again
            extents = answer.replies[0].extents
            # If there are more, they take turns.
            self._after[row.name] = extents[-1].pipe_id if len(extents) == EXTENTS_MAX else ""
            for extent in extents:
                found.setdefault(extent.pipe_id, []).append(ReplicaAt(row.name, row.generation))
        return found

    def missing(
        self, fleet: Fleet, placements: Sequence[Placement]
    ) -> Mapping[str, list[ReplicaAt]]:
        now_ms = self._clock.boot_ms()
        asked: dict[ReplicaAt, list[str]] = {}
        for placement in placements:
            for at in placement.replicas if placement.end is not None else ():
                if fleet.is_there(at) and self._silent.get(at.sidecar, 0) <= now_ms:
                    asked.setdefault(at, []).append(placement.pipe_id)
        found: dict[str, list[ReplicaAt]] = {}
        answers = self._exchange([_ends_of(*each) for each in asked.items()], STEP_SECONDS)
        for (at, pipe_ids), answer in zip(asked.items(), answers, strict=True):
            if answer.error is not None:
                self._silent[at.sidecar] = self._clock.boot_ms() + SILENT_MS
                continue
            ends = [end for reply in answer.replies for end in reply.ends]
            for pipe_id, end in zip(pipe_ids, ends, strict=True):
                if end is None:
                    found.setdefault(pipe_id, []).append(at)
        return self._still_named(found)

    def _still_named(self, found: Mapping[str, list[ReplicaAt]]) -> dict[str, list[ReplicaAt]]:
        """The replicas that placements still name; others were dropped or moved since the
        placements were read. A placement names a replica only after it was opened, or completely
        copied."""
        placements = self._catalog.sidecars.placements_of(list(found)) if found else []
        left = {
            at.pipe_id: [each for each in found[at.pipe_id] if each in at.replicas]
            for at in placements
            if at is not None
        }
        return {pipe_id: those for pipe_id, those in left.items() if those}

    def silent(self, rows: Sequence[SidecarRow], seconds: float) -> Mapping[str, str]:
        answers = self._exchange([_call(row, Info()) for row in rows], seconds)
        return {
            answer.sidecar: answer.error.message
            for answer in answers
            if answer.error is not None and not isinstance(answer.error, RefusedError)
        }

    def info(self, row: SidecarRow) -> Mapping[str, Any]:
        return dict(self._ask(_call(row, Info())).facts)

    def extents(self, row: SidecarRow, only: str = "") -> Iterator[ListedExtent]:
        after = ""
        while True:
            page = self._ask(_call(row, List(after, EXTENTS_MAX, only))).extents
            yield from page
            if len(page) < EXTENTS_MAX:
                return
            after = page[-1].pipe_id

    def _ask(self, call: SidecarCall) -> Any:
        (answer,) = self._exchange([call], ASK_SECONDS)
        if answer.error is not None:
            raise answer.error
        return answer.replies[0]

    def _exchange(self, calls: Sequence[SidecarCall], seconds: float) -> list[CallResult]:
        if not calls:
            return []
        return self._network.exchange(calls, Patience(seconds, seconds, len(calls)))

    # --- mending --------------------------------------------------------------------------------

    def mend(self, needs: Sequence[Need], seconds: float) -> list[RepairOutcome]:
        owner = self._ids.client
        with self._mutex:
            if self._catalog.leases.take(COPYING_LEASE, owner, LEASE_MS) is None:
                return []  # another client is copying, or has copied enough for now
            until_ms = self._clock.boot_ms() + round(seconds * 1000)
            try:
                return self._mend(needs, self.fleet(), until_ms)
            finally:
                owed_ms = self._pace.owed_ms()
                if owed_ms:
                    self._catalog.leases.take(COPYING_LEASE, owner, owed_ms)
                else:
                    self._catalog.leases.drop(COPYING_LEASE, owner)

    def _mend(self, needs: Sequence[Need], fleet: Fleet, until_ms: int) -> list[RepairOutcome]:
        left, active, outcomes = deque(needs), list[Copying](), list[RepairOutcome]()
        wanted = {need.placement.pipe_id for need in needs}
        self._copies = {key: copy for key, copy in self._copies.items() if key in wanted}
        while True:
            while left and len(active) < AT_ONCE:
                need = left.popleft()
                if need.gone:
                    outcomes.append(self._attempt(need, self._removed))
                else:
                    active.append(self._copy_of(need, fleet))
            if not active:
                return outcomes
            self._go_on(active, until_ms)
            for copy in [copy for copy in active if copy.is_over]:
                active.remove(copy)
                del self._copies[copy.need.placement.pipe_id]
                outcomes.append(self._attempt(copy.need, partial(self._ended, copy)))
            if self._clock.boot_ms() >= until_ms:
                left_over = [RepairOutcome(copy.need, False, copy.progress) for copy in active]
                return outcomes + left_over

    def _attempt(self, need: Need, end: Callable[[Need], RepairOutcome]) -> RepairOutcome:
        try:
            return end(need)
        except BackendError as exc:
            # The next look at the placement shows whether it was done.
            return RepairOutcome(need, False, need.why, str(exc))

    def _copy_of(self, need: Need, fleet: Fleet) -> Copying:
        pipe_id, now_ms = need.placement.pipe_id, self._clock.boot_ms()
        copy = self._copies.get(pipe_id)
        if copy is None or not copy.fits(need):
            addresses = {row.name: row.address for row in fleet.sidecars.values()}
            avoid = [name for name, until_ms in self._avoid.items() if now_ms < until_ms]
            copy = self._copies[pipe_id] = Copying(need, addresses, self._rng, avoid)
        return copy

    def _go_on(self, active: Sequence[Copying], until_ms: int) -> None:
        """One step of each, side by side, once there is room for more bytes."""
        copying = sum(copy.step is CopyStep.COPY for copy in active)
        owed_ms = self._pace.owed_ms()
        if copying and owed_ms:
            left_ms = until_ms - self._clock.boot_ms()
            if copying == len(active):
                self._clock.sleep(max(0, min(owed_ms, left_ms)) / 1000)
            if self._pace.owed_ms():
                active = [copy for copy in active if copy.step is not CopyStep.COPY]
        bytes_max = self._pace.round_bytes // max(1, copying)
        calls = [copy.calls(bytes_max) for copy in active]
        answers = deque(self._exchange([call for those in calls for call in those], STEP_SECONDS))
        for copy, those in zip(active, calls, strict=True):
            copy.take([answers.popleft() for _ in those])
            self._pace.spent(copy.copied_bytes)

    # --- outcomes -------------------------------------------------------------------------------

    def _ended(self, copy: Copying, need: Need) -> RepairOutcome:
        """Let a complete copy count, or report why it failed."""
        target = copy.target
        if copy.step is CopyStep.FAILED or target is None:
            if target is not None and need.in_place is None:
                self._avoid[target.sidecar] = self._clock.boot_ms() + AVOID_MS
            return RepairOutcome(need, False, copy.progress, copy.error)
        if need.in_place is None and not self._changed(need, target):
            return RepairOutcome(need, True, "")
        count = f"{counted(copy.end, 'message')}, {counted(copy.size_bytes, 'byte')}"
        if target in (need.in_place, need.instead):
            return RepairOutcome(need, True, f"copied again to {target.sidecar}: {count}")
        instead = ""
        if need.instead is not None:
            instead = f", replacing the one on {need.instead.sidecar}"
            self._drop(need, [need.instead])
        return RepairOutcome(need, True, f"copied to {target.sidecar}{instead}: {count}")

    def _removed(self, need: Need) -> RepairOutcome:
        if not self._changed(need):
            return RepairOutcome(need, True, "")
        self._drop(need, need.gone)
        names = ", ".join(each.sidecar for each in need.gone)
        return RepairOutcome(need, True, f"removed from {names}, where it is not needed")

    def _changed(self, need: Need, copy: ReplicaAt | None = None) -> bool:
        """Change the placement; False when another client was faster, or the extent is gone."""
        new = mended(need, self._ids.version(), copy)
        return self._catalog.sidecars.change_placement(need.placement, new)

    def _drop(self, need: Need, replicas: Sequence[ReplicaAt]) -> None:
        """Remove replicas that no longer count from draining sidecars; other sidecars remove theirs
        in time. A draining sidecar is never chosen for a copy, so no client creates one there. The
        placement is checked once more, because the draining may have been undone."""
        pipe_id, fleet = need.placement.pipe_id, self.fleet()
        placement = self._catalog.sidecars.placements_of([pipe_id])[0]
        for replica in replicas:
            if fleet.standing(replica) is not ReplicaStanding.LEAVING:
                continue
            if placement is not None and replica in placement.replicas:
                continue
            call = SidecarCall(replica.sidecar, replica.generation, [Drop([pipe_id])])
            for answer in self._exchange([call], STEP_SECONDS):
                if answer.error is not None:
                    logger.info(
                        "cannot remove %s from %s yet: %s", pipe_id, answer.sidecar, answer.error
                    )


def _ends_of(at: ReplicaAt, pipe_ids: Sequence[str]) -> SidecarCall:
    asked = [(pipe_id, 0) for pipe_id in pipe_ids]
    parts = range(0, len(asked), EXTENTS_MAX)
    requests = [Ends(asked[part : part + EXTENTS_MAX], 0) for part in parts]
    return SidecarCall(at.sidecar, at.generation, requests)


def _call(row: SidecarRow, request: Info | List) -> SidecarCall:
    return SidecarCall(row.name, row.generation, [request])
