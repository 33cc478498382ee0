"""Moves: messages move to another pipe so that no crash loses or duplicates one.

First an *intent* is written: a row keyed by (group, pipe, seq) that names the place which the
message will get. Then the message is pushed there, and then marked done in its old place. A process
that finds an intent checks whether the message has arrived. If necessary it seals the new pipe
first, so that the answer is final. Only if the message has not arrived may it be pushed again, or
delivered in its old place.

Invariants:
1. Only the holder of a claim writes intents for its messages, and only while it still holds the
   claim, which each write checks. So a mover that lost its claim pushes nothing more.
2. While a claim is marked as moving, none of its messages is delivered before `finish` has
   established where they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from cassq.catalog.port import Catalog
from cassq.errors import OwnershipError
from cassq.extents.port import ExtentReader, Slice
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import seal_pipe
from cassq.message.frames import Place
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.claims import ReturnedSeqs
from cassq.model.rows import Claim, ClaimState, Move, Reason, Removed

# How long a mover may hold a claim before other processes finish or undo its work.
HOLD_MS = 30_000


class Intents:
    """Writes the intents of messages that are pushed in batches; usable as an `Intend`.

    seqs: the messages of the claim that are in the batch, in the order of the batch. moves: the
    last intent written for each.
    """

    def __init__(self, catalog: Catalog, held: Claim, seqs: Sequence[int], reason: str) -> None:
        self._catalog = catalog
        self._held = held
        self._seqs = seqs
        self._reason = reason
        self.moves: dict[int, Move] = {}

    def __call__(self, pipe_id: str, dest_seq: int, which: Sequence[int]) -> None:
        """Write intents. Raises OwnershipError if another process has the claim: then nothing may
        be pushed."""
        held, now_ms = self._held, self._catalog.now_ms()
        moves = {
            seq: Move(held.group_id, held.pipe_id, seq, self._reason, pipe_id, dest, now_ms)
            for dest, seq in enumerate((self._seqs[at] for at in which), dest_seq)
        }
        if not self._catalog.claims.intend_many(list(moves.values()), held):
            raise OwnershipError(f"another process is moving messages of pipe {held.pipe_id}")
        self.moves |= moves


def slices_of(reader: ExtentReader, start: Place, seqs: RangeSet) -> Iterator[tuple[Place, Slice]]:
    """The messages `seqs`, frame by frame, each run with its place. start: a place at or before
    them."""
    pos = start.pos
    for first, last in seqs.ranges:
        place = Place(first, pos)
        while place.seq < last:
            found = reader.read(place, last, last - place.seq, 0)[:1]
            yield place, found[0]
            place = reader.place_after(place, found)
        pos = place.pos


def ids_of(ports: Ports, claim: Claim, seqs: RangeSet) -> dict[int, bytes]:
    """The ids of messages of a claim."""
    reader = ports.store.reader(claim.pipe_id)
    try:
        return {
            frame.base_seq + index: frame.id_at(index, claim.pipe_id)
            for _, (frame, first, last) in slices_of(reader, Place(claim.start, claim.pos), seqs)
            for index in range(first, last)
        }
    finally:
        reader.close()


def arrived(ports: Ports, moves: Iterable[Move], ids: Mapping[int, bytes]) -> list[Move]:
    """The moves whose message has reached the place in its intent.

    The answer is final: a pipe that does not reach that far yet is sealed, so that nothing can be
    written there any more. ids: the ids of the messages, by the seqs of the moves.
    """
    by_pipe: dict[str, list[Move]] = {}
    for move in moves:
        by_pipe.setdefault(move.dest_pipe, []).append(move)
    return [
        move
        for pipe_id, found in by_pipe.items()
        for move in _arrived_in(ports, pipe_id, found, ids)
    ]


def _arrived_in(
    ports: Ports, pipe_id: str, moves: Sequence[Move], ids: Mapping[int, bytes]
) -> list[Move]:
    row = ports.catalog.pipes.by_id(pipe_id)
    if row is None:
        return []
    reader = ports.store.reader(pipe_id)
    try:
        end = row.end or reader.published()
        if end.seq <= max(move.dest_seq for move in moves):
            sealed = seal_pipe(ports.catalog, ports.store, pipe_id)
            if sealed is None:
                return []
            end = sealed
        wanted = {move.dest_seq: move for move in moves if move.dest_seq < end.seq}
        seqs = RangeSet.of(sorted(wanted))
        return [
            wanted[frame.base_seq + index]
            for _, (frame, first, last) in slices_of(reader, Place(0, 0), seqs)
            for index in range(first, last)
            if frame.id_at(index, pipe_id) == ids[wanted[frame.base_seq + index].seq]
        ]
    finally:
        reader.close()


# --- bulk moves: merging dead letters -------------------------------------------------------


def held_by(
    claim: Claim,
    owner: str,
    now_ms: int,
    version: claims.Version,
    *,
    failure: str | None = None,
) -> Claim:
    """The claim as held by a mover. This does not count as a delivery.

    failure: its new failure record; None: the old one, marked as moving.
    """
    return replace(
        claim,
        state=ClaimState.HELD,
        holder=owner,
        due_ms=now_ms + HOLD_MS,
        failure=claims.marked_moving(claim) if failure is None else failure,
        version=version(),
    )


def settle(ports: Ports, held: Claim, done: RangeSet, intents: Collection[Move]) -> bool:
    """End a mover's claim: `done` are in their new place, the others stay as before.

    The intents are withdrawn, and a record of the merge takes their place. False if another process
    has taken the claim: then that one finishes the move. Cost: one synced transaction.
    """
    left = held.left - done
    gives = [ReturnedSeqs(left, held.due_ms, held.deliveries)] if left else []
    rows = claims.resolved(held, done, gives, ports.ids.version)
    return ports.catalog.claims.replace(
        held,
        [claims.unmarked(row) for row in rows],
        withdraw=list(intents),
        removed=removals(held, done, Reason.MERGED, ports.catalog.now_ms()),
    )


def removals(claim: Claim, seqs: RangeSet, reason: Reason, now_ms: int) -> list[Removed]:
    """The ledger records of messages removed from a claim."""
    group_id, pipe_id = claim.group_id, claim.pipe_id
    return [Removed(group_id, pipe_id, *span, reason, now_ms) for span in seqs.ranges]


def finish(ports: Ports, row: Claim) -> bool:
    """Finish an interrupted move: mark the messages that have arrived as done, and free the others.

    False if another process was faster. Cost: two synced transactions, and a read of the frames
    with the moved messages, in both places.
    """
    owner, version = ports.ids.version(), ports.ids.version
    held = held_by(row, owner, ports.catalog.now_ms(), version)
    return ports.catalog.claims.replace(row, [held]) and finish_own(ports, held)


def finish_own(ports: Ports, held: Claim) -> bool:
    """`finish` for a claim that the caller already holds."""
    seqs = range(held.start, held.end)
    moves = {
        move.seq: move
        for move in ports.catalog.claims.moves(held.group_id, held.pipe_id, seqs)
        if not move.settled
    }
    ids = ids_of(ports, held, RangeSet.of(sorted(moves)))
    there = arrived(ports, moves.values(), ids)
    done = RangeSet.of(sorted(move.seq for move in there))
    return settle(ports, held, done, moves.values())
