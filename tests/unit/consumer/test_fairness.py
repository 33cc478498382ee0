"""Fair lines: which key comes next."""

from __future__ import annotations

import random
from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from cassq.consumer.keyed import fairness
from cassq.consumer.keyed.fairness import FairReady
from cassq.consumer.keyed.keys import KeyLine
from cassq.consumer.keyed.segments import Entry, in_hand
from tests.unit.consumer.test_lines import segment, seqs


class Tenants:
    """A fair line, and consumers that take from it, and finish in the order of taking."""

    def __init__(self, limit: int = 0, *, ordered: bool = False) -> None:
        self.now_ms = 0
        self.line = KeyLine(limit, ordered=ordered, fair=FairReady(lambda: self.now_ms))
        self.hands: deque[tuple[object, str, int]] = deque()
        self.taken_ms: list[tuple[int, str]] = []
        self._at = 0

    def push(self, keys: str) -> None:
        self.line.add(segment(keys, start=self._at))
        self._at += len(keys)

    def entries(self, count: int) -> list[Entry]:
        """Take messages."""
        found = self.line.take(count, self.now_ms)
        in_hand(found)
        return found

    def take(self, count: int = 1) -> str:
        """Take messages, to finish them later; their keys."""
        found = ""
        for part, bundle, seq in self.entries(count):
            key = (bundle.key_at(seq - bundle.base_seq) or b"-").decode()
            self.hands.append((part, key, seq))
            self.taken_ms.append((self.now_ms, key))
            found += key
        return found

    def finish(self, count: int = 1) -> None:
        for _ in range(count):
            part, key, seq = self.hands.popleft()
            part.out.pop(seq)  # type: ignore[attr-defined]
            self.line.finished([None if key == "-" else key.encode()])


def test_the_key_with_the_fewest_in_hand_comes_first() -> None:
    tenants = Tenants()
    tenants.push("aaaabbc")
    assert tenants.take(7) == "abcabaa"


def test_a_backlog_of_one_key_keeps_its_order_whatever_comes_between() -> None:
    tenants = Tenants()
    for keys in ("a" * 100, "ab", "aaa"):
        tenants.push(keys)
    first = tenants.entries(3)
    tenants.line.put_back(first[:1])
    urgent = segment("aa", start=200, priority=5)
    tenants.line.add(urgent)
    assert seqs(first) == [0, 101, 1]
    assert seqs(tenants.entries(200)) == [200, 201, 0, *range(2, 101), 102, 103, 104]


def test_messages_of_one_key_keep_their_order() -> None:
    tenants = Tenants()
    tenants.push("abab" * 5)
    entries = tenants.entries(20)
    for key in "ab":
        mine = [
            seq
            for _, bundle, seq in entries
            if bundle.key_at(seq - bundle.base_seq) == key.encode()
        ]
        assert mine == sorted(mine)


def test_a_backlog_in_front_does_not_delay_later_keys() -> None:
    tenants = Tenants()
    tenants.push("a" * 10_000)
    assert tenants.take(8) == "a" * 8
    for _ in range(100):
        tenants.now_ms += 10
        tenants.finish()
        tenants.take()
    tenants.push("b")
    tenants.finish()
    assert tenants.take() == "b"


def test_a_key_that_takes_all_the_time_waits_for_those_that_need_little() -> None:
    """Of both one message is in hand at most, but a's take a hundred times as long."""
    tenants = Tenants()
    tenants.push("ab" * 5000)
    for _ in range(4000):
        tenants.take()
        tenants.now_ms += 500 if tenants.hands[0][1] == "a" else 5
        tenants.finish()
    spent: Counter[str] = Counter()
    for (began_ms, key), (ended_ms, _) in zip(
        tenants.taken_ms[500:], tenants.taken_ms[501:], strict=False
    ):
        spent[key] += ended_ms - began_ms
    assert 0.5 < spent["a"] / spent["b"] < 2


def test_keys_that_are_not_noisy_share_the_time_as_well() -> None:
    """One of thirty, whose messages take twice as long."""
    keys = "abcdefghijklmnopqrstuvwxyzABCD"
    tenants = Tenants()
    tenants.push(keys * 200)
    for _ in range(3000):
        tenants.take()
        tenants.now_ms += 20 if tenants.hands[0][1] == "a" else 10
        tenants.finish()
    served = Counter(key for _, key in tenants.taken_ms)
    assert served["a"] < 0.75 * served["b"]


def test_a_noisy_key_gets_all_that_the_others_leave() -> None:
    tenants = Tenants()
    tenants.push("a" * 5000)
    tenants.take(40)
    taken = ""
    for step in range(2000):
        tenants.now_ms += 10
        if step % 20 == 0:
            tenants.push("bcd"[step // 20 % 3])
        tenants.finish()
        taken += tenants.take()
    assert len(taken) == 2000
    assert taken.count("a") == 2000 - 100


def test_among_noisy_keys_that_with_the_fewest_in_hand_comes_first() -> None:
    tenants = Tenants()
    tenants.push("a" * 500)
    tenants.take(60)
    tenants.push("b" * 500)
    assert set(tenants.take(60)) == {"b"}
    assert Counter(tenants.take(40)) == {"a": 20, "b": 20}


def test_a_key_is_no_longer_noisy_when_its_time_has_passed() -> None:
    tenants = Tenants()
    tenants.push("a" * 40)
    tenants.take(40)
    tenants.now_ms += 1000
    tenants.finish(40)
    fair = tenants.line.fair
    assert fair is not None
    tenants.push("a" + "b" * 200)
    tenants.take(30)
    busy = fair._tenants[b"a"]
    assert fair._is_noisy(busy)
    tenants.now_ms += 600_000
    fair.begin()
    assert not fair._is_noisy(busy)


def test_a_message_put_back_is_no_longer_in_hand_and_first_of_its_key() -> None:
    tenants = Tenants()
    tenants.push("aabb")
    entries = tenants.entries(2)
    tenants.line.put_back(entries)
    again = seqs(tenants.entries(4))
    assert set(again[:2]) == {0, 2}
    assert set(again[2:]) == {1, 3}


def test_messages_without_a_key_are_one_key() -> None:
    tenants = Tenants()
    tenants.push("----a-")
    assert tenants.take(3) == "-a-"


def test_in_an_ordered_line_one_of_each_key_is_out() -> None:
    tenants = Tenants(1, ordered=True)
    tenants.push("aab")
    assert tenants.take(5) == "ab"
    tenants.finish()
    assert tenants.take(5) == ""
    tenants.line.settled(b"a")
    assert tenants.take(5) == "a"


def test_keys_that_are_idle_are_forgotten() -> None:
    tenants = Tenants()
    fair = tenants.line.fair
    assert fair is not None
    for number in range(fairness.KEYS_KEPT + 100):
        tenants.line.add(segment(chr(200 + number), start=number))
        tenants.take()
        tenants.finish()
    tenants.now_ms += 10 * 60_000
    tenants.push("a")
    tenants.take()
    assert len(fair._tenants) <= fairness.KEYS_KEPT


@given(st.lists(st.tuples(st.sampled_from(["push", "take", "finish", "back"]), st.integers(1, 9))))
def test_every_message_is_taken_once(steps: list[tuple[str, int]]) -> None:
    rng = random.Random(len(steps))
    tenants = Tenants()
    pushed, waiting = 0, 0
    for verb, count in steps:
        tenants.now_ms += rng.choice((0, 10, 5000))
        match verb:
            case "push":
                tenants.push("".join(rng.choice("abcd-") for _ in range(count)))
                pushed, waiting = pushed + count, waiting + count
            case "take":
                waiting -= len(tenants.take(count))
            case "finish":
                tenants.finish(min(count, len(tenants.hands)))
            case _:
                tenants.line.put_back(tenants.entries(count))
        assert tenants.line.count == waiting
        assert tenants.line.fair is not None
        assert tenants.line.fair._all.in_hand == len(tenants.hands)
    tenants.take(pushed)
    assert len(tenants.taken_ms) == pushed
