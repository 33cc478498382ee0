"""Columns of byte strings: what is decoded is what was encoded, whatever it looks like."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cassq.message.columns import decode_column, encode_column

ENTRIES = st.one_of(
    st.lists(st.one_of(st.none(), st.binary(max_size=5)), max_size=30),
    st.builds(lambda entry, count: [entry] * count, st.binary(max_size=5), st.integers(0, 30)),
    st.integers(0, 4).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n), max_size=30)),
)


@given(ENTRIES, st.binary(max_size=3), st.binary(max_size=3))
def test_a_column_comes_back_as_it_was(
    entries: list[bytes | None], before: bytes, after: bytes
) -> None:
    body = before + encode_column(entries) + after
    decoded, end = decode_column(body, len(before), len(entries))
    assert decoded == entries
    assert end == len(body) - len(after)


@given(st.binary(min_size=1, max_size=4), st.integers(1, 20), st.integers(1, 10))
def test_a_column_that_is_cut_short_ends_behind_the_body(
    entry: bytes, count: int, missing: int
) -> None:
    """So that the frame, whose parts must fill its body, is refused."""
    body = encode_column([entry] * count)
    cut = body[: max(4 * count, len(body) - missing)]
    assert decode_column(cut, 0, count)[1] > len(cut) or len(cut) == len(body)
