"""Batches: what of a batch goes into a frame, and what is left of one."""

from __future__ import annotations

from cassq.message.batches import Batch

ALL = Batch(
    payloads=[b"a", b"b", b"c", b"d"],
    times_ms=[1, 2, 3, 4],
    headers=[b"ha", b"hb", b"hc", b"hd"],
    keys=[b"ka", b"kb", b"kc", b"kd"],
    ids=[b"ia", b"ib", b"ic", b"id"],
    dues_ms=[10, 20, 30, 40],
)


def test_a_later_frame_has_its_own_columns() -> None:
    payloads, extras = ALL.cut(1, 3)
    assert payloads == [b"b", b"c"]
    assert (extras.times_ms, extras.dues_ms) == ([2, 3], [20, 30])
    assert (extras.headers, extras.keys, extras.ids) == (
        [b"hb", b"hc"],
        [b"kb", b"kc"],
        [b"ib", b"ic"],
    )


def test_what_is_one_for_all_stays_so() -> None:
    payloads, extras = Batch([b"a", b"b"], 7, dues_ms=9).cut(1, 2)
    assert (payloads, extras.times_ms, extras.dues_ms) == ([b"b"], 7, 9)
    assert extras.headers is extras.keys is extras.ids is None


def test_some_of_a_batch_keep_their_own_columns() -> None:
    some = ALL.only([1, 3])
    assert some.payloads == [b"b", b"d"]
    assert (some.times_ms, some.dues_ms) == ([2, 4], [20, 40])
    assert (some.headers, some.keys, some.ids) == ([b"hb", b"hd"], [b"kb", b"kd"], [b"ib", b"id"])
    assert ALL.only([0, 1, 2, 3]) is ALL
