"""Wrong parts of the replicated store: what planted bugs put in the place of the right ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from cassq.extents.protocol.messages import Code, Ends, EndsAre, Fence, Fenced, RefusedError
from cassq.extents.sidecar import sealing
from cassq.extents.sidecar.net.network import CallResult, Patience, SidecarCall
from cassq.extents.sidecar.reader import SidecarReader
from cassq.extents.sidecar.store_context import majority
from cassq.extents.sidecar.writer import SidecarWriter
from cassq.model.sidecar_rows import ReplicaAt
from cassq.sidecar.engine.port import Replica
from cassq.sidecar.engine.replica_state import ReplicaAnswer, ReplicaState
from tests.simulation.worlds.memory_engine import MemoryEngine
from tests.simulation.worlds.simnetwork import SimNetwork

# --- writing ----------------------------------------------------------------------------------


def acks_with_a_majority() -> AbstractContextManager[Any]:
    """What most replicas have is acknowledged."""
    check = SidecarWriter._check

    def lenient(self: SidecarWriter, answers: Sequence[CallResult], end_seq: int) -> None:
        good = [answer for answer in answers if answer.done]
        check(self, good if len(good) >= majority(len(answers)) else answers, end_seq)

    return mock.patch.object(SidecarWriter, "_check", lenient)


class NeverSyncsEngine(MemoryEngine):
    """Answers at once, and syncs some other day."""

    def sync(self) -> None:
        self.syncs += 1


# --- sealing ----------------------------------------------------------------------------------


def seals_unfenced() -> AbstractContextManager[Any]:
    """The sealer asks for ends, and fences nobody."""
    exchange = SimNetwork.exchange

    def asks(
        self: SimNetwork, calls: Sequence[SidecarCall], patience: Patience
    ) -> list[CallResult]:
        if not isinstance(calls[0].requests[0], Fence):
            return exchange(self, calls, patience)
        pipe_id = calls[0].requests[0].pipe_id
        asked = [call._replace(requests=[Ends([(pipe_id, 0)], 0)]) for call in calls]
        return [_as_fenced(answer) for answer in exchange(self, asked, patience)]

    return mock.patch.object(SimNetwork, "exchange", asks)


def _as_fenced(answer: CallResult) -> CallResult:
    if answer.error is not None:
        return answer
    (end,) = answer.replies[0].ends
    if end is None:
        return answer._replace(replies=[], error=RefusedError(Code.UNKNOWN))
    return answer._replace(replies=[Fenced(end[1], end[0], False)])


def seals_at_the_largest_end() -> AbstractContextManager[Any]:
    """What any replica has counts."""

    def largest(answers: Sequence[Fenced], replicas: int) -> int | None:
        if sealing_agrees(answers, replicas) is None:
            return None
        return max(fenced.end for fenced in answers)

    sealing_agrees = sealing.agreed_end
    return mock.patch.object(sealing, "agreed_end", largest)


def seals_with_one() -> AbstractContextManager[Any]:
    """What one replica says is the end."""
    return mock.patch.object(sealing, "majority", lambda replicas: 1)


class UnfencedReplicas(ReplicaState):
    """A sidecar that takes what a fenced writer sends."""

    def _writable(self, replica: Replica, epoch: int) -> None:
        """Everything is welcome."""


class ForgetfulReplicas(ReplicaState):
    """A fence is answered and not kept."""

    def _fence(self, request: Fence) -> ReplicaAnswer:
        replica = self._replica(request.pipe_id)
        return ReplicaAnswer(Fenced(replica.end, replica.acked, replica.copying), durable=True)


class ProudReplicas(ReplicaState):
    """A damaged replica counts as any other."""

    def _fence(self, request: Fence) -> ReplicaAnswer:
        replica = self._replica(request.pipe_id)
        self._engine.note(request.pipe_id, epoch=request.epoch, fenced=True)
        return ReplicaAnswer(Fenced(replica.end, 0, False), durable=True, grown=request.pipe_id)


# --- reading ----------------------------------------------------------------------------------


class EagerReplicas(ReplicaState):
    """What a replica has is called acknowledged."""

    def _ends(self, request: Ends) -> ReplicaAnswer:
        outcome = super()._ends(request)
        ends = [end and (end[1], *end[1:]) for end in outcome.reply.ends]  # type: ignore[union-attr]
        return ReplicaAnswer(EndsAre(ends))


@contextmanager
def reads_one_replica() -> Iterator[None]:
    """A reader never changes over."""
    tries = SidecarReader._tries

    def first_only(
        self: SidecarReader, asked: dict[ReplicaAt, CallResult]
    ) -> Iterator[tuple[list[ReplicaAt], float]]:
        yield next(iter(tries(self, asked)))

    with mock.patch.object(SidecarReader, "_tries", first_only):
        yield
