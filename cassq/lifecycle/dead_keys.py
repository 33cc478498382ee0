"""Keys that dead letters hold, in groups made with `on_dead="hold"`.

A message that became a dead letter holds its key: later messages of the key wait until nothing
holds it. A letter holds it until the letter is merged back, purged or committed in the dead-letter
queue, or an operator releases the key. So the dead letters themselves record which keys are held,
and outlast every popper. Only the released ones are noted elsewhere, in a text that clients share.

A letter without a key holds nothing; nor does one that a full queue dropped.

Invariant: a message is a durable dead letter before it is done in its queue. So a process that sees
it done, and then looks, finds its letter.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

from cassq.base.clock import attempts, contended
from cassq.catalog.port import released_name
from cassq.errors import CorruptionError, UsageError
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import MAXLEN, death_of
from cassq.lifecycle.sealing import sealed_end
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.ledger import unfinished
from cassq.model.queues import dead_letter_name
from cassq.model.rows import GroupRow, Move, PipeRow

logger: logging.Logger = logging.getLogger("cassq")

READ_MESSAGES = 4096
READ_BYTES = 8 * 1024 * 1024


class HoldingLetter(NamedTuple):
    """A dead letter that holds its key. place: in the dead-letter queue. deliveries, error: of the
    message before it died; 0 and empty if that is not known."""

    key: bytes
    id: str
    place: tuple[str, int]
    deliveries: int = 0
    error: str = ""


def held_by_letters(ports: Ports, queue: str, group: GroupRow) -> dict[bytes, list[HoldingLetter]]:
    """The keys of a group that dead letters hold, with these letters. Empty without
    `on_dead="hold"`. Cost: reads the group's dead letters."""
    return DeadKeys(ports, queue, group).look() if group.policy.on_dead == "hold" else {}


def released(ports: Ports, queue: str, group: GroupRow, key: bytes) -> int:
    """Release a key of a group; returns how many dead letters held it. Cost: reads the group's dead
    letters.

    Raises UsageError for a group without `on_dead="hold"`.
    """
    if group.policy.on_dead != "hold":
        raise UsageError(
            f"dead letters of group {group.name} hold no keys",
            hint="this is for groups with order='key' and on_dead='hold'",
        )
    return len(DeadKeys(ports, queue, group).release(key))


class _PipeRead:
    """What was read of a pipe of dead letters. next: up to where. letters: those with a key."""

    def __init__(self) -> None:
        self.next: Place = Place(0, 0)
        self.letters: dict[int, HoldingLetter] = {}

    @property
    def end_seq(self) -> int:
        return max([self.next.seq, *(seq + 1 for seq in self.letters)])


class DeadKeys:
    """The keys that the dead letters of a group hold. Not thread-safe.

    queue: the name of the group's queue.
    """

    def __init__(self, ports: Ports, queue: str, group: GroupRow) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._letters_name = dead_letter_name(queue, group.name)
        self._released_name = released_name(group.id)
        self._read: dict[str, _PipeRead] = {}

    def look(self) -> dict[bytes, list[HoldingLetter]]:
        """The keys that are held now, and the letters that hold each, oldest pipe first.

        Letters that cannot be read hold nothing; their pipe is logged. Cost: reads the pipe rows
        and claims of the dead-letter queue, and the frames that were not read before.
        """
        row = self._catalog.queues.named(self._letters_name)
        groups = self._catalog.queues.groups(row.id) if row is not None else []
        letters = next((group for group in groups if group.name == "default"), None)
        if letters is None:
            self._read.clear()
            return {}
        released = _parsed(self._catalog.leases.shared(self._released_name))
        pipes = [pipe for pipe in self._catalog.pipes.live(letters.queue_id)
                 if pipe.is_for(letters.id)]  # fmt: skip
        self._read = {pipe.id: self._read.get(pipe.id, _PipeRead()) for pipe in pipes}
        found: dict[bytes, list[HoldingLetter]] = {}
        for pipe in pipes:
            for letter in self._left(letters, pipe):
                if letter.place[1] not in released.get(pipe.id, EMPTY):
                    found.setdefault(letter.key, []).append(letter)
        return found

    def _left(self, group: GroupRow, pipe: PipeRow) -> list[HoldingLetter]:
        """The letters of a pipe that are not done."""
        cursor = self._catalog.claims.find_cursor(group.id, pipe.id)
        if pipe.end is not None and cursor is not None and cursor.ack.seq >= pipe.end.seq:
            return []
        read = self._read[pipe.id]
        try:
            self._read_on(pipe, read)
        except (ExtentMissingError, CorruptionError) as exc:
            logger.warning("the dead letters in pipe %s hold no keys: %s", pipe.id, exc)
        rows = self._catalog.claims.rows(group.id, pipe.id) if cursor is not None else []
        parts = unfinished(cursor, rows, read.end_seq, self._catalog.now_ms())
        left = RangeSet.joined([EMPTY, *(part.seqs for part in parts)])
        return [letter for seq, letter in read.letters.items() if seq in left]

    def _read_on(self, pipe: PipeRow, read: _PipeRead) -> None:
        with closing(self._ports.store.reader(pipe.id)) as reader:
            end = sealed_end(self._catalog, self._ports.store, pipe)
            end_seq = (end or reader.published()).seq
            while read.next.seq < end_seq:
                slices = reader.read(read.next, end_seq, READ_MESSAGES, READ_BYTES)
                for frame, first, last in slices:
                    for index in range(first, last):
                        key, seq = frame.key_at(index), frame.base_seq + index
                        death = death_of(frame.headers_at(index)) if key is not None else {}
                        if key is not None and death.get("reason") != MAXLEN:
                            id = frame.id_at(index, pipe.id).decode()
                            about = death.get("deliveries", 0), death.get("error", "")
                            read.letters[seq] = HoldingLetter(key, id, (pipe.id, seq), *about)
                read.next = reader.place_after(read.next, slices)

    def expect(self, move: Move, key: bytes) -> None:
        """Note that a message of this key became a dead letter, in case its pipe does not show it
        yet."""
        if move.reason != MAXLEN:
            read = self._read.setdefault(move.dest_pipe, _PipeRead())
            place = move.dest_pipe, move.dest_seq
            letter = HoldingLetter(key, f"{move.pipe_id}:{move.seq}", place)
            read.letters.setdefault(move.dest_seq, letter)

    def release(self, key: bytes) -> list[HoldingLetter]:
        """Release the key. Returns the letters that held it; they stay dead letters. Durable on
        return. Raises BackendError.

        Cost: that of `look`, and a synced conditional write.
        """
        for _ in attempts(self._ports.clock):
            text = self._catalog.leases.shared(self._released_name)
            found = self.look().get(key, [])
            if not found:
                return []
            known = {id: seqs for id, seqs in _parsed(text).items() if id in self._read}
            for pipe_id, seq in (letter.place for letter in found):
                known[pipe_id] = known.get(pipe_id, EMPTY) | RangeSet.run(seq, seq + 1)
            new = _as_text(known, self._ports.ids.version())
            if self._catalog.leases.swap(self._released_name, text, new):
                self._catalog.claims.ensure_durable()
                return found
        raise contended("which keys of the group are released")


def _parsed(text: str) -> dict[str, RangeSet]:
    """Pipe → the seqs of the letters in it that are released."""
    pipes = json.loads(text)["pipes"] if text else {}
    return {id: RangeSet((start, end) for start, end in runs) for id, runs in pipes.items()}


def _as_text(pipes: Mapping[str, RangeSet], version: str) -> str:
    """The text that `_parsed` reads. version: makes it differ from any other writer's."""
    found: Iterable[tuple[str, RangeSet]] = pipes.items()
    return json.dumps({"version": version, "pipes": {id: seqs.ranges for id, seqs in found}})
