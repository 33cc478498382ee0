"""Pushes to ap queues while no quorum answers: spilled to this machine, and forwarded."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

import cassq
from cassq.cli.main import main
from cassq.client.backends.embedded import open_directory
from cassq.client.runtime import Offline
from cassq.client.spool import Spool
from cassq.consumer.delivery import Message
from cassq.errors import (
    BackendError,
    BackendUnavailableError,
    ConfigError,
    MessageNotFoundError,
    QueuePausedError,
    StorageFullError,
)
from tests.faults.mounts import SmallDisk, mount, small_disk
from tests.integration.deadlines import eventually
from tests.integration.spilled import FakeCluster

__all__ = ["mount", "small_disk"]


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path / "cluster")


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def client(cluster: FakeCluster, spool: Path) -> Iterator[cassq.Client]:
    with cluster.client(spool) as client:
        yield client


def waiting(client: cassq.Client) -> int:
    assert client.spool is not None
    return sum(each.waiting for each in client.spool.contents())


def forwarded(client: cassq.Client) -> None:
    """Return when everything that was spilled is in its queue."""
    assert client.spool is not None
    spool = client.spool
    eventually("it is well", lambda: waiting(client) == 0 and not spool.overflow.down, seconds=60)


def drained(queue: cassq.Queue) -> list[Message]:
    found: list[Message] = []
    with queue.popper() as popper:
        while messages := popper.pop(10_000):
            found += messages
            popper.commit(messages)
    return found


def doubles(found: list[Message]) -> list[bytes]:
    return [payload for payload, n in Counter(m.payload for m in found).items() if n > 1]


# --- spilling ---------------------------------------------------------------------------------


def test_pushes_are_spilled_while_no_server_answers_and_forwarded_with_their_ids(
    cluster: FakeCluster, client: cassq.Client
) -> None:
    queue = client.create_queue("jobs")
    with queue.pusher() as pusher:
        before = pusher.push(b"before")
        assert before.spilled is False
        cluster.down = True
        one = pusher.push(b"one", headers={"a": "1"}, key=b"k", importance="high")
        many = pusher.push_many([b"%d" % n for n in range(3000)])
        soon = pusher.push_soon(b"soon").result(30)
        assert (one.spilled, many.spilled, soon.spilled, many[7].spilled) == (
            True,
            3000,
            True,
            True,
        )
        assert waiting(client) == 3002
        cluster.down = False
        forwarded(client)
        assert pusher.push(b"after").spilled is False
    found = drained(queue)
    assert len(found) == 3004
    by_id = {message.id: message for message in found}
    assert set(by_id) >= {before, one, soon, *many}
    assert by_id[one].headers == {"a": "1", "cassq-importance": "high"}
    assert by_id[one].key == b"k"
    assert by_id[many[2999]].payload == b"2999"
    assert abs(by_id[one].pushed_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert queue.audit().balanced


def test_a_spilled_message_is_explained_by_its_id_once_it_is_forwarded(
    cluster: FakeCluster, client: cassq.Client
) -> None:
    queue, other = client.create_queue("jobs"), client.create_queue("other")
    with queue.pusher() as pusher:
        pusher.push(b"before")
        cluster.down = True
        one, two = pusher.push(b"one"), pusher.push(b"two")
        cluster.down = False
        forwarded(client)
        with queue.popper() as popper:
            popper.commit([m for m in popper.pop(1) + popper.pop(1) if m.id == one])
        explained = [client.explain(one), queue.explain(two)]
        explained.append(client.explain(f"{queue.pipes()[-1].id}:1"))  # where it is now
    assert [(each.id, each.queue, each.size) for each in explained] == [
        (one, "jobs", 3),
        (two, "jobs", 3),
        (two, "jobs", 3),
    ]
    states = [each.groups["default"][-1].state for each in explained]
    assert states == ["committed", "waiting", "waiting"]
    with pytest.raises(MessageNotFoundError, match="not a message of queue other"):
        other.explain(one)


def test_a_message_in_the_spool_is_in_no_queue_and_the_error_says_where_it_may_be(
    cluster: FakeCluster, client: cassq.Client
) -> None:
    queue = client.create_queue("jobs")
    cluster.down = True
    spilled = queue.pusher().push(b"one")
    with (
        cassq.connect(f"file://{cluster.directory}") as another,
        pytest.raises(MessageNotFoundError, match="in the spool of that client"),
    ):
        another.explain(spilled)


def test_a_push_while_the_servers_are_known_to_be_down_asks_none_of_them(
    cluster: FakeCluster, client: cassq.Client
) -> None:
    queue = client.create_queue("jobs")
    cluster.down = True
    with queue.pusher() as pusher:
        pusher.push(b"finds out")
        asked: list[str] = []
        check, main_thread = cluster.check, threading.current_thread()

        def counted() -> None:
            if threading.current_thread() is main_thread:
                asked.append("")
            check()

        cluster.check = counted  # type: ignore[method-assign]
        pusher.push(b"knows")
        queue.pusher().push(b"another pusher knows too")
        client.queue("jobs").pusher().push(b"and another queue")
        assert asked == []
        cluster.check = check  # type: ignore[method-assign]
        cluster.down = False
        forwarded(client)
    assert len(drained(queue)) == 4


def test_cp_queues_never_spill(cluster: FakeCluster, client: cassq.Client) -> None:
    queue = client.create_queue("orders", consistency="cp")
    with queue.pusher() as pusher:
        pusher.push(b"1")
        cluster.down = True
        for _ in range(2):  # also when it is known to be down
            with pytest.raises(BackendError) as caught:
                pusher.push(b"2")
            assert isinstance(caught.value, BackendUnavailableError)
        assert waiting(client) == 0
        cluster.down = False
        pusher.push(b"3")
    assert [message.payload for message in drained(queue)] == [b"1", b"3"]


def test_a_push_that_is_refused_is_not_spilled(cluster: FakeCluster, client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    queue.pause()
    with pytest.raises(QueuePausedError):
        queue.pusher().push(b"x")
    assert waiting(client) == 0


def test_delayed_messages_keep_their_due_times(cluster: FakeCluster, client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    pusher = queue.pusher()
    pusher.push(b"known")
    cluster.down = True
    assert pusher.push(b"late", delay=3600, headers={"a": "b"}).spilled
    assert pusher.push(b"soon", delay=0.01).spilled
    cluster.down = False
    forwarded(client)
    found: dict[bytes, dict[str, str]] = {}

    def both() -> bool:
        found.update({message.payload: message.headers for message in drained(queue)})
        return len(found) == 2

    eventually("the one that is due soon has come", both)
    assert found == {b"known": {}, b"soon": {}}
    (late,) = queue.peek(10, state="delayed")
    assert (late.payload, late.headers) == (b"late", {"a": "b"})


def test_spilled_messages_keep_their_priorities(cluster: FakeCluster, client: cassq.Client) -> None:
    queue = client.create_queue("jobs", priority_share=0)
    pusher = queue.pusher()
    pusher.push(b"known 0")
    cluster.down = True
    ids = pusher.push_many([b"spilled 0", b"spilled 9", b"spilled 4"], priority=[0, 9, 4])
    assert ids.spilled == 3
    assert pusher.push(b"delayed 7", delay=3600, priority=7).spilled
    cluster.down = False
    forwarded(client)
    found = [(message.payload, message.priority) for message in drained(queue)]
    assert found == [(b"spilled 9", 9), (b"spilled 4", 4), (b"known 0", 0), (b"spilled 0", 0)]
    (late,) = queue.peek(10, state="delayed")
    assert (late.payload, late.priority) == (b"delayed 7", 7)


@pytest.mark.waits(reason="after an outage a cluster is tried again by and by")
def test_pushes_of_one_dedup_id_are_one_message_spilled_or_not(
    cluster: FakeCluster, client: cassq.Client
) -> None:
    queue = client.create_queue("jobs", dedup_window=600)
    pusher = queue.pusher()
    pusher.push(b"first", dedup_id="a")
    cluster.down = True
    assert pusher.push(b"again", dedup_id="a").spilled
    ids = pusher.push_many([b"x", b"y", b"z"], dedup_ids=["b", None, "b"])
    assert ids.spilled == 3
    cluster.down = False
    forwarded(client)
    assert sorted(message.payload for message in drained(queue)) == [b"first", b"x", b"y"]


def test_a_change_is_reported_once_each_way(
    cluster: FakeCluster, client: cassq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="cassq")
    queue = client.create_queue("jobs")
    pusher = queue.pusher()
    cluster.down = True
    for number in range(50):
        pusher.push(b"%d" % number)
    cluster.down = False
    forwarded(client)

    def heard() -> list[str]:
        return [record.getMessage() for record in caplog.records if "spill" in record.getMessage()]

    found = eventually("both changes are told", lambda: heard() if len(heard()) > 1 else [])
    assert len(found) == 2, found
    assert "until the cluster answers: the cluster is gone" in found[0]
    assert found[1] == "the cluster answers again: 50 messages were spilled"


# --- nothing lost, nothing doubled ------------------------------------------------------------


def test_a_push_whose_answer_was_lost_is_spilled_and_not_duplicated(
    cluster: FakeCluster, client: cassq.Client
) -> None:
    queue = client.create_queue("jobs")
    pusher = queue.pusher()
    pusher.push(b"before")
    cluster.lost = 1
    ids = pusher.push_many([b"%d" % n for n in range(100)])
    assert ids.spilled == 100
    forwarded(client)
    found = drained(queue)
    assert len(found) == 101
    assert doubles(found) == []
    assert client.spool is not None
    eventually("they are counted", lambda: client.spool.found == 100)
    assert queue.audit().balanced


def test_of_a_push_that_failed_half_way_only_the_rest_is_spilled(
    cluster: FakeCluster, client: cassq.Client
) -> None:
    queue = client.create_queue("jobs", max_pushes_per_pipe=10)
    pusher = queue.pusher()
    done: list[int] = []

    def fail_third() -> None:
        done.append(1)
        cluster.down = len(done) == 3

    cluster.before = fail_third
    cluster.after = cluster.check
    ids = pusher.push_many([b"%d" % n for n in range(40)])
    assert (len(ids), ids.spilled) == (40, 20)
    assert [message_id.spilled for message_id in ids] == [False] * 20 + [True] * 20  # type: ignore[attr-defined]
    cluster.down = False
    forwarded(client)
    found = drained(queue)
    assert sorted(int(m.payload) for m in found) == list(range(40))


class Killed(BaseException):
    """The forwarder ended here."""


@pytest.mark.parametrize("applied", [True, False], ids=["after the write", "before the write"])
def test_a_forwarder_that_dies_between_two_steps_duplicates_nothing(
    cluster: FakeCluster, spool: Path, applied: bool
) -> None:
    client = cluster.started(spool)
    queue = client.create_queue("jobs")
    pusher = queue.pusher()
    cluster.down = True
    pusher.push_many([b"%d" % n for n in range(500)])
    assert client.spool is not None
    client.spool.stop()
    cluster.down = False

    def die() -> None:
        raise Killed

    if applied:
        cluster.after = die
    else:
        cluster.before = die
    with pytest.raises(Killed):
        client.spool.forward()
    assert waiting(client) == 500
    cluster.before = cluster.after = lambda: None
    client.spool.forward()
    assert waiting(client) == 0
    found = drained(queue)
    assert len(found) == 500
    assert doubles(found) == []
    assert client.spool.found == (500 if applied else 0)
    client.close()


@pytest.mark.waits(reason="after an answer was lost the spool pauses before it tries again")
def test_answers_lost_while_forwarding_duplicate_nothing(
    cluster: FakeCluster, client: cassq.Client
) -> None:
    queue = client.create_queue("jobs")
    pusher = queue.pusher()
    cluster.down = True
    for first in range(0, 2000, 200):
        pusher.push_many([b"%d" % n for n in range(first, first + 200)])
    cluster.lost = 3
    cluster.down = False
    forwarded(client)
    found = drained(queue)
    assert len(found) == 2000
    assert doubles(found) == []


def test_clients_of_one_spool_forward_for_one_another(cluster: FakeCluster, spool: Path) -> None:
    with cluster.client(spool) as one, cluster.client(spool) as other:
        queue = one.create_queue("jobs")
        second = other.queue("jobs")
        cluster.down = True
        ids = [*queue.pusher().push_many([b"a"] * 700), *second.pusher().push_many([b"b"] * 700)]
        cluster.down = False
        forwarded(one)
        forwarded(other)
        assert sorted(message.id for message in drained(queue)) == sorted(ids)


def test_what_a_client_leaves_the_next_one_forwards(cluster: FakeCluster, spool: Path) -> None:
    with cluster.client(spool) as client:
        queue = client.create_queue("jobs")
        pusher = queue.pusher()
        cluster.down = True
        left = pusher.push(b"left")
    cluster.down = False
    with cluster.client(spool) as client:
        forwarded(client)
        assert [message.id for message in drained(client.queue("jobs"))] == [left]


def test_what_was_spilled_for_a_queue_that_was_deleted_stays_and_is_reported(
    cluster: FakeCluster, client: cassq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="cassq")
    queue, other = client.create_queue("jobs"), client.create_queue("other")
    cluster.down = True
    queue.pusher().push(b"x")
    other.pusher().push(b"y")
    assert client.spool is not None
    client.spool.stop()
    cluster.down = False
    client.ports.catalog.queues.delete(queue._row.id)
    done = client.spool.forward()
    assert list(done.stuck.values()) == ["queue 'jobs' was deleted"]
    assert "not forwarded: queue 'jobs' was deleted" in caplog.text
    assert [message.payload for message in drained(other)] == [b"y"]
    assert waiting(client) == 1


def test_what_is_spilled_waits_while_pushing_is_paused(
    cluster: FakeCluster, client: cassq.Client
) -> None:
    queue = client.create_queue("jobs")
    pusher = queue.pusher()
    cluster.down = True
    pusher.push(b"x")
    assert client.spool is not None
    client.spool.stop()
    cluster.down = False
    queue.pause(pop=False)
    assert list(client.spool.forward().stuck.values()) == ["pushing to 'jobs' is paused"]
    assert waiting(client) == 1
    queue.resume()
    assert client.spool.forward().count == 1


@pytest.mark.may_skip("a file system of its own can be mounted by root alone")
def test_a_full_disk_of_the_spool_is_reported_and_loses_nothing(
    cluster: FakeCluster, small_disk: SmallDisk
) -> None:
    with cluster.client(small_disk.place / "spool") as client:
        queue = client.create_queue("jobs")
        pusher = queue.pusher()
        cluster.down = True
        ids = [pusher.push(b"first")]
        small_disk.fill()
        with pytest.raises(StorageFullError):
            while True:
                ids.append(pusher.push(bytes(10_000)))
        small_disk.free()
        ids.append(pusher.push(b"again"))
        cluster.down = False
        forwarded(client)
        assert set(ids) <= {message.id for message in drained(queue)}


@pytest.fixture
def full_spool(client: cassq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(*_: object) -> list[str]:
        raise StorageFullError("no room")

    monkeypatch.setattr(client.spool.overflow, "hold", hold)


@pytest.mark.usefixtures("full_spool")
def test_an_error_of_the_spool_says_that_an_unanswered_push_may_have_arrived(
    cluster: FakeCluster, client: cassq.Client
) -> None:
    queue = client.create_queue("jobs")
    pusher = queue.pusher()
    pusher.push(b"before")
    cluster.lost = 1
    with pytest.raises(StorageFullError) as failed:
        pusher.push(b"there")
    assert failed.value.outcome_unknown
    assert [message.payload for message in drained(queue)] == [b"before", b"there"]
    cluster.down = True
    with pytest.raises(StorageFullError) as failed:
        pusher.push(b"nowhere")
    assert not failed.value.outcome_unknown
    cluster.down = False
    assert [message.payload for message in drained(queue)] == []


@pytest.mark.usefixtures("full_spool")
def test_an_error_of_the_spool_says_how_many_were_pushed_before(
    cluster: FakeCluster, client: cassq.Client
) -> None:
    queue = client.create_queue("jobs", max_pushes_per_pipe=10)
    done: list[int] = []

    def fail_third() -> None:
        done.append(1)
        cluster.down = len(done) == 3

    cluster.before = fail_third
    cluster.after = cluster.check
    with pytest.raises(StorageFullError) as failed:
        queue.pusher().push_many([b"%d" % n for n in range(40)])
    assert (failed.value.fields["pushed"], failed.value.outcome_unknown) == (20, True)
    cluster.down = False
    # The third ten had been written, and nobody could tell.
    assert [int(message.payload) for message in drained(queue)] == list(range(30))


# --- clients that start while nobody answers, and that are killed -----------------------------

SPILLER = """
import sys, cassq
client = cassq.connect(sys.argv[1])
pusher = client.queue("jobs").pusher()
for number in range(1000):
    print(pusher.push(b"%d" % number), flush=True)
"""


def test_a_killed_spiller_loses_nothing_acknowledged(cluster: FakeCluster, tmp_path: Path) -> None:
    spool = tmp_path / "spools" / "cassq"
    with cluster.client(spool) as client:
        client.create_queue("jobs").pusher().push(b"known")
    url = f"cassandra://127.0.0.1:1/cassq?spill={spool.parent}"
    spiller = subprocess.Popen(
        [sys.executable, "-c", SPILLER, url], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert spiller.stdout is not None
    ids = [spiller.stdout.readline().decode().strip() for _ in range(100)]
    spiller.send_signal(signal.SIGKILL)
    ids += spiller.stdout.read().decode().split("\n")[:-1]
    spiller.stdout.close()
    assert spiller.wait() == -signal.SIGKILL
    with cluster.client(spool) as client:
        forwarded(client)
        found = {message.id for message in drained(client.queue("jobs"))}
    assert len(ids) >= 100
    assert set(ids) <= found


def test_a_client_starts_without_a_server_only_where_the_spool_knows_its_queue(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    nobody = f"cassandra://127.0.0.1:1/cassq?spill={tmp_path}"
    with pytest.raises(BackendUnavailableError, match="no node answers"):
        cassq.connect(nobody)
    with cluster.client(tmp_path / "cassq") as client:
        client.create_queue("jobs").pusher()
    with cassq.connect("cassandra://127.0.0.1:1/cassq", spill=str(tmp_path)) as client:
        assert client.queue("jobs").pusher().push(b"x").spilled
        assert client.queue("jobs").pusher().push(b"later", delay=60).spilled
        with pytest.raises(BackendUnavailableError):
            client.queue("unknown")
        with pytest.raises(BackendUnavailableError, match="no node answers"):
            client.create_queue("new")
    with cluster.client(tmp_path / "cassq") as client:
        forwarded(client)
        assert [message.payload for message in drained(client.queue("jobs"))] == [b"x"]


def test_a_client_that_started_without_a_server_continues_when_one_answers(
    cluster: FakeCluster, spool: Path
) -> None:
    with cluster.client(spool) as client:
        client.create_queue("jobs", max_deliveries=3).pusher()
    cluster.down = True
    offline = Offline(lambda _requests: cluster.open(), "nobody answers")
    place = cassq.Client("file:", open_directory(spool, cluster.clock, "os"), cluster.clock)
    with cassq.Client("x", offline, cluster.clock, Spool(place.runtime, place.close)) as client:
        queue = client.queue("jobs")
        with queue.pusher() as pusher:
            assert pusher.push(b"spilled").spilled
            cluster.down = False
            forwarded(client)
            assert not pusher.push(b"pushed").spilled
            assert queue.policy.max_deliveries == 3
            payloads = {message.payload for message in drained(queue)}
            assert payloads == {b"spilled", b"pushed"}


def test_offline_what_needs_a_server_is_refused_with_a_hint_and_pushes_are_spilled(
    cluster: FakeCluster, spool: Path
) -> None:
    with cluster.client(spool) as client:
        client.create_queue("jobs", dedup_window=600).pusher()
    cluster.down = True
    offline = Offline(lambda _requests: cluster.open(), "nobody answers")
    place = cassq.Client("file:", open_directory(spool, cluster.clock, "os"), cluster.clock)
    with cassq.Client("x", offline, cluster.clock, Spool(place.runtime, place.close)) as client:
        queue = client.queue("jobs")
        refused: list[Callable[[], object]] = [
            lambda: client.ports,
            lambda: client.reaper,
            client.queues,
            lambda: queue.policy,
            queue.popper,
            queue.stats,
            lambda: queue.dead_letters().peek(),
        ]
        for each in refused:
            with pytest.raises(BackendUnavailableError, match="nobody answers") as caught:
                each()
            assert caught.value.hint == "cassq keeps retrying"
        address = f"http://127.0.0.1:{client.serve_metrics().port}/metrics"
        assert "cassq_catalog_readable 0.0" in urlopen(address, timeout=30).read().decode()
        ids = [*queue.pusher().push_many([b"a", b"b", b"a"], dedup_ids=["a", None, "a"])]
        assert queue.pusher().push(b"later", delay=60).spilled
        cluster.down = False
        forwarded(client)
        assert {message.id for message in drained(queue)} == {ids[0], ids[1]}
    with cluster.client(spool) as client:
        assert client.queue("jobs").stats().troubles["spilled"] == 4


# --- the URL and the command ------------------------------------------------------------------


def test_a_spool_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="spill names no directory"):
        cassq.connect("cassandra://127.0.0.1:1/cassq?spill=")
    with pytest.raises(ConfigError, match="unknown option 'spill'"):
        cassq.connect("file:cassq-data?spill=x")


def test_the_command_shows_a_spool_without_asking_a_server(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    with cluster.client(tmp_path / "cassq") as client:
        pusher = client.create_queue("jobs").pusher()
        cluster.down = True
        pusher.push_many([b"x"] * 3)
        pusher.close()
    url = f"cassandra://127.0.0.1:1/cassq?spill={tmp_path}"
    shown = CliRunner().invoke(main, ["spill", "status", "--url", url])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.split("\n")[1].split() == ["jobs", "3", "0", "3"]
    (found,) = json.loads(
        CliRunner().invoke(main, ["spill", "status", "--json", "--url", url]).stdout
    )
    assert (found["queue"], found["spilled"], found["waiting"], found["forwarded"]) == (
        "jobs",
        3,
        3,
        0,
    )
    done = CliRunner().invoke(main, ["spill", "forward", "--url", url])
    assert done.exit_code == 75, done.output
    refused = CliRunner().invoke(main, ["spill", "status", "--url", "file:cassq-data"])
    assert refused.exit_code == 2
    assert "names no spool" in refused.stderr


# --- what it was like is told -----------------------------------------------------------------


@pytest.mark.waits(reason="after an outage a cluster is tried again by and by")
def test_what_was_spilled_and_forwarded_is_reported_by_every_client_of_the_queue(
    cluster: FakeCluster, client: cassq.Client, tmp_path: Path
) -> None:
    queue = client.create_queue("jobs")
    pusher = queue.pusher()
    assert queue.stats().troubles == {}
    cluster.lost = 1
    pusher.push_many([b"x"] * 30)
    forwarded(client)
    strict = client.create_queue("orders", consistency="cp").pusher()
    cluster.down = True
    with pytest.raises(BackendUnavailableError):
        strict.push(b"x")
    cluster.down = False
    troubles = {"spilled": 30, "forwarded": 30, "found": 30}
    with cluster.client(tmp_path / "elsewhere") as other:
        seen = other.queue("jobs")
        eventually("it is noted", lambda: seen.stats().troubles == troubles)
        assert seen.stats_and_rates()[0].as_dict()["troubles"] == troubles
        orders = other.queue("orders")
        eventually("it is noted", lambda: orders.stats().troubles == {"refused": 1})
    pusher.push(b"y")
    client.close()
    with cluster.client(tmp_path / "elsewhere") as other:
        assert other.queue("jobs").stats().troubles == troubles, "nothing is noted twice"


def test_a_write_that_failed_and_one_without_an_answer_are_counted_without_a_spool(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    with cassq.Client("cassandra://fake", cluster.open(), cluster.clock) as client:
        queue = client.create_queue("jobs")
        pusher = queue.pusher()
        pusher.push(b"first")
        cluster.lost = 1
        pusher.push_many([b"%d" % n for n in range(10)])
        # What was written was found at its place, so nothing is carried over.
        assert (pusher.tally.carried_over, pusher.tally.doubtful) == (0, 0)
        failing = [True]

        def fail_once() -> None:
            if failing:
                failing.pop()
                raise BackendUnavailableError("this once")

        cluster.before = fail_once
        pusher.push_many([b"%d" % n for n in range(10, 17)])
        assert (pusher.tally.carried_over, pusher.tally.doubtful) == (7, 0)
    with cassq.Client("cassandra://fake", cluster.open(), cluster.clock) as client:
        queue = client.queue("jobs")
        assert queue.stats().troubles == {"carried_over": 7}
        assert sorted(int(m.payload) for m in drained(queue) if m.payload != b"first") == [
            *range(17)
        ]
