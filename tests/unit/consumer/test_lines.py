"""The line of a keyed group: what may be handed out, in which order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cassq.consumer.delivery import Acknowledger, Delivery
from cassq.consumer.keyed.keys import KeyLine
from cassq.consumer.keyed.segments import Entry, Segment
from cassq.message.bundles import Bundle, BundleSlice
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.rows import Claim, ClaimState

NOBODY = Acknowledger(lambda *_: None, lambda *_: None, lambda *_: None)


class Texts(Bundle):
    """Messages whose payloads are their keys."""

    __slots__ = ()

    def __init__(self, base_seq: int, keys: Sequence[bytes | None]) -> None:
        self.base_seq = base_seq
        self.keys = list(keys)
        self.headers = self.ids = None
        self.size = 0
        self._times = 0

    @property
    def count(self) -> int:
        return len(self.keys or [])

    def payloads_of(self, seqs: RangeSet) -> list[bytes]:
        return [(self.keys or [])[seq - self.base_seq] or b"" for seq in seqs]


def segment(
    keys: str,
    *,
    start: int = 0,
    due_ms: int | None = None,
    priority: int = 0,
    dated: bool = False,
) -> Segment:
    """Messages with these keys ("-": none). due_ms: when they are due, as they wait. dated: it is a
    deadline of their own."""
    state = ClaimState.HELD if due_ms is None or dated else ClaimState.FREE
    end, holder = start + len(keys), "me" + claims.DATED * dated
    row = Claim(
        "group", "pipe", start, end, 0, state, due_ms or 0, 1, holder=holder, priority=priority
    )
    bundle = Texts(start, [None if key == "-" else key.encode() for key in keys])
    delivery = Delivery(NOBODY, [row], 0, None, 1) if due_ms is None else None
    return Segment(row, [BundleSlice(bundle, RangeSet.run(start, end))], delivery)


def seqs(entries: Sequence[Entry]) -> list[int]:
    return [seq for _, _, seq in entries]


def test_only_the_first_of_each_key_is_ready() -> None:
    line = KeyLine()
    line.add(segment("ab-a-b"))
    assert seqs(line.take(10)) == [0, 1, 2, 4]
    assert line.count == 2
    line.settled(b"a")
    assert seqs(line.take(10)) == [3]
    line.settled(b"a")
    line.add(segment("a", start=6))
    assert seqs(line.take(10)) == [6], "a key of which nothing is unsettled begins anew"


def apart(keys: str, start: int) -> Segment:
    """A message that a consumer has until a deadline of its own."""
    return segment(keys, start=start, due_ms=10, dated=True)


def test_a_message_with_a_deadline_of_its_own_holds_its_key_until_it_is_gone() -> None:
    line = KeyLine()
    line.add(segment("aab"))
    assert seqs(line.take(10)) == [0, 2]
    own = apart("a", 0)
    line.apart(own)
    line.wait(own, 10)
    assert seqs(line.take(10)) == []
    assert (line.away, line.count) == (1, 2)
    line.gone(own, RangeSet.run(0, 1))
    assert seqs(line.take(10)) == [1]
    assert (line.away, line.count) == (0, 0)


def test_what_another_popper_handed_out_counts_for_the_limit_of_its_key() -> None:
    line = KeyLine(2, ordered=False)
    line.add(apart("a", 0))
    line.add(apart("a", 1))
    line.add(segment("aaab", start=2))
    assert seqs(line.take(10)) == [5]
    for own in line.waiting():
        line.back(own)
    assert seqs(line.take(10)) == [2, 3]
    assert line.away == 0


def test_a_held_key_goes_on_when_it_is_released() -> None:
    line = KeyLine()
    line.hold(b"b")
    line.add(segment("abab"))
    assert seqs(line.take(10)) == [0]
    line.hold(b"a")
    line.settled(b"a")
    assert seqs(line.take(10)) == []
    line.release(b"b")
    assert seqs(line.take(10)) == [1]
    line.hold(b"b")
    line.release(b"b")
    assert seqs(line.take(10)) == [], "one of it is in hand"
    line.settled(b"b")
    line.release(b"a")
    assert seqs(line.take(10)) == [3, 2]
    assert line.count == 0


def test_what_is_put_back_comes_first_again() -> None:
    line = KeyLine()
    line.add(segment("abc"))
    first = line.take(2)
    line.put_back(first)
    assert seqs(line.take(10)) == [0, 1, 2]


def test_the_most_urgent_that_is_ready_comes_first() -> None:
    line = KeyLine()
    line.add(segment("abc"))
    line.add(segment("def", start=10, priority=5))
    line.add(segment("gh", start=20, priority=9))
    assert not line.goes_first(9)
    first = line.take(4)
    assert seqs(first) == [20, 21, 10, 11]
    line.put_back(first[2:])
    assert line.goes_first(6)
    assert not line.goes_first(5)
    line.turn(upward=True)
    assert not line.goes_first(0)
    assert seqs(line.take(1)) == [0]
    line.turn(upward=False)
    assert seqs(line.take(10)) == [10, 11, 12, 1, 2]
    assert line.count == 0
    assert line.goes_first(0)


def test_a_key_is_one_after_another_whatever_the_priorities() -> None:
    line = KeyLine()
    line.add(segment("kl"))
    line.add(segment("km", start=10, priority=9))
    assert seqs(line.take(10)) == [11, 0, 1]
    line.settled(b"k")
    assert seqs(line.take(10)) == [10]


def test_a_failed_message_keeps_its_key_in_an_ordered_line() -> None:
    line = KeyLine()
    whole = segment("aab")
    line.add(whole)
    failed, _ = line.take(10)
    line.failed(segment("a", due_ms=50).row, [failed])
    assert not line.ready
    assert line.due(49) == []
    (waiting,) = line.due(50)
    line.taken(waiting, Delivery(NOBODY, [waiting.row], 0, None, 1))
    assert seqs(line.take(10)) == [0]
    line.settled(b"a")
    assert seqs(line.take(10)) == [1]


def test_a_limit_without_order_lets_others_pass_a_failed_message() -> None:
    line = KeyLine(2, ordered=False)
    line.add(segment("aaaa"))
    first = line.take(10)
    assert seqs(first) == [0, 1]
    line.failed(segment("a", due_ms=50).row, [first[0]])
    assert seqs(line.take(10)) == [2]
    (waiting,) = line.due(50)
    line.taken(waiting, Delivery(NOBODY, [waiting.row], 0, None, 1))
    line.settled(b"a")
    line.settled(b"a")
    assert seqs(line.take(10)) == [3, 0]


def test_messages_that_others_settled_are_passed_over() -> None:
    line = KeyLine()
    waiting = segment("aab", due_ms=50)
    line.add(waiting)
    line.add(segment("ab", start=3))
    line.gone(waiting, RangeSet([(0, 2)]))
    assert seqs(line.take(10)) == [3]
    line.gone(waiting, RangeSet([(2, 3)]))
    assert seqs(line.take(10)) == [4]
    assert line.count == 0


def test_the_next_of_a_key_goes_on_only_within_its_row() -> None:
    line = KeyLine()
    first, second = segment("ab"), segment("ab", start=2)
    third = segment("cc", start=4)
    for each in (first, second, third):
        line.add(each)
    line.take(10)
    acked = [(first, [b"a"]), (third, [b"c"])]
    assert line.go_on(acked, 10) == [(first, [b"a"])]
    assert seqs(line.take(10)) == [5]


def test_messages_of_a_key_are_an_interval_apart() -> None:
    line = KeyLine(0, ordered=False, interval_ms=100, begun_ms=1000)
    line.add(segment("aab-"))
    assert seqs(line.take(10, 1000)) == [3], "before, another may have taken some of each key"
    assert line.due_ms() == 1100
    assert line.count == 3
    assert seqs(line.take(10, 1100)) == [0, 2]
    assert seqs(line.take(10, 1199)) == []
    assert seqs(line.take(10, 1250)) == [1]
    assert line.due_ms() is None
    line.add(segment("c", start=4))
    assert seqs(line.take(10, 1250)) == [4], "nothing of this key was taken lately"


def test_an_interval_counts_from_when_a_message_was_handed_out() -> None:
    line = KeyLine(0, ordered=False, interval_ms=100)
    line.add(segment("aaa"))
    assert seqs(line.take(10, 1000)) == [0]
    line.handed_out(lambda: 1050)
    assert line.take(10, 1149) == []
    assert seqs(line.take(10, 1150)) == [1]
    line.handed_out(lambda: 1150)
    line.handed_out(lambda: 9000)
    assert seqs(line.take(10, 1250)) == [2], "nothing was taken since the last was handed out"


def test_what_waits_behind_an_interval_is_looked_at_only_a_few_times() -> None:
    looks = 0

    class Watched(Texts):
        """Counts how often somebody asks for a key."""

        __slots__ = ()

        def key_at(self, at: int) -> bytes | None:
            nonlocal looks
            looks += 1
            return super().key_at(at)

    line, many = KeyLine(0, ordered=False, interval_ms=100), segment("a" * 2000)
    many.pieces = [BundleSlice(Watched(0, [b"a"] * 2000), RangeSet.run(0, 2000))]
    line.add(many)
    for turn in range(1, 201):
        assert seqs(line.take(10, 100 * turn)) == [turn - 1]
    assert looks < 3 * 2000
    assert (line.count, line.due_ms()) == (1800, 20_100)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.text("abc-", min_size=1, max_size=6)),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("settle"), st.integers(0, 20)),
        st.tuples(st.just("put back"), st.integers(0, 20)),
    ),
    max_size=40,
)


@given(STEPS)
def test_keys_stay_in_order_and_no_key_waits_for_another(
    steps: list[tuple[str, str | int]],
) -> None:
    line, end, hand = KeyLine(), 0, dict[int, Entry]()
    unsettled: dict[bytes, list[int]] = defaultdict(list)

    def key_of(entry: Entry) -> bytes:
        _, bundle, seq = entry
        return (bundle.keys or [])[seq - bundle.base_seq] or b""

    for verb, what in steps:
        entries = list(hand.values())
        if verb == "add" and isinstance(what, str):
            line.add(segment(what, start=end))
            for seq, letter in enumerate(what, end):
                unsettled[b"" if letter == "-" else letter.encode()].append(seq)
            end += len(what)
        elif verb == "take" and isinstance(what, int):
            taken = line.take(what)
            for entry in taken:
                key = key_of(entry)
                assert not key or unsettled[key][0] == entry[2]
                hand[entry[2]] = entry
            heads = {line_[0] for key, line_ in unsettled.items() if key and line_}
            free = (heads | set(unsettled[b""])) - set(hand)
            assert len(taken) == what or not free
        elif entries and isinstance(what, int):
            entry = entries[what % len(entries)]
            del hand[entry[2]]
            if verb == "settle":
                unsettled[key_of(entry)].remove(entry[2])
                key = key_of(entry)
                if what % 2 or not key:
                    line.settled(key or None)
                else:
                    line.settled_all([key])
            else:
                line.put_back([entry])
    waiting = sum(map(len, unsettled.values())) - len(hand)
    assert line.count == waiting


def test_a_dated_segment_holds_each_key_until_that_message_is_gone() -> None:
    line = KeyLine()
    own = segment("abc")
    line.add(own)
    line.add(segment("abcabc", start=3))
    assert seqs(line.take(3)) == [0, 1, 2]
    together = segment("abc", due_ms=1000, dated=True)
    line.apart(together)
    line.wait(together, 1000)
    assert line.take(9) == []
    line.gone(together, RangeSet.run(1, 2))
    assert seqs(line.take(9)) == [4]
    assert (together.away, line.away) == (True, 1)
    line.gone(together, RangeSet.run(1, 2))  # known already
    assert line.take(9) == []
    line.end_wait([together])
    rows = [replace(together.row, start=at, end=at + 1) for at in (0, 2)]
    first, last = line.split(together, rows)
    assert (together.away, line.away, len(line.waiting())) == (False, 2, 0)
    line.back(first)
    line.taken(first, Delivery(NOBODY, [replace(rows[0], holder="again")], 0, None, 1))
    assert seqs(line.take(9)) == [0]
    line.gone(last, RangeSet.run(2, 3))
    assert seqs(line.take(9)) == [5]
    assert line.away == 0


def test_a_message_that_is_too_young_waits_and_those_of_its_key_behind_it() -> None:
    line = KeyLine()
    line.add(segment("aab"))
    line.after_push_ms = 500
    assert line.take(9, 499) == []
    assert line.due_ms() == 500
    assert seqs(line.take(9, 500)) == [0, 2]
