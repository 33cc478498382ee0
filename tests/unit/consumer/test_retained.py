"""Retained messages are those of their frame, and the memory for them has a limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.consumer.claiming import retained
from cassq.consumer.claiming.retained import KEPT_MS_MAX, RetainedMessages
from cassq.message.bundles import BundleSlice, RetainedBundle
from cassq.message.frames import Extras, Frame, decode, encode
from cassq.message.ranges import RangeSet
from cassq.model.rows import Claim, ClaimState

NOW_MS = 1_000
COUNT = 20
PAYLOADS = [b"x" * (1 + number % 3) + b"%d" % number for number in range(COUNT)]
HEADERS = [b'{"n":"%d"}' % number if number % 2 else None for number in range(COUNT)]


def a_frame(*, plain: bool = False, base_seq: int = 100) -> Frame:
    extras = (
        Extras(7)
        if plain
        else Extras(
            list(range(COUNT)), HEADERS, [b"k%d" % n for n in range(COUNT)], [b"p:1"] + [None] * 19
        )
    )
    payloads = [b"%03d" % number for number in range(COUNT)] if plain else PAYLOADS
    return decode(b"".join(encode(base_seq, payloads, extras)))


def a_row(left: RangeSet, *, due_ms: int = NOW_MS) -> Claim:
    start, end = left.ranges[0][0], left.ranges[-1][1]
    acked = RangeSet.run(start, end) - left
    return Claim("group", "pipe", start, end, 4096, ClaimState.FREE, due_ms, 1, acked=acked)


@pytest.mark.parametrize("plain", [True, False])
def test_a_retained_bundle_has_the_messages_of_its_frame(plain: bool) -> None:
    frame, seqs = a_frame(plain=plain), RangeSet([(100, 102), (105, 106), (118, 120)])
    kept = RetainedBundle(frame, seqs)
    assert kept.count == 5
    assert kept.payloads_of(seqs) == frame.payloads_of(seqs)
    assert kept.payloads_of(seqs) == [frame.payloads(s - 100, s - 99)[0] for s in seqs]
    for seq in seqs:
        index = seq - kept.base_seq
        assert kept.time_ms(index) == frame.time_ms(index)
        assert kept.headers_at(index) == frame.headers_at(index)
        assert kept.id_at(index, "pipe") == frame.id_at(index, "pipe")
        for column in ("headers", "keys", "ids"):
            mine, theirs = getattr(kept, column), getattr(frame, column)
            assert (mine and mine[index]) == (theirs and theirs[index])
    assert kept.size > sum(map(len, kept.payloads_of(seqs)))


def test_what_was_kept_of_a_row_is_found_once() -> None:
    frame, left = a_frame(), RangeSet([(101, 103), (110, 111)])
    kept = RetainedMessages()
    kept.keep(a_row(left), [BundleSlice(frame, RangeSet.run(100, 120))], NOW_MS)
    found = kept.take(a_row(left))
    assert found is not None
    (piece,) = found
    assert piece.seqs == left
    assert piece.bundle is not frame
    assert piece.bundle.payloads_of(left) == frame.payloads_of(left)
    assert kept.take(a_row(left)) is None


def test_a_row_over_two_frames_is_kept_of_both() -> None:
    pieces = [
        BundleSlice(a_frame(), RangeSet.run(100, 120)),
        BundleSlice(a_frame(base_seq=120), RangeSet.run(120, 140)),
    ]
    kept = RetainedMessages()
    left = RangeSet([(119, 121), (130, 131)])
    kept.keep(a_row(left), pieces, NOW_MS)
    found = kept.take(a_row(left))
    assert found is not None
    assert [piece.seqs for piece in found] == [
        RangeSet.run(119, 120),
        RangeSet([(120, 121), (130, 131)]),
    ]


def test_a_row_that_another_changed_meanwhile_is_not_found() -> None:
    kept = RetainedMessages()
    left = RangeSet([(101, 103), (110, 111)])
    for now in (left - RangeSet.run(102, 103), left | RangeSet.run(112, 113)):
        kept.keep(a_row(left), [BundleSlice(a_frame(), RangeSet.run(100, 120))], NOW_MS)
        assert kept.take(a_row(now)) is None
    assert kept.take(replace(a_row(left), pipe_id="another")) is None


def test_what_is_due_much_later_is_not_kept() -> None:
    kept = RetainedMessages()
    for later_ms, is_kept in ((KEPT_MS_MAX, True), (KEPT_MS_MAX + 1, False)):
        row = a_row(RangeSet.run(101, 103), due_ms=NOW_MS + later_ms)
        kept.keep(row, [BundleSlice(a_frame(), RangeSet.run(100, 120))], NOW_MS)
        assert (kept.take(row) is not None) == is_kept


def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = a_frame()
    rows = [a_row(RangeSet.run(seq, seq + 1)) for seq in range(100, 120)]
    monkeypatch.setattr(
        retained, "KEPT_BYTES_MAX", 5 * RetainedBundle(frame, rows[0].left).size + 50
    )
    kept = RetainedMessages()
    for row in rows:
        kept.keep(row, [BundleSlice(frame, RangeSet.run(100, 120))], NOW_MS)
    found = [row.start for row in rows if kept.take(row) is not None]
    assert found == [115, 116, 117, 118, 119]
    assert kept._size == 0
