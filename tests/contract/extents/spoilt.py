"""Ways in which a sidecar in memory fails who reads an extent from it."""

from __future__ import annotations

from cassq.extents.protocol.messages import Drop
from tests.contract.extents.test_extents import PIPE
from tests.contract.memory_sidecars import MemorySidecar


def flipped(sidecar: MemorySidecar, seq: int) -> None:
    """A bit of the frame that begins at `seq`; the others do the same to all of it."""
    sidecar.engine.flip(PIPE, seq)


def emptied(sidecar: MemorySidecar, seq: int) -> None:
    sidecar.serve([Drop([PIPE])])


def shortened(sidecar: MemorySidecar, seq: int) -> None:
    sidecar.engine.cut(PIPE, seq)


def unreachable(sidecar: MemorySidecar, seq: int) -> None:
    sidecar.down = True


def silent(sidecar: MemorySidecar, seq: int) -> None:
    sidecar.stopped = True


def gone(sidecar: MemorySidecar, seq: int) -> None:
    sidecar.lose_directory()


SPOILT = [flipped, emptied, shortened, unreachable, silent, gone]
