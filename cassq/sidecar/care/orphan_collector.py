"""The orphan collector: slowly walks the sidecar's own extents, compares them with the catalog's
rows, and reads their frames to check that they are whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence

from cassq.base.clock import Clock, Stopwatch
from cassq.errors import BackendError
from cassq.extents.protocol.messages import Drop, RefusedError, Scrub, Settle
from cassq.model.sidecar_rows import Placement, ReplicaAt
from cassq.sidecar.care.orphans import Orphans, OrphanStep, OrphanVerb, plan
from cassq.sidecar.care.scrubbing import Scrubbing
from cassq.sidecar.catalog_thread import CatalogThread
from cassq.sidecar.engine.port import Engine
from cassq.sidecar.sessions.dispatcher import Dispatcher

logger: logging.Logger = logging.getLogger("cassq")

SAFE_MS = 3_600_000
BATCH = 100  # placements read at once
BATCH_SECONDS = 0.5  # the least that a batch takes
WALK_SECONDS = 20.0  # the least that a walk takes
SCRUB_BYTES = 4 * 1024 * 1024  # a second
SCRUB_SECONDS = 24 * 3600.0  # the least that a pass over all frames takes
_SCRUB_FIRST_SECONDS = 60.0


class OrphanCollector:
    """Checks the extents of one sidecar. touched_ms: see `Orphans.look`."""

    def __init__(
        self,
        engine: Engine,
        dispatcher: Dispatcher,
        catalog: CatalogThread,
        me: ReplicaAt,
        clock: Clock,
        touched_ms: Mapping[str, int],
        safe_ms: int = SAFE_MS,
    ) -> None:
        self.orphans: Orphans = Orphans(safe_ms)
        self._engine = engine
        self._dispatcher = dispatcher
        self._catalog = catalog
        self._me = me
        self._clock = clock
        self._touched_ms = touched_ms

    async def run(self) -> None:
        """Walk repeatedly, until cancelled."""
        while True:
            watch = Stopwatch()
            try:
                await self.walk()
            except BackendError as exc:
                logger.debug("a walk ended early: %s", exc)
            await asyncio.sleep(max(0.0, WALK_SECONDS - watch.seconds()))

    async def walk(self) -> list[OrphanStep]:
        """Check each extent once; returns what was done. Raises BackendError without the
        catalog."""
        done: list[OrphanStep] = []
        ids = sorted(self._engine.replicas())
        for at in range(0, len(ids), BATCH):
            watch = Stopwatch()
            batch = ids[at : at + BATCH]
            found = await self._catalog.ask(
                lambda catalog, b=batch: catalog.sidecars.placements_of(b)  # type: ignore[misc]
            )
            done += [step for step in self._steps(batch, found) if await self._act(step)]
            if at + BATCH < len(ids):
                await asyncio.sleep(max(0.0, BATCH_SECONDS - watch.seconds()))
        return done

    def _steps(
        self, batch: Sequence[str], found: Sequence[Placement | None]
    ) -> Iterator[OrphanStep]:
        """Steps, each decided when it is due: extents change while earlier steps are done."""
        now_ms = self._clock.boot_ms()
        for pipe_id, placement in zip(batch, found, strict=True):
            replica = self._engine.replicas().get(pipe_id)
            if replica is None:
                self.orphans.forget(pipe_id)
                continue
            touched_ms = self._touched_ms.get(pipe_id, 0)
            orphan = self.orphans.look(
                pipe_id, placement, self._me, now_ms=now_ms, touched_ms=touched_ms
            )
            failed = self._engine.failure or self._engine.starved
            for step in (orphan, plan(replica, placement, self._me)):
                # A failed engine changes nothing any more, but still reports damage.
                if step is not None and (step.verb is OrphanVerb.DAMAGE or not failed):
                    yield step

    async def _act(self, step: OrphanStep) -> bool:
        pipe_id = step.pipe_id
        try:
            match step.verb:
                case OrphanVerb.SETTLE:
                    await self._dispatcher.done(Settle(pipe_id, step.end))
                case OrphanVerb.DROP:
                    logger.warning("extent %s is an orphan: it is removed", pipe_id)
                    await self._dispatcher.done(Drop([pipe_id]))
                    self.orphans.forget(pipe_id)
                case OrphanVerb.DAMAGE:
                    what = "behind" if step.behind else "damaged"
                    logger.error("extent %s is %s: %s", pipe_id, what, step.damage)
                    found = self._dispatcher.replica_state.found
                    found(pipe_id, step.damage, behind=step.behind)
                    self._dispatcher.replica_state.note_found()
        except (RefusedError, BackendError) as exc:
            logger.warning("extent %s: %s failed: %s", pipe_id, step.verb.value, exc)
            return False
        return True


class ScrubPass:
    """Reads all frames of settled extents, slowly and repeatedly."""

    def __init__(self, engine: Engine, scrubbing: Scrubbing) -> None:
        self._engine = engine
        self._scrubbing = scrubbing

    async def run(self) -> None:
        """Scrub until cancelled."""
        await asyncio.sleep(_SCRUB_FIRST_SECONDS)
        while True:
            watch = Stopwatch()
            await self.once()
            await asyncio.sleep(max(1.0, SCRUB_SECONDS - watch.seconds()))

    async def once(self, bytes_per_second: float = SCRUB_BYTES) -> int:
        """One pass; returns how many extents were found to be damaged."""
        damaged = 0
        for pipe_id in sorted(self._engine.replicas()):
            damaged += await self._extent(pipe_id, bytes_per_second)
        return damaged

    async def _extent(self, pipe_id: str, bytes_per_second: float) -> bool:
        seq = 0
        while True:
            replica = self._engine.replicas().get(pipe_id)
            if replica is None or replica.damage or replica.copying or seq >= replica.end:
                return False
            watch, before = Stopwatch(), self._scrubbing.bytes
            try:
                scrubbed = await self._scrubbing(Scrub(pipe_id, seq))
            except RefusedError:
                return False  # it was dropped
            if scrubbed.damage:
                logger.error("extent %s is damaged: %s", pipe_id, scrubbed.damage)
                return True
            seq = scrubbed.seq
            read = self._scrubbing.bytes - before
            await asyncio.sleep(max(0.0, read / bytes_per_second - watch.seconds()))
