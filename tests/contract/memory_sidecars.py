"""Sidecars in memory: the shelves of several, and a network to them on which things go wrong."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from cassq.base.clock import Clock, ManualClock
from cassq.errors import BackendError, BackendTimeoutError, BackendUnavailableError
from cassq.extents.protocol.messages import RefusedError, Request
from cassq.extents.sidecar.net.network import (
    CallResult,
    InFlightCall,
    Network,
    Patience,
    SidecarCall,
)
from cassq.model.sidecar_rows import SidecarRow, SidecarState
from cassq.sidecar.engine.port import Replica
from cassq.sidecar.engine.replica_state import ReplicaState
from tests.simulation.worlds.memory_engine import MemoryEngine, row_of


def no_request(request: Request) -> bool:
    """Holds nothing back."""
    return False


class MemorySidecar:
    """One sidecar, and what befalls it.

    down: it is not there. stopped: it answers nothing, and does what it was asked when it goes
    on. hold: requests that come late, see `deliver`. lost_before, lost_after: how many calls are
    lost before they come, or their replies. slow: seconds that an answer takes. deaf: what is told
    it without waiting is lost. broke: the connections over which something is under way broke.
    """

    def __init__(self, name: str, zone: str, clock: Clock) -> None:
        self.name = name
        self.zone = zone
        self.clock = clock
        self.engine = MemoryEngine(f"{name}-1")
        self.state = SidecarState.UP
        self.down = self.stopped = self.deaf = self.broke = False
        self.hold: Callable[[Request], bool] = no_request
        self.held: list[Request] = []
        self.lost_before = self.lost_after = 0
        self.slow = 0.0
        self.load = 0
        self.asked: list[Request] = []  # everything that came, in order
        self._lock = threading.Lock()
        self.start()

    def start(self) -> None:
        """A process of it begins."""
        self.replica_state = ReplicaState(self.engine, self._wall_ms, self._boot_ms)

    def _wall_ms(self) -> int:
        return self.clock.wall_ms()

    def _boot_ms(self) -> int:
        return self.clock.boot_ms()

    def crash(self, rng: random.Random | None = None) -> None:
        """It dies and is started again: what was not synced may be lost."""
        self.engine.crash(rng or random.Random(0))
        self.start()

    def lose_directory(self) -> None:
        """Its data directory is gone, and a new one made."""
        number = int(self.engine.generation.rpartition("-")[2])
        self.engine = MemoryEngine(f"{self.name}-{number + 1}")
        self.start()

    def row(self) -> SidecarRow:
        """As it tells of itself."""
        return row_of(self.engine, self.name, self.zone, state=self.state, load=self.load)

    def replica(self, pipe_id: str) -> Replica | None:
        """What it has of an extent."""
        return self.engine.replicas().get(pipe_id)

    def serve(self, requests: Sequence[Request]) -> list[Any]:
        """Replies and refusals, as durable as they say."""
        found: list[Any] = []
        with self._lock:
            for request in requests:
                self.asked.append(request)
                try:
                    outcome = self.replica_state.handle(request)
                    if outcome.durable:
                        self.engine.sync()
                    found.append(outcome.reply)
                except RefusedError as exc:
                    found.append(exc)
        return found

    def deliver(self) -> list[Any]:
        """What was held back comes at last; what is answered, which nobody hears."""
        held, self.held = self.held, []
        return self.serve(held)


class MemoryNetwork(Network):
    """The way of one process to sidecars. Waiting moves the clock, if it is one that is moved.

    cut: sidecars that this process cannot reach, though others can.
    """

    def __init__(self, sidecars: Sequence[MemorySidecar], clock: Clock) -> None:
        self.sidecars = {sidecar.name: sidecar for sidecar in sidecars}
        self.clock = clock
        self.cut: set[str] = set()
        self.calls: list[SidecarCall] = []
        self.begun: list[MemoryInFlightCall] = []  # all there ever were
        self.before_exchange: Callable[[Sequence[SidecarCall]], None] = lambda calls: None
        self.closed = False

    def exchange(self, calls: Sequence[SidecarCall], patience: Patience) -> list[CallResult]:
        self.calls += calls
        self.before_exchange(calls)
        return self.waited_for([self._call(call) for call in calls], patience)

    def waited_for(
        self, found: Sequence[tuple[float, CallResult]], patience: Patience
    ) -> list[CallResult]:
        """Answers, after so many seconds each, as they are told to who waits for them."""
        done = sorted(after for after, answer in found if answer.done)
        until = patience.all
        if len(done) >= patience.enough:
            until = min(until, done[patience.enough - 1] + patience.lag)
        waited = max((after for after, _ in found), default=0.0)
        if isinstance(self.clock, ManualClock):
            self.clock.advance(min(waited, until))
        return [
            answer if after <= until else _unanswered(answer.sidecar) for after, answer in found
        ]

    def begin(self, call: SidecarCall) -> InFlightCall | None:
        """What it asks for is done now; how long that takes is waited for in the end."""
        self.calls.append(call)
        self.before_exchange([call])
        begun = MemoryInFlightCall(self, call.sidecar, self._call(call))
        self.begun.append(begun)
        return begun

    def tell(self, sidecar: str, generation: str, requests: Sequence[Request]) -> None:
        there = self.sidecars[sidecar]
        if not there.deaf and self._reaches(sidecar, generation) is None:
            self._deliver(there, requests)

    def close(self) -> None:
        self.closed = True

    def _reaches(self, sidecar: str, generation: str) -> BackendError | None:
        there = self.sidecars.get(sidecar)
        if there is None:
            return BackendUnavailableError(f"sidecar {sidecar} is not known")
        if there.down or sidecar in self.cut:
            return BackendUnavailableError(f"sidecar {sidecar} does not listen")
        if generation not in ("", there.engine.generation):
            return BackendUnavailableError(f"sidecar {sidecar} has another data directory")
        return None

    def _call(self, call: SidecarCall) -> tuple[float, CallResult]:
        """After how many seconds which answer comes."""
        error = self._reaches(call.sidecar, call.generation)
        there = self.sidecars[call.sidecar]
        if error is None and there.lost_before > 0:
            there.lost_before -= 1
            error = BackendUnavailableError("the connection broke")
        if error is not None:
            return 0.0, CallResult(call.sidecar, [], error)
        replies = self._deliver(there, call.requests)
        if there.lost_after > 0:
            there.lost_after -= 1
            return 0.0, CallResult(
                call.sidecar, [], BackendUnavailableError("the connection broke")
            )
        good: list[Any] = []
        for reply in replies:
            if isinstance(reply, RefusedError):
                return there.slow, CallResult(call.sidecar, good, reply)
            good.append(reply)
        after = there.slow if len(good) == len(call.requests) else math.inf
        return after, CallResult(call.sidecar, good, None)

    def _deliver(self, there: MemorySidecar, requests: Sequence[Request]) -> list[Any]:
        """Replies to those that come now: one that is held back holds back all behind it."""
        now = list(requests)
        for at, request in enumerate(requests):
            if there.stopped or there.hold(request):
                now = now[:at]
                there.held += requests[at:]
                break
        return there.serve(now)


class MemoryInFlightCall(InFlightCall):
    """A call that was made ahead. state: what became of it."""

    def __init__(
        self, network: MemoryNetwork, sidecar: str, found: tuple[float, CallResult]
    ) -> None:
        self._network = network
        self._sidecar = sidecar
        self._found = found
        self.state = "under way"

    def go_on(self) -> None:
        assert self.state == "under way"

    def end(self, patience: Patience) -> CallResult:
        assert self.state == "under way"
        self.state = "taken"
        there = self._network.sidecars[self._sidecar]
        after, answer = self._found
        if there.down or there.broke or self._sidecar in self._network.cut:
            after, answer = 0.0, answer._replace(error=BackendUnavailableError("the link broke"))
        elif there.stopped:
            after = math.inf
        return self._network.waited_for([(after, answer)], patience)[0]

    def drop(self) -> None:
        assert self.state == "under way"
        self.state = "dropped"


def _unanswered(sidecar: str) -> CallResult:
    return CallResult(sidecar, [], BackendTimeoutError(f"sidecar {sidecar} did not answer in time"))
