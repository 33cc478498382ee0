"""The nemesis's plan and the report's figures."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.faults.storm.plan import CLIENT_TROUBLES, CUTS, HOUR, SERVER_TROUBLES, make_plan
from tests.faults.storm.report import Report, at_share, longest_gap


def test_a_seed_decides_the_plan_and_another_another() -> None:
    assert make_plan(7, 600, cuts=True) == make_plan(7, 600, cuts=True)
    assert make_plan(7, 600, cuts=True).servers != make_plan(8, 600, cuts=True).servers
    assert make_plan(7, 600, cuts=True).clients != make_plan(8, 600, cuts=True).clients


def test_a_longer_plan_of_a_seed_begins_as_a_shorter_one() -> None:
    short, long = make_plan(7, 300, cuts=True), make_plan(7, 600, cuts=True)
    assert long.servers[: len(short.servers)] == short.servers
    assert long.clients[: len(short.clients)] == short.clients


@pytest.mark.parametrize("seed", range(5))
def test_half_an_hour_has_every_trouble_of_every_server_within_its_time(seed: int) -> None:
    plan = make_plan(seed, 1800, cuts=True)
    assert {step.what for step in plan.servers} == SERVER_TROUBLES.keys()
    assert {step.what for step in plan.clients} == CLIENT_TROUBLES.keys()
    assert {s.target for s in plan.servers if s.what == "kill node"} == {1, 2, 3}
    assert {s.amount for s in plan.clients if s.what == "jump clock"} == {HOUR, -HOUR}
    for steps in (plan.servers, plan.clients):
        assert all(before.until < after.at for before, after in pairwise(steps))
        assert steps[-1].until <= 1800


def test_where_networks_cannot_be_cut_nothing_is_cut() -> None:
    plan = make_plan(1, 1800, cuts=False)
    assert {step.what for step in plan.servers} == SERVER_TROUBLES.keys() - CUTS


# --- the report -------------------------------------------------------------------------------


def test_shares_and_gaps_are_what_they_say() -> None:
    assert [at_share([1.0, 2.0, 3.0, 4.0], share) for share in (0.5, 0.75, 0.99, 1.0)] == [
        2,
        3,
        4,
        4,
    ]
    assert at_share([5.0], 0.5) == 5.0
    assert at_share([], 0.5) == 0.0
    second = 10**9
    assert longest_gap([2 * second, 9 * second, 99 * second], second, 10 * second) == 7.0
    assert longest_gap([], 0, 3 * second) == 3.0


@pytest.mark.parametrize(
    ("counts", "failures", "good"),
    [({"order": 0}, [], True), ({"order": 2}, [], False), ({"order": 0}, ["it died"], False)],
)
def test_a_report_tells_its_verdict_seed_and_deeds(
    counts: dict[str, int], failures: list[str], good: bool, tmp_path: Path
) -> None:
    report = Report(
        seed=42,
        minutes=0.5,
        servers="three",
        nemesis=[(3.0, "kill -9 cassandra 1")],
        figures={"ap": {"acknowledged": 17}, "ap/one": {"committed": 16}},
        troubles={"push: BackendError": 3},
        findings={"order": ["a came before b"] * counts["order"]},
        counts=counts,
        failures=failures,
        not_possible=["partitions: only root may"],
    )
    report.write(tmp_path)
    told = json.loads((tmp_path / "report.json").read_text())
    assert (told["good"], told["seed"], told["counts"]) == (good, 42, counts)
    text = (tmp_path / "report.txt").read_text()
    for each in ("seed 42", "kill -9 cassandra 1", "acknowledged", "17", "only root may"):
        assert each in text
    assert ("GOOD" in text) == good
    assert text.count("a came before b") == counts["order"]
