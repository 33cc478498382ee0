"""The part of the comparison that is from Spark: its verdicts, its tallies, its work."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import SCENARIOS
from bench.contest import Contest
from bench.measuring.children import Figures, Job, MeasurementError, Seat, run
from bench.measuring.drain import LostMessagesError
from bench.measuring.rows import NOTHING, Rows
from bench.peers.peer import Place
from bench.plan import Plan
from bench.results.scores import Scores
from bench.results.targets import TARGETS, Verdict, judge
from bench.scenarios.scenario import Case
from bench.scenarios.spark import Spark, SparkOnCassandra, by_frames, by_rows, make_rows, natively
from bench.servers.server import MissingServerError

HERE = tuple(target for target in TARGETS if target.title.startswith("from Spark"))
JAVA = ("java", "module:pyspark", "module:pyarrow", "module:psutil")


def verdicts(scores: Scores) -> dict[str, Verdict]:
    return {judgement.target.title: judgement.verdict for judgement in judge(scores, HERE)}


# --- targets ---


def full_scores() -> Scores:
    """A run in which cassq reaches everything."""
    scores = Scores()
    steps = ("write", "read", "stream")
    for key, tail in (("spark", ""), ("spark-cassandra", "-cassandra")):
        scores.add(key, f"cassq-spark{tail}", dict.fromkeys(steps, 700_000.0))
        scores.add(key, f"cassq{tail}", {"write": 1_000_000.0, "read": 1_000_000.0})
        scores.add(key, f"cassq-spark-rows{tail}", {"write": 10_000.0})
    for kafka in ("kafka-spark", "kafka-spark-synced"):
        scores.add("spark", kafka, dict.fromkeys(steps, 600_000.0))
    return scores


def test_every_target_can_be_reached() -> None:
    found = verdicts(full_scores())
    assert len(found) == len(HERE) == 12
    assert set(found.values()) == {Verdict.REACHED}


@pytest.mark.parametrize(
    ("case_key", "peer", "figures", "words"),
    [
        ("spark", "cassq", {"write": 2e6}, "Spark, a write: over the library"),
        ("spark", "cassq", {"read": 2e6}, "Spark, a read: over the library"),
        ("spark", "cassq-spark-rows", {"write": 2e5}, "Spark, a write: over a push"),
        ("spark-cassandra", "cassq-cassandra", {"write": 2e6}, "Cassandra, a write: over the lib"),
        ("spark-cassandra", "cassq-cassandra", {"read": 2e6}, "Cassandra, a read: over the lib"),
        (
            *("spark-cassandra", "cassq-spark-rows-cassandra"),
            *({"write": 2e5}, "Cassandra, a write: over a push"),
        ),
        ("spark", "kafka-spark", {"write": 8e5}, "a write: over Spark's own on Kafka, page"),
        ("spark", "kafka-spark-synced", {"read": 8e5}, "a read: over Spark's own on Kafka, sync"),
        ("spark", "kafka-spark", {"stream": 8e5}, "a stream read: over Spark's own on Kafka, page"),
    ],
)
def test_a_bad_figure_misses_its_own_target_alone(
    case_key: str, peer: str, figures: Figures, words: str
) -> None:
    scores = full_scores()
    scores.rounds(case_key, peer)[0].update(figures)
    (missed,) = [title for title, verdict in verdicts(scores).items() if verdict is Verdict.MISSED]
    assert words in missed


# --- tallies ---

SENT = [b"one", b"two", b"three"]


@pytest.mark.parametrize(
    ("came", "words"),
    [
        ([b"one", b"two"], "2 messages, not 3"),
        ([b"one", b"two", b"three", b"three"], "4 messages, not 3"),
        ([b"one", b"three", b"three"], "not those that went in"),
        ([b"one", b"two", b"tree"], "not those that went in"),
    ],
)
def test_what_is_lost_doubled_or_changed_is_found(came: list[bytes], words: str) -> None:
    with pytest.raises(LostMessagesError, match=words):
        NOTHING.plus(SENT).check(NOTHING.plus(came), "here")


def test_order_and_batches_do_not_matter_to_a_tally() -> None:
    wanted = NOTHING.plus(SENT)
    wanted.check(NOTHING.plus([b"three"]).joined(NOTHING.plus([b"two", b"one"])), "here")


# --- who takes part ---


@pytest.mark.needs("module:pyspark", "module:confluent_kafka", "module:cassandra")
def test_the_others_are_not_measured_without_spark(tmp_path: Path) -> None:
    case = Case("any", "any")
    beside = Contest(tmp_path, Plan(), ["cassq", "cassq-spark", "sqlite", "kafka-spark"], print)
    assert beside._takers(Spark(), case) == ["cassq", "cassq-spark", "kafka-spark"]
    assert beside._takers(SparkOnCassandra(), case) == []
    assert Contest(tmp_path, Plan(), ["cassq"], print)._takers(Spark(), case) == []


@pytest.mark.needs("module:pyspark", "module:confluent_kafka")
def test_a_missing_java_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.peers.spark.cassq import CassqSparkPeer
    from bench.peers.spark.kafka import KafkaSparkPeer

    monkeypatch.setenv("PATH", "/nowhere")
    for peer in (CassqSparkPeer, KafkaSparkPeer):
        with pytest.raises(MissingServerError, match="java is not installed"):
            peer.find()


def test_both_scenarios_can_be_chosen() -> None:
    assert SCENARIOS["spark"] is Spark
    assert SCENARIOS["spark-cassandra"] is SparkOnCassandra


# --- the work ---


@pytest.mark.long(reason="four sessions of Spark, one after the other")
@pytest.mark.needs(*JAVA)
def test_rows_go_into_a_queue_and_back_by_all_ways(tmp_path: Path) -> None:
    rows = Rows(tmp_path, 2_000)

    def done(name: str, work: Any, *arguments: Any) -> Figures:
        place = tmp_path / name
        place.mkdir()
        seat = Seat(name, Place(place, "any", 100))
        (figures,) = run([Job(work, (seat, rows, *arguments))], seconds_max=280)
        shutil.rmtree(place)
        return figures

    done("cassq", make_rows)
    tally = rows.tally()
    assert tally == NOTHING.plus(each for chunk in rows.chunks(300) for each in chunk)
    assert tally.messages == 2_000
    assert len({each for chunk in rows.chunks(300) for each in chunk}) == 2_000
    natively_done = done("cassq", natively)
    assert set(natively_done) == {"messages", "write", "write_cpu_s", "read", "read_cpu_s"}
    by_frame = done("cassq-spark", by_frames)
    assert {"write", "read", "read_all", "stream"} < set(by_frame)
    assert by_frame["messages"] == 2_000
    assert done("cassq-spark-rows", by_rows, 100)["messages"] == 100


@pytest.mark.needs("module:pyarrow", "module:psutil")
def test_rows_that_do_not_come_back_fail_the_measurement(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rows = Rows(tmp_path, 3)
    parquet.write_table(pa.table({"payload": SENT}), rows.path)
    rows._told.write_text(f"[3, {NOTHING.plus(SENT).total}, 0]")
    place = tmp_path / "place"
    place.mkdir()
    seat = Seat("cassq", Place(place, "any", 100))
    with pytest.raises(MeasurementError, match="not those that went in"):
        run([Job(natively, (seat, rows))], seconds_max=100)
