"""Dead letters: messages that were delivered too often move to their group's dead-letter queue.

A move writes an intent, then the message in its new place, and then marks it done in its old place,
by the protocol of `cassq.lifecycle.moves`: a crash at any point neither loses nor duplicates a
message.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cassq.errors import CassqError, CorruptionError, OwnershipError
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.moves import arrived, finish, held_by
from cassq.lifecycle.ports import Ports
from cassq.message.batches import Batch, Intend
from cassq.message.columns import encode_headers
from cassq.message.frames import Place
from cassq.model import claims
from cassq.model.queues import DEFAULT_GROUP, dead_letter_name
from cassq.model.rows import Claim, GroupRow, Move, QueueRow
from cassq.plurals import counted

logger: logging.Logger = logging.getLogger("cassq")

# The header of a dead letter that holds its death record, as JSON.
DEATH_HEADER = "cassq-death"
# The largest size of a death record, on top of the headers a user may give.
DEATH_BYTES_MAX = 128 * 1024
DELIVERY_LIMIT = "delivery_limit"
REJECTED = "rejected"
MAXLEN = "maxlen"

DEATHS_KEPT = 8  # kinds of earlier deaths that a record keeps
EARLIER_ERROR_MAX = 256  # characters of the errors of earlier deaths

# Moves the message of a spent claim to the group's dead letters; False if another process does.
DeadLetterFn = Callable[[QueueRow, GroupRow, Claim], bool]
# Pushes a batch of one message to a queue, by name; passes its place to `Intend` first.
AppendTo = Callable[[str, Batch, Intend], None]


def dead_letter_or_leave(
    dead_letter: DeadLetterFn, queue: QueueRow, group: GroupRow, claim: Claim
) -> bool:
    """Move a message to the dead letters; False if that was not done here. Most errors are logged,
    and the message is left to the next process. Raises ExtentMissingError and CorruptionError."""
    try:
        return dead_letter(queue, group, claim)
    except (ExtentMissingError, CorruptionError):
        raise
    except CassqError as exc:
        where = f"{claim.pipe_id}:{claim.start}"
        logger.warning(
            "cannot move message %s to the dead letters; the reaper tries again: %s", where, exc
        )
        return False


def after(before: str, death: Mapping[str, Any]) -> dict[str, Any]:
    """The death record of a message that died again. `count` and `first_ms` cover all deaths of
    this kind; other deaths are in `earlier`, newest first.

    before: its record so far, as JSON. Anything else, such as a user's own header of that name, is
    ignored. Pure.
    """
    counted = {**death, "count": 1}
    others = _records(before)
    same = next((record for record in others if _kind(record) == _kind(death)), None)
    if same is not None:
        counted["count"] = same["count"] + 1
        counted["first_ms"] = min(death["first_ms"], same["first_ms"])
    earlier = [record for record in others if record is not same][:DEATHS_KEPT]
    return {**counted, "earlier": earlier} if earlier else counted


def _records(text: str) -> list[dict[str, Any]]:
    """The deaths in a record, newest first, with shortened errors."""
    try:
        newest = json.loads(text)
    except ValueError:
        return []
    if not isinstance(newest, dict):
        return []
    found = newest.pop("earlier", [])
    records = [newest, *found] if isinstance(found, list) else [newest]
    return [
        {**record, "error": str(record.get("error", ""))[:EARLIER_ERROR_MAX]}
        for record in records
        if isinstance(record, dict)
        and isinstance(record.setdefault("count", 1), int)
        and isinstance(record.get("first_ms"), int)
    ]


def _kind(death: Mapping[str, Any]) -> tuple[Any, ...]:
    return death.get("queue"), death.get("group"), death.get("reason")


def death_of(headers: Mapping[str, str]) -> dict[str, Any]:
    """The death record of a letter; empty if it has none, or one that cannot be read, such as a
    user's own header of that name."""
    try:
        found = json.loads(headers.get(DEATH_HEADER, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def letters_of(queue: QueueRow, group: GroupRow) -> str:
    """The name of the queue that the dead letters of a group move to. Pure.

    If their letters hold keys, it is always the group's own dead-letter queue, since only that is
    searched for such letters. So it is if a queue names itself: its letters would be delivered
    again without end.
    """
    named = queue.policy.dead_letters
    if not named or named == queue.name or group.policy.on_dead == "hold":
        return dead_letter_name(queue.name, group.name)
    return named


def letters_name(ports: Ports, queue: QueueRow, group: str) -> str:
    """`letters_of` for the name of a group, which may be deleted. Cost: a read."""
    for row in ports.catalog.queues.groups(queue.id):
        if row.name == group:
            return letters_of(queue, row)
    return dead_letter_name(queue.name, group)


class LetterGroup(NamedTuple):
    """A place of dead letters: a group of a queue that holds them; those that it has not finished
    are left. died_in: only letters of this queue and group are meant; None: all are."""

    queue: QueueRow
    row: GroupRow
    died_in: tuple[str, str] | None = None

    def has(self, headers: Mapping[str, str]) -> bool:
        """Whether a message with these headers is one of the letters that are meant."""
        if self.died_in is None:
            return True
        death = death_of(headers)
        return (death.get("queue"), death.get("group")) == self.died_in


def all_letters(ports: Ports, name: str) -> LetterGroup | None:
    """All letters of the queue of this name; None if it, or its group `default`, does not exist.
    Cost: two reads."""
    queue = ports.catalog.queues.named(name)
    if queue is None:
        return None
    groups = ports.catalog.queues.groups(queue.id)
    return next((LetterGroup(queue, row) for row in groups if row.name == DEFAULT_GROUP), None)


def letter_groups(ports: Ports, queue: QueueRow, group: str) -> list[LetterGroup]:
    """The places where dead letters of a group may be: the group's own dead-letter queue, and the
    one that its queue names. The group itself may be deleted. Cost: two reads for each."""
    died_in = (queue.name, group)
    own, named = dead_letter_name(*died_in), queue.policy.dead_letters
    found = [all_letters(ports, own)]
    if named not in ("", queue.name, own):
        shared = all_letters(ports, named)
        found.append(None if shared is None else shared._replace(died_in=died_in))
    return [place for place in found if place is not None]


class DeadLetters:
    """Moves spent messages to the dead-letter queue of their group, or that of their queue.

    append_to: creates the queue if it does not exist.
    """

    def __init__(self, ports: Ports, append_to: AppendTo) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._append_to = append_to
        self._owner = ports.ids.version()

    def add(self, queue: QueueRow, group: GroupRow, claim: Claim) -> bool:
        """Move the only message left in `claim` to the dead letters; False if another process does.

        If a merge left the claim half moved, finishes that instead. Cost: three synced catalog
        transactions and one durable push.
        """
        if claims.is_moving(claim):
            return finish(self._ports, claim)
        now_ms = self._catalog.now_ms()
        leaving = claims.marked_leaving(claim, _reason(claim))
        version = self._ports.ids.version
        held = held_by(claim, self._owner, now_ms, version, failure=leaving)
        if not self._catalog.claims.replace(claim, [held]):
            return False
        (seq,) = held.left
        letter = self._dead_letter(queue, group, held, seq)
        move = self._intent(held, seq)
        if move is None or not self._arrived(move, letter):
            try:
                move = self._push(queue, group, held, seq, letter, move)
            except OwnershipError:
                return False  # another process wrote its intent first
        rows = claims.as_dead(held, version)
        return self._catalog.claims.replace(held, rows, settle=[move])

    def _intent(self, claim: Claim, seq: int) -> Move | None:
        moves = self._catalog.claims.moves(claim.group_id, claim.pipe_id, range(seq, seq + 1))
        return moves[0] if moves else None

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

        def intend(pipe_id: str, dest_seq: int, _which: Sequence[int]) -> None:
            move = Move(
                group_id=claim.group_id,
                pipe_id=claim.pipe_id,
                seq=seq,
                reason=_reason(claim),
                dest_pipe=pipe_id,
                dest_seq=dest_seq,
                at_ms=self._catalog.now_ms(),
            )
            if self._catalog.claims.intend(move, intents[-1], held=claim) != move:
                raise OwnershipError(f"another process is moving message {claim.pipe_id}:{seq}")
            intents.append(move)

        self._append_to(letters_of(queue, group), letter, intend)
        move = intents[-1]
        assert move is not None
        logger.warning(
            "message %s:%d of %s moved to the dead letters of group %s, delivered %s",
            claim.pipe_id,
            seq,
            queue.name,
            group.name,
            counted(claim.deliveries, "time"),
        )
        return move

    def _dead_letter(self, queue: QueueRow, group: GroupRow, claim: Claim, seq: int) -> Batch:
        """The message with its original id, its priority and its death record."""
        reader = self._ports.store.reader(claim.pipe_id)
        try:
            ((frame, first, last),) = reader.read(Place(seq, claim.pos), seq + 1, 1, 0)
        finally:
            reader.close()
        failure = json.loads(claim.failure or "{}")
        to_wall_ms = self._ports.clock.wall_ms() - self._catalog.now_ms()
        death = {
            "queue": queue.name,
            "group": group.name,
            "reason": _reason(claim),
            "deliveries": claim.deliveries,
            "failure": failure.get("reason", ""),
            "error": failure.get("error", ""),
            "consumer": failure.get("consumer", ""),
            "first_ms": failure.get("first_ms", self._catalog.now_ms()) + to_wall_ms,
            "last_ms": failure.get("at_ms", self._catalog.now_ms()) + to_wall_ms,
            "at_ms": self._ports.clock.wall_ms(),
        }
        headers = frame.headers_at(first)
        death = after(headers.get(DEATH_HEADER, "{}"), death)
        headers[DEATH_HEADER] = json.dumps(death, separators=(",", ":"))
        return Batch(
            payloads=frame.payloads(first, last),
            times_ms=frame.time_ms(first),
            headers=[encode_headers(headers, room=DEATH_BYTES_MAX)],
            keys=[frame.keys[first]] if frame.keys else None,
            ids=[frame.id_at(first, claim.pipe_id)],
            priority=claim.priority,
        )

    def _arrived(self, move: Move, letter: Batch) -> bool:
        (letter_id,) = letter.ids or ()
        return bool(letter_id and arrived(self._ports, [move], {move.seq: letter_id}))


def _reason(claim: Claim) -> str:
    begun: str | None = json.loads(claim.failure or "{}").get("leaving")
    if begun is not None:
        return begun
    if not claims.is_doomed(claim):
        return DELIVERY_LIMIT
    return MAXLEN if json.loads(claim.failure).get("reason") == MAXLEN else REJECTED
