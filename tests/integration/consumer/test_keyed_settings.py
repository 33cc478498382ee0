"""The settings of keyed groups: bad ones, and those that cannot be changed."""

from __future__ import annotations

import re
from typing import Any

import pytest

import cassq
from cassq.errors import ConfigError, GroupExistsError
from tests.integration.consumer.keyed_stage import drained, keyed, push

__all__ = ["keyed"]

ANOTHER = "cannot be changed: create another group under another name"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"order": "keys"}, "order must be 'any' or 'key'"),
        ({"limit_per_key": 0}, "limit_per_key"),
        ({"rate_per_key": "fast"}, "rate_per_key 'fast' is not a rate"),
        ({"rate_per_key": "0/s"}, "rate_per_key '0/s' is not a rate"),
        ({"limit_per_key": 2, "order": "key"}, "one at a time"),
    ],
)
def test_bad_settings_are_named(
    queue: cassq.Queue, settings: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        queue.create_group("keyed", **settings)  # type: ignore[arg-type]
    assert [group.name for group in queue.groups()] == ["default"]


def test_the_order_of_a_group_cannot_be_changed(keyed: cassq.Queue) -> None:
    with pytest.raises(ConfigError, match="order cannot be changed"):
        keyed.update_group("keyed", order="any")
    with pytest.raises(ConfigError, match="order cannot be changed"):
        keyed.update_group("default", order="key")


@pytest.mark.parametrize(
    ("settings", "differs"),
    [
        ({"order": "any"}, "order is 'key', not 'any'"),
        ({"order": "key", "on_dead": "hold"}, "on_dead is 'continue', not 'hold'"),
        ({"order": "key", "fair": True}, "fair is False, not True"),
        ({"order": "key", "rate_per_key": "5/s"}, "rate_per_key is None, not '5/s'"),
        ({"limit_per_key": 2}, "limit_per_key is None, not 2"),
        ({"exclusive": True}, "exclusive is False, not True"),
    ],
)
@pytest.mark.parametrize("pending", [False, True], ids=["nothing-pending", "a-claim-pending"])
def test_a_group_made_again_with_another_order_is_refused_with_what_to_do(
    keyed: cassq.Queue, settings: dict[str, Any], differs: str, *, pending: bool
) -> None:
    popper = keyed.popper("keyed")
    push(keyed, ["a1", "a2"])
    taken = popper.pop() if pending else []
    with pytest.raises(GroupExistsError, match=differs) as caught:
        keyed.create_group("keyed", **settings)
    assert re.search(ANOTHER, caught.value.hint)
    assert "update" not in caught.value.hint
    popper.commit(taken)
    assert drained(popper) == ["a1", "a2"][len(taken) :]


def test_a_group_that_is_not_in_order_does_not_become_so_with_a_claim_pending(
    queue: cassq.Queue,
) -> None:
    push(queue, ["a1"])
    popper = queue.popper()
    taken = popper.pop()
    with pytest.raises(GroupExistsError, match="order is 'any', not 'key'") as caught:
        queue.create_group("default", order="key")
    assert re.search(f"order {ANOTHER}", caught.value.hint)
    popper.commit(taken)


def test_what_can_be_changed_of_a_keyed_group_is_changed_by_an_update(keyed: cassq.Queue) -> None:
    with pytest.raises(GroupExistsError, match="max_deliveries") as caught:
        keyed.create_group("keyed", order="key", max_deliveries=3)
    assert "update_group" in caught.value.hint
    keyed.update_group("keyed", max_deliveries=3)
    keyed.create_group("keyed", order="key", max_deliveries=3)
