"""Retries and dead letters: what becomes of a message that was delivered too often.

Every move writes the next place before it marks the last, and an *intent* before that: a row
keyed by (group, pipe, seq) that names the place the message is about to get. Whoever finds an
intent looks whether the message is there (sealing that pipe if need be, so that the answer is
final), and only if it is not pushes it again: a crash anywhere neither loses nor doubles.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace

from cassq import claims
from cassq.catalog.port import Claim, ClaimState, GroupRow, Move, QueueRow
from cassq.errors import CassqError, OwnershipError
from cassq.extents.port import Slice
from cassq.frames import Place, encode_headers
from cassq.pipes import Batch, Intend, seal_pipe
from cassq.ports import Ports
from cassq.queues import dead_letter_name

logger = logging.getLogger("cassq")

# The header of a dead letter that holds its death record, as JSON.
DEATH_HEADER = "cassq-death"
DELIVERY_LIMIT = "delivery_limit"
BURIAL_MS = 30_000

# Puts the message of a spent claim among the group's dead letters; False when another does.
Bury = Callable[[QueueRow, GroupRow, Claim], bool]
# Pushes a batch of one to the queue of that name, telling the place first.
AppendTo = Callable[[str, Batch, Intend], None]


def bury_or_leave(bury: Bury, queue: QueueRow, group: GroupRow, claim: Claim) -> bool:
    """Bury in passing: what cannot be done now is left, and told, for the next one to do."""
    try:
        return bury(queue, group, claim)
    except CassqError as exc:
        where = f"{claim.pipe_id}:{claim.start}"
        logger.warning("message %s is left for others to put away: %s", where, exc)
        return False


class DeadLetters:
    """Puts spent messages into their group's dead-letter queue.

    append_to: makes the queue if it is not there.
    """

    def __init__(self, ports: Ports, append_to: AppendTo) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._append_to = append_to
        self._owner = ports.ids.version()

    def bury(self, queue: QueueRow, group: GroupRow, claim: Claim) -> bool:
        """Move the one message left of `claim` to the dead letters; False when another does.

        Cost: three synced catalog transactions and one durable push.
        """
        now_ms = self._catalog.now_ms()
        held = replace(
            claim,
            state=ClaimState.HELD,
            holder=self._owner,
            due_ms=now_ms + BURIAL_MS,
            version=self._ports.ids.version(),
        )
        if not self._catalog.replace(claim, [held]):
            return False
        (seq,) = range(held.start, held.end) if held.count == 1 else _left(held)
        letter = self._dead_letter(queue, group, held, seq)
        move = self._intent(held, seq)
        if move is None or not self._arrived(move, letter):
            try:
                move = self._push(queue, group, held, seq, letter, move)
            except OwnershipError:
                return False  # its intent was faster than ours
        rows = claims.buried(held, self._ports.ids.version)
        return self._catalog.replace(held, rows, settle=[move])

    def _intent(self, claim: Claim, seq: int) -> Move | None:
        moves = self._catalog.moves(claim.group_id, claim.pipe_id)
        return next((move for move in moves if move.seq == seq), None)

    def _push(
        self,
        queue: QueueRow,
        group: GroupRow,
        claim: Claim,
        seq: int,
        letter: Batch,
        before: Move | None,
    ) -> Move:
        intents = [before]

        def intend(pipe_id: str, dest_seq: int) -> None:
            move = Move(
                group_id=claim.group_id,
                pipe_id=claim.pipe_id,
                seq=seq,
                reason=DELIVERY_LIMIT,
                dest_pipe=pipe_id,
                dest_seq=dest_seq,
                at_ms=self._catalog.now_ms(),
            )
            if self._catalog.intend(move, intents[-1], held=claim) != move:
                raise OwnershipError(f"message {claim.pipe_id}:{seq} is being moved by another")
            intents.append(move)

        self._append_to(dead_letter_name(queue.name, group.name), letter, intend)
        move = intents[-1]
        assert move is not None
        logger.warning(
            "message %s:%d of %s went to the dead letters of group %s after %d deliveries",
            claim.pipe_id,
            seq,
            queue.name,
            group.name,
            claim.deliveries,
        )
        return move

    def _dead_letter(self, queue: QueueRow, group: GroupRow, claim: Claim, seq: int) -> Batch:
        """The message with its first id and its death record."""
        reader = self._ports.store.reader(claim.pipe_id)
        try:
            ((frame, first, last),) = reader.read(Place(seq, claim.pos), seq + 1, 1, 0)
        finally:
            reader.close()
        failure = json.loads(claim.failure or "{}")
        death = {
            "queue": queue.name,
            "group": group.name,
            "reason": DELIVERY_LIMIT,
            "deliveries": claim.deliveries,
            "error": failure.get("error", ""),
            "consumer": failure.get("consumer", ""),
            "at_ms": self._ports.clock.wall_ms(),
        }
        stored = frame.headers[first] if frame.headers else None
        headers = json.loads(stored) if stored else {}
        headers[DEATH_HEADER] = json.dumps(death, separators=(",", ":"))
        first_id = frame.ids[first] if frame.ids else None
        return Batch(
            payloads=frame.payloads(first, last),
            times_ms=frame.time_ms(first),
            headers=[encode_headers(headers)],
            keys=[frame.keys[first]] if frame.keys else None,
            ids=[first_id or f"{claim.pipe_id}:{seq}".encode()],
        )

    def _arrived(self, move: Move, letter: Batch) -> bool:
        """Whether the message is where the intent says. The answer is final: if need be the pipe
        is sealed, so that nothing can be written there any more."""
        row = self._catalog.pipe(move.dest_pipe)
        if row is None:
            return False
        reader = self._ports.store.reader(move.dest_pipe)
        try:
            end = row.end or reader.published()
            if end.seq <= move.dest_seq:
                sealed = seal_pipe(self._catalog, self._ports.store, move.dest_pipe)
                if sealed is None or sealed.seq <= move.dest_seq:
                    return False
            found: list[Slice] = reader.read(Place(move.dest_seq, 0), move.dest_seq + 1, 1, 0)
            frame, first, _ = found[0]
            return (
                letter.ids is not None
                and frame.ids is not None
                and (frame.ids[first] == letter.ids[0])
            )
        finally:
            reader.close()


def _left(claim: Claim) -> list[int]:
    """The seqs of a claim that are not acked."""
    return [seq for seq in range(claim.start, claim.end) if seq not in claim.acked]
