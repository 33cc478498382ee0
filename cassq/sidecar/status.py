"""Status: a sidecar's report about itself, in its row, over the protocol, and over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cassq.base.clock import Stopwatch
from cassq.extents.protocol.messages import VERSION
from cassq.inspect.metrics import COUNTER, GAUGE, Metric
from cassq.model.sidecar_rows import SidecarState
from cassq.sidecar.care.scrubbing import Scrubbing
from cassq.sidecar.catalog_thread import CatalogThread
from cassq.sidecar.engine.port import Engine, Space
from cassq.sidecar.load import ByteLoad
from cassq.sidecar.sessions.dispatcher import Dispatcher
from cassq.sidecar.sessions.group_sync import GroupSync
from cassq.sidecar.sessions.handshake import Handshake
from cassq.sidecar.sessions.server import Server
from cassq.version import __version__


class Extents(NamedTuple):
    """How many extents there are of each kind, and their bytes. deficient: those that need repair.
    damaged: of these, all but those that only lack their last messages, or are being copied."""

    total: int
    unsealed: int
    deficient: int
    damaged: int
    copying: int
    bytes: int


def count_extents(engine: Engine) -> Extents:
    """Count the extents of an engine. Cost: reads each one's state, in memory."""
    unsealed = deficient = damaged = copying = size = 0
    replicas = engine.replicas().values()
    for replica in replicas:
        unsealed += replica.final is None
        deficient += bool(replica.damage)
        damaged += bool(replica.damage) and not (replica.copying or replica.behind)
        copying += replica.copying
        size += replica.size_bytes
    return Extents(len(replicas), unsealed, deficient, damaged, copying, size)


class SidecarStatus:
    """The status of a running sidecar."""

    def __init__(self, handshake: Handshake, engine: Engine, load: ByteLoad) -> None:
        self.address = ""
        self.catalog: CatalogThread | None = None
        self.reopened = 0
        self._state = SidecarState.UP
        self._handshake = handshake
        self._engine = engine
        self._load = load
        self._up = Stopwatch()
        self._space = (Stopwatch(), engine.space())

    def space(self) -> Space:
        """The space on the disk, as it was within the last second."""
        if self._space[0].seconds() > 1:
            self._space = (Stopwatch(), self._engine.space())
        return self._space[1]

    def learn(self, state: SidecarState) -> None:
        """Note the state that it should have."""
        self._state = state

    def facts(self, dispatcher: Dispatcher, committer: GroupSync, server: Server) -> dict[str, Any]:
        """All facts by name, as `Info` reports them."""
        extents, space = count_extents(self._engine), self.space()
        stopping = "draining" if dispatcher.replica_state.draining else "up"
        heard = self.catalog.heard if self.catalog is not None else None
        return {
            "sidecar": self._handshake.sidecar,
            "generation": self._handshake.generation,
            "zone": self._handshake.zone,
            "cluster": self._handshake.cluster,
            "address": self.address,
            "version": __version__,
            "protocol": VERSION,
            "state": self._state.name.lower() if self._state else stopping,
            "read_only": self._engine.read_only,
            "failure": self._engine.failure,
            "starved": self._engine.starved,
            "reopened": self.reopened,
            "sync_failures": committer.failures,
            "up_seconds": round(self._up.seconds(), 3),
            "catalog_seconds": heard and round(heard.seconds(), 3),
            "free_bytes": space.free,
            "total_bytes": space.total,
            "extents": extents.total,
            "unsealed": extents.unsealed,
            "damaged": extents.damaged,
            "copying": extents.copying,
            "extents_bytes": extents.bytes,
            "written_bytes": self._load.bytes,
            "load": self._load.rate(),
            "connections": len(server.sessions),
            "syncs": committer.syncs,
            "sync_seconds": round(committer.seconds, 6),
            "requests": dict(dispatcher.requests),
            "refusals": dict(dispatcher.refusals),
        }


def healthy(facts: Mapping[str, Any]) -> bool:
    """Whether it accepts new extents and frames."""
    troubles = ("read_only", "failure", "sync_failures")
    return facts["state"] == "up" and not any(facts[trouble] for trouble in troubles)


_GAUGES = {
    "free_bytes": "Free bytes of the disk with the data directory.",
    "total_bytes": "Size of that disk in bytes.",
    "extents": "Extents with a replica here.",
    "unsealed": "Extents whose end is not known yet.",
    "damaged": "Extents that it knows to be damaged.",
    "copying": "Extents that are being copied here.",
    "extents_bytes": "Bytes of all frames.",
    "load": "Bytes written per second, recently.",
    "connections": "Connections of clients.",
    "read_only": "1 while it takes no frames, for lack of space or after a failed write.",
    "up_seconds": "Seconds since it was started.",
}
_COUNTERS = {
    "written_bytes": "Bytes of frames that were appended.",
    "syncs": "Syncs of the log.",
    "sync_seconds": "Seconds spent in syncs.",
    "sync_failures": "Syncs that failed.",
    "reopened": "Times that it resumed by itself after its disk was full or a table damaged.",
}


def metrics(facts: Mapping[str, Any], scrubbing: Scrubbing) -> list[Metric]:
    """The facts as metrics."""
    name = {"sidecar": facts["sidecar"], "zone": facts["zone"]}
    found = [
        Metric(f"cassq_sidecar_{key}", GAUGE, help_text, [(name, float(facts[key]))])
        for key, help_text in _GAUGES.items()
    ]
    found += [
        Metric(f"cassq_sidecar_{key}", COUNTER, help_text, [(name, float(facts[key]))])
        for key, help_text in _COUNTERS.items()
    ]
    draining = float(facts["state"] != "up")
    found.append(
        Metric(
            "cassq_sidecar_draining", GAUGE, "1 while it takes no new extents.", [(name, draining)]
        )
    )
    scrubbed = "Bytes of frames that were verified by scrubbing."
    found.append(
        Metric("cassq_sidecar_scrubbed_bytes", COUNTER, scrubbed, [(name, float(scrubbing.bytes))])
    )
    for key, label, help_text in (
        ("requests", "request", "Requests by kind."),
        ("refusals", "code", "Requests and connections that were refused, by code."),
    ):
        values = [({**name, label: kind}, float(n)) for kind, n in sorted(facts[key].items())]
        found.append(Metric(f"cassq_sidecar_{key}", COUNTER, help_text, values))
    return found
