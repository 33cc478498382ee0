"""The part of the comparison that is on Cassandra: who takes part, its verdicts, its work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.__main__ import SCENARIOS, taking_part
from bench.contest import SERVERS
from bench.measuring.children import Figures, Job, Seat, run
from bench.peers.peer import Place
from bench.peers.roster import peer_class
from bench.plan import Plan
from bench.results.report import Report
from bench.results.scores import Scores
from bench.results.targets import TARGETS, Verdict, judge
from bench.scenarios.cassandra.cp import CassandraCp, push_both
from bench.scenarios.cassandra.poppers import with_poppers
from bench.scenarios.cassandra.retired import pop_behind
from bench.scenarios.cassandra.single import one_at_a_time
from bench.scenarios.cassandra.through import OWN, OnCassandra
from bench.scenarios.scenario import Case
from bench.scenarios.through import Through
from bench.servers.cassandra import CassandraThreeServer
from bench.servers.server import Server
from tests.unit.bench.scoring import add_keys

TURN_FIGURES = [
    f"{step}_p{share}_ms" for step in ("push", "pop", "commit", "turn") for share in (50, 99)
]
HERE = tuple(target for target in TARGETS if target.title.startswith("on Cassandra"))


def verdicts(scores: Scores) -> dict[str, Verdict]:
    return {judgement.target.title: judgement.verdict for judgement in judge(scores, HERE)}


# --- targets ---


def full_scores() -> Scores:
    """A run in which cassq reaches everything."""
    scores = Scores()
    cases = ("cassandra", "cassandra/periodic", "cassandra/three")
    for key in (f"{case}/{size}" for case in cases for size in (100, 1000)):
        scores.add(key, OWN, {"through": 300_000.0})
        scores.add(key, "cassandra-rows", {"through": 3_000.0})
        scores.add(key, "kafka", {"through": 250_000.0})
        scores.add(key, "kafka-synced", {"through": 250_000.0})
    for key in ("cassandra-cp/100", "cassandra-cp/1000", "cassandra-cp/three"):
        scores.add(key, OWN, {"times": 2.0})
    scores.add("cassandra-batches/1000", OWN, {"share": 0.9})
    taken = {f"{step}_p{share}_ms": 1.0 for step in ("push", "turn") for share in (50, 99)}
    for peer in (OWN, "cassandra-rows"):
        scores.add("cassandra-single", peer, {**taken, "push_p99_ms": 2.0})
        scores.add("cassandra-single/three", peer, {**taken})
    scores.add("cassandra-poppers", OWN, {"busy@10": 0.95, "busy@100": 0.8})
    for key in ("cassandra-workers", "cassandra-workers/three"):
        scores.add(key, OWN, {"acks": 1400.0, "commits": 400.0})
    scores.add("cassandra-retired", OWN, {"pop@10": 5.0, "pop@100000": 5.0})
    add_keys(scores, OWN)
    return scores


def test_every_target_can_be_reached() -> None:
    found = verdicts(full_scores())
    assert len(found) == len(HERE)
    assert set(found.values()) == {Verdict.REACHED}


@pytest.mark.parametrize(
    ("case_key", "peer", "figures", "words"),
    [
        ("cassandra/100", OWN, {"through": 149_000.0}, "node, synced, 100 B: cassq over a row"),
        ("cassandra/100", OWN, {"through": 199_000.0}, "node, synced, 100 B: cassq, messages"),
        ("cassandra/100", "kafka-synced", {"through": 1e6}, "synced, 100 B: cassq over one Kafka"),
        ("cassandra/periodic/100", "kafka", {"through": 1e6}, "not synced, 100 B: cassq over one"),
        ("cassandra/periodic/100", "cassandra-rows", {"through": 7_000.0}, "100 B: cassq over a"),
        (
            "cassandra/three/100",
            "cassandra-rows",
            {"through": 7_000.0},
            "three nodes, 100 B",
        ),
        ("cassandra/1000", OWN, {"through": 149_000.0}, "node, synced, 1,000 B: cassq over a row"),
        ("cassandra/periodic/1000", OWN, {"through": 149_000.0}, "not synced, 1,000 B"),
        ("cassandra/three/1000", OWN, {"through": 149_000.0}, "three nodes, 1,000 B"),
        ("cassandra-cp/1000", OWN, {"times": 3.1}, "one node, 1 KB: pushes to ap over"),
        ("cassandra-cp/three", OWN, {"times": 3.1}, "three nodes: pushes to ap over"),
        ("cassandra-batches/1000", OWN, {"share": 0.79}, "batches of 5,000"),
        ("cassandra-single", OWN, {"push_p50_ms": 1.6}, "push p50"),
        ("cassandra-single", OWN, {"push_p99_ms": 3.1}, "push p99"),
        ("cassandra-single", OWN, {"turn_p50_ms": 2.1}, "one node, a message at a time: push, pop"),
        ("cassandra-single/three", OWN, {"turn_p99_ms": 2.1}, "commit, p99"),
        ("cassandra-poppers", OWN, {"busy@10": 0.89}, "10 poppers"),
        ("cassandra-poppers", OWN, {"busy@100": 0.69}, "100 poppers"),
        ("cassandra-workers", OWN, {"acks": 999.0}, "one node, 8 workers that ack one"),
        ("cassandra-workers", OWN, {"commits": 299.0}, "one node, 8 workers that commit one"),
        ("cassandra-workers/three", OWN, {"acks": 799.0}, "three nodes, 8 workers that ack one"),
        (
            "cassandra-workers/three",
            OWN,
            {"commits": 59.0},
            "three nodes, 8 workers that commit one",
        ),
        ("cassandra-retired", OWN, {"pop@100000": 7.0}, "100,000 retired pipes"),
    ],
)
def test_a_bad_figure_misses_its_own_target(
    case_key: str, peer: str, figures: Figures, words: str
) -> None:
    scores = full_scores()
    scores.rounds(case_key, peer)[0].update(figures)
    missed = [title for title, verdict in verdicts(scores).items() if verdict is Verdict.MISSED]
    assert any(words in title for title in missed), missed


def test_with_fewer_retired_pipes_no_hundred_thousand_are_reported() -> None:
    scores = Scores()
    scores.add("cassandra-retired", OWN, {"pop@10": 5.0, "pop@1000": 5.0, "grown": 1.0})
    (found,) = [verdict for title, verdict in verdicts(scores).items() if "100,000" in title]
    assert found is Verdict.UNKNOWN


# --- who takes part ---


@pytest.mark.needs("module:confluent_kafka", "module:cassandra")
def test_only_those_on_cassandra_and_kafka_take_part_there_and_nowhere_else() -> None:
    case = Case("any", "any")
    peers = [peer_class(name) for name in (*OnCassandra.peers, OWN, "cassq", "sqlite")]
    there = [peer.name for peer in peers if OnCassandra().takes_part(case, peer)]
    assert there == [*OnCassandra.peers, OWN]
    elsewhere = [peer.name for peer in peers if Through().takes_part(case, peer)]
    assert elsewhere == ["kafka", "kafka-synced", "cassq", "sqlite"]
    alone = [peer.name for peer in peers if CassandraCp().takes_part(case, peer)]
    assert alone == [OWN]


def test_every_server_that_a_case_names_is_known() -> None:
    cases = [case for scenario in SCENARIOS.values() for case in scenario().cases(Plan())]
    named = {name for case in cases for pair in case.instead.items() for name in pair}
    assert named <= set(SERVERS)
    instead = {name for name in SERVERS if name.startswith(("cassandra", "sidecars"))}
    assert named == {*instead, "kafka", "kafka-three", "nats", "nats-three"}


@pytest.mark.needs("module:confluent_kafka", "module:cassandra")
def test_only_peers_that_a_scenario_measures_take_part() -> None:
    names = ["cassq", "kafka", "cassandra-rows", OWN]
    assert taking_part(names, [CassandraCp()], Plan()) == [OWN]
    assert taking_part(names, [OnCassandra()], Plan()) == names[1:]
    assert taking_part(names, [Through()], Plan()) == names[:2]


def test_the_page_compares_the_peer_that_is_cassq_in_its_scenario() -> None:
    scores = Scores()
    scores.add("cassandra/100", OWN, {"through": 300_000.0})
    scores.add("cassandra/100", "cassandra-rows", {"through": 3_000.0})
    page = Report(Plan(), [OnCassandra()], [], {}, scores, judge(scores), []).markdown()
    assert "| Cassandra, a row per message | 3,000 | 100.00× as good |" in page
    assert "cassq over a row per message | ≥ 50× | 100.00× | reached |" in page


# --- the server ---


def place_of(server: Server) -> str:
    return next(word for word in server.prepare() if word.startswith("--home="))


def test_a_cassandra_is_ready_when_its_command_has_printed_the_addresses(tmp_path: Path) -> None:
    server = CassandraThreeServer(tmp_path / "run" / "cassandra-three")
    server.home.mkdir(parents=True)
    assert place_of(server) == f"--home={server.home / 'cluster'}"
    log = server.home / "output.log"
    log.write_text("")
    assert not server.ready()
    log.write_text('{"contact_points": ["127.1.2.1", "127.1')
    assert not server.ready(), "half a line is no answer"
    log.write_text('{"contact_points": ["127.1.2.1", "127.1.2.2"]}\n')
    assert server.ready()
    assert server.address == "127.1.2.1,127.1.2.2"


# --- the work, on a directory instead ---


@pytest.mark.parametrize(
    ("work", "arguments", "expected"),
    [
        (one_at_a_time, (0.1,), {"rate", *TURN_FIGURES}),
        (push_both, (0.05,), {"ap", "cp", "times"}),
        (pop_behind, ((2, 20), 5, 60.0), {"pop@2", "pop@20", "grown", "retired", "fill"}),
    ],
)
def test_what_is_asked_of_cassq_on_cassandra_works_with_cassq_embedded(
    tmp_path: Path, work: Callable[..., Figures], arguments: tuple[object, ...], expected: set[str]
) -> None:
    seat = Seat("cassq", Place(tmp_path, "any", 100))
    (figures,) = run([Job(work, (seat, *arguments))], seconds_max=100)
    assert set(figures) == expected
    assert all(value > 0 for value in figures.values())


def test_a_depth_that_is_not_reached_in_time_is_not_measured(tmp_path: Path) -> None:
    seat = Seat("cassq", Place(tmp_path, "any", 100))
    (figures,) = run([Job(pop_behind, (seat, (2, 2_000), 5, 0.001))], seconds_max=100)
    assert figures["retired"] < 2_000
    assert {"pop@2000", "grown"}.isdisjoint(figures)


@pytest.mark.long(reason="a comparison on Cassandra")
@pytest.mark.waits(reason="a measurement of two seconds")
def test_poppers_that_share_a_pipe_are_no_busier_than_can_be(tmp_path: Path) -> None:
    figures = with_poppers(Seat("cassq", Place(tmp_path, "any", 100)), 10, 2.0)
    assert 0 < figures["busy"] <= 1
    assert figures["tasks"] == pytest.approx(figures["busy"] * 1_000)
