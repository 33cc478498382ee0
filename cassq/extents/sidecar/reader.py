"""Reading an extent from its replicas in slices, frame by verified frame.

A reader that reads fast and in order prefetches the next slice while it uses the present one. It
does so when a slice followed the previous one, both were read within `AHEAD_MS`, and more is
certainly there: so never for a few messages. The prefetch is dropped when the reader jumps,
switches to another replica, or is closed.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from cassq.errors import BackendError
from cassq.extents.frame_cache import FrameCache
from cassq.extents.port import ExtentReader, ExtentUnavailableError, Slice, missing
from cassq.extents.protocol.messages import Code, Frames, Read, RefusedError, Turn
from cassq.extents.read_loop import parted, read_slices
from cassq.extents.sidecar.net.network import CallResult, Patience
from cassq.extents.sidecar.published import KnownEnds
from cassq.extents.sidecar.read_ahead import AHEAD_MS, ReadAhead
from cassq.extents.sidecar.replicas import nearest
from cassq.extents.sidecar.store_context import StoreContext, call_of, majority, refused_as
from cassq.extents.sidecar.writer import SidecarWriter
from cassq.message.frames import Frame, FrameError, Place, decode, frame_span, pipe_key
from cassq.model.sidecar_rows import Placement, ReplicaAt

logger: logging.Logger = logging.getLogger("cassq")

# The first slice of an extent, or after a jump; in order each is twice the one before, up to this
# many times as much.
SLICE_BYTES, _GROWTH_MAX = 128 * 1024, 32
_FRAMES_MAX = 10_000


class SidecarReader(ExtentReader):
    """Reads one extent; keeps the last slice for the next read. Memory: two slices, the present
    one and the next; each of 4 MiB at most, or one frame if that is longer.

    kept, ends: shared by the readers of this process: frames they read, and how far pipes go.
    local: the writer of a pipe, if it is in this process. ahead: its own prefetch.
    """

    earlier_boot = False

    def __init__(
        self,
        context: StoreContext,
        placement: Placement,
        kept: FrameCache,
        ends: KnownEnds,
        local: Callable[[str], SidecarWriter | None],
        ahead: ReadAhead,
    ) -> None:
        self._context = context
        self._placement = placement
        self._kept = kept
        self._ends = ends
        self._local = local
        self._pipe_id = placement.pipe_id
        self._key = pipe_key(placement.pipe_id)
        self._published = ends.of(placement)
        self._slice = _NOTHING
        self._frame: Frame | None = None
        self._bad: set[ReplicaAt] = set()  # they did not have what was asked for
        self._next_seq = 0  # where a read in order begins
        self._in_order = True
        self._slice_bytes = context.slice_bytes
        self._ahead = ahead
        self._loaded_ms = 0

    # --- the end ------------------------------------------------------------------------------

    def published(self) -> Place:
        """Returns the last known end if no sidecar answers at the moment, or the extent was
        dropped."""
        published = self._published
        writer = self._local(self._pipe_id)
        if writer is not None:
            published.learn(writer.end.seq)
        elif self._placement.end is None:
            self._ends.refresh(published)
            if published.absent:
                self._placement = self._looked_up() or self._placement
        published.learn(self._placement.end or 0)
        return Place(published.end, published.end)

    asks = True

    def ask_published(self) -> None:
        if self._placement.end is None and self._local(self._pipe_id) is None:
            self._ends.want(self._published)

    def ask_turn(self) -> int:
        writer = self._local(self._pipe_id)
        if writer is not None:
            writer.want_turn()
            return writer.last_append_ms
        context, replicas = self._context, self._placement.replicas
        calls = [call_of(replica, [Turn(self._pipe_id)]) for replica in replicas]
        patience = Patience(context.settings.lag, 0.0, majority(len(replicas)))
        answers = context.network.exchange(calls, patience)
        context.health.note(answers, slow=False)
        idle_ms: list[int] = [a.replies[0].idle_ms for a in answers if a.error is None]
        if not idle_ms:
            self._look_up()
            return 0  # a pusher that has waited long enough tries to seal it
        return context.clock.boot_ms() - min(idle_ms)

    # --- reading ------------------------------------------------------------------------------

    def read(self, start: Place, end_seq: int, limit: int, bytes_max: int) -> list[Slice]:
        self._in_order = start.seq == self._next_seq
        self._ahead.go_on()

        def frame_of(seq: int, before: Frame | None, left: int) -> Frame:
            base = start.pos if before is None else before.end_seq
            return self._holding(seq, base, end_seq, left)

        slices = read_slices(frame_of, start.seq, end_seq, limit, bytes_max)
        for frame in parted(slices):
            self._kept.put(self._pipe_id, frame.base_seq, frame)
        self._next_seq = slices[-1].end_seq if slices else start.seq
        return slices

    def place_after(self, start: Place, slices: Sequence[Slice]) -> Place:
        frame, _, last = slices[-1]
        seq = frame.base_seq + last
        return Place(seq, seq if last == frame.count else frame.base_seq)

    def after_damage(self, start: Place, end_seq: int) -> Place | None:
        """Cost: a request to each replica for every lost message: none of them can tell where a
        damaged frame ends."""
        for seq in range(start.seq + 1, end_seq):
            try:
                frame = self._loaded(seq, end_seq, 1)
            except FrameError:
                continue
            return Place(frame.base_seq, frame.base_seq)
        return None

    def close(self) -> None:
        self._slice, self._frame = _NOTHING, None
        self._ahead.drop()

    def _holding(self, seq: int, base: int, end_seq: int, limit: int) -> Frame:
        """The verified frame that holds `seq`. base: of that frame or of an earlier one."""
        frame = self._frame
        if frame is not None and frame.base_seq <= seq < frame.end_seq:
            return frame
        kept = self._kept.get(self._pipe_id, base)
        if kept is not None and seq < kept[1].end_seq:
            self._frame = kept[1]
            return kept[1]
        at = self._slice.find(seq)
        if at is not None:
            try:
                return self._opened(at)
            except FrameError as exc:
                if self._slice.replica is not None:
                    self._changes_over(self._slice.replica, exc)
        return self._loaded(seq, end_seq, limit)

    def _opened(self, at: int) -> Frame:
        """The frame at offset `at` of the slice."""
        frame = self._frame = decode(self._slice.data, at, pipe_key=self._key)
        return frame

    # --- slices -------------------------------------------------------------------------------

    def _loaded(self, seq: int, end_seq: int, limit: int) -> Frame:
        """The frame that holds `seq`, read with some that follow, from the first replica that has
        it whole. Cost: one request, which may be under way already; one more for each replica
        that does not have it."""
        follows = self._slice.replica is not None and self._slice.end == seq
        self._slice, self._frame = _NOTHING, None
        request = self._request(seq, end_seq, limit)
        asked: dict[ReplicaAt, CallResult] = {}
        for replicas, seconds in self._tries(asked):
            answers = self._ask(replicas, request, seconds)
            asked |= dict(zip(replicas, answers, strict=True))
            if self._frame is not None:
                self._grow()
                self._look_ahead(follows, request.end_seq)
                return self._frame
        before = self._placement
        self._look_up()
        if self._placement.replicas != before.replicas:
            return self._loaded(seq, end_seq, limit)  # it was repaired meanwhile
        raise self._failed(seq, asked)

    def _tries(self, asked: dict[ReplicaAt, CallResult]) -> Iterator[tuple[list[ReplicaAt], float]]:
        """The replicas to ask next, and for how many seconds: first one after another, for a short
        time each; then all that did not answer, together and for longer. If all have failed lately,
        they are asked once."""
        context = self._context
        replicas = nearest(context, self._placement, self._bad)
        if all(context.health.avoided(replica.sidecar) for replica in replicas):
            yield replicas, context.settings.lag
            return
        for replica in replicas:
            yield [replica], context.settings.lag
        silent = [
            replica
            for replica, answer in asked.items()
            if not isinstance(answer.error, (RefusedError, _BadFrameError))
        ]
        if silent:
            yield silent, context.settings.patience

    def _ask(
        self, replicas: Sequence[ReplicaAt], request: Read, seconds: float
    ) -> Iterator[CallResult]:
        """Read from these, and take the first good slice."""
        calls = [call_of(replica, [request]) for replica in replicas]
        answers = self._ahead.taken(replicas, request.seq, seconds)
        if answers is None:
            answers = self._context.network.exchange(calls, Patience(seconds, 0.0, 1))
        self._context.health.note(answers)
        for replica, answer in zip(replicas, answers, strict=True):
            error = answer.error
            if error is None and self._frame is None:
                try:
                    self._slice = _Piece(replica, answer.replies[0], request.seq)
                    self._opened(self._slice.first)
                except FrameError as exc:
                    self._slice = _NOTHING
                    self._changes_over(replica, exc)
                    answer = answer._replace(error=_BadFrameError(exc.message))
            elif refused_as(error, Code.UNKNOWN, Code.DAMAGED) and error is not None:
                self._changes_over(replica, error)
            elif error is not None:
                self._context.requests.count("changed_over")
            yield answer

    def _request(self, seq: int, end_seq: int, limit: int) -> Read:
        if not self._in_order:
            size = self._slice_bytes = self._context.slice_bytes
            return Read(self._pipe_id, seq, end_seq, size, min(limit, _FRAMES_MAX), 0)
        known = max(end_seq, self._published.end)
        return Read(self._pipe_id, seq, known, self._slice_bytes, _FRAMES_MAX, 0)

    def _grow(self) -> None:
        if self._in_order:
            most = _GROWTH_MAX * self._context.slice_bytes
            self._slice_bytes = min(2 * self._slice_bytes, most)

    def _look_ahead(self, follows: bool, end_seq: int) -> None:
        """Prefetch what follows the loaded slice. follows: that slice followed another one.
        end_seq: everything below it is acknowledged."""
        now_ms, piece = self._context.clock.boot_ms(), self._slice
        fast, self._loaded_ms = now_ms - self._loaded_ms <= AHEAD_MS, now_ms
        if follows and fast and self._in_order and piece.end < end_seq and piece.replica:
            self._ahead.begin(piece.replica, self._request(piece.end, end_seq, 0))

    def _changes_over(self, replica: ReplicaAt, exc: Exception) -> None:
        """Read from the other replicas from now on, because this one is not good."""
        self._context.requests.count("changed_over")
        level = logging.DEBUG if replica in self._bad else logging.WARNING
        logger.log(level, "pipe %s on sidecar %s: %s", self._pipe_id, replica.sidecar, exc)
        self._bad.add(replica)

    def _look_up(self) -> None:
        """Look up where it is now; ExtentMissingError when it is nowhere."""
        placement = self._looked_up()
        if placement is None:
            raise missing(self._pipe_id)
        self._placement = placement

    def _looked_up(self) -> Placement | None:
        placement = self._context.catalog.sidecars.placements_of([self._pipe_id])[0]
        if placement is not None:
            self._published.placement = placement
        return placement

    def _failed(self, seq: int, asked: dict[ReplicaAt, CallResult]) -> Exception:
        """Why no replica gave a good frame."""
        lost = self._context.directory.lost(self._placement.replicas)
        left = [answer for replica, answer in asked.items() if replica not in lost]
        known = [
            answer
            for answer in left
            if isinstance(answer.error, _BadFrameError)
            or refused_as(answer.error, Code.UNKNOWN, Code.DAMAGED)
        ]
        if len(known) < len(left):
            return self._unreachable(left)
        if all(refused_as(answer.error, Code.UNKNOWN) for answer in left):
            return missing(self._pipe_id)
        reasons = "; ".join(f"{answer.sidecar}: {answer.error}" for answer in left)
        return FrameError(
            f"pipe {self._pipe_id}, the frame at seq {seq}: no replica has it intact ({reasons})",
            pipe_id=self._pipe_id,
        )

    def _unreachable(self, answers: Sequence[CallResult]) -> BackendError:
        reasons = "; ".join(f"{a.sidecar}: {a.error.message}" for a in answers if a.error)
        return ExtentUnavailableError(
            f"no replica of pipe {self._pipe_id} can be read ({reasons})",
            hint="start one of their sidecars again: `cassq sidecar list` shows them",
        )


class _BadFrameError(BackendError):
    """A replica gave a frame that is damaged, or none."""


class _Piece:
    """Consecutive frames, as a replica returned them. first: where the requested frame is. Raises
    FrameError if it is not there."""

    def __init__(self, replica: ReplicaAt | None, frames: Frames, seq: int) -> None:
        self.replica = replica
        self.data = frames.frames
        self._bases: list[int] = []
        self._at: list[int] = []
        self.end = 0
        at = 0
        while at < len(self.data):
            try:
                span = frame_span(self.data, at)
            except FrameError:
                break  # reported when a read gets there
            if (self._bases and span.base_seq != self.end) or at + span.size > len(self.data):
                break
            self._bases.append(span.base_seq)
            self._at.append(at)
            self.end = span.base_seq + span.messages
            at += span.size
        found = self.find(seq)
        if found is None and replica is not None:
            raise FrameError(f"it has no frame with seq {seq}, and ends at {frames.end}")
        self.first = found or 0

    def find(self, seq: int) -> int | None:
        """The offset of the frame that holds `seq`."""
        if not self._bases or not self._bases[0] <= seq < self.end:
            return None
        return self._at[bisect_right(self._bases, seq) - 1]


_NOTHING = _Piece(None, Frames(0, b""), 0)
