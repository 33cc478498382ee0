"""A replica_state over an engine in memory, for tests of its rules."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from cassq.base.clock import ManualClock
from cassq.extents.protocol.messages import (
    Append,
    Code,
    Mark,
    Open,
    RefusedError,
    Request,
)
from cassq.message.frames import Extras, encode, pipe_key
from cassq.sidecar.engine.port import Replica
from cassq.sidecar.engine.replica_state import ReplicaAnswer, ReplicaState
from tests.simulation.worlds.memory_engine import MemoryEngine

PIPE = "0123456789abcdef01234567"
OTHER = "89abcdef0123456701234567"


def a_frame(base_seq: int, count: int = 10, *, pipe_id: str = PIPE, fill: bytes = b"x") -> bytes:
    payloads = [fill * 8] * count
    return b"".join(encode(base_seq, payloads, Extras(1_700), pipe_key=pipe_key(pipe_id)))


def an_append(base_seq: int, count: int = 10, **changes: Any) -> Append:
    frame = a_frame(base_seq, count, pipe_id=changes.get("pipe_id", PIPE))
    return replace(Append(PIPE, 1, base_seq, count, 0, frame), **changes)


class Sidecar:
    """A replica_state over a memory engine, with a clock that is moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine()
        self.replica_state = self._replica_state()

    def _replica_state(self) -> ReplicaState:
        return ReplicaState(self.engine, self.clock.wall_ms, self.clock.boot_ms)

    def does(self, request: Request) -> Any:
        return self.replica_state.handle(request).reply

    def outcome(self, request: Request) -> ReplicaAnswer:
        return self.replica_state.handle(request)

    def refuses(self, request: Request) -> RefusedError:
        """The refusal; nothing was changed by it."""
        with pytest.raises(RefusedError) as caught:
            self.replica_state.handle(request)
        return caught.value

    def code(self, request: Request) -> Code:
        return self.refuses(request).code

    def crash(self) -> None:
        """End without a sync, and start again."""
        self.engine.crash(random.Random(7))
        self.replica_state = self._replica_state()

    def replica(self, pipe_id: str = PIPE) -> Replica:
        return self.engine.replicas()[pipe_id]


def begun() -> Sidecar:
    """One with an extent of two frames of ten messages, five of which are acknowledged."""
    made = Sidecar()
    made.does(Open(PIPE, 1, "orders", False))
    made.does(an_append(0))
    made.does(an_append(10))
    made.does(Mark(PIPE, 1, 5, False))
    return made


def copying(sidecar: Sidecar) -> None:
    sidecar.engine.note(PIPE, fenced=True, copying=True)
