"""New claims: claims runs of messages that were never claimed, by moving the end of a pipe's chain.

Each claim is one compare-and-set. Where that is a round trip to a cluster, poppers of one process
that claim from the same pipe at the same time share one step, in which each gets its own claim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from cassq.consumer.claiming.candidates import CandidatePipes, PipeView
from cassq.consumer.claiming.redelivery import CLAIM_BYTES_MAX, Found
from cassq.consumer.claiming.reserving import Reserving
from cassq.consumer.delivery import Acknowledger, Delivery
from cassq.extents.port import Slice
from cassq.lifecycle.expiry import Expiry
from cassq.lifecycle.ports import Ports
from cassq.locks.port import Lock
from cassq.message.bundles import BundleSlice
from cassq.message.frames import Place
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.queues import Rules
from cassq.model.rows import Cursor, GroupRow

# Rounds of one claim. There is no pause between them: not every round follows a refusal, and where
# a claim is a round trip, the catalog itself pauses after a refusal.
ROUNDS_MAX = 32
SHARE = 16  # a popper may prefetch 1/SHARE of what waits in a pipe


@dataclass(slots=True)
class ClaimRequest:
    """What one popper wants from a pipe: `limit` messages, or `prefetch_limit` where far more wait.

    holder: of the claim. rules: of the group, now. joint: whether the messages are handed out with
    others. tried: see `Claim`. found: what it got.
    """

    holder: str
    acknowledger: Acknowledger
    rules: Rules
    limit: int
    prefetch_limit: int = 0
    joint: bool = False
    tried: RangeSet | None = None
    found: Found | None = None

    @property
    def may_reserve(self) -> bool:
        """Whether its popper may reserve a message: only if it prefetches, and claims nothing else
        at the same time."""
        return self.prefetch_limit > 0 and not self.joint

    def size(self, waiting: int) -> int:
        """How many messages to claim for it: a multiple of `limit`, so that no later call gets only
        a remainder."""
        more = min(self.prefetch_limit, waiting // SHARE)
        return max(self.limit, more - more % self.limit)


class AdvanceOptions(NamedTuple):
    """How a chain is moved. lock: of an exclusive group. priority: of the pipe. synced: as in
    `Claims.claim`. is_last: whether nothing else waits in the pipe, but more may come."""

    lock: Lock | None
    priority: int
    synced: bool
    is_last: bool = False


class NewClaims:
    """Claims from the ends of chains, for one popper or several at once."""

    def __init__(
        self,
        ports: Ports,
        group: Callable[[], GroupRow],
        window: CandidatePipes,
        expiry: Expiry,
        reserving: Reserving | None = None,
    ) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._group = group
        self._window = window
        self._expiry = expiry
        self._reserving = reserving

    def claim(self, view: PipeView, request: ClaimRequest) -> list[Found]:
        """Claim a run from the end of the chain on. Empty if nothing waits, or if other poppers
        were faster `ROUNDS_MAX` times."""
        if self._ports.sharing is None:
            self.claim_for([request], view)
        else:

            def serve(requests: list[ClaimRequest], last: Cursor | None) -> Cursor | None:
                if last is not None and view.cursor is not None:
                    if self._reserving and last.chain.seq > view.cursor.chain.seq:
                        self._reserving.met_another()
                    view.cursor = max(last, view.cursor, key=_progress)
                self.claim_for(requests, view)
                return view.cursor

            self._ports.sharing.together((self._group().id, view.row.id), request, serve)
        if request.found is None:
            return []
        if self._reserving is not None:
            self._reserving.claimed()
        return [request.found]

    def claim_for(
        self, requests: Sequence[ClaimRequest], view: PipeView, lock: Lock | None = None
    ) -> None:
        """Claim a run for each request, one after the other, all in one step. lock: of an exclusive
        group."""
        end_seq = view.end_seq  # as the window saw it a moment ago
        for number in range(ROUNDS_MAX):
            cursor = view.cursor or self._catalog.claims.cursor(self._group().id, view.row.id)
            view.cursor = cursor
            if cursor is None:
                self._window.forget(view)
                return
            if self._reserving is not None and self._reserving.is_ours(cursor):
                cursor = view.cursor = replace(cursor, owner="")
            if number or end_seq <= cursor.chain.seq:
                end_seq = self._window.end_seq(view)
            waiting = end_seq - cursor.chain.seq
            if waiting <= 0:
                return
            reader = self._window.reader(view)
            sizes = [request.size(waiting) for request in requests]
            slices = reader.read(cursor.chain, end_seq, sum(sizes), CLAIM_BYTES_MAX)
            if requests[0].rules.age_limit_ms is not None:
                cursor, slices = self._expiry.select(view.row, cursor, reader, slices, end_seq)
                view.cursor = cursor
            if cursor is None and lock is not None:
                return  # fenced
            if cursor is None or not slices:
                continue
            parts = dealt(slices, sizes)
            places = [cursor.chain]
            for part in parts:
                places.append(reader.place_after(places[-1], part))
            if self._reserving and self._is_reserved(cursor, places[-1], requests, parts):
                view.cursor = replace(cursor, chain=places[-1])
                return
            # Synced, so that messages that keep crashing the machine are counted.
            how = AdvanceOptions(lock, view.row.priority, synced=reader.earlier_boot)
            if view.row.end is None and places[-1].seq == end_seq:
                how = how._replace(is_last=True)
            after = self._advance(cursor, places, requests, parts, how)
            if after is not None:
                view.cursor = after
                return
            if lock is not None:
                return  # fenced
            view.cursor = None

    def _is_reserved(
        self,
        cursor: Cursor,
        chain: Place,
        requests: Sequence[ClaimRequest],
        parts: Sequence[list[Slice]],
    ) -> bool:
        """Give a request what was reserved for it, without a write. False if nothing was reserved,
        or the reservation does not end at `chain`."""
        if self._reserving is None or len(requests) != 1 or not requests[0].may_reserve:
            return False
        delivery = self._reserving.use(cursor, chain, requests[0].acknowledger)
        if delivery is None:
            return False
        requests[0].found = delivery, pieces_of(parts[0])
        return True

    def _advance(
        self,
        cursor: Cursor,
        places: Sequence[Place],
        requests: Sequence[ClaimRequest],
        parts: Sequence[list[Slice]],
        how: AdvanceOptions,
    ) -> Cursor | None:
        """Write a claim for each part, and set `found` of its request. Returns the new cursor, or
        None if other poppers were faster."""
        now_ms = self._catalog.now_ms()
        version = self._ports.ids.version
        served = list(zip(requests, parts, pairwise(places), strict=False))
        rows = [
            claims.first(
                replace(cursor, chain=start),
                end,
                request.holder,
                now_ms + request.rules.claim_timeout_ms,
                version,
                joint=request.joint,
                tried=request.tried,
                priority=how.priority,
            )
            for request, _, (start, end) in served
        ]
        chain, reserving = places[-1], self._reserving
        if reserving is not None:
            alone = len(requests) == 1 and requests[0].may_reserve and how.is_last
            reserve = reserving.next_of(cursor, chain, how.priority) if alone else None
            after = reserving.advance(cursor, chain, rows, reserve, synced=how.synced)
            if after is None:
                return None
        elif not self._catalog.claims.claim(cursor, chain, rows, synced=how.synced):
            return None
        else:
            after = replace(cursor, chain=chain)
        epoch = cursor.epoch if how.lock else None
        for (request, part, _), row in zip(served, rows, strict=True):
            pieces = pieces_of(part)
            request.found = Delivery(request.acknowledger, [row], now_ms, how.lock, epoch), pieces
        return after


def pieces_of(slices: Sequence[Slice]) -> list[BundleSlice]:
    """Slices as the messages of a delivery."""
    return [
        BundleSlice(frame, RangeSet.run(frame.base_seq + first, frame.base_seq + last))
        for frame, first, last in slices
    ]


def dealt(slices: Sequence[Slice], sizes: Sequence[int]) -> list[list[Slice]]:
    """The first `sizes[0]` messages, the next `sizes[1]`, and so on, as far as they reach."""
    if len(sizes) == 1:
        return [list(slices)]
    parts: list[list[Slice]] = []
    left = list(slices)
    for size in sizes:
        part: list[Slice] = []
        while left and size > 0:
            frame, first, last = left[0]
            middle = min(last, first + size)
            part.append(Slice(frame, first, middle))
            size -= middle - first
            left[:1] = [Slice(frame, middle, last)] if middle < last else []
        if part:
            parts.append(part)
    return parts


def _progress(cursor: Cursor) -> tuple[int, int]:
    """A sort key for cursors: the later one is greater."""
    return cursor.epoch, cursor.chain.seq
