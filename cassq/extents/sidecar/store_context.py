"""The context shared by the parts of the replicated store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cassq.base.clock import Clock
from cassq.base.counters import Requests
from cassq.base.ids import Ids
from cassq.catalog.port import Catalog
from cassq.errors import BackendError
from cassq.extents.port import missing
from cassq.extents.protocol.messages import Code, RefusedError, Request
from cassq.extents.sidecar.directory import SidecarDirectory
from cassq.extents.sidecar.health import PipeReplacement, SidecarHealth
from cassq.extents.sidecar.net.network import Network, SidecarCall
from cassq.extents.sidecar.placing import takers
from cassq.extents.sidecar.settings import Settings
from cassq.model.sidecar_rows import Placement, ReplicaAt

# A pipe has one writer in all its life; its sealer has the next epoch.
WRITER_EPOCH, SEALER_EPOCH = 1, 2
TRIES = 8  # of a write without an answer


class StoreContext(NamedTuple):
    """The context of one store. look_ms: how often an idle writer checks whether its extent is
    sealed. slice_bytes: how much the first read of an extent asks for."""

    catalog: Catalog
    network: Network
    health: SidecarHealth
    replacement: PipeReplacement
    directory: SidecarDirectory
    clock: Clock
    ids: Ids
    settings: Settings
    requests: Requests
    look_ms: int
    slice_bytes: int

    def placement(self, pipe_id: str) -> Placement:
        """The placement of a pipe's extent; ExtentMissingError if there is none. Cost: a read."""
        found = self.catalog.sidecars.placements_of([pipe_id])[0]
        if found is None:
            raise missing(pipe_id)
        return found

    def could_be_full(self) -> bool:
        """Whether enough sidecars take a new extent now for it to have all its replicas, as far as
        the catalog knows. Cost: as `SidecarDirectory.rows`."""
        able = takers(self.directory.rows(), self.catalog.now_ms())
        return len(able) >= self.settings.replicas


def answered(write: Callable[[], bool]) -> bool:
    """Make a write to the catalog that may be applied twice; returns its answer. The write is
    repeated while its outcome is unknown, at most TRIES times."""
    tries_left = TRIES
    while True:
        tries_left -= 1
        try:
            return write()
        except BackendError as exc:
            if not (exc.outcome_unknown and tries_left):
                raise


def call_of(replica: ReplicaAt, requests: Sequence[Request]) -> SidecarCall:
    """A call of the sidecar that has a replica."""
    return SidecarCall(replica.sidecar, replica.generation, requests)


def majority(replicas: int) -> int:
    """The number of `replicas` that must agree."""
    return replicas // 2 + 1


def refused_as(error: BackendError | None, *codes: Code) -> bool:
    """Whether a call was refused for one of these reasons."""
    return isinstance(error, RefusedError) and error.code in codes
