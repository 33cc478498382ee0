"""Spilling: what a pusher of an ap queue does with pushes that no quorum accepts.

They go into the client's spool, a queue directory on this machine, and are acknowledged as
spilled. If a write without an answer may have given such a push a place in the cluster, that place
is noted with it, so that forwarding looks there first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from cassq.errors import BackendError, is_outage
from cassq.message.batches import AppendReceipt, Batch, SpilledReceipt
from cassq.model.rows import QueueRow
from cassq.pipes import PipeWriter
from cassq.producer.dedup import DedupPush

logger: logging.Logger = logging.getLogger("cassq")


class UncertainPlaces(NamedTuple):
    """Where messages may be in the cluster already: the first at `seq`, the others after it."""

    pipe_id: str
    seq: int


# Puts messages into the spool, with where they may be already; returns their places there.
Keep = Callable[[QueueRow, Batch, UncertainPlaces | None], list[AppendReceipt]]


class Overflow:
    """Decides whether pushes go into the spool, and puts them there. Thread-safe.

    keep: raises StorageFullError. expect: prepares a place for what may be spilled for a queue.
    notify: called when there is something new to forward, or to wait for.

    down: the cluster did not answer the last time, so pushes do not wait for it.
    """

    def __init__(
        self, keep: Keep, expect: Callable[[QueueRow], object], notify: Callable[[], object]
    ) -> None:
        self.down: bool = False
        self.expect: Callable[[QueueRow], object] = expect
        self._keep = keep
        self._notify = notify
        self._mutex = threading.Lock()
        self._since = 0  # messages spilled since the cluster stopped answering

    def latest(self, load: Callable[[], QueueRow], known: QueueRow) -> QueueRow:
        """The row that `load` reads; while the cluster does not answer, `known`. Raises as `load`
        for a cp queue."""
        if known.policy.strict or not self.down:
            try:
                return load()
            except BackendError as exc:
                if known.policy.strict or not is_outage(exc):
                    raise
                self.trouble(exc)
        return known

    def trouble(self, exc: BackendError) -> None:
        """Note that the cluster did not answer: until it does, pushes go into the spool."""
        with self._mutex:
            if self.down:
                return
            self.down = True
            self._since = 0
        logger.warning("pushes are spilled to this machine until the cluster answers: %s", exc)
        self._notify()

    def well(self) -> None:
        """Note that the cluster answers again."""
        with self._mutex:
            if not self.down:
                return
            self.down = False
        logger.warning("the cluster answers again: %d messages were spilled", self._since)

    def hold(
        self, queue: QueueRow, batch: Batch, doubt: UncertainPlaces | None
    ) -> list[AppendReceipt]:
        """Keep messages durably. Raises StorageFullError. Cost: one local append and sync."""
        receipts = self._keep(queue, batch, doubt)
        with self._mutex:
            self._since += len(batch.payloads)
        if not self.down:
            self._notify()  # forwarding may already have ended when this message was spilled
        return receipts


def spilled_rest(
    overflow: Overflow,
    queue: QueueRow,
    batch: Batch,
    once: DedupPush | None,
    appender: PipeWriter | None,
    failed: BackendError,
) -> list[AppendReceipt]:
    """Spill the messages that a failed push has not pushed; returns where all of its messages are.

    once: the push of messages with dedup ids. appender: of the failed push; None: it never began.
    failed: the error of the push. If the spool fails as well, its error says how many messages
    were pushed in all, and whether others may have been.
    """
    total = len(batch.payloads)
    pushed: dict[int, tuple[str, int]] = {}
    doubt: UncertainPlaces | None = None
    if once is not None:
        places = ((index, once.done(index)) for index in range(total))
        pushed = {index: place for index, place in places if place is not None}
    elif appender is not None:
        pushed = dict(enumerate(_places(appender.receipts)))
        doubt = UncertainPlaces(*appender.doubt) if appender.doubt else None
    left = [index for index in range(total) if index not in pushed]
    if not left:
        return _receipts([(*pushed[index], False) for index in range(total)])
    try:
        held = _places(overflow.hold(queue, batch.only(left), doubt))
    except BackendError as exc:
        done = {*pushed, *left[: exc.fields.get("pushed", 0)]}
        exc.fields["pushed"] = sum(1 for _ in takewhile(done.__contains__, range(total)))
        exc.outcome_unknown = exc.outcome_unknown or failed.outcome_unknown
        raise
    found = {index: (*place, True) for index, place in zip(left, held, strict=True)}
    found.update({index: (*place, False) for index, place in pushed.items()})
    return _receipts([found[index] for index in range(total)])


def spilled_count(receipts: Sequence[AppendReceipt]) -> int:
    """How many of these messages are in the spool."""
    return sum(run.length for run in receipts if isinstance(run, SpilledReceipt))


def _places(receipts: Sequence[AppendReceipt]) -> Iterator[tuple[str, int]]:
    for pipe_id, first, count in receipts:
        for seq in range(first, first + count):
            yield pipe_id, seq


def _receipts(places: Sequence[tuple[str, int, bool]]) -> list[AppendReceipt]:
    """Places as runs. The third item of each says whether it is in the spool."""
    found: list[AppendReceipt] = []
    for pipe_id, seq, spilled in places:
        last = found[-1] if found else AppendReceipt("", 0, 0)
        if last.pipe_id == pipe_id and last.first_seq + last.length == seq:
            found[-1] = last._replace(length=last.length + 1)
        else:
            kind = SpilledReceipt if spilled else AppendReceipt
            found.append(kind(pipe_id, seq, 1))
    return found
