"""Redelivery: reads the unacked messages of free claim rows, and takes several rows at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cassq.catalog.cover import fault_now, wedged
from cassq.catalog.port import Catalog
from cassq.consumer.claiming.candidates import UNREADABLE, CandidatePipes
from cassq.consumer.claiming.retained import RetainedMessages
from cassq.consumer.delivery import Acknowledger, Delivery
from cassq.extents.port import (
    ExtentReader,
    Slice,
)
from cassq.message.bundles import BundleSlice
from cassq.message.frames import Place
from cassq.model import claims
from cassq.model.rows import Claim

CLAIM_BYTES_MAX = 32 * 1024 * 1024


class ChosenPart(NamedTuple):
    """A free row, its first messages, and the place after them."""

    row: Claim
    pieces: list[BundleSlice]
    until: Place


# Messages that one pop gets of one pipe: their delivery, and themselves by frame.
Found = tuple[Delivery, list[BundleSlice]]


def read_left(
    reader: ExtentReader, row: Claim, limit: int, room: int = CLAIM_BYTES_MAX
) -> tuple[list[BundleSlice], Place]:
    """The first unacked messages of a row, at most `limit`, in one frame or frames of at most
    `room` bytes; and the place after the last of them, or the row's end if none are left. Cost:
    the frames they are in."""
    left = row.left
    pieces: list[BundleSlice] = []
    place = Place(row.start, row.pos)
    while left and limit > 0 and room > 0:
        place = Place(left.ranges[0][0], place.pos)
        ((frame, first, _),) = reader.read(place, row.end, 1, 0)
        seqs = left.within(place.seq, frame.end_seq).part(0, limit)
        pieces.append(BundleSlice(frame, seqs))
        limit -= len(seqs)
        room -= frame.size
        last = seqs.ranges[-1][1]
        place = reader.place_after(place, [Slice(frame, first, last - frame.base_seq)])
        left = left.within(last, row.end)
    return pieces, place if left else Place(row.end, place.pos)


class Redelivery:
    """Takes free rows for one popper. holder: returns the holder of a new claim. singly: each
    message is settled by itself, so that it does not share the failures of others."""

    def __init__(
        self,
        catalog: Catalog,
        window: CandidatePipes,
        holder: Callable[[], str],
        version: claims.Version,
        *,
        singly: bool = False,
    ) -> None:
        self._catalog = catalog
        self._window = window
        self._holder = holder
        self._version = version
        self._singly = singly
        self.retained: RetainedMessages = RetainedMessages()
        self._refused: set[str] = set()  # versions of rows whose taking was refused

    def retake(
        self,
        due: Sequence[Claim],
        limit: int,
        acknowledger: Acknowledger,
        timeout_ms: int,
        *,
        joint: bool,
    ) -> tuple[list[Found], bool]:
        """Take free rows. Returns them as deliveries, and whether there may be more. They are read
        before they are taken, so that damage is found first. joint: other messages are handed out
        with them. Cost: one synced transaction for all, and the frames that are not in memory."""
        chosen = self._choose(due, limit)
        if not chosen:
            return [], False
        now_ms = self._catalog.now_ms()
        joint = not self._singly and (joint or len(chosen) > 1)
        holder = self._holder()
        changes: list[tuple[Claim, list[Claim]]] = []
        mine: list[tuple[Claim, list[BundleSlice]]] = []
        for row, pieces, until in chosen:
            held, rows = claims.taken(
                row, until, holder, now_ms + timeout_ms, self._version, joint=joint
            )
            changes.append((row, rows))
            mine.append((held, pieces))
        done = self._catalog.claims.replace_many(changes)
        got = [claim for claim, ok in zip(mine, done, strict=True) if ok]
        self._note_refused([row for (row, _), ok in zip(changes, done, strict=True) if not ok])
        more = len(chosen) < len(due) or chosen[-1].until.seq < chosen[-1].row.end
        return as_deliveries(got, acknowledger, now_ms), more

    def _note_refused(self, rows: Sequence[Claim]) -> None:
        """If taking a row was refused twice in the same version, no other popper took it: check
        whether the claims of its pipe have a gap. Cost: in that case that of `fault_now`."""
        for row in rows:
            if row.version not in self._refused:
                continue
            found = fault_now(self._catalog.claims, row.group_id, row.pipe_id)
            if found is not None:
                self._window.set_aside(row.pipe_id, wedged(row.pipe_id, found[1]))
        self._refused = {row.version for row in rows}

    def _choose(self, due: Sequence[Claim], limit: int) -> list[ChosenPart]:
        """The rows to take together. A row that may hold a poisonous message is taken alone."""
        chosen: list[ChosenPart] = []
        room = CLAIM_BYTES_MAX
        for row in due:
            suspect = not self._singly and claims.is_suspect(row)
            if limit <= 0 or room <= 0 or (chosen and suspect):
                break
            try:
                pieces, until = self._left(row, limit, room)
            except UNREADABLE as exc:
                self._window.pass_over(row.pipe_id, exc)
                continue
            chosen.append(ChosenPart(row, pieces, until))
            limit -= sum(len(piece.seqs) for piece in pieces)
            room -= sum(piece.bundle.size for piece in pieces)
            if suspect:
                break
        return chosen

    def _left(self, row: Claim, limit: int, room: int) -> tuple[list[BundleSlice], Place]:
        """The first messages left in a row, and the place after them: from memory, or read."""
        kept = self.retained.take(row)
        if kept is not None and row.left_count <= limit:
            return kept, Place(row.end, row.pos)
        return read_left(self._window.readers.get(row.pipe_id), row, limit, room)


def as_deliveries(
    taken: Iterable[tuple[Claim, list[BundleSlice]]], acknowledger: Acknowledger, now_ms: int
) -> list[Found]:
    """Rows that were just taken, as deliveries, in their order: one for each pipe and delivery
    count."""
    found: list[Found] = []
    kinds: dict[tuple[str, int], list[tuple[Claim, list[BundleSlice]]]] = {}
    for each in taken:
        kinds.setdefault((each[0].pipe_id, each[0].deliveries), []).append(each)
    for together in kinds.values():
        delivery = Delivery(acknowledger, [row for row, _ in together], now_ms, None, None)
        found.append((delivery, [piece for _, pieces in together for piece in pieces]))
    return found
