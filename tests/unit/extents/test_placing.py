"""Which sidecars new extents come to, and which are avoided."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from cassq.base.clock import ManualClock
from cassq.errors import BackendTimeoutError, BackendUnavailableError
from cassq.extents.protocol.messages import Code, RefusedError
from cassq.extents.sidecar.health import AVOID_FIRST_MS, AVOID_MOST_MS, SidecarHealth
from cassq.extents.sidecar.net.network import CallResult
from cassq.extents.sidecar.placing import LOAD_UNIT, chosen, takers
from cassq.model.sidecar_rows import SidecarRow, SidecarState

DRAWS = 2000


def row(name: str, zone: str = "", *, free: int = 50, load: int = 0) -> SidecarRow:
    return SidecarRow(
        name, f"{name}:1", zone, "1", SidecarState.UP, 10_000, free, 100, 0, load, False, 0,
        seen_ms=1000,
    )  # fmt: skip


def shares(rows: list[SidecarRow], count: int, **more: str) -> dict[str, float]:
    """How often each is chosen."""
    rng = random.Random(1)
    found = Counter(each.name for _ in range(DRAWS) for each in chosen(rows, count, rng, **more))
    return {each.name: found[each.name] / DRAWS for each in rows}


@pytest.mark.parametrize(
    ("changes", "takes"),
    [
        ({}, True),
        ({"state": SidecarState.DRAINING}, False),
        ({"state": SidecarState.GONE}, False),
        ({"read_only": True}, False),
        ({"seen_ms": -4999}, True),
        ({"seen_ms": -5000}, False),  # its lease ended at this moment
        ({"name": "b"}, False),
    ],
)
def test_which_sidecars_take_new_extents(changes: dict[str, object], takes: bool) -> None:
    each = replace(row("a"), **changes)
    assert takers([each], 5000, {"b"}) == ([each] if takes else [])


def test_replicas_are_spread_over_zones() -> None:
    rows = [row(f"{zone}{number}", zone) for zone in "xyz" for number in range(3)]
    rng = random.Random(2)
    for _ in range(100):
        assert {each.zone for each in chosen(rows, 3, rng)} == {"x", "y", "z"}
        five = Counter(each.zone for each in chosen(rows, 5, rng))
        assert sorted(five.values()) == [1, 2, 2]


def test_what_is_there_already_is_counted() -> None:
    rows = [row("a", "x"), row("b", "y"), row("c", "y")]
    for _ in range(20):
        (found,) = chosen(rows, 1, random.Random(), beside=[row("d", "y")])
        assert found.name == "a"


def test_the_own_zone_comes_first_and_gets_no_more_than_its_part() -> None:
    rows = [row(f"{zone}{number}", zone) for zone in "xy" for number in range(2)]
    for seed in range(50):
        found = chosen(rows, 2, random.Random(seed), zone="y")
        assert [each.zone for each in found] == ["y", "x"]


def test_no_sidecar_is_chosen_twice_and_no_more_than_there_are() -> None:
    rows = [row("a"), row("b")]
    assert sorted(each.name for each in chosen(rows, 5, random.Random(1))) == ["a", "b"]
    assert chosen([], 3, random.Random(1)) == []


def test_alike_sidecars_get_alike_shares() -> None:
    found = shares([row(name) for name in "abcd"], 1)
    assert all(0.2 < share < 0.3 for share in found.values())


def test_of_two_the_one_with_more_room_is_taken() -> None:
    found = shares([row("full", free=5), row("half"), row("empty", free=100)], 1)
    assert found["full"] == 0.0
    assert found["half"] < found["empty"]


def test_the_one_with_less_to_do_is_taken() -> None:
    busy, idle = row("busy", load=LOAD_UNIT), row("idle")
    assert shares([busy, idle], 1) == {"busy": 0.0, "idle": 1.0}
    assert shares([busy, replace(idle, free_bytes=20)], 1) == {"busy": 1.0, "idle": 0.0}


def test_a_disk_of_no_size_is_not_an_error() -> None:
    (found,) = chosen([replace(row("a"), total_bytes=0, free_bytes=0)], 1, random.Random(1))
    assert found.name == "a"


# --- health -----------------------------------------------------------------------------------


def test_a_sidecar_that_fails_again_is_avoided_for_longer() -> None:
    clock = ManualClock()
    health = SidecarHealth(clock)
    avoided_ms = AVOID_FIRST_MS
    for _ in range(10):
        health.failed("a")
        clock.advance((avoided_ms - 1) / 1000)
        assert health.avoided("a")
        health.failed("a")  # others say so too: that changes nothing
        clock.advance(0.001)
        assert not health.avoided("a")
        avoided_ms = min(2 * avoided_ms, AVOID_MOST_MS)
    health.well("a")
    health.failed("a")
    clock.advance(AVOID_FIRST_MS / 1000)
    assert not health.avoided("a"), "it begins anew"
    assert not health.avoided("b")


@pytest.mark.parametrize(
    ("error", "slow", "avoided"),
    [
        (None, True, False),
        (RefusedError(Code.BUSY), True, False),
        (BackendUnavailableError(), True, True),
        (BackendUnavailableError(), False, True),
        (BackendTimeoutError(), True, True),
        (BackendTimeoutError(), False, False),
    ],
)
def test_what_an_answer_says_of_a_sidecar(
    error: BackendUnavailableError | None, slow: bool, avoided: bool
) -> None:
    health = SidecarHealth(ManualClock())
    health.note([CallResult("a", [], error)], slow=slow)
    assert health.avoided("a") is avoided
    health.note([CallResult("a", [], None)])
    assert not health.avoided("a")
