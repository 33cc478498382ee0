"""The replicated store: an extent has replicas on several sidecars, kept identical by its writer.

Only the writer coordinates replicas: no leader is elected, and sidecars talk to one another only
for repairs. An extent has one writer in all its life. Its *placement*, a row of the catalog, lists
its replicas, which do not change before it is sealed.

- A frame is sent to all replicas at once and acknowledged when all have it on disk. When one
  fails, or is much slower than all others, the extent is sealed and the pusher continues in another
  one, elsewhere.
- Sealing: `Fence` a majority, which take no append from then on; take the smallest of their ends;
  record it in the placement by compare-and-set; cut what lies past it. See `sealing`.

Why that is exact, for every append, however long its writer was stopped and whatever clocks say:
the writer acknowledges only frames that all replicas have. So each replica has everything
acknowledged, and every recorded end covers it. A fenced replica accepts no more frames, so nothing
is acknowledged from then on. A writer that has stopped knows which messages it acknowledged: if too
few replicas can be fenced, its process records that end. So messages that it writes to another pipe
instead never appear here again with another id. No lease is involved. One fenced replica would be
enough for this; a majority guards against wrong replicas: a replica that lost data (its data
directory, and so its generation; the acknowledged end it knew; a part of a copy) does not count.
Unless the writer recorded its end, everything that counts as pushed is on a majority, not only the
acknowledged messages.

Frames past the end were never acknowledged, and are cut: there is nothing to rescue. A replica that
was unreachable when its extent was sealed is corrected when it is back: by its own sidecar, which
compares its extents with the placements, or by a repair, which copies it from another replica. A
replica without a placement (its writer died before recording it, or it was unreachable when the
extent was dropped) is removed by its sidecar after a safe time.

Readers of an unsealed pipe stop at the acknowledged end, which the writer sends to the replicas
after each append without waiting; its own process knows it at once. It may lag, and never leads.
Any replica will do: the nearest is read, and another one as soon as that does not answer, or
returns anything other than what was requested.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence

from cassq.base.clock import Clock
from cassq.base.counters import Requests
from cassq.base.ids import Ids
from cassq.catalog.port import Catalog
from cassq.extents.frame_cache import FrameCache
from cassq.extents.port import ExtentInfo, ExtentReader, ExtentStore
from cassq.extents.replicas.upkeep import Upkeep
from cassq.extents.sidecar.directory import SidecarDirectory
from cassq.extents.sidecar.dropping import drop_extents
from cassq.extents.sidecar.health import PipeReplacement, SidecarHealth
from cassq.extents.sidecar.net.connection import Access
from cassq.extents.sidecar.net.connection_pool import ConnectionPool
from cassq.extents.sidecar.net.network import Network
from cassq.extents.sidecar.opening import ExtentRequest, open_extent
from cassq.extents.sidecar.published import KnownEnds, ask_ends, ends_told
from cassq.extents.sidecar.read_ahead import PrefetchBudget, ReadAhead
from cassq.extents.sidecar.reader import SLICE_BYTES, SidecarReader
from cassq.extents.sidecar.repair.repairing import Repairing
from cassq.extents.sidecar.sealing import sealed_end
from cassq.extents.sidecar.settings import Settings
from cassq.extents.sidecar.store_context import StoreContext
from cassq.extents.sidecar.writer import LOOK_MS, SidecarWriter
from cassq.message.frames import Place
from cassq.model.sidecar_rows import Placement, ReplicaAt

ACKED_KEPT_MAX = 10_000  # pipes whose writer ended here, and that are not sealed yet


def open_sidecar_store(
    catalog: Catalog,
    clock: Clock,
    ids: Ids,
    settings: Settings,
    network: Network | None = None,
    requests: Requests | None = None,
) -> SidecarStore:
    """The store on the sidecars that `catalog` knows. network: used instead of sockets.
    requests: counts outcomes. Cost: none until it is used."""
    if network is None:
        access = Access(settings.token, settings.tls, ids.client)
        network = ConnectionPool(catalog.sidecars.listed, catalog.records.identity, access)
    return SidecarStore(catalog, clock, ids, settings, network, requests)


class SidecarStore(ExtentStore):
    """Extents on the sidecars of a catalog. Thread-safe. Closes `network`; the caller closes
    `catalog`. look_ms: how often idle writers check whether they are sealed. slice_bytes: how much
    a reader requests at first; up to 32 times as much if it reads in order. upkeep: maintains the
    replicas."""

    leaves_strays = True
    networked = True

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        ids: Ids,
        settings: Settings,
        network: Network,
        requests: Requests | None = None,
        *,
        look_ms: int = LOOK_MS,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        health, directory = SidecarHealth(clock), SidecarDirectory(catalog, clock)
        counted, replacement = requests or Requests(), PipeReplacement(clock)
        self._context = StoreContext(
            *(catalog, network, health, replacement, directory, clock, ids, settings, counted),
            look_ms,
            slice_bytes,
        )
        self._catalog = catalog
        self._rng = random.Random(ids.version())
        self.upkeep: Upkeep = Repairing(catalog, network, clock, ids, settings, self._rng)
        self._kept = FrameCache()
        self._ends = KnownEnds(self._context)
        self._ahead = PrefetchBudget()
        self._writers: dict[str, SidecarWriter] = {}
        self._acked: dict[str, int] = {}  # by pipe, where its writer here ended

    def create(self, pipe_id: str, queue_name: str, *, strict: bool = False) -> SidecarWriter:
        """Raises StorageFullError if sidecars have no room, and BackendUnavailableError if too few
        accept it for other reasons. Cost: a concurrent request to each of its sidecars, and a
        conditional write."""
        wanted = ExtentRequest(pipe_id, queue_name, strict)
        return self._writer(open_extent(self._context, wanted, self._rng))

    def create_ahead(self, pipe_id: str, queue_name: str) -> SidecarWriter:
        """Raises as `create`. Cost: as `create`; it may wait for AHEAD_SECONDS."""
        wanted = ExtentRequest(pipe_id, queue_name, ahead=True)
        return self._writer(open_extent(self._context, wanted, self._rng))

    def _writer(self, placement: Placement) -> SidecarWriter:
        writer = SidecarWriter(self._context, placement, self._writer_closed)
        self._writers[placement.pipe_id] = writer
        return writer

    def reader(self, pipe_id: str) -> SidecarReader:
        """Cost: one read of the catalog."""
        return self._reader(self._context.placement(pipe_id))

    def readers(self, pipe_ids: Sequence[str]) -> list[ExtentReader | None]:
        """Cost: one read of the catalog each, side by side."""
        placements = self._catalog.sidecars.placements_of(pipe_ids)
        return [None if found is None else self._reader(found) for found in placements]

    def _reader(self, placement: Placement) -> SidecarReader:
        ahead = ReadAhead(self._context, self._ahead)
        return SidecarReader(
            self._context, placement, self._kept, self._ends, self._writers.get, ahead
        )

    def seal(self, pipe_id: str) -> Place:
        """Raises BackendUnavailableError while too few replicas can be fenced, unless this process
        wrote the extent and has closed it. Cost: a read; the first time a request to each replica,
        side by side, and a conditional write."""
        end = sealed_end(self._context, pipe_id, self._acked.get(pipe_id))
        self._acked.pop(pipe_id, None)
        writer = self._writers.get(pipe_id)
        if writer is not None:
            writer.was_sealed()
        return Place(end, end)

    def abandoned(self, pipe_id: str) -> bool:
        """Only a closed writer is known to be gone. Cost: a read, and a request to each of its
        sidecars."""
        return bool(self.all_abandoned([pipe_id]))

    def all_abandoned(self, pipe_ids: Sequence[str]) -> set[str]:
        """Cost: a round of reads and a round of requests."""
        others = [pipe_id for pipe_id in pipe_ids if pipe_id not in self._writers]
        placements = self._catalog.sidecars.placements_of(others)
        gone = {pipe_id for pipe_id, at in zip(others, placements, strict=True) if at is None}
        return gone | self._closed([placement for placement in placements if placement])

    def drop(self, pipe_ids: Sequence[str]) -> None:
        """Raises BackendUnavailableError for unsealed extents whose writer could not be stopped;
        the others are dropped. Cost: a read each, a request to each sidecar that has some of them,
        side by side, and a write each."""
        drop_extents(self._context, pipe_ids)

    def extents(self, known: Collection[str] = ()) -> Iterator[ExtentInfo]:
        found = [at for at in self._catalog.sidecars.placements() if at.pipe_id not in known]
        found.sort(key=lambda placement: placement.pipe_id)
        closed = self._closed([at for at in found if at.pipe_id not in self._writers])
        for at in found:
            yield ExtentInfo(at.pipe_id, at.queue_name, at.pipe_id in closed)

    def close(self) -> None:
        self._context.network.close()

    def _closed(self, placements: Sequence[Placement]) -> set[str]:
        """The extents that their writers are known to have closed."""
        asked: dict[ReplicaAt, list[tuple[str, int]]] = {}
        for placement in placements:
            for replica in placement.replicas:
                asked.setdefault(replica, []).append((placement.pipe_id, 0))
        answers = ask_ends(self._context, asked, 0)
        closed: set[str] = set()
        for part, answer in zip(asked.values(), answers, strict=True):
            for (pipe_id, _), end in zip(part, ends_told(answer, len(part)), strict=True):
                if end is not None and end[3]:
                    closed.add(pipe_id)
        return closed

    def _writer_closed(self, pipe_id: str) -> None:
        writer = self._writers.pop(pipe_id, None)
        if writer is not None:
            self._acked[pipe_id] = writer.end.seq
            if len(self._acked) > ACKED_KEPT_MAX:
                self._acked.pop(next(iter(self._acked)), None)
