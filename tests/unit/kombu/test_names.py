"""Names of kombu's queues as names of cassq's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.kombu.names import queue_name
from cassq.model.queues import check_queue_name


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("celery", "celery"),
        ("mail.high-1", "mail.high-1"),
        ("my_queue", "my__queue"),
        ("w@host.celery.pidbox", "w_40_host.celery.pidbox"),
        ("..", "__2e__2e_"),
    ],
)
def test_a_name_stays_readable(name: str, written: str) -> None:
    assert check_queue_name(queue_name(name)) == written


@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
def test_every_name_is_valid_and_no_two_meet(one: str, other: str) -> None:
    assert check_queue_name(queue_name(one))
    assert (queue_name(one) == queue_name(other)) == (one == other)


def test_a_long_name_ends_with_its_hash() -> None:
    one, other = queue_name("q" * 300 + "1"), queue_name("q" * 300 + "2")
    assert one != other
    assert len(one) == len(other) == 200
