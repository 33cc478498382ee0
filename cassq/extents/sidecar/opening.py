"""Opening an extent: creates its replicas on several sidecars, then records its placement."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import NamedTuple

from cassq.errors import (
    BackendError,
    BackendTimeoutError,
    BackendUnavailableError,
    StorageFullError,
)
from cassq.extents.protocol.messages import Code, Open, RefusedError
from cassq.extents.sidecar.net.network import Patience, SidecarCall
from cassq.extents.sidecar.placing import chosen, takers
from cassq.extents.sidecar.store_context import (
    WRITER_EPOCH,
    StoreContext,
    answered,
    majority,
    refused_as,
)
from cassq.model.sidecar_rows import Placement, ReplicaAt, SidecarRow, SidecarState

logger: logging.Logger = logging.getLogger("cassq")

# A sidecar is passed over if it has not made its replica this many seconds after the others.
OPEN_LAG = 0.3
# How long slow sidecars are waited for if no push waits for the extent.
AHEAD_SECONDS = 3.0
# Sidecars remove replicas that no placement names after an hour, so a client that needed half of
# that to make them starts over.
OPEN_MS_MAX = 1_800_000
_FULL = "read-only, for lack of space"


class ExtentRequest(NamedTuple):
    """The extent to create. ahead: no push waits for it, so slow sidecars are waited for."""

    pipe_id: str
    queue_name: str
    strict: bool = False
    ahead: bool = False


def open_extent(context: StoreContext, extent: ExtentRequest, rng: random.Random) -> Placement:
    """Create a new extent durably, on the wanted number of sidecars. If only a majority of that
    number accept it, this is logged and counted.

    Raises StorageFullError if sidecars have no room, and BackendUnavailableError if there are too
    few, or if the pipe has an extent already. Cost: a concurrent request to each, and a conditional
    write; one more request for each that fails.
    """
    began_ms = context.clock.boot_ms()
    pipe_id, wanted = extent.pipe_id, context.settings.replicas
    replicas = _Opening(context, extent, rng).replicas()
    now_ms = context.clock.boot_ms()
    if now_ms - began_ms >= OPEN_MS_MAX:
        raise BackendTimeoutError(f"creating the extent of pipe {pipe_id} took too long")
    placement = Placement(
        pipe_id,
        extent.queue_name,
        extent.strict,
        tuple(replicas),
        wanted,
        context.ids.version(),
        context.catalog.now_ms(),
    )
    if not answered(lambda: context.catalog.sidecars.add_placement(placement)):
        # The replicas just opened may belong to the existing extent, so they are left alone.
        raise BackendUnavailableError(f"pipe {pipe_id} has an extent already", retryable=False)
    full = len(replicas) >= wanted
    context.replacement.opened(full=full, able=full or context.could_be_full())
    if not full:
        context.requests.count("under_replicated")
        names = ", ".join(replica.sidecar for replica in replicas)
        logger.warning("pipe %s has %d of %d replicas: %s", pipe_id, len(replicas), wanted, names)
    return placement


class _Opening:
    """The sidecars that were asked, and their answers."""

    def __init__(self, context: StoreContext, extent: ExtentRequest, rng: random.Random) -> None:
        self._context = context
        self._ahead = extent.ahead
        self._request = Open(extent.pipe_id, WRITER_EPOCH, extent.queue_name, extent.strict)
        self._rng = rng
        self._wanted = context.settings.replicas
        self._opened: list[SidecarRow] = []
        self._asked: set[tuple[str, str]] = set()  # by name and generation
        self._slow: dict[str, SidecarRow] = {}  # they did not answer, or not in time
        self._errors: dict[str, BackendError] = {}

    def replicas(self) -> list[ReplicaAt]:
        """The replicas that were opened."""
        context, needed = self._context, majority(self._wanted)
        health, patience = context.health, context.settings.patience
        quick = Patience(context.settings.lag, OPEN_LAG, 1)
        self._ask([row for row in self._takers() if not health.avoided(row.name)], quick)
        if len(self._opened) < needed:
            context.directory.outdated()
            self._ask([row for row in self._takers() if _key(row) not in self._asked], quick)
        if len(self._opened) < needed and self._slow:
            self._ask(
                list(self._slow.values()), Patience(patience, OPEN_LAG, needed - len(self._opened))
            )
        if self._ahead and len(self._opened) < self._wanted:
            self._ask(self._takers(), Patience(AHEAD_SECONDS, AHEAD_SECONDS, 1))
        if len(self._opened) < needed:
            raise self._too_few(needed)
        return [ReplicaAt(row.name, row.generation) for row in self._opened]

    def _takers(self) -> list[SidecarRow]:
        """The sidecars that may get a replica: not those that have one, whatever their rows say by
        now. A second replica there would count as another disk."""
        have = {row.name for row in self._opened}
        return takers(self._context.directory.rows(), self._context.catalog.now_ms(), have)

    def _ask(self, rows: Sequence[SidecarRow], patience: Patience) -> None:
        """Ask sidecars until there are enough replicas, or no sidecar is left to ask."""
        left = list(rows)
        while left and len(self._opened) < self._wanted:
            count = self._wanted - len(self._opened)
            zone = self._context.settings.zone
            picked = chosen(left, count, self._rng, beside=self._opened, zone=zone)
            left = [row for row in left if row not in picked]
            calls = [SidecarCall(row.name, row.generation, [self._request]) for row in picked]
            answers = self._context.network.exchange(calls, patience)
            self._context.health.note(answers)
            for row, answer in zip(picked, answers, strict=True):
                self._asked.add(_key(row))
                self._slow.pop(row.name, None)
                if answer.error is None:
                    self._opened.append(row)
                    continue
                self._errors[row.name] = answer.error
                self._context.directory.outdated()
                if not isinstance(answer.error, RefusedError):
                    self._slow[row.name] = row

    def _too_few(self, needed: int) -> BackendError:
        errors, opened = self._errors, len(self._opened)
        rows = self._context.directory.rows()
        reasons = {row.name: _not_asked(row, self._context.catalog.now_ms()) for row in rows}
        full = {name for name, why in reasons.items() if why == _FULL}
        full |= {name for name, error in errors.items() if refused_as(error, Code.FULL)}
        reasons |= {name: error.message for name, error in errors.items()}
        what = f"a new pipe needs {needed} sidecars, but {opened} took it; "
        what += f"{len(rows)} are registered here"
        what += "".join(f"; {name}: {why}" for name, why in sorted(reasons.items()) if why)
        if len(full) >= needed - opened:
            return StorageFullError(what)
        hints = sorted({error.hint for error in errors.values() if error.hint})
        if hints:
            hint = "; ".join(hints)
        elif len(rows) < needed:
            hint = "start sidecars with this catalog (`cassq sidecar serve`)"
            hint += ", or ask for fewer with replicas= in the URL"
        else:
            hint = "`cassq sidecar list` shows the sidecars"
        return BackendUnavailableError(what, hint=hint)


def _not_asked(row: SidecarRow, now_ms: int) -> str:
    """Why a sidecar is not asked to accept a new extent; "" if it is."""
    if row.state is not SidecarState.UP:
        return row.state.name.lower()
    if not row.alive(now_ms):
        return f"no heartbeat for {(now_ms - row.seen_ms) / 1000:.0f} s"
    return _FULL if row.read_only else ""


def _key(row: SidecarRow) -> tuple[str, str]:
    return row.name, row.generation
