"""The part of the comparison that is on sidecars: its verdicts, its brokers, its failovers."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bench.measuring.children import Figures
from bench.measuring.drain import LostMessagesError
from bench.measuring.sightings import Sightings
from bench.peers.roster import peer_class
from bench.plan import Plan
from bench.results.scores import Scores
from bench.results.targets import TARGETS, Verdict, judge
from bench.scenarios.latency import push_on_time
from bench.scenarios.sidecars.failover import Push, SidecarFailover, parted, recovered_s
from bench.scenarios.sidecars.through import OWN, OnSidecars
from bench.scenarios.through import Through
from bench.servers.members import Members, together
from bench.servers.nats import NatsServer, NatsSyncedServer, NatsThreeServer, built
from bench.servers.server import MissingServerError, Server, ServerFailedError, free_ports
from cassq.base.clock import SystemClock
from cassq.catalog.sqlite import SqliteCatalog
from cassq.model.sidecar_rows import Placement, ReplicaAt
from tests.integration.deadlines import eventually
from tests.unit.bench.scoring import add_keys

ROOT = Path(__file__).parents[3]
HERE = tuple(target for target in TARGETS if target.title.startswith("on sidecars"))


def verdicts(scores: Scores) -> dict[str, Verdict]:
    return {judgement.target.title: judgement.verdict for judgement in judge(scores, HERE)}


# --- targets ---


def full_scores() -> Scores:
    """A run in which cassq reaches everything."""
    scores = Scores()
    for size in (100, 1000):
        for key, peers in (("one", ("kafka-synced",)), ("three", ("kafka", "nats", "nats-lean"))):
            case = f"sidecars/{key}/{size}"
            scores.add(case, OWN, {"through": 600_000.0, "both": 600_000.0})
            for peer in peers:
                rate = 50_000.0 if peer.startswith("nats") else 350_000.0
                scores.add(case, peer, {"through": rate, "both": rate})
    scores.add("sidecar-failover", OWN, {"p99_s": 0.9})
    add_keys(scores, OWN)
    return scores


def test_every_target_can_be_reached() -> None:
    found = verdicts(full_scores())
    assert len(found) == len(HERE) == 21
    assert set(found.values()) == {Verdict.REACHED}


@pytest.mark.parametrize(
    ("case_key", "peer", "figures", "words"),
    [
        ("one/100", "kafka-synced", {"through": 410_000.0}, "one, synced, 100 B, through: cassq"),
        ("one/1000", "kafka-synced", {"both": 410_000.0}, "synced, 1,000 B, both at once: cassq"),
        ("three/100", "kafka", {"through": 510_000.0}, "100 B, through: cassq over three Kafka"),
        ("three/1000", "kafka", {"both": 510_000.0}, "B, both at once: cassq over three Kafka"),
        ("three/1000", "nats", {"through": 61_000.0}, "through: cassq over three NATS servers"),
        ("three/100", "nats-lean", {"both": 61_000.0}, "three NATS servers, lean client"),
    ],
)
def test_a_bad_figure_misses_its_own_target_alone(
    case_key: str, peer: str, figures: Figures, words: str
) -> None:
    scores = full_scores()
    scores.rounds(f"sidecars/{case_key}", peer)[0].update(figures)
    (missed,) = [title for title, verdict in verdicts(scores).items() if verdict is Verdict.MISSED]
    assert words in missed


def test_a_second_from_the_kill_to_the_next_push_is_too_long() -> None:
    scores = full_scores()
    scores.rounds("sidecar-failover", OWN)[0].update({"p99_s": 1.0})
    (missed,) = [title for title, verdict in verdicts(scores).items() if verdict is Verdict.MISSED]
    assert "one of four killed" in missed


# --- who takes part ---


@pytest.mark.needs("module:confluent_kafka", "module:nats")
def test_brokers_that_sync_are_measured_beside_one_sidecar_alone() -> None:
    names = (OWN, *OnSidecars.peers, "cassq")
    peers = [peer_class(name) for name in names]
    one, *_, three = OnSidecars().cases(Plan())
    assert [peer.name for peer in peers if OnSidecars().takes_part(one, peer)] == [*names[:-1]]
    there = {peer.name for peer in peers if OnSidecars().takes_part(three, peer)}
    assert there == {OWN, "kafka", "nats", "nats-lean"}
    (kills,) = SidecarFailover().cases(Plan())
    assert [peer.name for peer in peers if SidecarFailover().takes_part(kills, peer)] == [OWN]
    elsewhere = {peer.name for peer in peers if Through().takes_part(one, peer)}
    assert elsewhere == {"kafka", "kafka-synced", "cassq"}


# --- a steady rate ---

STAMP = struct.Struct("<q")


def test_messages_of_a_steady_rate_are_pushed_once_each_by_whichever_thread_is_free() -> None:
    numbers = iter(range(40))
    pushed: list[list[int]] = [[], [], []]
    start_ns = time.monotonic_ns()

    def send(mine: list[int]) -> None:
        def lane(message: bytes) -> None:
            mine.append(STAMP.unpack_from(message)[0])

        push_on_time(lane, numbers, start_ns, 1_000, b"...")

    threads = [threading.Thread(target=send, args=(mine,)) for mine in pushed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stamps = sorted(stamp for mine in pushed for stamp in mine)
    assert len(stamps) == 40
    assert stamps[-1] >= start_ns + 39 * 10**6, "none is sent before it is due"


def test_a_push_that_waited_for_the_one_before_counts_from_when_it_was_due() -> None:
    stamps: list[int] = []

    def lane(message: bytes) -> None:
        stamps.append(STAMP.unpack_from(message)[0])

    start_ns = time.monotonic_ns() - 10**9
    late_ns = push_on_time(lane, iter(range(3)), start_ns, 1_000, b"")
    assert stamps == [start_ns, start_ns + 10**6, start_ns + 2 * 10**6]
    assert late_ns >= 10**9 - 2 * 10**6


# --- failovers ---


def test_a_failover_ends_with_the_answer_that_was_longest_in_coming() -> None:
    steady = [Push(at - 0.001, at) for at in (9.9, 9.95, 10.001, 10.5, 10.51, 10.52)]
    # What was answered a millisecond after the kill had been stored before it.
    assert recovered_s(steady, 10.0) == pytest.approx(0.5)


def test_a_pusher_that_never_goes_on_has_not_recovered() -> None:
    with pytest.raises(LostMessagesError, match="no push was acknowledged"):
        recovered_s([Push(1.0, 2.0)], 3.0)


def test_pushes_elsewhere_are_parted_by_when_a_kill_was() -> None:
    pushes = [Push(5.0, 5.9), Push(9.5, 9.501), Push(9.999, 10.004), Push(12.5, 13.5)]
    figures = parted(pushes, [10.0], 1.0)
    assert figures["else_worst_ms"] == pytest.approx(5.0), "it was under way at the kill"
    assert figures["quiet_worst_ms"] == pytest.approx(5.0)
    assert parted([*pushes[:2], Push(10.2, 10.9)], [10.0], 1.0)["quiet_worst_ms"] < 2.0


def placement(pipe: str, queue: str, created_ms: int, *sidecars: str) -> Placement:
    replicas = tuple(ReplicaAt(name, "first") for name in sidecars)
    return Placement(pipe, queue, False, replicas, 3, f"version of {pipe}", created_ms)


def test_what_is_killed_is_found_by_the_pipe_that_is_open(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.sqlite", SystemClock(), durable=False)
    sealed = placement("1", "orders", 10, "a", "b", "c")
    catalog.sidecars.add_placement(sealed)
    catalog.sidecars.change_placement(sealed, replace(sealed, end=7, version="sealed"))
    catalog.sidecars.add_placement(placement("2", "others", 30, "d", "b", "c"))
    seen = Sightings(f"file://{tmp_path}?store=sidecar&replicas=3")
    assert seen.pipe("orders") is None
    assert seen.holders("orders") == []
    catalog.sidecars.add_placement(placement("3", "orders", 20, "d", "a", "b"))
    assert seen.pipe("orders") == "3"
    assert seen.holders("orders") == ["d", "a", "b"]
    with pytest.raises(LookupError, match="no sidecar of the name e"):
        seen.sidecar("e")
    seen.close()
    catalog.close()


# --- members of a server ---

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUMBLE = [sys.executable, "-c", "raise SystemExit('no room for me')"]


class Several(Server):
    """A server of some processes that do nothing."""

    name = "several"

    def __init__(self, home: Path, *commands: list[str]) -> None:
        super().__init__(home)
        self.commands = {f"member-{number}": each for number, each in enumerate(commands)}

    def find(self) -> None:
        return None

    def prepare(self) -> list[str]:
        return together(self, self.commands)

    def ready(self) -> bool:
        return len(self.pids()) == len(self.commands)

    def pids(self) -> set[int]:
        found = set()
        for one in psutil.Process(self.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if one.status() != psutil.STATUS_ZOMBIE:
                    found.add(one.pid)
        return found

    def version(self) -> str:
        return "several 1"


def test_a_single_process_needs_no_other_to_run_it(tmp_path: Path) -> None:
    assert Several(tmp_path, SLEEP).prepare() == SLEEP


def test_all_members_end_with_their_server(tmp_path: Path) -> None:
    server = Several(tmp_path, SLEEP, SLEEP)
    with server:
        pids = server.pids()
        assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_member_that_was_killed_comes_back_when_it_is_asked_for(tmp_path: Path) -> None:
    server = Several(tmp_path, SLEEP, SLEEP)
    with server:
        before = server.pids()
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        eventually("the victim is gone", lambda: victim not in server.pids())
        os.kill(server.pid, signal.SIGUSR1)
        eventually("another one is there", lambda: len(server.pids()) == 2)
        assert len(server.pids() & before) == 1, "the others were left alone"


def test_a_member_that_was_killed_stays_away_until_it_is_asked_for(tmp_path: Path) -> None:
    members = Members(tmp_path, {"one": SLEEP})
    before = set(psutil.Process().children())  # other tests' servers
    members.start()
    try:
        (process,) = set(psutil.Process().children()) - before
        process.kill()
        eventually("it has ended", lambda: process.status() == psutil.STATUS_ZOMBIE)
        assert members.ended() is None
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    finally:
        members.stop()


class NeverReady(Several):
    """One whose end alone shows."""

    def ready(self) -> bool:
        return False


def test_a_member_that_ends_by_itself_ends_all_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerFailedError, match="no room for me"):
        NeverReady(tmp_path, SLEEP, STUMBLE).start()


# --- the servers ---


def test_free_ports_differ() -> None:
    assert len(set(free_ports(50))) == 50


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if nats-server had been built."""
    with contextlib.suppress(MissingServerError):
        monkeypatch.setattr("bench.servers.nats.built", lambda: Path("nats-server"))
        yield


def configured(kind: type[NatsServer], home: Path) -> list[str]:
    home.mkdir()
    server = kind(home)
    server.find()
    server.prepare()
    assert len(server.address.split(",")) == kind.nodes
    return [file.read_text() for file in sorted(home.glob("*.conf"))]


@pytest.mark.needs("module:nats")
@pytest.mark.usefixtures("program")
def test_each_nats_knows_all_others_and_syncs_as_configured(tmp_path: Path) -> None:
    (one,) = configured(NatsServer, tmp_path / "one")
    assert "sync_interval" not in one
    assert "cluster" not in one
    (synced,) = configured(NatsSyncedServer, tmp_path / "synced")
    assert "sync_interval: always" in synced
    three = configured(NatsThreeServer, tmp_path / "three")
    routes = {text[text.index("routes: ") :] for text in three}
    assert len(three) == 3
    assert len(routes) == 1
    assert routes.pop().count("nats://") == 3


def test_without_go_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASSQ_SERVERS_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingServerError, match="built by Go, which is not installed"):
        built()


# --- the whole ---


@pytest.mark.long(reason="a measurement on sidecar processes")
@pytest.mark.needs("module:psutil", "module:rocksdict", "module:msgspec")
def test_sidecars_are_killed_and_started_again_while_messages_are_pushed(tmp_path: Path) -> None:
    options = ("--peers", OWN, "--scenarios", "sidecar-failover", "--messages", "small")
    finished = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", *options, "--directory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    row, _use = [line for line in finished.stdout.splitlines() if line.startswith("| cassq on s")]
    *_, kills, pushed, _end = row.split("|")
    assert int(kills) == Plan.quick().small().kills
    assert int(pushed.replace(",", "")) > 2 * int(kills)
    assert not list(tmp_path.iterdir())
