"""A sidecar's rules for requests about extents, without sockets, threads or time.

The server calls it from one thread, and sends an answer that must be durable only after a sync of
the engine; so does the simulation. A replica is in one of these states::

    open ──fence──> fenced ──settle──> settled ──drop──> gone
                       └── copying (from another sidecar, until it is whole) ──> settled

Invariants:

1. A fenced replica takes no append, whatever the epoch; nor does one with a greater epoch than the
   writer's.
2. Frames follow one another without a gap. A frame that is there already is acknowledged again
   if it is the same, byte for byte; a different one in its place is refused.
3. The end that a replica reports in `Fenced` covers everything it ever acknowledged; one that
   cannot guarantee that refuses as damaged. An unfinished copy says so, and does not count.
4. A replica that has less than what all replicas are said to have is damaged from then on. A
   damaged one takes nothing and answers no fence, but returns its good frames.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from heapq import nsmallest
from typing import NamedTuple

from cassq.errors import BackendError, BrokenInvariantError, StorageFullError
from cassq.extents.protocol.messages import (
    EXTENTS_MAX,
    READ_BYTES_MAX,
    WAIT_MS_MAX,
    Append,
    Appended,
    Code,
    Done,
    Drop,
    Ends,
    EndsAre,
    Fence,
    Fenced,
    Frames,
    List,
    Listed,
    Mark,
    Open,
    Read,
    RefusedError,
    Reply,
    Request,
    Settle,
    Turn,
    TurnAsked,
)
from cassq.message.frames import HEADER_SIZE, FrameError
from cassq.sidecar.engine.checks import (
    LISTED,
    check_open,
    checked_frame,
    is_listed,
    listed_entry,
    within,
)
from cassq.sidecar.engine.port import Engine, Replica

logger: logging.Logger = logging.getLogger("cassq")


class ReplicaAnswer(NamedTuple):
    """What to answer. durable: send it only after a sync of the engine that begins from now on.
    grown: for waiters, the pipe whose `acked` or end moved, or that was closed, fenced, settled or
    dropped; "" if none."""

    reply: Reply
    durable: bool = False
    grown: str = ""


class ReplicaState:
    """The extents of one sidecar. wall_ms: the wall clock. boot_ms: the boot clock, for idle
    times, which count from the start at the earliest. Not thread-safe, except for `Read`.

    draining: new extents are refused, and writers are asked to leave.
    """

    def __init__(
        self, engine: Engine, wall_ms: Callable[[], int], boot_ms: Callable[[], int]
    ) -> None:
        self._engine = engine
        self._wall_ms = wall_ms
        self._boot_ms = boot_ms
        self._started_ms = boot_ms()
        self._appended_ms: dict[str, int] = {}
        # From the writer, and from pushers that want its turn: worthless once this process ends.
        self._closed: set[str] = set()
        self._turns: set[str] = set()
        # Found by reads, which may come from other threads; noted by the next change.
        self._found: deque[tuple[str, str, bool]] = deque()
        self.draining = False

    def handle(self, request: Request) -> ReplicaAnswer:
        """Carry out a request. Raises RefusedError: then nothing was changed, except that a replica
        found to be damaged is noted as such; after FAILED the outcome is unknown.

        Not for Hello, Info, Scrub and Replicate, which need more than replicas. Never waits.
        """
        try:
            if isinstance(request, Read):
                return self._read(request)
            self.note_found()
            return self._change(request)
        except RefusedError:
            raise
        except StorageFullError as exc:
            code = Code.FAILED if exc.outcome_unknown else Code.FULL
            raise RefusedError(code, exc.message, hint=exc.hint) from exc
        except BackendError as exc:
            raise RefusedError(Code.FAILED, exc.message, hint=exc.hint) from exc

    def found(self, pipe_id: str, damage: str, *, behind: bool = False) -> None:
        """Report that an extent was found to be damaged, or only `behind`: see `Replica`. Callable
        from any thread."""
        self._found.append((pipe_id, damage, behind))

    def note_found(self) -> None:
        """Note damage that was `found` since; `handle` does that too, with the next request that
        is not a read."""
        while self._found:
            self._damage(*self._found.popleft())

    def idle_ms(self, pipe_id: str) -> int:
        """Milliseconds since the last append to an extent, or since the start."""
        return self._boot_ms() - self._appended_ms.get(pipe_id, self._started_ms)

    def _change(self, request: Request) -> ReplicaAnswer:
        match request:
            case Append():
                return self._append(request)
            case Mark():
                return self._mark(request)
            case Ends():
                return self._ends(request)
            case Open():
                return self._open(request)
            case Turn():
                self._replica(request.pipe_id)
                self._turns.add(request.pipe_id)
                return ReplicaAnswer(TurnAsked(self.idle_ms(request.pipe_id)))
            case Fence():
                return self._fence(request)
            case Settle():
                return self._settle(request)
            case Drop():
                return self._drop(request)
            case List():
                return self._list(request)
        raise BrokenInvariantError(f"{type(request).__name__} is not a request for a replica")

    # --- a writer's ---------------------------------------------------------------------------

    def _open(self, request: Open) -> ReplicaAnswer:
        pipe_id, name = request.pipe_id, request.queue_name
        check_open(request)
        replica = self._engine.replicas().get(pipe_id)
        if replica is None:
            if self.draining:
                raise RefusedError(Code.DRAINING, "this sidecar accepts no new extents")
            if self._engine.read_only:
                raise RefusedError(Code.FULL, "this sidecar is read-only")
            self._engine.create(
                Replica(pipe_id, name, request.strict, self._wall_ms(), request.epoch)
            )
        else:
            if (replica.queue_name, replica.strict) != (name, request.strict):
                raise RefusedError(Code.CONFLICT, f"{pipe_id} is an extent of another queue")
            self._writable(replica, request.epoch)
            if replica.epoch != request.epoch:
                raise RefusedError(Code.CONFLICT, f"{pipe_id} is of epoch {replica.epoch}")
        return ReplicaAnswer(Done(), durable=True)

    def _append(self, request: Append) -> ReplicaAnswer:
        replica = self._replica(request.pipe_id)
        self._writable(replica, request.epoch)
        frame = checked_frame(request)
        pipe_id, base_seq, end = request.pipe_id, request.base_seq, replica.end
        self._has(replica, request.acked)
        if base_seq > end:
            raise RefusedError(
                Code.GAP, f"{pipe_id} ends at {end}, a frame at {base_seq} leaves a gap", end=end
            )
        if base_seq < end:
            self._again(replica, base_seq, frame)
            grown = self._acknowledged(replica, request.acked)
        else:
            if request.epoch > replica.epoch:
                self._engine.note(pipe_id, epoch=request.epoch)
            acked = max(request.acked, replica.acked)
            self._engine.append(pipe_id, base_seq, request.messages, frame, acked)
            grown = pipe_id
        self._appended_ms[pipe_id] = self._boot_ms()
        self._closed.discard(pipe_id)
        turn = pipe_id in self._turns
        self._turns.discard(pipe_id)
        return ReplicaAnswer(Appended(replica.end, turn, self.draining), durable=True, grown=grown)

    def _again(self, replica: Replica, base_seq: int, frame: bytes) -> None:
        """Check that a frame below the end is the same as the stored one."""
        try:
            there = self._engine.frame_at(replica.pipe_id, base_seq)
        except FrameError as exc:
            raise self._damaged(replica, exc.message) from exc
        if there is None or there[:HEADER_SIZE] != frame[:HEADER_SIZE]:
            raise RefusedError(
                Code.CONFLICT,
                f"another frame stands at {base_seq} of {replica.pipe_id}",
                end=replica.end,
            )
        if there != frame:
            raise self._damaged(replica, f"the frame at seq {base_seq} has changed")

    def _mark(self, request: Mark) -> ReplicaAnswer:
        """The epoch does not matter: what is acknowledged stays so, whatever was fenced since."""
        replica = self._replica(request.pipe_id)
        self._has(replica, request.acked)
        grown = self._acknowledged(replica, request.acked)
        if request.closed and request.epoch >= replica.epoch:
            self._closed.add(request.pipe_id)
            grown = request.pipe_id
        return ReplicaAnswer(Done(), grown=grown)

    def _acknowledged(self, replica: Replica, acked: int) -> str:
        """Note what is acknowledged; returns the pipe's id if that is news."""
        if acked <= replica.acked:
            return ""
        self._engine.note(replica.pipe_id, acked=acked)
        return replica.pipe_id

    # --- a reader's ---------------------------------------------------------------------------

    def _read(self, request: Read) -> ReplicaAnswer:
        replica = self._replica(request.pipe_id)
        if request.seq < 0 or request.frames_max < 1:
            raise RefusedError(Code.MALFORMED, "a read must request a frame at seq 0 or later")
        within("bytes", request.bytes_max, READ_BYTES_MAX)
        within("milliseconds", request.wait_ms, WAIT_MS_MAX)
        pipe_id, seq, end_seq = request.pipe_id, request.seq, request.end_seq
        try:
            frames = self._engine.read(pipe_id, seq, end_seq, request.bytes_max, request.frames_max)
        except FrameError as exc:
            self.found(pipe_id, exc.message)
            raise RefusedError(Code.DAMAGED, exc.message, end=replica.end) from exc
        if not frames and seq < end_seq and replica.damage:
            raise RefusedError(Code.DAMAGED, replica.damage, end=replica.end)
        return ReplicaAnswer(Frames(replica.end, b"".join(frames)))

    def _ends(self, request: Ends) -> ReplicaAnswer:
        within("extents", len(request.asked), EXTENTS_MAX)
        within("milliseconds", request.wait_ms, WAIT_MS_MAX)
        replicas = self._engine.replicas()
        return ReplicaAnswer(
            EndsAre([self._end(replicas.get(pipe_id)) for pipe_id, _ in request.asked])
        )

    def _end(self, replica: Replica | None) -> tuple[int, int, bool, bool, int] | None:
        if replica is None:
            return None
        pipe_id = replica.pipe_id
        # Below a recorded end everything counts, whatever the writer last reported.
        acked = replica.acked if replica.final is None else replica.final
        closed = pipe_id in self._closed
        return (acked, replica.end, replica.fenced, closed, self.idle_ms(pipe_id))

    # --- for sealers, and for the orphan collector --------------------------------------------

    def _fence(self, request: Fence) -> ReplicaAnswer:
        replica = self._replica(request.pipe_id)
        if replica.damage:
            raise RefusedError(Code.DAMAGED, replica.damage, end=replica.end)
        if request.epoch < replica.epoch:
            raise RefusedError(
                Code.FENCED, f"{request.pipe_id} is of epoch {replica.epoch}", end=replica.end
            )
        if not replica.fenced or request.epoch > replica.epoch:
            self._engine.note(request.pipe_id, epoch=request.epoch, fenced=True)
        fenced = Fenced(replica.end, replica.acked, replica.copying)
        return ReplicaAnswer(fenced, durable=True, grown=request.pipe_id)

    def _settle(self, request: Settle) -> ReplicaAnswer:
        replica = self._replica(request.pipe_id)
        pipe_id, end = request.pipe_id, request.end
        if replica.damage:
            raise RefusedError(Code.DAMAGED, replica.damage, end=replica.end)
        if replica.final is not None:
            if replica.final != end:
                raise RefusedError(
                    Code.CONFLICT, f"{pipe_id} ends at {replica.final}, not {end}", end=replica.end
                )
            # Replicas of an engine that cannot sync any more are copied, but not relied on.
            return ReplicaAnswer(Done(), durable=not self._engine.failure)
        if replica.copying:
            raise RefusedError(Code.BUSY, f"{pipe_id} is being copied", end=replica.end)
        if end < replica.acked:
            raise RefusedError(
                Code.CONFLICT,
                f"{pipe_id} cannot end at {end}: {replica.acked} messages are acknowledged",
                end=replica.end,
            )
        self._has(replica, end)
        if end < replica.end:
            try:
                between = self._engine.frame_at(pipe_id, end) is not None
            except FrameError:
                between = True  # a frame is there, though damaged: it must go
            if not between:
                raise RefusedError(
                    Code.CONFLICT, f"{end} lies within a frame of {pipe_id}", end=replica.end
                )
            # First: cutting again after a crash does no harm; a tail past the end would.
            self._engine.cut(pipe_id, end)
        self._engine.note(pipe_id, fenced=True, final=end)
        return ReplicaAnswer(Done(), durable=True, grown=pipe_id)

    def _drop(self, request: Drop) -> ReplicaAnswer:
        within("extents", len(request.pipe_ids), EXTENTS_MAX)
        replicas = self._engine.replicas()
        there = [pipe_id for pipe_id in dict.fromkeys(request.pipe_ids) if pipe_id in replicas]
        if there:
            self._engine.drop(there)
        for pipe_id in there:
            self._appended_ms.pop(pipe_id, None)
            self._closed.discard(pipe_id)
            self._turns.discard(pipe_id)
        # If several are dropped, their waiters learn of it when their time is over, which is soon.
        return ReplicaAnswer(Done(), durable=True, grown=there[0] if len(there) == 1 else "")

    def _list(self, request: List) -> ReplicaAnswer:
        within("extents", request.limit, EXTENTS_MAX)
        if request.limit < 1 or request.only not in LISTED:
            raise RefusedError(Code.MALFORMED, f"{request} cannot be listed")
        chosen = [
            replica
            for replica in self._engine.replicas().values()
            if replica.pipe_id > request.after and is_listed(replica, request.only)
        ]
        first = nsmallest(request.limit, chosen, key=lambda replica: replica.pipe_id)
        return ReplicaAnswer(Listed([listed_entry(replica) for replica in first]))

    # --- what they have in common -----------------------------------------------------------------

    def _replica(self, pipe_id: str) -> Replica:
        replica = self._engine.replicas().get(pipe_id)
        if replica is None:
            raise RefusedError(Code.UNKNOWN, f"there is no extent {pipe_id!r} here")
        return replica

    def _writable(self, replica: Replica, epoch: int) -> None:
        if replica.damage:
            raise RefusedError(Code.DAMAGED, replica.damage, end=replica.end)
        if replica.fenced or replica.copying or replica.final is not None:
            raise RefusedError(Code.FENCED, f"{replica.pipe_id} is sealed", end=replica.end)
        if epoch < replica.epoch:
            raise RefusedError(
                Code.FENCED, f"{replica.pipe_id} is of epoch {replica.epoch}", end=replica.end
            )

    def _has(self, replica: Replica, end: int) -> None:
        """Check that a replica has what all replicas are said to have."""
        if end > replica.end and not replica.copying:
            raise self._damaged(replica, f"it ends at {replica.end}, all replicas had {end}")

    def _damaged(self, replica: Replica, damage: str) -> RefusedError:
        """Note that a replica is damaged; returns the refusal that says so."""
        self._damage(replica.pipe_id, damage, behind=False)
        return RefusedError(Code.DAMAGED, replica.damage or damage, end=replica.end)

    def _damage(self, pipe_id: str, damage: str, behind: bool) -> None:
        """The first damage found is kept: it is nearest to the cause. One that was only behind is
        damaged from then on."""
        replica = self._engine.replicas().get(pipe_id)
        if replica is None or (replica.damage and (behind or not replica.behind)):
            return
        try:
            self._engine.note(pipe_id, damage=damage, behind=behind)
        except BackendError as exc:
            # Reported all the same while the engine is open: it may never write again.
            logger.error(
                "extent %s is damaged: %s; this could not be recorded: %s", pipe_id, damage, exc
            )
