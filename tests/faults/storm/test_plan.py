"""The nemesis's plan and the report's figures."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.faults.storm.checker import Verdict
from tests.faults.storm.history import Delivery, History
from tests.faults.storm.plan import (
    CATALOG_TROUBLES,
    CLIENT_TROUBLES,
    CUTS,
    EMBEDDED_TROUBLES,
    HARMFUL,
    HOUR,
    SERVER_TROUBLES,
    SIDECAR_CUTS,
    SIDECAR_TROUBLES,
    Span,
    make_plan,
)
from tests.faults.storm.report import Report, at_share, figures_of, longest_gap, takeovers

ON_CASSANDRA = (SERVER_TROUBLES, 3)
ON_SIDECARS = ({**SIDECAR_TROUBLES, **CATALOG_TROUBLES}, 4)
EMBEDDED = ({**SIDECAR_TROUBLES, **EMBEDDED_TROUBLES}, 4)
GROUNDS = pytest.mark.parametrize(
    "ground",
    [ON_CASSANDRA, ON_SIDECARS, EMBEDDED],
    ids=["cassandra", "sidecars", "sidecars, embedded catalog"],
)

Of = tuple[dict[str, Span], int]


@GROUNDS
def test_a_seed_decides_the_plan_and_another_another(ground: Of) -> None:
    assert make_plan(7, 600, *ground) == make_plan(7, 600, *ground)
    assert make_plan(7, 600, *ground).servers != make_plan(8, 600, *ground).servers
    assert make_plan(7, 600, *ground).clients != make_plan(8, 600, *ground).clients


@GROUNDS
def test_a_longer_plan_of_a_seed_begins_as_a_shorter_one(ground: Of) -> None:
    short, long = make_plan(7, 300, *ground), make_plan(7, 600, *ground)
    assert long.servers[: len(short.servers)] == short.servers
    assert long.clients[: len(short.clients)] == short.clients


@GROUNDS
@pytest.mark.parametrize("seed", range(5))
def test_half_an_hour_has_every_trouble_of_every_server_within_its_time(
    seed: int, ground: Of
) -> None:
    troubles, servers = ground
    plan = make_plan(seed, 1800, *ground)
    assert {step.what for step in plan.servers} == troubles.keys()
    assert {step.what for step in plan.clients} == CLIENT_TROUBLES.keys()
    assert {step.target for step in plan.servers} == set(range(1, servers + 1))
    assert {s.amount for s in plan.clients if s.what == "jump clock"} == {HOUR, -HOUR}
    for steps in (plan.servers, plan.clients):
        assert all(before.until < after.at for before, after in pairwise(steps))
        assert steps[-1].until <= 1800
    for step in plan.servers:
        least, most = troubles[step.what]
        assert least <= step.seconds <= most


def test_what_is_not_possible_is_not_planned() -> None:
    assert SERVER_TROUBLES.keys() > CUTS
    assert SIDECAR_TROUBLES.keys() > HARMFUL
    assert SIDECAR_TROUBLES.keys() | CATALOG_TROUBLES.keys() > SIDECAR_CUTS
    possible = {what: span for what, span in SERVER_TROUBLES.items() if what not in CUTS}
    plan = make_plan(1, 1800, possible, 3)
    assert {step.what for step in plan.servers} == possible.keys()


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


def test_a_group_that_was_never_served_has_no_stall() -> None:
    second = 10**9
    history = History(frozenset())
    late = history.view("kept", "default")
    late.deliveries.append(Delivery("drain", 0, 99 * second, 99 * second, []))
    served = history.view("ap", "default")
    served.deliveries.append(Delivery("pop", 0, 4 * second, 4 * second, []))
    figures = figures_of(history, Verdict(), 0, 9 * second)
    assert figures["kept/default"]["longest stall s"] == ""
    assert figures["ap/default"]["longest stall s"] == 5.0


def test_keys_that_went_to_another_process_are_counted() -> None:
    history = History(frozenset(), frozenset({"keyed"}))
    keyed = history.view("lanes", "keyed")
    deliveries = [("one", ["x:0", "x:1"]), ("two", ["x:6"]), ("two", ["x:2"]), ("one", ["x:5"])]
    for batch, (popper, keys) in enumerate(deliveries):
        items = [(key, ("pipe", 0), 1, "") for key in keys]
        keyed.deliveries.append(Delivery(popper, batch, batch, batch, items))
    assert takeovers(keyed) == 1
    assert figures_of(history, Verdict(), 0, 9)["lanes/keyed"]["keys taken over"] == 1


@pytest.mark.parametrize(
    ("counts", "failures", "good"),
    [({"order": 0}, [], True), ({"order": 2}, [], False), ({"order": 0}, ["it died"], False)],
)
def test_a_report_shows_its_verdict_seed_and_deeds(
    counts: dict[str, int], failures: list[str], good: bool, tmp_path: Path
) -> None:
    report = Report(
        seed=42,
        minutes=0.5,
        servers="three",
        nemesis=[(3.0, "kill -9 cassandra 1")],
        made={"kill node": 23},
        figures={"ap": {"acknowledged": 17}, "ap/one": {"committed": 16}},
        troubles={"push: BackendError": 3},
        findings={"order": ["a came before b"] * counts["order"]},
        counts=counts,
        failures=failures,
        not_possible=["partitions: only root may"],
    )
    report.write(tmp_path)
    printed = json.loads((tmp_path / "report.json").read_text())
    assert (printed["good"], printed["seed"], printed["counts"]) == (good, 42, counts)
    text = (tmp_path / "report.txt").read_text()
    assert "    23 kill node" in text
    for each in ("seed 42", "kill -9 cassandra 1", "acknowledged", "17", "only root may"):
        assert each in text
    assert ("GOOD" in text) == good
    assert text.count("a came before b") == counts["order"]
