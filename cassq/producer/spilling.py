"""Spilling: what a pusher of an ap queue does with pushes that no quorum takes.

They are put into the client's spool, a queue directory of this machine, and are acknowledged as
such. A place that such a push may have got in the cluster, by a write without an answer, is noted
with it, so that who forwards it looks there first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple, Protocol

from cassq.errors import BackendError
from cassq.message.batches import Batch, Receipt, SpilledReceipt
from cassq.model.rows import QueueRow
from cassq.pipes import Appender
from cassq.producer.dedup import Once


class Doubt(NamedTuple):
    """Where messages may be all the same: the first at `seq`, the others behind it."""

    pipe_id: str
    seq: int


class Spool(Protocol):
    """Where pushes go while no quorum answers."""

    @property
    def down(self) -> bool:
        """Whether the cluster was last seen not to answer, so that nobody waits for it."""

    def trouble(self, exc: BackendError) -> None:
        """The cluster did not answer."""

    def expect(self, queue: QueueRow) -> None:
        """A queue may be pushed to: have a place for what cannot be."""

    def hold(self, queue: QueueRow, batch: Batch, doubt: Doubt | None) -> list[Receipt]:
        """Keep messages durably; where they are. Raises StorageFullError."""

    def latest(self, load: Callable[[], QueueRow], known: QueueRow) -> QueueRow:
        """What `load` reads, or `known` while the cluster does not answer."""


def spilled_rest(
    spool: Spool,
    queue: QueueRow,
    batch: Batch,
    once: Once | None,
    appender: Appender | None,
    failed: BackendError,
) -> list[Receipt]:
    """Spill what a push that failed has not pushed; where all of its messages are.

    once: the push of messages with dedup ids. appender: who pushed; None: nobody began to. failed:
    why it did. If the spool fails as well, its error tells of both what is pushed, and whether the
    rest may be.
    """
    total = len(batch.payloads)
    pushed: dict[int, tuple[str, int]] = {}
    doubt: Doubt | None = None
    if once is not None:
        places = ((index, once.done(index)) for index in range(total))
        pushed = {index: place for index, place in places if place is not None}
    elif appender is not None:
        pushed = dict(enumerate(_places(appender.receipts)))
        doubt = Doubt(*appender.doubt) if appender.doubt else None
    left = [index for index in range(total) if index not in pushed]
    if not left:
        return _receipts([(*pushed[index], False) for index in range(total)])
    try:
        held = _places(spool.hold(queue, batch.only(left), doubt))
    except BackendError as exc:
        done = {*pushed, *left[: exc.fields.get("pushed", 0)]}
        exc.fields["pushed"] = sum(1 for _ in takewhile(done.__contains__, range(total)))
        exc.outcome_unknown = exc.outcome_unknown or failed.outcome_unknown
        raise
    found = {index: (*place, True) for index, place in zip(left, held, strict=True)}
    found.update({index: (*place, False) for index, place in pushed.items()})
    return _receipts([found[index] for index in range(total)])


def spilled_count(receipts: Sequence[Receipt]) -> int:
    """How many of these messages are in the spool."""
    return sum(run.length for run in receipts if isinstance(run, SpilledReceipt))


def _places(receipts: Sequence[Receipt]) -> Iterator[tuple[str, int]]:
    for pipe_id, first, count in receipts:
        for seq in range(first, first + count):
            yield pipe_id, seq


def _receipts(places: Sequence[tuple[str, int, bool]]) -> list[Receipt]:
    """Places as runs. The third of each says whether it is in the spool."""
    found: list[Receipt] = []
    for pipe_id, seq, spilled in places:
        last = found[-1] if found else Receipt("", 0, 0)
        if last.pipe_id == pipe_id and last.first_seq + last.length == seq:
            found[-1] = last._replace(length=last.length + 1)
        else:
            kind = SpilledReceipt if spilled else Receipt
            found.append(kind(pipe_id, seq, 1))
    return found
