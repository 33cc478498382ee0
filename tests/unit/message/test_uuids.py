"""Ids of messages as UUIDs: what becomes one, and comes back from it."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.message.message_ids import as_uuid, from_uuid

pipes = st.integers(0, (1 << 96) - 1).map("{:024x}".format)


@given(pipes, st.integers(0, (1 << 26) - 1))
def test_an_id_is_a_uuid_of_version_8_and_comes_back_from_it(pipe: str, seq: int) -> None:
    text = as_uuid(f"{pipe}:{seq}")
    assert UUID(text).version == 8
    assert str(UUID(text)) == text
    assert from_uuid(text) == f"{pipe}:{seq}"


@given(pipes, st.integers(1 << 26, 1 << 62))
def test_an_id_beyond_that_is_plain(pipe: str, seq: int) -> None:
    assert as_uuid(f"{pipe}:{seq}") == f"{pipe}-{seq}"
    assert from_uuid(f"{pipe}-{seq}") == f"{pipe}:{seq}"


@pytest.mark.parametrize("text", ["", "x", "a:1", "5d0c1f0e-3f3a-4b43-9c0e-2f6b8a1d0c11"])
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert from_uuid(text) == text


def test_an_imported_id_without_a_place_is_shown_without_colons() -> None:
    assert as_uuid("order:1:b") == "order-1-b"
