"""New claims: claims runs of messages that were never claimed, by moving a pipe's chain.

Each claim is one compare-and-set. Where that is a round trip to a cluster, poppers of one process
that claim from the same pipe at the same time do so in one step, each with a claim of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from cassq.consumer.claiming.candidates import CandidatePipes, PipeView
from cassq.consumer.claiming.redelivery import CLAIM_BYTES_MAX, Found
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

TRIES_MAX = 32
SHARE = 16  # a popper may prefetch 1/SHARE of what waits in a pipe


@dataclass(slots=True)
class ClaimRequest:
    """What one popper wants from a pipe: `limit` messages, or `prefetch_limit` where far more wait.

    holder: of the claim. rules: its group's, now. joint: the messages are
    handed out with others. tried: see `Claim`. found: what it got.
    """

    holder: str
    acknowledger: Acknowledger
    rules: Rules
    limit: int
    prefetch_limit: int = 0
    joint: bool = False
    tried: RangeSet | None = None
    found: Found | None = None

    def size(self, waiting: int) -> int:
        """How many to claim for it: whole calls' worth, so that no later call gets a remainder."""
        more = min(self.prefetch_limit, waiting // SHARE)
        return max(self.limit, more - more % self.limit)


class AdvanceOptions(NamedTuple):
    """lock: of an exclusive group. priority: of the pipe. synced: as in `Claims.claim`."""

    lock: Lock | None
    priority: int
    synced: bool


class NewClaims:
    """Claims from the ends of chains, for one popper or several at once."""

    def __init__(
        self,
        ports: Ports,
        group: Callable[[], GroupRow],
        window: CandidatePipes,
        expiry: Expiry,
    ) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._group = group
        self._window = window
        self._expiry = expiry

    def claim(self, view: PipeView, request: ClaimRequest) -> list[Found]:
        """Claim a run from the chain's end on; empty if nothing waits, or others are always
        faster."""
        if self._ports.sharing is None:
            self.claim_for([request], view)
        else:

            def serve(requests: list[ClaimRequest], last: Cursor | None) -> Cursor | None:
                if last is not None and view.cursor is not None:
                    view.cursor = max(last, view.cursor, key=_progress)
                self.claim_for(requests, view)
                return view.cursor

            self._ports.sharing.together((self._group().id, view.row.id), request, serve)
        return [request.found] if request.found is not None else []

    def claim_for(
        self, requests: Sequence[ClaimRequest], view: PipeView, lock: Lock | None = None
    ) -> None:
        """Claim one run after another, all in one step. lock: of an exclusive group."""
        end_seq = view.end_seq  # as the window saw it a moment ago
        for tried in range(TRIES_MAX):
            cursor = view.cursor or self._catalog.claims.cursor(self._group().id, view.row.id)
            view.cursor = cursor
            if cursor is None:
                self._window.forget(view)
                return
            if tried or end_seq <= cursor.chain.seq:
                end_seq = self._window.end_seq(view)
            waiting = end_seq - cursor.chain.seq
            if waiting <= 0:
                return
            reader = self._window.reader(view)
            sizes = [request.size(waiting) for request in requests]
            slices = reader.read(cursor.chain, end_seq, sum(sizes), CLAIM_BYTES_MAX)
            if requests[0].rules.age_limit_ms is not None:
                cursor, slices = self._expiry.sift(view.row, cursor, reader, slices, end_seq)
                view.cursor = cursor
            if cursor is None and lock is not None:
                return  # fenced
            if cursor is None or not slices:
                continue
            parts = dealt(slices, sizes)
            places = [cursor.chain]
            for part in parts:
                places.append(reader.place_after(places[-1], part))
            # Synced, so that messages that keep crashing the machine are counted.
            how = AdvanceOptions(lock, view.row.priority, synced=reader.earlier_boot)
            if self._advance(cursor, places, requests, parts, how):
                view.cursor = replace(cursor, chain=places[-1])
                return
            if lock is not None:
                return  # fenced
            view.cursor = None

    def _advance(
        self,
        cursor: Cursor,
        places: Sequence[Place],
        requests: Sequence[ClaimRequest],
        parts: Sequence[list[Slice]],
        how: AdvanceOptions,
    ) -> bool:
        """Write a claim for each part as its request's `found`; False if others were faster."""
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
        if not self._catalog.claims.claim(cursor, places[-1], rows, synced=how.synced):
            return False
        epoch = cursor.epoch if how.lock else None
        for (request, part, _), row in zip(served, rows, strict=True):
            pieces = [
                BundleSlice(frame, RangeSet.run(frame.base_seq + first, frame.base_seq + last))
                for frame, first, last in part
            ]
            request.found = (Delivery(request.acknowledger, [row], now_ms, how.lock, epoch), pieces)
        return True


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
