"""The simulated network: the way of one process to the sidecars; every step on it is a point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cassq.errors import BackendError, BackendTimeoutError, BackendUnavailableError
from cassq.extents.protocol.messages import Append
from cassq.extents.sidecar.net.network import (
    CallResult,
    InFlightCall,
    Network,
    Patience,
    SidecarCall,
)
from tests.simulation.worlds.fleet import Fleet, SimSidecar
from tests.simulation.worlds.scheduler import CalmProcess, Process


class SimNetwork(Network):
    """Calls may be lost before or after their effect, come late, or take long. The world's own
    hand reaches every sidecar, whatever became of it."""

    def __init__(self, process: Process, fleet: Fleet) -> None:
        self._process = process
        self._fleet = fleet
        self._calm = isinstance(process, CalmProcess)

    def exchange(self, calls: Sequence[SidecarCall], patience: Patience) -> list[CallResult]:
        process, found = self._process, dict[int, CallResult]()
        order = list(enumerate(calls))
        process.rng.shuffle(order)
        for number, call in order:
            process.point()
            found[number] = self._call(call)
        answers = [found[number] for number in range(len(calls))]
        if any(isinstance(answer.error, BackendTimeoutError) for answer in answers):
            done = sum(answer.done for answer in answers)
            process.sleep(patience.lag if done >= patience.enough else patience.all)
        for answer in answers:
            if answer.error is not None and not self._calm:
                process.meet_fault(f"{answer.sidecar}: {answer.error.message}")
        return answers

    def begin(self, call: SidecarCall) -> InFlightCall | None:
        """What it asks for is done now, or when it is waited for."""
        process = self._process
        process.point()
        if process.rng.random() < 0.1:
            return None
        answer = self._call(call) if process.rng.random() < 0.5 else None
        return _SimInFlightCall(self, call, answer)

    def begun(self, call: SidecarCall, answer: CallResult | None, patience: Patience) -> CallResult:
        """The answer to a call made ahead, if it came before, or as it comes now."""
        if answer is None or answer.error is not None:
            return self.exchange([call], patience)[0]
        self._process.point()
        return answer

    def tell(self, sidecar: str, generation: str, requests: Sequence[Any]) -> None:
        process = self._process
        process.point(1)
        there = self._fleet.sidecars[sidecar]
        if self._reach(there, generation) is not None or self._falls("lost"):
            return
        if (there.stopped and not self._calm) or self._falls("late"):
            there.late.append(requests)
            return
        for request in requests:
            there.handle(request)

    def close(self) -> None:
        """Nothing is held."""

    def _falls(self, what: str) -> bool:
        """Whether it so falls."""
        fleet = self._fleet
        rate: float = getattr(fleet.scenario, f"{what}_rate")
        return not (self._calm or fleet.healing) and self._process.rng.random() < rate

    def _reach(self, there: SimSidecar, generation: str) -> BackendError | None:
        if there.down and not self._calm:
            return BackendUnavailableError(f"{there.name} does not listen")
        if generation not in ("", there.engine.generation):
            return BackendUnavailableError(f"{there.name} has another directory", retryable=False)
        return None

    def _call(self, call: SidecarCall) -> CallResult:
        there = self._fleet.sidecars[call.sidecar]
        error = self._reach(there, call.generation)
        if error is not None:
            return CallResult(call.sidecar, [], error)
        if self._falls("lost"):
            return self._broken(call, "on the way there")
        if there.stopped and not self._calm:
            there.late.append(call.requests)
            return self._unanswered(call, "it is stopped")
        if self._falls("late"):
            there.late.append(call.requests)
            if self._process.rng.random() < 0.5:
                return self._unanswered(call, "it comes late")
        return self._served(there, call)

    def _served(self, there: SimSidecar, call: SidecarCall) -> CallResult:
        """The requests are carried out, and answered when they are on disk."""
        process, run = self._process, there.run
        replies: list[Any] = []
        error: BackendError | None = None
        durable = False
        for number, request in enumerate(call.requests):
            if number and isinstance(request, Append):  # one of several frames
                process.point()
                if there.run != run:
                    return self._broken(call, "by a crash in the middle")
            reply, synced = there.handle(request)
            durable |= synced
            if isinstance(reply, BackendError):
                error = error or reply
            elif error is None:
                replies.append(reply)
        if durable:
            process.point()
            if there.run != run or (there.down and not self._calm):
                return self._broken(call, "by a crash before a sync")
            try:
                there.engine.sync()
            except BackendError:
                return self._broken(call, "by a failed sync")
        process.point()
        if self._falls("lost"):
            return self._broken(call, "on the way back")
        if self._falls("slow"):
            return self._unanswered(call, "it is slow")
        return CallResult(call.sidecar, replies, error)

    def _broken(self, call: SidecarCall, where: str) -> CallResult:
        return CallResult(call.sidecar, [], BackendUnavailableError(f"broken {where}"))

    def _unanswered(self, call: SidecarCall, why: str) -> CallResult:
        return CallResult(call.sidecar, [], BackendTimeoutError(f"silent: {why}"))


class _SimInFlightCall(InFlightCall):
    """A call made ahead. answer: None when it is done only when it is waited for."""

    def __init__(self, network: SimNetwork, call: SidecarCall, answer: CallResult | None) -> None:
        self._network = network
        self._call = call
        self._answer = answer

    def go_on(self) -> None:
        """It comes by itself."""

    def end(self, patience: Patience) -> CallResult:
        return self._network.begun(self._call, self._answer, patience)

    def drop(self) -> None:
        """Nothing is held."""
