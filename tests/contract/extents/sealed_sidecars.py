"""An extent that is about to be sealed, for the suites about that."""

from __future__ import annotations

from collections.abc import Callable

from cassq.base.clock import ManualClock
from cassq.extents.protocol.messages import Append, Request
from cassq.extents.sidecar.writer import SidecarWriter
from tests.contract.backends import SidecarPlace
from tests.contract.extents.on_sidecars import append
from tests.contract.extents.test_extents import MUCH, PIPE, START, frame, said

ACKED = 6  # messages acknowledged before anything goes wrong, in two frames
TAIL = 9  # with the frame of which nobody said that it is pushed


def kind(*kinds: type[Request]) -> Callable[[Request], bool]:
    return lambda request: isinstance(request, kinds)


def pushed(place: SidecarPlace, clock: ManualClock) -> SidecarWriter:
    """A writer that had `ACKED` messages acknowledged."""
    writer = place.open(clock).create(PIPE, "q")
    append(writer, 2)
    append(writer, 4)
    return writer


def tail() -> Append:
    """The frame that a writer sent to some replicas, and then died."""
    return Append(PIPE, 1, ACKED, TAIL - ACKED, ACKED, b"".join(frame(ACKED, TAIL - ACKED)))


def read_from(place: SidecarPlace, clock: ManualClock, end_seq: int) -> list[bytes]:
    return said(place.open(clock).reader(PIPE).read(START, end_seq, MUCH, MUCH))
