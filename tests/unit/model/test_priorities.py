"""Priorities: what is one, and what a queue keeps to."""

from __future__ import annotations

from typing import Any

import pytest

from cassq.errors import ConfigError, UsageError
from cassq.model.priorities import PRIORITIES, by_priority, check_allowed, check_priority
from cassq.model.queues import QueuePolicy


def test_there_are_ten_of_them() -> None:
    assert [check_priority(priority) for priority in PRIORITIES] == list(range(10))


@pytest.mark.parametrize("wrong", [-1, 10, True, False, None, "5", 1.0, [1]])
def test_anything_else_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(UsageError, match="priority must be a whole number from 0 to 9") as caught:
        check_priority(wrong)
    assert "9 is the most urgent" in caught.value.hint


def test_a_cp_queue_allows_only_the_default() -> None:
    check_allowed(0, QueuePolicy(consistency="cp"))
    check_allowed(9, QueuePolicy())
    with pytest.raises(UsageError, match="a cp queue delivers .* priority: 4 is not 0") as caught:
        check_allowed(4, QueuePolicy(consistency="cp"))
    assert "ap queue" in caught.value.hint


def test_messages_are_sorted_by_priority_and_stay_in_order() -> None:
    found = by_priority([0, 9, 3, 9, 0])
    assert list(found.items()) == [(9, [1, 3]), (3, [2]), (0, [0, 4])]
    assert by_priority([]) == {}


@pytest.mark.parametrize("share", [0, 1, 16, 1_000_000])
def test_a_share_is_a_number_of_claims(share: int) -> None:
    assert QueuePolicy(priority_share=share).priority_share == share


@pytest.mark.parametrize("wrong", [-1, 1_000_001, True, 1.5, None, "16"])
def test_a_wrong_share_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="priority_share must be a whole number between 0"):
        QueuePolicy(priority_share=wrong)
