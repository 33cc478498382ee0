"""Segments: the messages of a keyed group's claim rows, and which of them consumers have."""

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

HANDED_MAX = 64  # how many pops from a row are remembered before those that are over are dropped
OPENED_AT_ONCE = 64  # messages of a run in a backlog

# A message in the line: what it belongs to, where its bytes are, its seq.
Entry = tuple["Segment", Bundle, int]


class Segment:
    """The messages of one claim row.

    delivery: by which they are handed out; None while they must wait, as `row` is free and not due.
    out: those in a consumer's hands, with their keys. handed: when which were handed out, in
    catalog time. until_ms: those whose consumer asked for more time, and until when. trying: those
    that are handed out as soon as the row says so. untried: those that were released since. heads:
    while the segment waits, those of its messages that nothing of their key stands before. gone:
    those settled by somebody else. receipts: those with a receipt that are not known to be settled,
    as is written. away: whether its messages are in consumers' hands, and its row not. synced:
    whether a crash of the machine must not make us forget that they were tried. size: in bytes,
    once it is ours.
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
        self.away: bool = delivery is None and claims.is_dated(row)
        self.synced: bool = True
        self.size: int = 0

    def bundle_of(self, seq: int) -> Bundle:
        """Where the bytes of a message are."""
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
        """What consumers have had for too long: for the timeout, unless they asked for more time,
        or messages are kept for longer."""
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


class Adrift:
    """How many messages consumers have of segments that were forgotten."""

    def __init__(self) -> None:
        self._until: list[tuple[int, int]] = []  # until when, in catalog time, and how many

    def add(self, count: int, until_ms: int) -> None:
        """Consumers have some more of them."""
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
    """Messages as runs of their rows and bundles, in the order of the first of each run."""
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
    """What each row has of some runs, which are disjoint."""
    found: dict[Segment, RangeSet] = {}
    for segment, _, seqs in runs:
        found[segment] = found[segment] | seqs if segment in found else seqs
    return found


def in_hand(entries: Iterable[Entry]) -> list[tuple[Segment, Bundle, BitSet]]:
    """`runs_of` messages that are in consumers' hands from now on."""
    runs = runs_of(entries)
    for segment, bundle, seqs in runs:
        segment.out.update(zip(seqs, bundle.keys_of(seqs), strict=True))
    return runs


class Backlog:
    """Ready messages of one key, in order. Runs of them are kept as such, so that a million cost
    next to nothing until they are taken."""

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
        """Take the first one. Raises IndexError if there is none."""
        first, runs = self._first, self._runs
        while not first:
            first.extend(islice(runs[0], OPENED_AT_ONCE))
            if not first:
                runs.popleft()
        self._count -= 1
        return first.popleft()

    def drained(self) -> Iterator[Entry]:
        """Take all."""
        while self._count:
            yield self.popleft()


class ReadyByPriority:
    """Ready messages, the most urgent first; in each priority as a deque has them. upward: whether
    the least urgent are taken first, until further notice."""

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
