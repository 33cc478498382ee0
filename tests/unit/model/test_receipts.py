"""Receipts: their text, and what is none."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.errors import UsageError
from cassq.model.receipts import _REMEMBERED, Receipt, _memory, parsed, parsed_all

A = Receipt("group", "pipe", 7, "client.1/2")
B = A._replace(seq=8)


@given(st.integers(0, (1 << 63) - 1))
def test_a_receipt_is_read_back_from_its_text(seq: int) -> None:
    receipt = A._replace(seq=seq)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", receipt.text)
    assert parsed(receipt.text) == receipt


@given(st.text(max_size=60))
def test_other_texts_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="receipt"):
        parsed(text)


@given(st.integers(0, 200), st.characters(codec="ascii"))
def test_a_changed_receipt_is_none(at: int, other: str) -> None:
    text = A.text
    at %= len(text)
    changed = text[:at] + other + text[at + 1 :]
    if changed != text:
        try:
            assert parsed(changed) == A  # the last letter has bits that nobody reads
        except UsageError:
            return
        assert at == len(text) - 1


def test_receipts_are_read_whether_or_not_they_are_remembered() -> None:
    texts = [A._replace(seq=seq).text for seq in range(10_000)]
    assert [parsed(text).seq for text in texts] == list(range(10_000))
    assert len(_memory._new) + len(_memory._old) <= 2 * _REMEMBERED


def test_several_are_read_each_once() -> None:
    assert parsed_all(A.text) == [A]
    assert parsed_all([B.text, A.text, B.text]) == [B, A]
    assert parsed_all([]) == []
    for wrong in (5, None, b"receipt", [A.text, 5]):
        with pytest.raises(UsageError, match="receipt"):
            parsed_all(wrong)  # type: ignore[arg-type]
