"""Candidate pipes: which pipes a group may claim from at the moment, and in which order.

A popper claims in rounds from the *window*: the oldest `max_pop_width` live pipes that have
something waiting for the group. In a round it makes one claim from each of them, so that none of
them starves. The list of live pipes is cached: pipes that it misses are found when nothing else is,
or within a second.

The bound on overtaking: let p pipes have something waiting, at most `max_pop_width`, and take a
message with d unclaimed messages ahead of it, in a pipe that the popper has listed. Before this
message is delivered, a single popper that asks for c messages at a time delivers at most
`(p - 1) * c * (d // c + 2)` newer ones. A pipe beyond the window waits until an older one in it is
empty.

All of this holds among the pipes of one priority. Pipes of a greater priority come first, so the
window belongs to the greatest priority in which something waits. If all of its pipes were tried in
vain, `go_on` moves it to the next priority; now and then it begins at the least one (`upward`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection

from cassq.base.sharing import BESIDE_MS, answered
from cassq.consumer.claiming.parts import LanePart
from cassq.errors import CassqError, CorruptionError
from cassq.extents.port import ExtentMissingError, ExtentReader, ExtentUnavailableError
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import live_pipe
from cassq.model.rows import Cursor, GroupRow, PipeRow, PipeState, QueueRow

REFRESH_MS = 1000
URGENT_MS = 40  # how often to look for new pipes with a priority where that takes no round trip
# How long an unreachable pipe is left alone, so that a popper does not spend its time waiting for
# such pipes. Doubles with each failed try, up to the maximum.
AWAY_MS = 1000
AWAY_MAX_MS = 8000
# An unreadable pipe is tried again after this time: it may have been repaired.
BROKEN_AGAIN_MS = 5000
LISTED_MIN = 64
# Errors of one pipe that cannot be read, or cannot be reached now, while others may be.
UNREADABLE = (ExtentMissingError, CorruptionError, ExtentUnavailableError)
READERS_MAX = 64


class PipeView:
    """A pipe as one group sees it. cursor: may be older than the catalog's, but never newer.
    end_seq: as last read; everything below it is acknowledged and may be delivered."""

    __slots__ = ("cursor", "end_seq", "follows", "reader", "row")

    def __init__(self, row: PipeRow) -> None:
        self.row: PipeRow = row
        self.reader: ExtentReader | None = None
        self.cursor: Cursor | None = None
        self.end_seq: int = 0
        self.follows: bool = not row.predecessor  # the predecessor is known to be done


class Readers:
    """Open extents, at most `READERS_MAX`; the least recently used are closed first, removed ones
    at once. There is a maximum because a popper also reads pipes that are not listed, to redeliver
    messages, or deliver those that come due.
    """

    def __init__(self, open_extent: Callable[[str], ExtentReader]) -> None:
        self._open = open_extent
        self._readers: OrderedDict[str, ExtentReader] = OrderedDict()

    def get(self, pipe_id: str) -> ExtentReader:
        """The reader of a pipe; raises ExtentMissingError if its extent is gone."""
        reader = self._readers.get(pipe_id)
        if reader is None:
            reader = self._open(pipe_id)
            self.put(pipe_id, reader)
        else:
            self._readers.move_to_end(pipe_id)
        return reader

    def put(self, pipe_id: str, reader: ExtentReader) -> None:
        """Add an open reader, which must be closed here."""
        self.forget(pipe_id)
        self._readers[pipe_id] = reader
        if len(self._readers) > READERS_MAX:
            self._readers.popitem(last=False)[1].close()

    def forget(self, pipe_id: str) -> None:
        reader = self._readers.pop(pipe_id, None)
        if reader is not None:
            reader.close()

    def close_dropped(self) -> None:
        """Close readers of retired pipes: an open file keeps its disk space even without a name.
        Cost: a system call for each."""
        for pipe_id in [pipe_id for pipe_id, held in self._readers.items() if held.dropped()]:
            self.forget(pipe_id)

    def close(self) -> None:
        while self._readers:
            self._readers.popitem()[1].close()


class CandidatePipes:
    """The pipes that a group can claim from, oldest first, in turn. part: restricts them to some of
    the queue's."""

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        group: GroupRow,
        *,
        in_order: bool,
        part: LanePart | None = None,
    ) -> None:
        self._ports = ports
        self._queue = queue
        self._group = group
        self._in_order = in_order
        self._part = part
        self._views: dict[str, PipeView] = {}
        self._refreshed_ms = -REFRESH_MS
        self._limit = LISTED_MIN
        self.truncated: bool = False  # the last listing was cut off
        self.levels: list[int] = []  # the priorities in it, if any is not 0 ...
        self.top: int = 0  # ... and the greatest of them
        self.upward: bool = False  # whether the least priority comes first, until further notice
        self.tried: set[str] = set()  # pipes to leave out until this is cleared
        self._urgent_added = 0  # `Pipes.urgent_added` when it was read
        self._newest_urgent = 0  # `Pipes.newest_urgent` when that was looked at, ...
        self._looked_ms = -URGENT_MS  # ... which was at this boot time
        self._round: set[str] = set()
        self.readers: Readers = Readers(ports.store.reader)
        # Pipes that cannot be read, each reported to the user once. From then on they are left
        # alone until the boot time in `_again_ms`, when they are tried again.
        self.broken: dict[str, CassqError] = {}
        self.unreported: list[CassqError] = []
        self._again_ms: dict[str, int] = {}
        # Pipes that could not be reached when last tried: until when they are left alone, and how
        # long that is. away: the latest such error.
        self._away: dict[str, tuple[int, int]] = {}
        self.away: ExtentUnavailableError | None = None
        self._out: set[str] = set()  # the pipes left out when choosing candidates

    def refresh(self, *, old_ms: int = 0) -> bool:
        """List the live pipes, sharing the query with other poppers of this client where it takes
        round trips. Returns whether the list was read after this call began. old_ms: accept a list
        of this age from another popper. Cost: one query, bounded by a stored floor."""
        begun_ms = self._ports.clock.boot_ms()
        added = self._ports.catalog.pipes.urgent_added
        old_ms = old_ms if added == self._urgent_added else 0
        self._urgent_added = added
        least = max(LISTED_MIN, 4 * self._queue().policy.max_pop_width)
        limit = self._limit = max(self._limit, least)
        listed = answered(
            self._ports.sharing,
            ("pipes", self._group.id, self._in_order, limit),
            lambda: self._ports.catalog.pipes.unclaimed(self._group, limit, unacked=self._in_order),
            self._ports.clock.boot_ms,
            old_ms=old_ms,
            beside_ms=BESIDE_MS if old_ms else 0,
        )
        rows = listed.value
        self.truncated = len(rows) == self._limit
        if self._part is not None:
            rows = [row for row in rows if self._part.has(row)]
            if self.truncated and not rows:
                self._limit *= 2  # all that were listed belong to other parts
                return self.refresh(old_ms=old_ms)
        self.levels, self.top = [], rows[0].priority if rows else 0
        self.tried.clear()
        if self.top:
            counts = Counter(row.priority for row in rows)
            self.levels = list(counts)
            self.truncated = self._limit in counts.values()
            self._round.intersection_update(row.id for row in rows)
        if len(listed.value) < least:
            self._limit = least
        views: dict[str, PipeView] = {}
        for row in rows:
            view = self._views.get(row.id) or PipeView(row)
            view.row = row
            views[row.id] = view
        for pipe_id in self._views.keys() - views.keys():
            self.readers.forget(pipe_id)
        self._views = views
        self.readers.close_dropped()
        self._refreshed_ms = listed.asked_ms
        asked_now = listed.asked_ms > begun_ms or not old_ms
        return asked_now or self._ports.sharing is None

    def begin(self, *, upward: bool) -> None:
        """Begin a claim: try all priorities again. upward: the least one first."""
        self.upward = upward
        self.tried.clear()

    def look_further(self) -> None:
        """List twice as many pipes, since those that are listed are open ones with nothing in
        them."""
        self._limit *= 2
        self.refresh()

    def is_stale(self, now_ms: int) -> bool:
        """Whether it is time to list again even though there is something to claim. now_ms: boot
        time."""
        pipes = self._ports.catalog.pipes
        late = now_ms - self._refreshed_ms >= REFRESH_MS
        if late or pipes.urgent_added != self._urgent_added:
            return True
        if now_ms - self._looked_ms < URGENT_MS:
            return False
        newest, self._looked_ms = pipes.newest_urgent(self._group.queue_id), now_ms
        changed, self._newest_urgent = newest != self._newest_urgent, newest
        return changed

    def candidates(self, width: int, now_ms: int) -> list[PipeView]:
        """The views to try: the oldest `width` with something waiting, of the first priority that
        has any, without those in `tried`. Those not yet claimed from in this round come first.
        now_ms: boot time."""
        found: list[PipeView] = []
        out = self._out = self.left_alone(now_ms)
        left = [view for view in self._views.values() if view.row.id not in out]
        if not self.levels:
            found = self._waiting_in(left, width)
        for level in reversed(self.levels) if self.upward else self.levels:
            of_level = [view for view in left if view.row.priority == level]
            found = self._waiting_in([v for v in of_level if v.row.id not in self.tried], width)
            if found:
                break
        if not self._in_order:
            if not any(view.row.id in self._round for view in found):
                others = self._round if self.levels else set()  # those of other priorities go on
                self._round = others | {view.row.id for view in found}
            if len(found) > 1:
                found.sort(key=lambda view: view.row.id not in self._round)
        return found

    def _waiting_in(self, left: list[PipeView], width: int) -> list[PipeView]:
        """The first `width` of some views that have something waiting."""
        found: list[PipeView] = []
        while left and len(found) < width:
            some, left = left[: width - len(found)], left[width - len(found) :]
            self._look_at(some)
            for view in some:
                try:
                    if self.waiting(view):
                        found.append(view)
                except (ExtentMissingError, CorruptionError) as exc:
                    self.set_aside(view.row.id, exc)
        return found

    def go_on(self, tried: list[PipeView]) -> bool:
        """Leave these candidates out from now on. Returns whether there may be others."""
        if not (tried and self.levels):
            return False
        self.tried.update(view.row.id for view in tried)
        return True

    def above(self, priority: int, width: int) -> list[PipeView]:
        """The first `width` with something waiting of a greater priority, the greatest first. Cost:
        as `candidates`."""
        out = self.left_alone()
        views = [view for view in self._views.values() if view.row.priority > priority]
        return self._waiting_in([view for view in views if view.row.id not in out], width)

    def in_chains(self, chain_of: Callable[[PipeRow], str], now_ms: int) -> dict[str, PipeView]:
        """By chain, the view with something waiting that may be claimed from if the pipes of a
        chain are claimed from one after the other; the greatest priority first. now_ms: boot time.
        """
        heads: dict[str, PipeView] = {}
        out = self.left_alone(now_ms)
        self._look_at([view for view in self._views.values() if view.row.id not in out])
        for view in sorted(self._views.values(), key=lambda view: view.row.ordinal):
            if view.row.id in out or not self._is_claimed(view):
                heads.setdefault(chain_of(view.row), view)
        found: list[tuple[str, PipeView]] = []
        for chain, view in heads.items():
            try:
                if view.row.id not in out and self.waiting(view):
                    found.append((chain, view))
            except (ExtentMissingError, CorruptionError) as exc:
                self.set_aside(view.row.id, exc)
        found.sort(key=lambda each: each[1].row.priority, reverse=True)
        return dict(found)

    def _is_claimed(self, view: PipeView) -> bool:
        """Whether all that a pipe will ever hold is claimed."""
        end, cursor = view.row.end, view.cursor
        return end is not None and cursor is not None and cursor.chain.seq >= end.seq

    def forget_cursors(self, pipe_ids: Collection[str] | None = None) -> None:
        """Forget the group's cursors in these pipes, or in all, so that they are read again."""
        for pipe_id in self._views if pipe_ids is None else pipe_ids:
            if view := self._views.get(pipe_id):
                view.cursor = None

    def is_blocked(self) -> bool:
        """Whether some candidates could not be read, so that there are other candidates now."""
        return not self.left_alone() <= self._out

    def _look_at(self, views: list[PipeView]) -> None:
        """Read missing cursors, and the ends of growing pipes, in one request for all of them.
        Drops the views of retired pipes."""
        new = [view for view in views if view.cursor is None]
        if new:
            cursors = self._ports.catalog.claims.cursors_in(self._group.id, [v.row.id for v in new])
            for view, cursor in zip(new, cursors, strict=True):
                view.cursor = cursor
                if cursor is None:
                    self.forget(view)
        growing = [v for v in views if v.row.end is None and v.cursor is not None]
        unread = [view for view in growing if view.reader is None]
        if len(unread) > 1:
            readers = self._ports.store.readers([view.row.id for view in unread])
            for view, reader in zip(unread, readers, strict=True):
                if reader is not None:
                    view.reader = reader
                    self.readers.put(view.row.id, reader)
        for view in growing:
            reader = view.reader
            if reader is not None and reader.asks and not (reader.renews and self._has_more(view)):
                reader.ask_published()

    def waiting(self, view: PipeView) -> bool:
        """Whether the pipe may hold something the group has not claimed (in order: acked)."""
        if view.cursor is None:
            return False
        done = view.cursor.ack.seq if self._in_order else view.cursor.chain.seq
        return self.end_seq(view) > done

    def end_seq(self, view: PipeView) -> int:
        """Find where the pipe ends. While messages are known to wait, a recently known end is
        enough if the reader renews it by itself."""
        end = view.row.end
        if end is not None:
            view.end_seq = end.seq
        elif (reader := self._see(view)).renews and self._has_more(view):
            view.end_seq = max(view.end_seq, reader.known_end().seq)
        else:
            view.end_seq = reader.published().seq
        return view.end_seq

    def _has_more(self, view: PipeView) -> bool:
        """Whether messages that were not claimed are known to wait."""
        return view.cursor is not None and view.end_seq > view.cursor.chain.seq

    def _see(self, view: PipeView) -> ExtentReader:
        if view.reader is None:
            view.reader = self.readers.get(view.row.id)
        return view.reader

    def reader(self, view: PipeView) -> ExtentReader:
        """The pipe's reader, marked as just used so that it stays open."""
        view.reader = self.readers.get(view.row.id)
        return view.reader

    def claimed(self, view: PipeView) -> None:
        """Note that the pipe had its turn in this round."""
        self._round.discard(view.row.id)
        self._away.pop(view.row.id, None)
        if view.row.id in self.broken:
            self.broken.pop(view.row.id)
            self._again_ms.pop(view.row.id, None)

    def view(self, pipe_id: str) -> PipeView | None:
        """A listed pipe."""
        return self._views.get(pipe_id)

    def forget(self, view: PipeView) -> None:
        """Drop a view whose pipe is gone."""
        view.cursor = None
        self._views.pop(view.row.id, None)
        self.readers.forget(view.row.id)

    def pass_over(self, pipe_id: str, exc: CassqError) -> None:
        """Leave alone a pipe that could not be read (`set_aside`) or reached (`leave`) just now."""
        if isinstance(exc, ExtentUnavailableError):
            self.leave(pipe_id, exc)
        else:
            self.set_aside(pipe_id, exc)

    def set_aside(self, pipe_id: str, exc: CassqError) -> None:
        """Leave an unreadable pipe alone, and report it to the user once; unless it was retired
        meanwhile."""
        row = live_pipe(self._ports.catalog, pipe_id)
        self.readers.forget(pipe_id)
        if row is None:
            self._views.pop(pipe_id, None)
            self.broken.pop(pipe_id, None)
        else:
            if pipe_id not in self.broken:
                self.unreported.append(exc)
            self.broken[pipe_id] = exc
            self._again_ms[pipe_id] = self._ports.clock.boot_ms() + BROKEN_AGAIN_MS

    def leave(self, pipe_id: str, exc: ExtentUnavailableError) -> None:
        """Leave an unreachable pipe alone for a while, as others may be reachable. Raises `exc` if
        the group is in order: then no later pipe may be claimed from before it."""
        if self._in_order:
            raise exc
        now_ms = self._ports.clock.boot_ms()
        lately = {
            left: (until_ms, left_ms)
            for left, (until_ms, left_ms) in self._away.items()
            if until_ms > now_ms - AWAY_MAX_MS
        }
        left_ms = min(2 * lately.get(pipe_id, (0, AWAY_MS // 2))[1], AWAY_MAX_MS)
        self._away = {**lately, pipe_id: (now_ms + left_ms, left_ms)}
        self.away = exc

    def left_alone(self, now_ms: int | None = None) -> set[str]:
        """The pipes that could not be reached or read a moment ago. now_ms: boot time."""
        if not (self._away or self.broken):
            return set()
        if now_ms is None:
            now_ms = self._ports.clock.boot_ms()
        away = (pipe_id for pipe_id, (until_ms, _) in self._away.items() if until_ms > now_ms)
        broken = (pipe_id for pipe_id in self.broken if self._again_ms.get(pipe_id, 0) > now_ms)
        return {*away, *broken}

    def follows(self, view: PipeView) -> bool:
        """Whether the group has acked all of the pipe before this one (strict queues)."""
        before = None if view.follows else self._before(view.row)
        while before is not None and before.state < PipeState.CONSUMED:
            if before.end is None:
                return False
            cursor = self._ports.catalog.claims.cursor(self._group.id, before.id)
            if cursor is not None and cursor.ack.seq < before.end.seq:
                return False
            if cursor is None or not self._was_passed_over(cursor, before.end.seq):
                break  # it was delivered only after everything before it
            before = self._before(before)
        view.follows = True
        return True

    def _before(self, row: PipeRow) -> PipeRow | None:
        """The pipe before this one; None for the first."""
        return self._ports.catalog.pipes.by_id(row.predecessor) if row.predecessor else None

    def _was_passed_over(self, cursor: Cursor, end_seq: int) -> bool:
        """Whether an acked pipe may have had no delivery: it is empty, or all of its messages were
        purged, expired or dropped. Then earlier messages may still be pending."""
        catalog, key = self._ports.catalog, (cursor.group_id, cursor.pipe_id)
        removed = sum(row.end - row.start for row in catalog.claims.removed(*key))
        moved = sum(move.settled for move in catalog.claims.moves(*key))
        return cursor.start + removed + moved >= end_seq

    def close_dropped(self) -> None:
        """Close readers of pipes retired since the last listing."""
        for view in list(self._views.values()):
            if view.reader is not None and view.reader.dropped():
                view.reader = None  # the mapping would keep its page
        self.readers.close_dropped()

    def close(self) -> None:
        """Release file handles and mappings."""
        self.readers.close()
        self._views.clear()

    def has_news(self) -> bool:
        """Whether a known open pipe has grown past its known claims. Memory reads only; on
        networked stores one round of reads."""
        known: list[tuple[ExtentReader, int]] = []
        now_ms = self._ports.clock.boot_ms()
        for view in list(self._views.values()):
            reader, cursor = view.reader, view.cursor  # another thread may change the view
            if reader is None or cursor is None:
                continue
            if self._away.get(view.row.id, (0, 0))[0] > now_ms:
                continue
            if view.row.end is None:
                known.append((reader, cursor.chain.seq))
        for reader, _ in known:
            if reader.asks:
                reader.ask_published()
        return any(reader.published().seq > claimed for reader, claimed in known)
