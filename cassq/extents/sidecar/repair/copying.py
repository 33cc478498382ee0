"""Copying one extent from a good replica to another sidecar, a step at a time.

Each step is a request, or several side by side::

    look ──> check ──> copy ──> verify ──> done
               (in place only)

The target continues where it stopped, so a repairer may be killed at any step, and the next one
looks again. Before a damaged replica is copied again in its place, the whole source is verified,
because the first step erases the damaged replica. A missing replica has nothing to lose, and is
copied to its place like to any other.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Collection, Mapping, Sequence

from cassq.errors import BackendError, BackendTimeoutError
from cassq.extents.protocol.messages import List, ListedExtent, Replicate, Request, Scrub, Settle
from cassq.extents.replicas.fleet import Need
from cassq.extents.sidecar.net.network import CallResult, SidecarCall
from cassq.extents.sidecar.placing import chosen
from cassq.model.sidecar_rows import ReplicaAt, SidecarRow

TIMEOUTS_MAX = 3


class CopyStep(enum.Enum):
    """The next step."""

    LOOK = "looked for"
    CHECK = "source verified"
    COPY = "copied"
    VERIFY = "verified"
    DONE = "done"
    FAILED = "failed"


class Copying:
    """The copy that a need requires. addresses: of sidecars, by name. avoid: sidecars that failed
    as targets.

    step, seq: its progress. size_bytes: of the whole extent. copied_bytes: by the last step,
    about. error: why it failed. target: where the copy goes, once that is known.
    """

    def __init__(
        self,
        need: Need,
        addresses: Mapping[str, str],
        rng: random.Random,
        avoid: Collection[str] = (),
    ) -> None:
        self.need = need
        self.step: CopyStep = CopyStep.LOOK
        self.seq: int = 0
        self.size_bytes: int = 0
        self.copied_bytes: float = 0.0
        self.error: str = ""
        self.target: ReplicaAt | None = need.in_place
        self._source = need.sources[0]
        self._addresses = addresses
        self._rng = rng
        self._avoid = avoid
        self._timeouts = 0
        assert need.placement.end is not None
        self._pipe_id = need.placement.pipe_id
        self.end: int = need.placement.end

    @property
    def is_over(self) -> bool:
        """Whether there are no more steps."""
        return self.step in (CopyStep.DONE, CopyStep.FAILED)

    @property
    def progress(self) -> str:
        """Source, target and progress, as text."""
        if self.target is None or self.step is CopyStep.LOOK:
            return self.need.why
        way = f"from {self._source.sidecar} to {self.target.sidecar}"
        return f"{way}: {self.step.value} up to {self.seq:,} of {self.end:,} messages"

    def fits(self, need: Need) -> bool:
        """Whether continuing it meets the present need."""
        return (
            not self.is_over
            and (self.need.placement.version, self.need.in_place, self.need.instead)
            == (need.placement.version, need.in_place, need.instead)
            and self._source in need.sources
            and (need.in_place is not None or self.target in [_replica_on(r) for r in need.targets])
        )

    # --- asking ---------------------------------------------------------------------------------

    def calls(self, bytes_max: int) -> list[SidecarCall]:
        """The next requests. bytes_max: how much may be copied."""
        match self.step:
            case CopyStep.LOOK:
                # A page of one extent, from the name just before its own: names are hex digits.
                look = List(self._pipe_id[:-1] + chr(ord(self._pipe_id[-1]) - 1), 1, "")
                # A sidecar that was away when the end was recorded learns it now.
                settle = Settle(self._pipe_id, self.end)
                sources = [_call(replica, settle, look) for replica in self.need.sources]
                return sources + [_call(replica, look) for replica in self._candidates()]
            case CopyStep.CHECK:
                return [_call(self._source, Scrub(self._pipe_id, self.seq))]
            case CopyStep.VERIFY:
                scrub = Scrub(self._pipe_id, self.seq)
                return [_call(self._source, scrub), _call(self._where(), scrub)]
            case CopyStep.COPY:
                placement, source = (
                    self.need.placement,
                    self._addresses.get(self._source.sidecar, ""),
                )
                replicate = Replicate(
                    self._pipe_id,
                    placement.queue_name,
                    placement.strict,
                    source,
                    self.end,
                    bytes_max,
                )
                return [_call(self._where(), replicate)]
        return []

    def _candidates(self) -> list[ReplicaAt]:
        if self.need.in_place is not None:
            return [self.need.in_place]
        return [_replica_on(row) for row in self.need.targets]

    def _where(self) -> ReplicaAt:
        assert self.target is not None
        return self.target

    # --- learning -------------------------------------------------------------------------------

    def take(self, answers: Sequence[CallResult]) -> None:
        """Advance by the answers to the calls."""
        self.copied_bytes = 0.0
        if self.step is CopyStep.LOOK:
            self._looked(answers)
            return
        for answer in answers:
            if answer.error is not None:
                self._failed(answer.sidecar, answer.error)
                return
        self._timeouts = 0
        replies = [answer.replies[0] for answer in answers]
        match self.step:
            case CopyStep.COPY:
                before, self.seq = self.seq, replies[0].seq
                if self.end:
                    share = max(0, self.seq - before) / self.end
                    self.copied_bytes = self.size_bytes * share
                if self.seq >= self.end:
                    self.seq, self.step = 0, CopyStep.VERIFY
            case CopyStep.CHECK | CopyStep.VERIFY:
                for answer, reply in zip(answers, replies, strict=True):
                    if reply.damage:
                        self._fail(f"{answer.sidecar} has it damaged: {reply.damage}")
                        return
                if len({(reply.seq, reply.digest) for reply in replies}) > 1:
                    self._fail(
                        f"{answers[0].sidecar} and {answers[1].sidecar} differ from seq"
                        f" {self.seq} on"
                    )
                    return
                self._verified(replies[0].seq)

    def _verified(self, seq: int) -> None:
        """Note that everything below `seq` is whole."""
        if self.seq < self.end and seq <= self.seq:
            self._fail(f"nothing could be verified from seq {self.seq} on")
        elif seq < self.end:
            self.seq = seq
        elif self.step is CopyStep.CHECK:
            self.seq, self.step = 0, CopyStep.COPY
        else:
            self.seq, self.step = self.end, CopyStep.DONE

    def _looked(self, answers: Sequence[CallResult]) -> None:
        """Choose the source and the target."""
        there = {answer.sidecar: self._extent(answer) for answer in answers if answer.error is None}
        good = [each for each in self.need.sources if self._is_good(there.get(each.sidecar))]
        if not good:
            self._fail(f"no sidecar has an intact copy: {self._complaints(answers, there)}")
            return
        self._source = good[0]
        source = there[self._source.sidecar]
        assert source is not None
        self.size_bytes = source.size_bytes
        if self.need.in_place is not None:
            if self.need.in_place.sidecar not in there:
                self._fail(self._complaints(answers, there))
            else:
                self.step = CopyStep.CHECK
            return
        row = self._chosen([row for row in self.need.targets if row.name in there], there)
        if row is None:
            self._fail(f"no sidecar accepts a copy: {self._complaints(answers, there)}")
            return
        begun = there[row.name]
        self.target = _replica_on(row)
        if begun is not None and self.target in self.need.placement.replicas:
            # It is no longer missing: a copy was begun, or it is there and readers may use it.
            self.step = CopyStep.CHECK
            return
        self.seq = begun.end if begun is not None and not begun.damage else 0
        self.step = CopyStep.COPY

    def _chosen(
        self, rows: Sequence[SidecarRow], there: Mapping[str, ListedExtent | None]
    ) -> SidecarRow | None:
        """The sidecar whose begun copy is furthest; without one, as for a new extent."""

        def begun(row: SidecarRow) -> int:
            extent = there[row.name]
            return extent.end + 1 if extent is not None and not extent.damage else 0

        rows = [row for row in rows if row.name not in self._avoid] or rows
        furthest = max(rows, key=begun, default=None)
        if furthest is None or begun(furthest):
            return furthest
        return chosen(rows, 1, self._rng, beside=self.need.beside)[0]

    def _extent(self, answer: CallResult) -> ListedExtent | None:
        listed = answer.replies[-1].extents
        return listed[0] if listed and listed[0].pipe_id == self._pipe_id else None

    def _is_good(self, extent: ListedExtent | None) -> bool:
        if extent is None or extent.damage or extent.copying:
            return False
        return extent.end == extent.final == self.end

    def _complaints(
        self, answers: Sequence[CallResult], there: Mapping[str, ListedExtent | None]
    ) -> str:
        """The problems of all sidecars, as text."""
        complaints = []
        for answer in answers:
            extent = there.get(answer.sidecar)
            if answer.error is not None:
                complaints.append(f"{answer.sidecar}: {answer.error.message}")
            elif extent is None:
                complaints.append(f"{answer.sidecar} does not have it")
            elif not self._is_good(extent):
                damage = extent.damage or f"it ends at {extent.end:,}, not {self.end:,}"
                complaints.append(f"{answer.sidecar}: {damage}")
        return "; ".join(complaints)

    def _failed(self, sidecar: str, error: BackendError) -> None:
        """Note that a step failed; requests that timed out are repeated."""
        if isinstance(error, BackendTimeoutError):
            self._timeouts += 1
            if self._timeouts < TIMEOUTS_MAX:
                return
        self._fail(f"{sidecar}: {error.message}")

    def _fail(self, error: str) -> None:
        self.step, self.error = CopyStep.FAILED, error


def _replica_on(row: SidecarRow) -> ReplicaAt:
    return ReplicaAt(row.name, row.generation)


def _call(replica: ReplicaAt, *requests: Request) -> SidecarCall:
    return SidecarCall(replica.sidecar, replica.generation, requests)
