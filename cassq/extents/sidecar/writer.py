"""Writing an extent: every frame goes to all replicas, and counts once all of them have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cassq.errors import BackendError, BackendUnavailableError, PipeSealedError
from cassq.extents.protocol.messages import Append, Code, Ends, Mark, Request
from cassq.extents.server_writer import ServerWriter
from cassq.extents.sidecar.net.network import CallResult, Patience
from cassq.extents.sidecar.store_context import (
    WRITER_EPOCH,
    StoreContext,
    call_of,
    majority,
    refused_as,
)
from cassq.message.frames import Place, frame_seqs
from cassq.model.sidecar_rows import Placement

# How often an idle writer checks for a seal, and how long it waits for the answers.
LOOK_MS, LOOK_PATIENCE = 250, 0.05
# Bytes of one append, to all replicas together. Frames are sent and synced side by side, within
# the window of a connection, but each append ends with a wait for its last sync: with one replica,
# fewer and larger appends take half the time. Three get a usual append each; a slow one must not
# fall further behind the others than that.
APPEND_BYTES_MAX = 24 * 1024 * 1024


class SidecarWriter(ServerWriter):
    """The writer of an extent on sidecars."""

    def __init__(
        self, context: StoreContext, placement: Placement, closed: Callable[[str], object]
    ) -> None:
        super().__init__(placement.pipe_id, context.clock, closed)
        self._context = context
        self._placement = placement
        self._leaving = False
        self._asked_ms = self.last_append_ms
        self.missing: int = placement.wanted - len(placement.replicas)
        share = APPEND_BYTES_MAX // len(placement.replicas)
        self.append_bytes: int = max(ServerWriter.append_bytes, share)

    def _write(self, frames: Sequence[tuple[bytes, bytes]], end_seq: int) -> Place:
        """Cost: the frames to each replica, side by side, and a sync there."""
        acked = self._end.seq
        requests: list[Request] = []
        for frame in frames:
            base_seq, count = frame_seqs(frame[0])
            requests.append(Append(self.pipe_id, WRITER_EPOCH, base_seq, count, acked, frame))
        settings, others = self._context.settings, len(self._placement.replicas) - 1
        patience = Patience(settings.patience, settings.lag, max(1, others))
        answers = self._asked(requests, patience)
        self._context.health.note(answers)
        self._check(answers, end_seq)
        return Place(end_seq, end_seq)

    def sealed(self) -> bool:
        """True also if a replica's sidecar drains, or failed before anything was written. Cost: if
        nothing was written for LOOK_MS, a request to each replica, with a wait of at most 50 ms."""
        if self._end.seq == 0 and not self._dead:
            health = self._context.health
            if any(health.avoided(replica.sidecar) for replica in self._placement.replicas):
                return True
        idle_ms = self._context.clock.boot_ms() - self._asked_ms
        if not (self._dead or self._sealed) and idle_ms >= self._context.look_ms:
            self._look()
        return self._dead or self._sealed or self._leaving

    def may_improve(self) -> bool:
        """Thread-safe. Cost: while replicas are missing, as `SidecarDirectory.rows`."""
        context = self._context
        return self.missing > 0 and context.replacement.due() and context.could_be_full()

    def was_sealed(self) -> None:
        """Note that this process has sealed the extent."""
        self._sealed = True

    def _asked(self, requests: Sequence[Request], patience: Patience) -> list[CallResult]:
        self._asked_ms = self._context.clock.boot_ms()
        calls = [call_of(replica, requests) for replica in self._placement.replicas]
        return self._context.network.exchange(calls, patience)

    def _check(self, answers: Sequence[CallResult], end_seq: int) -> None:
        """Raise unless every replica has everything, and note what else they report."""
        failed = [answer for answer in answers if answer.error is not None]
        if any(refused_as(answer.error, Code.FENCED) for answer in failed):
            self._sealed = True
            raise PipeSealedError(f"pipe {self.pipe_id} was sealed")
        if len(failed) == len(answers) and all(
            refused_as(answer.error, Code.UNKNOWN) for answer in failed
        ):
            raise PipeSealedError(f"the extent of pipe {self.pipe_id} is gone")
        if failed:
            reasons = "; ".join(f"{answer.sidecar}: {answer.error}" for answer in failed)
            raise self._failed(f"{len(failed)} of {len(answers)} replicas failed: {reasons}")
        for answer in answers:
            if answer.replies[-1].end < end_seq:
                raise self._failed(f"{answer.sidecar} has less than was sent to it")
            self._leaving |= any(reply.leave for reply in answer.replies)
            self._turn_wanted |= any(reply.turn for reply in answer.replies)

    def _failed(self, reasons: str) -> BackendError:
        return BackendUnavailableError(
            f"appending to pipe {self.pipe_id}: {reasons}", outcome_unknown=True
        )

    def _mark(self) -> Mark:
        return Mark(self.pipe_id, WRITER_EPOCH, self._end.seq, self._closed)

    def _publish(self) -> None:
        for replica in self._placement.replicas:
            self._context.network.tell(replica.sidecar, replica.generation, [self._mark()])

    def _look(self) -> None:
        """Check whether a replica is fenced, and publish the end once more, since background
        messages may be lost."""
        needed = majority(len(self._placement.replicas))
        asked: list[Request] = [self._mark(), Ends([(self.pipe_id, self._end.seq)], 0)]
        for answer in self._asked(asked, Patience(LOOK_PATIENCE, 0.0, needed)):
            if answer.error is None:
                reasons = answer.replies[1].ends[0]
                self._sealed |= reasons is None or reasons[2]
            elif refused_as(answer.error, Code.UNKNOWN):
                self._sealed = True
