"""Segments: the messages of a keyed group's claim rows, and which of these consumers have."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat

from cassq.consumer.delivery import Delivery
from cassq.message.bitsets import BitSet
from cassq.message.bundles import Bundle, BundleSlice
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims
from cassq.model.rows import Claim

HANDED_MAX = 64  # how many pops from a row are kept before those that are settled are dropped
OPENED_AT_ONCE = 64  # messages of a run in a backlog

# A message in the line: what it belongs to, where its bytes are, its seq.
Entry = tuple["Segment", Bundle, int]


class Segment:
    """The messages of one claim row.

    delivery: of the messages once they are ours; None while they must wait, as `row` is not ours.
    out: messages in a consumer's hands, with their keys. handed: which were handed out when, in
    catalog time. until_ms: messages whose consumer asked for more time, and until when. trying:
    messages that are handed out once the row says so. untried: messages released since that. heads:
    while the segment waits, its messages that come first of their keys. gone: messages settled by
    others. receipts: messages with a receipt that are not known to be durably settled. away:
    whether its messages are in consumers' hands, though its row is not ours. synced: whether the
    note that messages were tried must survive a crash of the machine. size: in bytes, once it is
    ours.
    """

    __slots__ = (
        "away",
        "delivery",
        "gone",
        "handed",
        "heads",
        "out",
        "pieces",
        "receipts",
        "row",
        "size",
        "synced",
        "trying",
        "until_ms",
        "untried",
    )

    def __init__(
        self, row: Claim, pieces: Iterable[BundleSlice], delivery: Delivery | None = None
    ) -> None:
        self.row: Claim = row
        self.pieces: list[BundleSlice] = list(pieces)
        self.delivery: Delivery | None = delivery
        self.heads: list[Entry] = []
        self.out: dict[int, bytes | None] = {}
        self.handed: list[tuple[int, RangeSet]] = []
        self.until_ms: dict[int, int] = {}
        self.trying: RangeSet = EMPTY
        self.untried: RangeSet = EMPTY
        self.gone: RangeSet = EMPTY
        self.receipts: set[int] = set()
        self.away: bool = delivery is None and claims.is_away(row)
        self.synced: bool = True
        self.size: int = 0

    @property
    def waits_until_ms(self) -> int:
        """Until when it waits: while it is `away`, only until consumers have its messages no more,
        however much later these are due."""
        until_ms = claims.away_until_ms(self.row) if self.away else None
        return self.row.due_ms if until_ms is None else until_ms

    def bundle_of(self, seq: int) -> Bundle:
        """The bundle that has the bytes of a message."""
        for bundle, seqs in self.pieces:
            if seq in seqs:
                return bundle
        raise KeyError(seq)

    def keys(self, some: RangeSet | None = None) -> list[bytes | None]:
        """The keys of all its messages, or of some."""
        return [
            key
            for bundle, seqs in self.pieces
            for key in bundle.keys_of(seqs if some is None else seqs & some)
        ]

    def overdue(self, now_ms: int, timeout_ms: int, kept_ms: float) -> RangeSet:
        """The messages that consumers have had for too long: for `timeout_ms`, unless they asked
        for more time, or for `kept_ms` if that is longer. now_ms: catalog time."""
        over: list[int] = []
        until_ms = self.until_ms
        newer: RangeSet = EMPTY  # what was released, and handed out again
        for since_ms, handed in reversed(self.handed):
            seqs, newer = handed - newer, newer | handed
            kept = now_ms - since_ms < kept_ms
            if not kept and (until_ms or now_ms - since_ms >= timeout_ms):
                then_ms = since_ms + timeout_ms
                out = [seq for seq in seqs if seq in self.out]
                over += [seq for seq in out if until_ms.get(seq, then_ms) <= now_ms]
        return RangeSet.of(sorted(over))

    def hand(self, seqs: RangeSet, now_ms: int) -> None:
        """Note when messages were handed out. now_ms: catalog time."""
        if len(self.handed) >= HANDED_MAX:
            self.handed = [each for each in self.handed if any(map(self.out.__contains__, each[1]))]
        self.handed.append((now_ms, seqs))


class ForgottenInHand:
    """Counts the messages that consumers have of segments that were forgotten."""

    def __init__(self) -> None:
        self._until: list[tuple[int, int]] = []  # until when, in catalog time, and how many

    def add(self, count: int, until_ms: int) -> None:
        """Add messages that consumers have until this catalog time."""
        self._until.append((until_ms, count))

    def count(self, now_ms: Callable[[], int]) -> int:
        """How many they have now. now_ms: catalog time."""
        if not self._until:
            return 0
        now = now_ms()
        self._until = [each for each in self._until if each[0] > now]
        return sum(count for _, count in self._until)


def delivery_of(segment: Segment) -> Delivery:
    """The delivery of a segment that is ours."""
    assert segment.delivery is not None
    return segment.delivery


def runs_of(entries: Iterable[Entry]) -> list[tuple[Segment, Bundle, BitSet]]:
    """Messages as runs, one for each row and bundle, in the order of their first messages."""
    found: defaultdict[tuple[Segment, Bundle], list[int]] = defaultdict(list)
    last_segment: Segment | None = None
    last_bundle: Bundle | None = None
    add = list[int]().append
    for segment, bundle, seq in entries:  # mostly of the same as the one before
        if segment is not last_segment or bundle is not last_bundle:
            last_segment, last_bundle = segment, bundle
            add = found[segment, bundle].append
        add(seq)
    return [
        (segment, bundle, BitSet.of(seqs, segment.row.start))
        for (segment, bundle), seqs in found.items()
    ]


def seqs_of(runs: Iterable[tuple[Segment, Bundle, RangeSet]]) -> dict[Segment, RangeSet]:
    """The seqs of each segment in some runs, which are disjoint."""
    found: dict[Segment, RangeSet] = {}
    for segment, _, seqs in runs:
        found[segment] = found[segment] | seqs if segment in found else seqs
    return found


def in_hand(entries: Iterable[Entry]) -> list[tuple[Segment, Bundle, BitSet]]:
    """`runs_of` messages, which from now on are in consumers' hands."""
    runs = runs_of(entries)
    for segment, bundle, seqs in runs:
        segment.out.update(zip(seqs, bundle.keys_of(seqs), strict=True))
    return runs


class Backlog:
    """Ready messages of one key, in order. Runs are kept as runs, so that even a million messages
    cost next to nothing until they are taken."""

    __slots__ = ("_count", "_first", "_runs")

    def __init__(self) -> None:
        self._first: deque[Entry] = deque()  # before all runs
        self._runs: deque[Iterator[Entry]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, entry: Entry) -> None:
        if self._runs:
            self._runs.append(iter((entry,)))
        else:
            self._first.append(entry)
        self._count += 1

    def add_run(self, segment: Segment, bundle: Bundle, seqs: RangeSet) -> None:
        self._runs.append(zip(repeat(segment), repeat(bundle), seqs, strict=False))
        self._count += len(seqs)

    def appendleft(self, entry: Entry) -> None:
        self._first.appendleft(entry)
        self._count += 1

    def popleft(self) -> Entry:
        """Take the first message. Raises IndexError if there is none."""
        first, runs = self._first, self._runs
        while not first:
            first.extend(islice(runs[0], OPENED_AT_ONCE))
            if not first:
                runs.popleft()
        self._count -= 1
        return first.popleft()

    def drained(self) -> Iterator[Entry]:
        """Take all messages."""
        while self._count:
            yield self.popleft()


class ReadyByPriority:
    """Ready messages, the most urgent first; those of each priority in order, as in a deque.
    upward: whether the least urgent are taken first, until further notice."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.upward: bool = False
        self._levels: dict[int, deque[Entry]] = {}
        self.extend(entries)

    def __len__(self) -> int:
        return sum(map(len, self._levels.values()))

    @property
    def first(self) -> int | None:
        """The priority that comes first; None if nothing is ready."""
        levels = [level for level, ready in self._levels.items() if ready]
        return (min if self.upward else max)(levels, default=None)

    def append(self, entry: Entry) -> None:
        self._of(entry).append(entry)

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.append(entry)

    def add_run(self, segment: Segment, bundle: Bundle, seqs: RangeSet) -> None:
        self.extend(zip(repeat(segment), repeat(bundle), seqs, strict=False))

    def appendleft(self, entry: Entry) -> None:
        self._of(entry).appendleft(entry)

    def extendleft(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.appendleft(entry)

    def popleft(self) -> Entry:
        first = self.first
        if first is None:
            raise IndexError("nothing is ready")
        return self._levels[first].popleft()

    def _of(self, entry: Entry) -> deque[Entry]:
        return self._levels.setdefault(entry[0].row.priority, deque())
