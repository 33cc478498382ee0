"""The line of a keyed group: which of the claimed messages may be handed out now.

Messages stand in line in the order in which they are added. A message may be handed out while
fewer than `limit` messages of its key are unsettled. In an ordered line the limit is one, so the
messages of a key come one after another. Messages without a key never wait. Of the messages that
may be handed out, the first in line comes first; in a fair line that of the key with the least
share.

Pure bookkeeping in memory. Cost: constant for each message, however long the line is.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import NamedTuple

from cassq.consumer.delivery import Delivery
from cassq.consumer.keyed.fairness import FairReady
from cassq.consumer.keyed.segments import Entry, ReadyByPriority, Segment, runs_of
from cassq.message.bundles import Bundle, BundleSlice
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.queues import GroupPolicy
from cassq.model.rows import Claim

# Messages of a segment that were acked, by their keys.
Acked = tuple[Segment, list[bytes]]
# Messages of a key that wait for one another: where they are, and their seqs in reverse order.
Run = tuple[Segment, Bundle, list[int]]
# The same, in several places: few keys need such a queue, which takes more memory than ten runs.
Runs = deque[Run]

PACED_KEPT = 10_000  # how many keys' times are kept before those that have passed are dropped


class KeyLine:
    """Messages in line. limit: how many of a key may be unsettled at once; 0: any number. ordered:
    whether a message that failed holds its key until it is settled. interval_ms: the least time
    between two messages of a key that are taken, also from messages taken elsewhere before
    `begun_ms`. fair: what chooses between keys. Times are catalog time.

    after_push_ms: a message may be taken from its push time plus this on; this also converts the
    push time from wall time to catalog time. None: at once.

    held: the keys that a dead letter holds, and for each whether no other message holds it. None of
    their messages becomes ready until they are released. Only in an ordered line.

    Of ready messages the most urgent come first, but those of one key stay in order, whatever their
    priorities. A fair line first chooses the key, and then the most urgent message of that key."""

    def __init__(
        self,
        limit: int = 1,
        *,
        ordered: bool = True,
        interval_ms: int = 0,
        begun_ms: int = 0,
        fair: FairReady | None = None,
    ) -> None:
        self._interval_ms = interval_ms
        self.after_push_ms: int | None = None
        self._first_ms = begun_ms + interval_ms
        self._next_ms: dict[bytes, int] = {}  # by key: when its next message may be taken
        self._later: dict[bytes, deque[Entry]] = {}  # by key: those that wait for that time
        self._taken: list[bytes] = []  # the keys of the last `take`, if there is an interval
        # When to look at such a key again, or when a message is old enough.
        self._paced: list[tuple[int, int, Entry | bytes]] = []
        self.fair: FairReady | None = fair
        self.ready: deque[Entry] | ReadyByPriority | FairReady = deque() if fair is None else fair
        self.count: int = 0  # how many are in line, ready ones included
        self.away: int = 0  # how many segments are `away`
        self._limit = limit
        self._ordered = ordered
        self._behind: dict[bytes, Run | Runs | None] = {}  # by key, while some of it is unsettled
        self.held: dict[bytes, bool] = {}
        self._unsettled: dict[bytes, int] = {}  # only where that can be more than one
        self._waiting: list[tuple[int, int, Segment]] = []  # free rows, by due time ...
        self._at: dict[tuple[str, int], Segment] = {}  # ... and by place
        self._numbers = 0

    @classmethod
    def of(cls, policy: GroupPolicy, now_ms: Callable[[], int]) -> KeyLine:
        """The empty line of a group. now_ms: catalog time."""
        ordered = policy.order == "key"
        return cls(
            policy.limit_per_key or int(ordered),
            ordered=ordered,
            interval_ms=policy.interval_per_key_ms,
            begun_ms=now_ms(),
            fair=FairReady(now_ms) if policy.fair else None,
        )

    def add(self, segment: Segment) -> None:
        """Put the messages of a segment at the end of the line. Cost: one pass over them."""
        if segment.row.priority and isinstance(self.ready, deque):
            self.ready = ReadyByPriority(self.ready)
        if segment.delivery is None:
            self.wait(segment, segment.waits_until_ms)
            if segment.away:
                self._count_away(segment)
            if not self._ordered:
                return
        for bundle, seqs in segment.pieces:
            keys, base = bundle.keys, bundle.base_seq
            self.count += len(seqs)
            if self.fair is not None and not (self._ordered or self._limit):
                self.fair.add(segment, bundle, seqs)
                continue
            if not keys:
                self._deal_all([(segment, bundle, seq) for seq in seqs])
                continue
            if self._limit == 1 and segment.delivery is not None:
                self._line_up(segment, bundle, seqs)
                continue
            behind = self._behind
            for seq in seqs:
                key = keys[seq - base]
                if key is None or key not in behind:
                    if key is not None:
                        behind[key] = None
                    self._deal((segment, bundle, seq))
                else:
                    self._stand_behind(key, (segment, bundle, seq))

    def _line_up(self, segment: Segment, bundle: Bundle, seqs: RangeSet) -> None:
        """`add` for the most frequent case: messages with keys, of a segment that is ours, in a
        line with limit 1. Written for speed; messages that wait are kept as numbers."""
        behind = self._behind
        ready: list[int] = []
        waiting: dict[bytes | None, list[int]] = {}
        for seq, key in zip(seqs, bundle.keys_of(seqs), strict=True):
            found = waiting.get(key)
            if found is not None:
                found.append(seq)
                continue
            if key is not None and key in behind:
                found = waiting[key] = [seq]
                behind[key] = _longer(behind[key], (segment, bundle, found))
                continue
            ready.append(seq)
            if key is not None:
                behind[key] = None
        for found in waiting.values():
            found.reverse()
        self.ready.extend(zip(repeat(segment), repeat(bundle), ready, strict=False))

    def _count_away(self, segment: Segment) -> None:
        """Count a segment's messages: they are in consumers' hands, not taken from this line."""
        keys = segment.keys()
        self.away += 1
        self.begun(keys)
        if self._ordered:
            return
        for key in keys:
            if key is not None and key in self._behind:
                self._unsettled[key] = self._unsettled.get(key, 1) + 1
            elif key is not None:
                self._behind[key] = None

    def turn(self, *, upward: bool) -> None:
        """From now on the most urgent ready messages come first; upward: the least urgent ones."""
        if isinstance(self.ready, ReadyByPriority):
            self.ready.upward = upward

    def goes_first(self, priority: int) -> bool:
        """Whether messages of this priority would come before all ready ones."""
        if isinstance(self.ready, ReadyByPriority):
            first = self.ready.first
            return first is None or (priority < first if self.ready.upward else priority > first)
        return priority > 0 or not self.ready

    def _stand_behind(self, key: bytes, entry: Entry) -> None:
        line = self._behind[key]
        if line is None:
            unsettled = self._unsettled.get(key, 1)
            if unsettled < self._limit or not self._limit:
                self._unsettled[key] = unsettled + 1
                self._deal(entry)
                return
        segment, bundle, seq = entry
        self._behind[key] = _longer(line, (segment, bundle, [seq]))

    def _deal(self, entry: Entry) -> None:
        """A message is the first of its key: it is ready, or waits with its segment."""
        if entry[0].delivery is None:
            entry[0].heads.append(entry)
        else:
            self.ready.append(entry)

    def _deal_all(self, entries: list[Entry]) -> None:
        if entries and entries[0][0].delivery is None:
            entries[0][0].heads += entries
        else:
            self.ready.extend(entries)

    def take(self, limit: int, now_ms: int = 0) -> list[Entry]:
        """Take the first ready messages, at most `limit`, for `in_hand`. now_ms: catalog time."""
        ready = self.ready
        if self.fair is not None:
            self.fair.begin()
        if self._interval_ms or self.after_push_ms is not None or self._paced:
            taken = self._paced_out(limit, now_ms)
        else:
            taken = _first(ready, limit)
        self.count -= len(taken)
        return taken

    def _paced_out(self, limit: int, now_ms: int) -> list[Entry]:
        """Take the first ready messages whose time has come; those before them wait."""
        self.ready.extendleft(reversed(self._due_again(now_ms)))
        if len(self._next_ms) >= PACED_KEPT:
            self._next_ms = {key: ms for key, ms in self._next_ms.items() if ms > now_ms}
        taken: list[Entry] = []
        self._taken.clear()
        while self.ready and len(taken) < limit:
            entry = self.ready.popleft()
            _, bundle, seq = entry
            key = bundle.key_at(seq - bundle.base_seq)
            if key is not None and self._interval_ms:
                next_ms = self._next_ms.get(key, self._first_ms)
                if next_ms > now_ms:
                    self.finished([key])
                    if key not in self._later:
                        self._later[key] = deque()
                        self._pace(next_ms, key)
                    self._later[key].append(entry)
                    continue
            if self.after_push_ms is not None:
                next_ms = bundle.time_ms(seq - bundle.base_seq) + self.after_push_ms
                if next_ms > now_ms:
                    self.finished([key])
                    self._pace(next_ms, entry)
                    continue
            if key is not None and self._interval_ms:
                self._next_ms[key] = now_ms + self._interval_ms
                self._taken.append(key)
            taken.append(entry)
        return taken

    def _pace(self, next_ms: int, waits: Entry | bytes) -> None:
        self._numbers += 1
        heapq.heappush(self._paced, (next_ms, self._numbers, waits))

    def _due_again(self, now_ms: int) -> list[Entry]:
        """Messages that waited for a time that has come: of a key only the first, as the next must
        wait for that one. So each is looked at a few times, however many wait."""
        due: list[Entry] = []
        while self._paced and self._paced[0][0] <= now_ms:
            waits = heapq.heappop(self._paced)[2]
            if not isinstance(waits, bytes):
                due.append(waits)
                continue
            next_ms = self._next_ms.get(waits, self._first_ms)
            if next_ms <= now_ms:
                due.append(self._later[waits].popleft())
                next_ms = now_ms + self._interval_ms
            if self._later[waits]:
                self._pace(next_ms, waits)
            else:
                del self._later[waits]
        return due

    def handed_out(self, now_ms: Callable[[], int]) -> None:
        """Note that what was taken last came into consumers' hands only now, as it took time to
        write that down: the interval counts from now on. now_ms: catalog time."""
        if self._taken:
            self._next_ms |= dict.fromkeys(self._taken, now_ms() + self._interval_ms)
            self._taken.clear()

    def put_back(self, entries: list[Entry]) -> None:
        """Messages in hand are ready again, before all others."""
        for segment, _, seq in entries:
            if seq in segment.out:
                self.finished([segment.out.pop(seq)])
            segment.until_ms.pop(seq, None)
        self.ready.extendleft(reversed(entries))
        self.count += len(entries)

    def begun(self, keys: Iterable[bytes | None]) -> None:
        """Note that messages of these keys are in consumers' hands, though not taken from here."""
        if self.fair is not None:
            self.fair.begun(keys)

    def finished(self, keys: Iterable[bytes | None]) -> None:
        """Note that messages of these keys are no longer in consumers' hands."""
        if self.fair is not None:
            self.fair.finished(keys)

    def settled(self, key: bytes | None) -> None:
        """A message of a key is settled: the next one comes first now."""
        if key is None:
            return
        if key in self.held:
            self.held[key] = True
            return
        line = self._behind.get(key)
        while line:
            segment, bundle, seqs = _head(line)
            seq = seqs.pop()
            if not seqs:
                line = self._behind[key] = _shorter(line)
            if seq not in segment.gone:
                self._deal((segment, bundle, seq))
                return
            self.count -= 1
        left = self._unsettled.get(key, 1) - 1
        if left:
            self._unsettled[key] = left
            self._behind[key] = None
        else:
            self._unsettled.pop(key, None)
            self._behind.pop(key, None)

    def settled_all(self, keys: Iterable[bytes]) -> None:
        """`settled` for each of these keys; fast in a line with limit 1."""
        if self._limit != 1 or self.held:
            for key in keys:
                self.settled(key)
            return
        behind, deal = self._behind, self.ready.append
        plain: Segment | None = None  # the last segment that is ours, without messages gone
        for key in keys:
            line = behind.get(key)
            if not line:
                behind.pop(key, None)
                continue
            segment, bundle, seqs = line if isinstance(line, tuple) else line[0]
            if segment is not plain:
                if segment.delivery is None or segment.gone is not EMPTY:
                    self.settled(key)
                    continue
                plain = segment
            seq = seqs.pop()
            if not seqs:
                behind[key] = None if isinstance(line, tuple) else _shorter(line)
            deal((segment, bundle, seq))

    def go_on(self, acked: Iterable[Acked], limit: int) -> list[Acked]:
        """For each acked message, make the next one of its key ready if it belongs to the same
        segment, until `limit` are ready. Returns the acked messages for which that was not done."""
        left: list[Acked] = []
        for segment, keys in acked:
            others: list[bytes] = []
            for key in keys:
                line = self._behind.get(key)
                follows = line is not None and _head(line)[0] is segment
                if follows and key not in self.held and len(self.ready) < limit:
                    self.settled(key)
                else:
                    others.append(key)
            if others:
                left.append((segment, others))
        return left

    def hold(self, key: bytes) -> None:
        """Let no further message of a key become ready until the key is released."""
        if key not in self.held:
            self.held[key] = key not in self._behind
            self._behind.setdefault(key, None)

    def release(self, key: bytes) -> None:
        """A held key goes on: its next message comes first, unless one is still unsettled."""
        if self.held.pop(key):
            self.settled(key)

    # --- messages that wait until they are due ------------------------------------------------

    def wait(self, segment: Segment, due_ms: int) -> None:
        """Let a segment wait until `due_ms`. In an ordered line its messages hold their keys."""
        self._numbers += 1
        heapq.heappush(self._waiting, (due_ms, self._numbers, segment))
        self._at[segment.row.pipe_id, segment.row.start] = segment

    @property
    def waits(self) -> bool:
        """Whether any segment waits and holds keys."""
        return self._ordered and bool(self._waiting)

    def waiting(self) -> list[Segment]:
        """The segments that wait."""
        return [segment for _, _, segment in self._waiting]

    def end_wait(self, segments: Iterable[Segment]) -> None:
        """Let these segments wait no longer. Cost: linear in the number of waiting segments."""
        over = set(segments)
        self._waiting = [each for each in self._waiting if each[2] not in over]
        heapq.heapify(self._waiting)
        for segment in over:
            self._at.pop((segment.row.pipe_id, segment.row.start), None)

    def waiting_at(self, row: Claim) -> Segment | None:
        """The waiting segment of a free row; None if none waits."""
        return self._at.get((row.pipe_id, row.start))

    def failed(self, row: Claim, given_back: Iterable[Entry]) -> None:
        """Messages in hand were given back: they are in this free row now."""
        runs = runs_of(given_back)
        pieces = [BundleSlice(bundle, seqs).kept(seqs) for _, bundle, seqs in runs]
        segment = Segment(row, pieces)
        entries = [(segment, bundle, seq) for bundle, seqs in pieces for seq in seqs]
        self.finished(bundle.key_at(seq - bundle.base_seq) for _, bundle, seq in entries)
        if self._ordered:
            self.count += len(entries)
            segment.heads += entries
        else:
            for _, bundle, seq in entries:
                self.settled(bundle.key_at(seq - bundle.base_seq))
        self.wait(segment, segment.row.due_ms)

    def apart(self, segment: Segment) -> None:
        """Messages in hand got a deadline of their own, and so a row of their own, that of
        `segment`. They count as in hand until they are `back` or `gone`."""
        segment.away = True
        self.away += 1
        if self._ordered:
            entries = [(segment, bundle, seq) for bundle, seqs in segment.pieces for seq in seqs]
            self.count += len(entries)
            segment.heads += entries

    def back(self, segment: Segment) -> None:
        """The messages of a segment are no longer in a consumer's hands, if they were."""
        if not segment.away:
            return
        self._let_go(segment, segment.row.left - segment.gone)
        segment.away = False
        self.away -= 1

    def _let_go(self, segment: Segment, seqs: RangeSet) -> None:
        keys = segment.keys(seqs)
        self.finished(keys)
        if not self._ordered:
            for key in keys:
                self.settled(key)

    def split(self, segment: Segment, rows: Iterable[Claim]) -> list[Segment]:
        """Split a segment that is `away`, and does not wait, since it is in several rows now.
        Returns a segment for each row, which does not wait either. Empty, and nothing is split, if
        a message of it is not the first of its key."""
        heads = {entry[2]: entry for entry in segment.heads}
        parts: list[Segment] = []
        for row in rows:
            pieces = [BundleSlice(bundle, seqs & row.left) for bundle, seqs in segment.pieces]
            part = Segment(row, [piece for piece in pieces if piece.seqs])
            part.away = True
            if self._ordered:
                if not all(seq in heads for seq in row.left):
                    return []
                part.heads = [(part, heads[seq][1], seq) for seq in row.left]
            parts.append(part)
        segment.away, segment.heads = False, []
        self.away += len(parts) - 1
        return parts

    def due(self, now_ms: int) -> list[Segment]:
        """Take the segments that are due: they wait no longer."""
        found: list[Segment] = []
        while self._waiting and self._waiting[0][0] <= now_ms:
            segment = heapq.heappop(self._waiting)[2]
            self._at.pop((segment.row.pipe_id, segment.row.start), None)
            found.append(segment)
        return found

    def due_ms(self) -> int | None:
        """When the next segment is due, or the next paced message may be taken."""
        times = [waiting[0][0] for waiting in (self._waiting, self._paced) if waiting]
        return min(times, default=None)

    def until_due(self, now_ms: int, most: float) -> float:
        """Seconds until then; at most `most`."""
        due_ms = self.due_ms()
        return most if due_ms is None else min(most, max(0.001, (due_ms - now_ms) / 1000))

    def taken(self, segment: Segment, delivery: Delivery) -> None:
        """A segment that waited is ours now: its first messages are ready, before all others."""
        segment.delivery = delivery
        if not self._ordered:
            left = [BundleSlice(bundle, seqs - segment.gone) for bundle, seqs in segment.pieces]
            segment.pieces = [piece for piece in left if piece.seqs]
            self.add(segment)
            return
        heads, segment.heads = segment.heads, []
        self.ready.extendleft(reversed(heads))

    def gone(self, segment: Segment, seqs: RangeSet) -> None:
        """Messages that waited were settled by others: as dead letters, or by being removed."""
        seqs = seqs - segment.gone
        segment.gone |= seqs
        if segment.away:
            self._let_go(segment, seqs)
            if not segment.row.left - segment.gone:
                segment.away = False
                self.away -= 1
        if not self._ordered:
            return
        heads, segment.heads = segment.heads, []
        for entry in heads:
            _, bundle, seq = entry
            if seq in seqs:
                self.count -= 1
                self.settled(bundle.key_at(seq - bundle.base_seq))
            else:
                segment.heads.append(entry)


def _longer(line: Run | Runs | None, run: Run) -> Run | Runs:
    """What waits for a key, with one more run at its end."""
    if line is None:
        return run
    if isinstance(line, tuple):
        return deque((line, run))
    line.append(run)
    return line


def _head(line: Run | Runs) -> Run:
    """The first run that waits for a key."""
    return line if isinstance(line, tuple) else line[0]


def _shorter(line: Run | Runs) -> Runs | None:
    """What waits for a key, without its first run."""
    if isinstance(line, tuple):
        return None
    line.popleft()
    return line or None


def _first(ready: deque[Entry] | ReadyByPriority | FairReady, limit: int) -> list[Entry]:
    """Take the first ready messages, at most `limit`."""
    if type(ready) is deque and len(ready) <= limit:
        taken = list(ready)
        ready.clear()
        return taken
    return [ready.popleft() for _ in range(min(limit, len(ready)))]


class PopperCallbacks(NamedTuple):
    """What a lane asks of its popper. flush: write what was noted of its claims. wake: end the wait
    of the popper's consumers. ring: end that of all consumers."""

    flush: Callable[[], None]
    wake: Callable[[], None]
    ring: Callable[[], None]
