"""`cassq sidecar serve` as a process: registered, killed, drained, stopped, started wrongly."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cassq.catalog.sqlite import SqliteCatalog
from cassq.client.connecting import connect
from cassq.errors import BackendError, ConfigError
from cassq.extents.protocol.messages import Append, Appended, Code, Info, Open, Read, RefusedError
from cassq.extents.sidecar.net.connection import Access
from cassq.extents.sidecar.net.connection_pool import ConnectionPool
from cassq.extents.sidecar.net.network import Patience, SidecarCall
from cassq.extents.sidecar.net.sidecar_connection import SidecarConnection, ask
from cassq.model.sidecar_rows import SidecarRow, SidecarState
from tests.integration.deadlines import eventually, joined
from tests.integration.served import Served, StartError, catalog
from tests.integration.sidecars import append

__all__ = ["catalog"]

pytestmark = pytest.mark.needs("module:rocksdict", "module:uvloop")

Start = Callable[..., Served]


@pytest.fixture
def start(tmp_path: Path, catalog: SqliteCatalog) -> Iterator[Start]:
    """Starts sidecars; their data directories are called as they are."""
    started: list[Served] = []

    def start(*options: str, name: str = "a", data: str = "", catalog: str = "queues") -> Served:
        place = tmp_path / (data or name)
        served = Served(place, f"file:{tmp_path / catalog}", *options, name=name)
        started.append(served)
        return served

    yield start
    for served in started:
        served.kill()


def row(catalog: SqliteCatalog, name: str = "a") -> SidecarRow:
    (found,) = [row for row in catalog.sidecars.listed() if row.name == name]
    return found


def draining(served: Served) -> bool:
    return bool(ask(served.address, Info()).facts["state"] == "draining")


def frames(start: int, count: int) -> list[Append]:
    return [append("p", seq, [b"%d" % seq * 100]) for seq in range(start, start + count)]


# --- its life -----------------------------------------------------------------------------------


def test_it_registers_serves_and_ends_with_sigterm(catalog: SqliteCatalog, start: Start) -> None:
    served = start()
    there = row(catalog)
    assert (there.address, there.zone, there.http) == (served.address, "z", served.http)
    assert there.alive(catalog.now_ms())
    assert there.total_bytes > there.free_bytes > 0
    facts = ask(served.address, Info(), cluster=catalog.records.identity()).facts
    assert facts["generation"] == there.generation
    assert facts["cluster"] == catalog.records.identity()
    status, health = served.health()
    assert (status, health["healthy"]) == (200, True)
    status, metrics = served.get("/metrics")
    assert status == 200
    assert 'cassq_sidecar_extents{sidecar="a",zone="z"} 0.0' in metrics
    assert served.get("/other")[0] == 404
    served.signal(signal.SIGTERM)
    assert served.ended() == (0, "")
    assert not row(catalog).alive(catalog.now_ms()), "it said that it stops"


def test_health_is_answered_beside_idle_connections(start: Start) -> None:
    served = start()
    host, _, port = served.http.rpartition(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(40)]
    assert served.health()[0] == 200
    for each in idle:
        each.close()


def test_a_token_file_may_have_two_tokens(start: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "token"
    tokens.write_text("new\nold\n")
    served = start("--token-file", str(tokens))
    for token in ("new", "old"):
        assert ask(served.address, Info(), Access(token)).facts["sidecar"] == "a"
    with pytest.raises(RefusedError, match="token"):
        ask(served.address, Info(), Access("other"))
    tokens.write_text("a\nb\nc\n")
    with pytest.raises(StartError, match="not a valid token"):
        start("--token-file", str(tokens), name="b")


def test_a_status_that_anybody_can_read_is_warned_of(start: Start) -> None:
    served = start("--http", "0.0.0.0:0")
    served.signal(signal.SIGTERM)
    (line,) = map(json.loads, served.ended()[1].splitlines())
    assert line["message"].startswith("anyone who can connect to 0.0.0.0:")
    assert (line["level"], line["at"][:2]) == ("warning", "20")


def test_what_was_acknowledged_survives_a_kill(catalog: SqliteCatalog, start: Start) -> None:
    served = start()
    acknowledged = 0
    with SidecarConnection(served.address) as connection:
        connection(Open("p", 1, "q", False))
        for frame in frames(0, 50):
            acknowledged = connection(frame).end
        served.signal(signal.SIGKILL)
        with pytest.raises(BackendError):
            for frame in frames(50, 1000):
                acknowledged = connection(frame).end
    served.kill()
    first = row(catalog)
    again = start()
    assert row(catalog).generation == first.generation
    with SidecarConnection(again.address) as connection:
        got = connection(Read("p", 0, 10_000, 1 << 20, 10_000, 0))
        assert got.end >= acknowledged >= 50
        expected = b"".join(b"".join(each.frame) for each in frames(0, got.end))  # type: ignore[arg-type]
        assert got.frames == expected
        assert connection(append("p", got.end, [b"more"])).end == got.end + 1


def test_a_stopped_sidecar_is_not_waited_for(catalog: SqliteCatalog, start: Start) -> None:
    a, b = start(), start(name="b")
    with closing(ConnectionPool(catalog.sidecars.listed, catalog.records.identity)) as links:
        calls = [SidecarCall(name, "", [Info()]) for name in ("a", "b")]
        assert all(answer.done for answer in links.exchange(calls, Patience(20, 20, 2)))
        a.signal(signal.SIGSTOP)
        stopped, well = links.exchange(calls, Patience(20.0, 0.2, 1))
        assert well.done
        assert stopped.error is not None
        assert "did not answer within" in str(stopped.error)
        a.signal(signal.SIGCONT)
        assert all(answer.done for answer in links.exchange(calls, Patience(20, 20, 2)))
    assert b.runs


class Writers:
    """Three that write again and again, so that one does while another stands still. They do not
    leave when they are asked to: until they are told, or until the sidecar is gone. To be used with
    `with`.

    replies: all that they got.
    """

    def __init__(self, address: str) -> None:
        self.replies: list[Appended] = []
        self._address = address
        self._over = threading.Event()
        pipes = ("p", "q", "r")
        self._threads = [threading.Thread(target=self._write, args=(pipe,)) for pipe in pipes]

    def _write(self, pipe_id: str) -> None:
        with contextlib.suppress(BackendError), SidecarConnection(self._address) as connection:
            connection(Open(pipe_id, 1, "q", False))
            seq = 0
            while not self._over.is_set():
                reply: Appended = connection(append(pipe_id, seq, [b"x"]))
                self.replies.append(reply)
                seq = reply.end

    def wait(self) -> None:
        """Until they end because the sidecar is gone."""
        for thread in self._threads:
            joined("a writer", thread)

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        eventually("all write", lambda: len(self.replies) > 10)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self.wait()


def test_it_ends_when_its_writers_have_left(start: Start, catalog: SqliteCatalog) -> None:
    served = start()
    with Writers(served.address) as writers:
        assert writers.replies[0] == Appended(1, False, False)
        served.signal(signal.SIGTERM)
        # It serves on while somebody writes, and asks him to leave.
        eventually("it asks to leave", lambda: all(each.leave for each in writers.replies[-10:]))
        asked = len(writers.replies)
        beat = row(catalog).seen_ms
        eventually("it beats", lambda: row(catalog).seen_ms != beat)
        beaten = len(writers.replies)
        eventually("it writes on", lambda: len(writers.replies) > beaten + 100)
        # Whatever its row says. Two writers may note only now what they were told before.
        assert [reply.leave for reply in writers.replies[asked:]].count(False) <= 2
        with pytest.raises(RefusedError) as caught:
            ask(served.address, Open("other", 1, "q", False))
        assert caught.value.code is Code.DRAINING
        assert served.health()[0] == 503
        assert served.runs
    assert served.ended()[0] == 0


def test_a_second_signal_and_the_end_of_patience_end_it_at_once(
    start: Start, catalog: SqliteCatalog
) -> None:
    for name, options, again in (("a", (), True), ("b", ("--drain-seconds", "0.5"), False)):
        served = start(*options, name=name)
        with Writers(served.address) as writers:
            served.signal(signal.SIGTERM)
            if again:  # the other is not asked: it may have ended
                eventually("it drains", lambda served=served: served.health()[0] == 503)  # type: ignore[misc]
                served.signal(signal.SIGTERM)
            writers.wait()
        code, errors = served.ended()
        assert code == 0
        assert "while extents are being written" in errors


@pytest.mark.waits(reason="a sidecar looks at the catalog every few seconds")
def test_it_drains_when_its_row_says_so(start: Start, catalog: SqliteCatalog) -> None:
    served = start()
    assert not draining(served)
    assert catalog.sidecars.set_state("a", SidecarState.DRAINING)
    eventually("it hears of it", lambda: draining(served))
    with pytest.raises(RefusedError, match="no new extents"):
        ask(served.address, Open("p", 1, "q", False))
    assert row(catalog).state is SidecarState.DRAINING, "no beat changes that"
    assert catalog.sidecars.set_state("a", SidecarState.UP)
    eventually("it hears of it", lambda: not draining(served))
    ask(served.address, Open("p", 1, "q", False))
    served.signal(signal.SIGTERM)
    assert served.ended()[0] == 0


def test_it_serves_though_nothing_reads_its_log(start: Start, tmp_path: Path) -> None:
    """A pipe that is full drops lines of the log."""
    token = tmp_path / "token"
    token.write_text("t")
    served = start("--token-file", str(token), "--insecure")
    served.narrow_log()
    token.unlink()
    for _ in range(60):
        served.signal(signal.SIGHUP)  # each logs why the files cannot be used
        assert ask(served.address, Info(), Access("t")).facts["state"] == "up"
    assert served.health()[0] == 200
    served.signal(signal.SIGTERM)
    assert served.ended()[0] == 0


@pytest.mark.waits(reason="a process starts three times")
def test_one_without_room_to_mend_a_table_at_its_start_serves_what_it_can_and_drains(
    start: Start, catalog: SqliteCatalog, tmp_path: Path
) -> None:
    served = start()
    with SidecarConnection(served.address) as connection:
        connection(Open("p", 1, "q", False))
        for frame in frames(0, 10):
            connection(frame)
    served.kill()
    served = start()  # it makes a table of its log
    with SidecarConnection(served.address) as connection:
        connection(Open("z", 1, "q", False))
        connection(append("z", 0, [b"later"]))
    served.kill()
    tables = sorted(
        (tmp_path / "a" / "rocksdb").glob("*.sst"), key=lambda each: each.stat().st_size
    )
    table = bytearray(tables[-1].read_bytes())
    table[-30] ^= 1  # RocksDB cannot open it
    tables[-1].write_bytes(table)
    served = start("--free-min", "99.99%")
    status, health = served.health()
    assert status == 503
    assert "checksum mismatch" in health["failure"]
    assert "may be corrupted" not in health["failure"]
    with SidecarConnection(served.address) as connection:
        frame = append("z", 0, [b"later"]).frame
        assert connection(Read("z", 0, 1, 1 << 20, 10, 0)).frames == b"".join(frame)
        with pytest.raises(RefusedError) as caught:
            connection(Read("p", 0, 10, 1 << 20, 10, 0))
        assert caught.value.code is Code.DAMAGED
        with pytest.raises(RefusedError, match="data are damaged"):
            connection(append("z", 1, [b"more"]))
    eventually("it drains", lambda: row(catalog).state is SidecarState.DRAINING)
    served.signal(signal.SIGTERM)
    code, errors = served.ended()
    assert code == 0
    assert "move its directory away, and start it with the same --name" in errors


# --- what is refused at its start ---------------------------------------------------------------


def refused(start: Start, *options: str, **given: Any) -> str:
    with pytest.raises(StartError) as caught:
        start(*options, **given)
    assert caught.value.code == 2, caught.value.errors
    return caught.value.errors


def test_two_on_one_directory(start: Start, catalog: SqliteCatalog) -> None:
    served = start()
    assert "is in use by another sidecar" in refused(start)
    assert "is in use by another sidecar" in refused(start, name="b", data="a")
    assert ask(served.address, Info())
    assert row(catalog).address == served.address


def test_a_directory_of_another_catalog_or_another_name(start: Start, tmp_path: Path) -> None:
    served = start()
    served.kill()
    found = refused(start, catalog="elsewhere")
    assert "another catalog" in found
    assert "--name a" in refused(start, name="b", data="a")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "precious").write_text("data")
    assert "precious" in refused(start, name="c", data="foreign")
    assert (foreign / "precious").read_text() == "data"
    assert start().runs


@pytest.mark.waits(reason="a sidecar looks at the catalog every few seconds")
def test_two_of_one_name(start: Start, catalog: SqliteCatalog, tmp_path: Path) -> None:
    served = start()
    found = refused(start, data="other")
    assert "another sidecar 'a' is running" in found
    assert served.address in found
    served.signal(signal.SIGTERM)
    served.ended()
    # Its directory is lost: the one that comes in its place is a new one.
    shutil.rmtree(tmp_path / "a")
    before = row(catalog).generation
    again = start()
    assert row(catalog).generation != before
    assert row(catalog).address == again.address


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "0.0.0.0:0"], "loopback addresses only"),
        (["--listen", "nonsense"], "is not the address"),
        (["--zone", "a b"], "is not a valid zone name"),
        (["--free-min", "lots"], "is not a size"),
        (["--free-min", "100%"], "leaves no space"),
        (["--cert", "missing.pem"], "TLS needs --key"),
        (["--catalog", "http://queues"], "not a URL of queues"),
        (["--http", "127.0.0.1:99999"], "cannot be served"),
        (["--listen", "0.0.0.0:0", "--insecure"], "--advertise"),
    ],
)
def test_options_that_cannot_be(start: Start, options: list[str], message: str) -> None:
    errors = refused(start, *options)
    assert message in errors
    assert '"hint"' in errors
    assert "Traceback" not in errors


def test_a_place_that_keeps_its_messages_itself_is_refused(start: Start, tmp_path: Path) -> None:
    connect(f"file:{tmp_path / 'own'}").close()
    errors = refused(start, catalog="own")
    assert "keeps its messages with store=files" in errors
    assert "use a new directory or keyspace" in errors


def test_a_place_that_sidecars_were_started_for_keeps_its_messages_there(
    start: Start, tmp_path: Path
) -> None:
    """Its first client may not know: it would find its messages nowhere else later on."""
    served = start()
    with pytest.raises(ConfigError, match="store=sidecar, not store=files"):
        connect(f"file:{tmp_path / 'queues'}")
    with connect(f"file:{tmp_path / 'queues'}?store=sidecar&replicas=1") as client:
        with client.create_queue("q").pusher() as pusher:
            pusher.push(b"here")
        assert len(list(client.ports.store.extents())) == 1
    assert served.runs


def test_options_of_a_url_that_are_for_clients_are_ignored(start: Start, tmp_path: Path) -> None:
    options = "store=sidecar&replicas=2&zone=a&repair_after=60&repair_rate=8M&sidecar_token=x"
    assert start(catalog=f"queues?{options}").health()[0] == 200


def test_a_token_file(start: Start, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    served = start("--token-file", str(tmp_path / "token"))
    with pytest.raises(RefusedError, match="a token is needed"):
        ask(served.address, Info())
    assert ask(served.address, Info(), Access("s3cret"))
    (tmp_path / "token").write_text("two words\n")
    errors = refused(start, "--token-file", str(tmp_path / "token"), name="b")
    assert "is not a valid token" in errors
    errors = refused(start, "--token-file", str(tmp_path / "nowhere"), name="b")
    assert "nowhere cannot be read: No such file" in errors
    assert '"hint"' in errors
