"""The comparison's own arithmetic, its verdicts, and that it runs at all."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bench.measuring.children import Figures, Gate, Job, MeasurementError, run
from bench.measuring.drain import LostMessagesError, drain
from bench.measuring.payloads import CHUNK_MESSAGES, VARIED_MAX, VARIED_MIN, chunks, varied_chunk
from bench.peers.embedded.sqlite import SqlitePeer
from bench.peers.peer import Place, slices
from bench.plan import Plan
from bench.results.figures import growth, middle, percentile, rate, ratio, spread
from bench.results.floor import unsynced
from bench.results.report import Report, cell, shown, table
from bench.results.scores import DISK, Scores
from bench.results.targets import TARGETS, Target, Verdict, judge
from bench.scenarios.reap import kept_beside_daemon
from bench.scenarios.scenario import Case, Column, Unit
from bench.scenarios.through import Through
from bench.servers.server import Server, ServerFailedError
from tests.unit.bench.scoring import add_keys

ROOT = Path(__file__).parents[3]
# The others are in test_cassandra.py, test_spark.py, test_sidecars.py and test_gateway.py.
ELSEWHERE = ("on Cassandra", "from Spark", "on sidecars", "by SQS")
HERE = tuple(target for target in TARGETS if not target.title.startswith(ELSEWHERE))


# --- figures ---


def test_a_rate_is_messages_by_seconds() -> None:
    assert rate(300, 1.5) == 200


def test_a_rate_over_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="positive duration"):
        rate(1, 0.0)


def test_a_ratio_is_the_median_of_each_rounds_own_ratio() -> None:
    # The machine is ten times slower in the second round; the ratio of medians would be 3.
    assert ratio([100.0, 10.0, 90.0], [50.0, 5.0, 30.0]) == 2.0


def test_a_ratio_leaves_out_rounds_that_one_side_did_not_finish() -> None:
    assert ratio([8.0, None, 6.0, 5.0], [2.0, 1.0, None, 1.0]) == 4.5
    assert ratio([None], [1.0]) is None
    assert ratio([1.0], [0.0]) is None
    assert ratio([], []) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [([3.0, 1.0, 2.0], 2.0), ([4.0, 1.0], 2.5), ([None, 7.0], 7.0), ([None], None), ([], None)],
)
def test_the_middle_is_the_median_of_what_was_measured(
    values: list[float | None], expected: float | None
) -> None:
    assert middle(values) == expected


def test_the_spread_is_the_smallest_and_the_largest_that_was_measured() -> None:
    assert spread([3.0, None, 1.0, 2.0]) == (1.0, 3.0)
    assert spread([None]) is None


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.01, 1.0), (0.5, 50.0), (0.99, 99.0), (1.0, 100.0)]
)
def test_a_percentile_is_a_sample_that_the_share_does_not_exceed(
    share: float, expected: float
) -> None:
    assert percentile([float(number) for number in range(100, 0, -1)], share) == expected


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        percentile([], 0.5)


def test_a_saw_that_keeps_its_height_does_not_grow() -> None:
    assert growth([50.0, *([1.0, 2.0, 3.0] * 9)]) == 1.0


def test_a_saw_that_rises_grows() -> None:
    saw = [step + 10 * tooth for tooth in range(9) for step in (1.0, 2.0, 3.0)]
    assert growth(saw) == 83 / 53


def test_growth_needs_three_samples() -> None:
    with pytest.raises(ValueError, match="three samples"):
        growth([1.0, 1.0])


def test_what_a_pusher_keeps_beside_a_daemon_follows_from_how_long_it_passes() -> None:
    assert kept_beside_daemon(0.5, 2.0, 8.0) == 0.9
    assert kept_beside_daemon(0.5, 0.0, 8.0) == 1.0


# --- payloads and plans ---


@pytest.mark.parametrize("total", [1, CHUNK_MESSAGES - 1, CHUNK_MESSAGES, 2 * CHUNK_MESSAGES + 1])
def test_chunks_hold_exactly_as_many_messages_as_asked_for(total: int) -> None:
    made = chunks(8, total)
    assert sum(map(len, made)) == total
    assert len(set(made[0])) == len(made[0])


def test_messages_of_varied_length_are_as_many_short_ones_as_long_ones() -> None:
    lengths = sorted(map(len, varied_chunk()))
    assert (lengths[0], lengths[-1]) == (VARIED_MIN, VARIED_MAX)
    assert 130 < lengths[len(lengths) // 2] < 150
    assert 240 < sum(lengths) / len(lengths) < 260
    made = chunks(100, CHUNK_MESSAGES + 5, varied=True)
    assert sum(map(len, made)) == CHUNK_MESSAGES + 5
    assert len(set(map(len, made[0]))) > 100


def test_a_consumer_that_reads_message_by_message_misses_an_empty_one() -> None:
    class Hollow(SqlitePeer):
        def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
            return [b"x", b""][:limit]

        def ack(self) -> None:
            """Nothing is held."""

    peer = Hollow(Place(Path(), "q", 100))
    drain(peer, 2)
    with pytest.raises(LostMessagesError, match="without its payload"):
        drain(peer, 2, singly=True)


def test_slices_keep_order_and_limit() -> None:
    given = [[b"1", b"2", b"3"], [b"4"]]
    assert list(slices(given, 2)) == [[b"1", b"2"], [b"3"], [b"4"]]


def test_peers_without_batches_get_fewer_messages_and_large_messages_are_fewer() -> None:
    plan = Plan(messages=1_000_000)
    assert plan.messages_for(100, batches=True) == 1_000_000
    assert plan.messages_for(1_000, batches=True) == 250_000
    assert plan.messages_for(100, batches=False) == 2_000


class Shared:
    """A share group's consumer that has some messages, and wants to know what became of them."""

    def __init__(self, polls: list[list[bytes]]) -> None:
        self._polls = polls
        self.acknowledged: list[bytes] = []
        self.committed: list[bytes] = []

    def poll(self, timeout: float) -> list[Shared.Held]:
        assert len(self.acknowledged) == len(self.committed), "all of the last poll comes first"
        return [Shared.Held(each) for each in (self._polls.pop(0) if self._polls else [])]

    def acknowledge(self, message: Shared.Held) -> None:
        self.acknowledged.append(message.value())

    def commit_sync(self, timeout: float) -> dict[str, None]:
        self.committed = list(self.acknowledged)
        return {"partition": None}

    class Held:
        def __init__(self, payload: bytes) -> None:
            self._payload = payload

        def value(self) -> bytes:
            return self._payload

        def error(self) -> None:
            return None


@pytest.mark.needs("module:confluent_kafka")
def test_a_share_group_hands_out_at_most_what_is_asked_for_and_commits_what_it_handed_out() -> None:
    from bench.peers.servers.kafka_share import KafkaSharePeer

    peer = KafkaSharePeer(Place(Path(), "q", 100))
    group = Shared([[b"1", b"2", b"3"], [b"4"]])
    peer.__dict__["_sharer"] = group
    assert peer.pop(2) == [b"1", b"2"]
    peer.ack()
    assert group.committed == [b"1", b"2"]
    assert peer.pop(2) == [b"3"]
    assert peer.pop(2) == [b"4"], "what was not acknowledged is, before the next poll"
    assert group.committed == [b"1", b"2", b"3"]
    assert peer.pop(2) == []


# --- targets ---


@pytest.mark.parametrize(
    ("comparison", "below", "at", "above"),
    [
        ("≥", Verdict.MISSED, Verdict.REACHED, Verdict.REACHED),
        (">", Verdict.MISSED, Verdict.MISSED, Verdict.REACHED),
        ("<", Verdict.REACHED, Verdict.MISSED, Verdict.MISSED),
        ("≤", Verdict.REACHED, Verdict.REACHED, Verdict.MISSED),
    ],
)
def test_a_verdict_turns_at_its_limit(
    comparison: str, below: Verdict, at: Verdict, above: Verdict
) -> None:
    target = Target("any", comparison, 4.0, lambda _: None)
    assert [target.verdict(value) for value in (3.99, 4.0, 4.01)] == [below, at, above]


def test_what_was_not_measured_has_no_verdict() -> None:
    assert {judgement.verdict for judgement in judge(Scores())} == {Verdict.UNKNOWN}


def full_scores() -> Scores:
    """A run in which cassq reaches everything."""
    scores = Scores()
    for size in ("varied", 100, 1_000):
        key = f"through/{size}"
        scores.add(key, "cassq", {"through": 2_000_000.0})
        for peer in ("sqlite", "sqlite-unleased", "redis", "postgresql", "postgresql-held"):
            scores.add(key, peer, {"through": 150_000.0})
        scores.add(key, "kafka-synced", {"through": 1_000_000.0})
        scores.add(key, "kafka", {"through": 1_500_000.0})
    scores.add("through/100/one-core", "cassq", {"through": 1_500_000.0})
    scores.add("single", DISK, {"one": 5_000.0, "overwrite": 6_000.0})
    scores.add("single", "cassq", {"one": 5_000.0, "sixteen": 30_000.0, "two_processes": 9_000.0})
    scores.add("workers", "cassq", {"rate": 4_000.0})
    scores.add("workers", "sqlite", {"rate": 2_500.0})
    scores.add("latency", "cassq", {"p99_ms": 1.0})
    scores.add("latency", "redis", {"p99_ms": 2.0})
    scores.add("backlog", "cassq", {"held": 0.95})
    scores.add("endurance", "cassq", {"disk_growth": 1.0, "rss_growth": 1.0})
    scores.add("failing", "cassq", {"kept": 0.9})
    scores.add("delayed", "cassq", {"push": 200_000.0, "pop": 60_000.0, "memory": 1.1})
    scores.add("outbox", "cassq", {"relayed": 90_000.0})
    scores.add("tasks", "cassq", {"both": 22_000.0, "async_times": 12.0})
    scores.add("celery", "cassq", {"times": 3.0, "p99_times": 0.8})
    add_keys(scores, "cassq")
    scores.add("work", "cassq", {"gained": 1.9})
    scores.add("pushes", "cassq", {"many_kept": 0.9, "single_kept": 0.4})
    scores.add("fair", "cassq", {"p99_ms": 140.0, "kept_cpu": 0.97})
    for key in ("reap/queues", "reap/pipes"):
        scores.add(key, "cassq", {"pass_s": 1.0, "kept": 0.97})
    for key in ("engine/100k", "engine/1000k"):
        scores.add(key, "cassq", {"over_plain": 0.9})
    scores.add("engine/open", "cassq", {"kept": 0.9, "rss_mib": 400.0})
    return scores


def verdicts(scores: Scores) -> dict[str, Verdict]:
    return {judgement.target.title: judgement.verdict for judgement in judge(scores, HERE)}


def test_every_target_can_be_reached() -> None:
    found = verdicts(full_scores())
    assert len(found) == len(HERE)
    assert set(found.values()) == {Verdict.REACHED}


@pytest.mark.parametrize(
    ("case_key", "peer", "figures", "words"),
    [
        ("through/100", "sqlite", {"through": 10_000_000.0}, "100 B: cassq over SQLite rows in"),
        ("workers", "sqlite", {"rate": 2_700.0}, "one message at a time: cassq over SQLite rows"),
        ("through/varied", "sqlite", {"through": 1e7}, "of varied length: cassq over SQLite rows"),
        ("through/varied", "sqlite-unleased", {"through": 1e6}, "varied length: cassq over SQLite"),
        ("through/1000", "redis", {"through": 10_000_000.0}, "1,000 B: cassq over Redis"),
        ("through/100", "kafka", {"through": 10_000_000.0}, "100 B: cassq over Kafka, page"),
        ("through/100", "kafka-synced", {"through": 10_000_000.0}, "100 B: cassq over Kafka, sync"),
        ("single", DISK, {"one": 50_000.0, "overwrite": 1.0}, "disk's synced appends over"),
        ("single", DISK, {"one": 1.0, "overwrite": 50_000.0}, "disk's synced overwrites"),
        ("single", "cassq", {"sixteen": 1.0}, "16 threads over 1"),
        ("single", "cassq", {"two_processes": 1.0}, "2 processes over 1"),
        ("latency", "redis", {"p99_ms": 0.1}, "latency p99"),
        ("backlog", "cassq", {"held": 0.5}, "deepest backlog"),
        ("endurance", "cassq", {"disk_growth": 2.0}, "peak of the directory"),
        ("endurance", "cassq", {"rss_growth": 2.0}, "peak of the memory"),
        ("failing", "cassq", {"kept": 0.5}, "fail three times"),
        ("delayed", "cassq", {"push": 50_000.0}, "pushed a second"),
        ("delayed", "cassq", {"pop": 5_000.0}, "delivered a second"),
        ("delayed", "cassq", {"memory": 3.0}, "delayed messages: memory"),
        ("outbox", "cassq", {"relayed": 40_000.0}, "from an outbox in SQLite"),
        ("tasks", "cassq", {"both": 19_000.0}, "async tasks pushed, run and acked"),
        ("tasks", "cassq", {"async_times": 9.0}, "async tasks: cassq over huey"),
        ("celery", "cassq", {"times": 1.9}, "Celery: tasks of a group a second"),
        ("celery", "cassq", {"p99_times": 1.1}, "Celery: a task and its result, p99"),
        ("reap/queues", "cassq", {"pass_s": 2.0}, "many queues, nothing to reap: the long"),
        ("reap/queues", "cassq", {"kept": 0.94}, "many queues, nothing to reap: push"),
        (
            "reap/pipes",
            "cassq",
            {"pass_s": 2.0},
            "many pipes of one queue, nothing to reap: the longest",
        ),
        ("engine/100k", "cassq", {"over_plain": 0.79}, "frames of 100 KB: over RocksDB"),
        ("engine/1000k", "cassq", {"over_plain": 0.79}, "frames of 1 MB: over RocksDB"),
        ("engine/open", "cassq", {"kept": 0.79}, "10,000 open extents: appends"),
        ("engine/open", "cassq", {"rss_mib": 2_000.0}, "10,000 open extents: memory"),
        ("reap/pipes", "cassq", {"kept": 0.9}, "pipes of one queue, nothing to reap: pushes"),
    ],
)
def test_a_bad_figure_misses_its_own_target(
    case_key: str, peer: str, figures: Figures, words: str
) -> None:
    scores = full_scores()
    own = scores.rounds(case_key, peer)[0]
    own.update(figures)
    missed = [title for title, verdict in verdicts(scores).items() if verdict is Verdict.MISSED]
    assert any(words in title for title in missed), missed


def test_a_failed_round_keeps_its_place_among_the_rounds() -> None:
    scores = Scores()
    for figure in (10.0, 20.0, 30.0):
        scores.add("case", "cassq", {"rate": figure})
    scores.add("case", "redis", {"rate": 1.0})
    scores.fail("case", "redis", "it broke")
    scores.add("case", "redis", {"rate": 1.0})
    assert scores.ratio("case", "cassq", "redis", "rate") == 20.0
    assert scores.failures["case", "redis"] == "it broke"


# --- the floor ---


def single(disk: Figures, pushed: float) -> Scores:
    scores = Scores()
    scores.add("single", DISK, disk)
    scores.add("single", "sqlite", {"one": pushed})
    return scores


def test_single_pushes_as_fast_as_the_disk_at_its_best_are_believed() -> None:
    assert unsynced(single({"one": 1_000.0, "overwrite": 2_000.0}, 2_000.0), ["sqlite"]) == []
    assert unsynced(single({"one": 2_000.0}, 2_000.0), ["sqlite"]) == []


def test_single_pushes_faster_than_the_disk_were_not_synced() -> None:
    scores = single({"one": 1_000.0, "overwrite": 2_000.0}, 2_001.0)
    (found,) = unsynced(scores, ["sqlite", "redis"])
    assert found.startswith(
        "sqlite pushed 2,001 messages a second one by one, the bare disk synced"
    )
    assert unsynced(scores, []) == [], "who promises nothing is not held to it"


def test_without_a_figure_of_the_disk_no_peer_is_called_unsynced() -> None:
    scores = Scores()
    scores.add("single", "sqlite", {"one": 1e9})
    assert unsynced(scores, ["sqlite"]) == []


# --- the report ---


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1_234_567.0, "rate", "1,235,000"),
        (0.5, "ms", "0.50"),
        (2_500_000.0, "MB", "2.5"),
        (25_000_000.0, "MB", "25"),
        (0.021, "share", "2.1"),
        (None, "rate", "–"),
    ],
)
def test_figures_are_shown_in_their_unit(value: float | None, unit: Unit, text: str) -> None:
    assert shown(value, unit) == text


def test_a_cell_names_the_range_only_where_there_is_one() -> None:
    assert cell([1.0, 2.0, 3.0], 2.0, "ms", ranged=True) == "2.00 (1.00–3.00)"
    assert cell([2.0, 2.0], 2.0, "ms", ranged=True) == "2.00"
    assert cell([1.0, 3.0], 2.0, "ms", ranged=False) == "2.00"


def test_a_short_row_is_filled_up() -> None:
    assert table(["", "a"], [["x"]]).splitlines()[-1] == "| x |  |"


class TwoColumns(Through):
    """A scenario whose page is short enough to read in a test."""

    def cases(self, plan: Plan) -> list[Case]:
        return [Case("through/100", "messages of 100 B")]

    def columns(self, plan: Plan) -> list[Column]:
        return [Column("through", "through/s", "rate"), Column("cpu_s", "CPU s", "s")]


def test_the_page_compares_names_what_is_missing_and_what_failed() -> None:
    scores = Scores()
    scores.add("through/100", "cassq", {"through": 900.0})
    scores.add("through/100", "sqlite", {"through": 300.0})
    scores.fail("through/100", "redis", "the disk is full")
    page = Report(
        plan=Plan(),
        scenarios=[TwoColumns()],
        peers=["cassq", "sqlite", "redis", "nobody-has-it"],
        missing={"nobody-has-it": "it is not installed"},
        scores=scores,
        judgements=judge(scores),
        facts=["Python of some kind"],
    ).markdown()
    assert "| SQLite rows | 300 | 3.00× as good |" in page
    assert "failed: the disk is full" in page
    assert "skipped: it is not installed" in page
    assert "CPU s" not in page, "a column that nobody filled is left out"


# --- processes ---


def add(_gate: Gate, first: float, second: float) -> Figures:
    return {"sum": first + second, "pid": float(os.getpid())}


def wait_for_all(gate: Gate) -> Figures:
    gate.meet()
    return {}


def fail(_gate: Gate) -> Figures:
    raise ZeroDivisionError("as planned")


def die(_gate: Gate) -> Figures:
    os._exit(3)


def test_every_job_has_a_process_of_its_own() -> None:
    first, second = run([Job(add, (1.0, 2.0)), Job(add, (3.0, 4.0))], seconds_max=60)
    assert (first["sum"], second["sum"]) == (3.0, 7.0)
    assert len({first["pid"], second["pid"], float(os.getpid())}) == 3


@pytest.mark.parametrize(
    ("culprit", "words"), [(fail, "as planned"), (die, "a measuring process died")]
)
def test_a_failing_job_is_named_and_nobody_waits_for_it(
    culprit: Callable[[Gate], Figures], words: str
) -> None:
    with pytest.raises(MeasurementError, match=words):
        run([Job(wait_for_all, ()), Job(culprit, ())], seconds_max=60)


class Sleeper(Server):
    """A server that does nothing."""

    name = "sleeper"
    code = "import time; time.sleep(600)"

    def find(self) -> None:
        return None

    def prepare(self) -> list[str]:
        return [sys.executable, "-c", self.code]

    def ready(self) -> bool:
        return True

    def version(self) -> str:
        return "sleeper 1"


class Stumbler(Sleeper):
    """A server that ends at once."""

    code = "raise SystemExit('no room for me')"

    def ready(self) -> bool:
        return False


def fail_beside(server: Server) -> int:
    """Raise while a server runs; its process id."""
    pid = 0
    with contextlib.suppress(ZeroDivisionError), server:
        pid = server.pid
        os.kill(pid, 0)
        raise ZeroDivisionError
    return pid


def test_a_server_is_ended_when_the_run_fails(tmp_path: Path) -> None:
    server = Sleeper(tmp_path)
    pid = fail_beside(server)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_ends_while_starting_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerFailedError, match="no room for me"):
        Stumbler(tmp_path).start()


# --- the whole ---


def bench(directory: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, with its data below `directory`, and not told that this may be CI."""
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    command = [sys.executable, "-m", "bench", "--quick", "--messages", "small"]
    return subprocess.run(
        [*command, "--directory", str(directory), *options],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """One that the servers' users may enter, with a path that is short enough for sockets."""
    with TemporaryDirectory(prefix="cassq-small-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.long(reason="the whole comparison, of a size that says something")
@pytest.mark.needs("redis-server", "postgres", "module:psutil")
def test_a_small_comparison_runs_and_clears_up(tmp_path: Path, open_directory: Path) -> None:
    data, page = open_directory, tmp_path / "results.md"
    finished = bench(data, "--peers", "cassq,sqlite", "--out", str(page))
    assert finished.returncode == 0, finished.stderr
    written = page.read_text(encoding="utf-8")
    assert written.strip() == finished.stdout.strip()
    for heading in (
        "Targets",
        "Through",
        "Concurrent",
        "Single",
        "Push to",
        "Pop and",
        "Endurance",
    ):
        assert f"\n## {heading}" in written
    assert "| cassq | " in written
    assert "| SQLite rows | " in written
    assert "failed" not in written
    reached_or_not = [line for line in written.splitlines() if line.endswith("reached |")]
    assert any("SQLite rows in transactions of 5,000" in line for line in reached_or_not)
    headline = written.index("Messages of 20 B to 1 KB, read one by one")
    assert headline < written.index("Messages of 100 B")
    assert not list(data.iterdir())


@pytest.mark.needs("module:psutil")
def test_a_missing_server_is_skipped_at_a_desk_and_fails_in_ci(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "no-programs")
    options = ("--peers", "redis,sqlite", "--scenarios", "single")
    desk = bench(tmp_path, *options, PATH=nowhere)
    assert desk.returncode == 0, desk.stderr
    assert "| redis | skipped: " in desk.stdout
    in_ci = bench(tmp_path, *options, PATH=nowhere, CI="true")
    assert in_ci.returncode == 1
    assert "in CI every peer must be there" in in_ci.stderr
