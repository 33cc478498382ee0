"""What a sidecar's server makes of clients that are wrong, slow or gone; others go on."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec
import pytest
from msgspec.structs import replace

from cassq.base import rare_log
from cassq.base.clock import Stopwatch
from cassq.errors import BackendUnavailableError
from cassq.extents.protocol.messages import (
    OPS,
    VERSION,
    WAIT_MS_MAX,
    Append,
    Code,
    Ends,
    Frames,
    Hello,
    Info,
    Mark,
    Open,
    Read,
    RefusedError,
)
from cassq.extents.protocol.wire import HELLO_BYTES_MAX, read_reply, request_parts
from cassq.extents.sidecar.net.connection import Access
from cassq.extents.sidecar.net.sidecar_connection import SidecarConnection, ask
from cassq.sidecar.sessions import acceptor, connection
from cassq.sidecar.status import healthy
from tests.integration.deadlines import eventually, in_threads
from tests.integration.sidecars import CLUSTER, Running, append, call, links_to, reply


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    import uvloop

    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[request.param]


@pytest.fixture
def sidecar(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[Running]:
    running = Running(new_loop=new_loop)
    try:
        yield running
        # Whatever a test did, the others go on.
        assert ask(running.address, Info()).facts["sidecar"] == "a"
    finally:
        running.stop()


class Raw:
    """A client that says what it is told to."""

    def __init__(self, address: str, *, hello: bool = True) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        if hello:
            self.send(Hello(VERSION, "", "", "raw"), 1)
            assert self.answer()[0] == 1

    def send(self, request: object, number: int) -> None:
        self.socket.sendall(b"".join(request_parts(request, number)))  # type: ignore[arg-type]

    def array(self, *array: object) -> None:
        body = msgspec.msgpack.encode(list(array))
        self.socket.sendall(struct.pack("<I", len(body)) + body)

    def answer(self) -> tuple[int, object]:
        (length,) = struct.unpack("<I", self._exactly(4))
        return read_reply(self._exactly(length))

    def refusal(self) -> tuple[int, Code]:
        number, refused = self.answer()
        assert isinstance(refused, RefusedError), refused
        return number, refused.code

    def ended(self) -> bool:
        """Whether the server closed the connection, and said no more."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            piece = self.socket.recv(count - len(got))
            assert piece, f"it closed after {got!r}"
            got += piece
        return got


# --- when it is closed --------------------------------------------------------------------------


def test_a_client_that_connects_during_closing_gets_no_answer(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """What is in memory then counts no more: it may be opened anew in the same process."""
    running = Running(new_loop=new_loop)
    try:
        there = Raw(running.address)
        running.run(running.sidecar.dispatcher.close)
        late = Raw(running.address, hello=False)
        assert late.ended()
        there.send(Open("p", 1, "q", False), 2)
        there.send(Ends([("p", 0)], 0), 3)
        assert not running.engine.replicas()
        running.run(running.sidecar.stop)
        assert there.ended(), "it was answered"
        for each in (there, late):
            each.close()
    finally:
        running.stop()


# --- who is let in ------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["wrong", "", "secret "])
def test_a_wrong_token_is_refused(
    given: str,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="cassq")
    guarded = Running(tokens=("secret",), new_loop=new_loop)
    try:
        with pytest.raises(RefusedError, match="token.*CASSQ_SIDECAR_TOKEN") as caught:
            ask(guarded.address, Info(), Access(given))
        assert caught.value.code is Code.TOKEN
        assert not caught.value.retryable
        assert "token" in caplog.text
        assert "secret" not in caplog.text
        assert "wrong" not in caplog.text.replace("the token is wrong", "")
        assert ask(guarded.address, Info(), Access("secret"))
        with closing(links_to(guarded, access=Access(given))) as links:
            answer = call(links, "a", Info())
            assert isinstance(answer.error, RefusedError)
            assert answer.error.code is Code.TOKEN
    finally:
        guarded.stop()


def test_two_tokens_may_be_valid_at_once() -> None:
    guarded = Running(tokens=("new", "old"))
    try:
        for token in ("new", "old"):
            assert ask(guarded.address, Info(), Access(token))
        for token in ("", "newold", "new\nold"):
            with pytest.raises(RefusedError, match="token"):
                ask(guarded.address, Info(), Access(token))
    finally:
        guarded.stop()
    single = Running(tokens=("new",))
    try:
        with pytest.raises(RefusedError, match="token"):
            ask(single.address, Info(), Access(""))
    finally:
        single.stop()


def test_a_client_of_another_version_learns_which_one_is_spoken(sidecar: Running) -> None:
    with closing(Raw(sidecar.address, hello=False)) as raw:
        raw.send(Hello(VERSION + 1, "", "", ""), 1)
        _, refused = raw.answer()
        assert isinstance(refused, RefusedError)
        assert (refused.code, refused.fields) == (Code.VERSION, {"version": VERSION})
        assert raw.ended()


def test_a_client_of_another_cluster_is_refused(sidecar: Running) -> None:
    with closing(links_to(sidecar, cluster="another")) as links:
        answer = call(links, "a", Open("p", 1, "q", False))
    assert isinstance(answer.error, RefusedError)
    assert answer.error.code is Code.CLUSTER
    assert CLUSTER in str(answer.error)
    assert "another" in str(answer.error)
    assert "p" not in sidecar.engine.replicas()


def test_nothing_is_done_on_a_connection_without_a_hello(sidecar: Running) -> None:
    with closing(Raw(sidecar.address, hello=False)) as raw:
        raw.send(Open("p", 1, "q", False), 1)
        assert raw.refusal()[1] is Code.MALFORMED
        assert raw.ended()
    assert "p" not in sidecar.engine.replicas()


def test_a_long_message_is_not_taken_before_hello(sidecar: Running) -> None:
    with closing(Raw(sidecar.address, hello=False)) as raw:
        raw.send(Hello(VERSION, "", "x" * HELLO_BYTES_MAX, ""), 1)
        assert raw.refusal() == (0, Code.MALFORMED)


def test_a_silent_client_is_disconnected(sidecar: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HELLO_SECONDS", 0.0)
    with closing(Raw(sidecar.address, hello=False)) as raw:
        eventually("it is there", lambda: sidecar.sidecar.server.sessions)
        sidecar.run(lambda: [s.sweep() for s in list(sidecar.sidecar.server.sessions)])
        assert raw.refusal() == (0, Code.MALFORMED)
        assert raw.ended()


# --- what makes no sense ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x05\x00\x00\x00hello",
        b"\x01\x00\x00\x00\xc1",
        b"\x03\x00\x00\x00\x93\x01\x02",
        b"\x02\x00\x00\x00\xc4\xff",
    ],
)
def test_garbage_ends_the_connection_with_a_reason(sidecar: Running, nonsense: bytes) -> None:
    claimed = int.from_bytes(nonsense[:4], "little")
    for hello in (False, True):
        if hello and len(nonsense) < claimed < sidecar.handshake.message_bytes_max:
            continue  # it may be the beginning of a long message
        with closing(Raw(sidecar.address, hello=hello)) as raw:
            raw.socket.sendall(nonsense)
            assert raw.refusal()[1] is Code.MALFORMED
            assert raw.ended()


def test_a_client_that_was_still_sending_reads_the_reason(
    sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_SECONDS", 60.0)  # however slowly this sends
    with closing(Raw(sidecar.address, hello=False)) as raw:
        raw.socket.sendall(b"GET / HTTP/1.1\r\n" + bytes(20_000_000))
        assert raw.refusal() == (0, Code.MALFORMED)
        assert raw.ended()


def test_requests_that_are_none_end_the_connection(sidecar: Running) -> None:
    for array in (
        (99, 7),
        (0, 7, "q"),
        (OPS[Open], 7),
        (OPS[Open], 7, "p", "1", "q", False),
        (OPS[Open], 7, "p", -5, "q", False),
        (OPS[Open], 7, "p", 1, "q", False, "more"),
        (OPS[Ends], 7, [["p"]], 0),
        (OPS[Ends], 7, [7], 0),
        (OPS[Append], 7, "p", 1, 0, 1, 0, "text"),
        (OPS[Hello], 7, VERSION, "", "", ""),
    ):
        with closing(Raw(sidecar.address)) as raw:
            raw.array(*array)
            number, code = raw.refusal()
            assert (number, code) == (7, Code.MALFORMED), array
            assert raw.ended()
    with closing(Raw(sidecar.address)) as raw:
        raw.array(OPS[Info], -1)
        assert raw.refusal() == (0, Code.MALFORMED)
    assert not sidecar.engine.replicas()


def test_half_a_message_and_an_end_harm_no_other_connection(sidecar: Running) -> None:
    whole = b"".join(request_parts(Open("p", 1, "q", False), 2))
    for length in range(1, len(whole)):
        with closing(Raw(sidecar.address)) as raw:
            raw.socket.sendall(whole[:length])
    eventually("all are gone", lambda: not sidecar.sidecar.server.sessions)
    assert not sidecar.engine.replicas()


def test_a_message_in_small_pieces_is_as_good(sidecar: Running) -> None:
    with closing(Raw(sidecar.address)) as raw:
        raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"".join(request_parts(Open("p", 1, "q", False), 2)):
            raw.socket.sendall(bytes([byte]))
        assert raw.answer() == (2, [])


def test_a_client_that_stops_in_a_message_is_disconnected(
    sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STALLED_SECONDS", 0.0)
    with closing(Raw(sidecar.address)) as raw, closing(Raw(sidecar.address)) as idle:
        raw.socket.sendall(b"\x50\x00\x00\x00\x93")
        sessions = sidecar.sidecar.server.sessions

        def swept() -> int:
            sidecar.run(lambda: [s.sweep() for s in list(sessions)])
            return len(sessions)

        eventually("one is left", lambda: swept() == 1)
        assert raw.ended()
        idle.send(Info(), 2)
        assert idle.answer()[0] == 2


# --- what is not right --------------------------------------------------------------------------


def test_wrong_frames_are_refused_and_the_connection_goes_on(sidecar: Running) -> None:
    with closing(links_to(sidecar)) as links:

        def code(request: object) -> Code:
            answer = call(links, "a", request)  # type: ignore[arg-type]
            assert isinstance(answer.error, RefusedError), answer
            return answer.error.code

        good = append("p", 0, [b"hello"])
        header, body = good.frame
        assert isinstance(body, bytes)
        assert code(good) is Code.UNKNOWN
        reply(links, "a", Open("p", 1, "q", False))
        flipped = bytes([body[0] ^ 1]) + body[1:]
        assert code(replace(good, frame=[header, flipped])) is Code.BAD_FRAME
        assert code(replace(good, frame=b"")) is Code.BAD_FRAME
        assert code(replace(good, messages=2)) is Code.BAD_FRAME
        assert code(replace(append("other", 0, [b"x"]), pipe_id="p")) is Code.BAD_FRAME
        assert code(append("p", 5, [b"x"])) is Code.GAP
        assert code(Read("p", 0, 1, 1 << 30, 1, 0)) is Code.TOO_LARGE
        assert code(Ends([("p", 0)] * 1001, 0)) is Code.TOO_LARGE
        assert reply(links, "a", good).end == 1
        assert len(sidecar.sidecar.server.sessions) == 1
        assert sidecar.run(sidecar.sidecar.facts)["refusals"]["BAD_FRAME"] == 4


def test_what_could_not_be_synced_is_not_acknowledged(sidecar: Running) -> None:
    with closing(links_to(sidecar)) as links:
        reply(links, "a", Open("p", 1, "q", False))
        sync = sidecar.engine.sync
        failing = [True]

        def sync_or_fail() -> None:
            if failing[0]:
                raise BackendUnavailableError("the disk failed")
            sync()

        sidecar.run(lambda: setattr(sidecar.sidecar.committer, "_sync", sync_or_fail))
        answer = call(links, "a", append("p", 0, [b"1"]))
        assert isinstance(answer.error, RefusedError)
        assert answer.error.code is Code.FAILED
        assert answer.error.outcome_unknown
        assert "the disk failed" in str(answer.error)
        assert not healthy(sidecar.run(sidecar.sidecar.facts))
        failing[0] = False
        assert reply(links, "a", append("p", 0, [b"1"])).end == 1


def test_what_is_too_large_is_refused_on_both_sides(sidecar: Running) -> None:
    most = sidecar.handshake.message_bytes_max
    with SidecarConnection(sidecar.address) as connection:
        connection(Open("p", 1, "q", False))
        with pytest.raises(RefusedError, match=f"accepts {most}") as caught:
            connection(Append("p", 1, 0, 1, 0, bytes(most)))
        assert caught.value.code is Code.TOO_LARGE
    with closing(Raw(sidecar.address)) as raw:
        raw.socket.sendall(struct.pack("<I", most + 1))
        assert raw.refusal() == (0, Code.MALFORMED)


def test_a_client_that_exceeds_the_window_is_refused_and_disconnected(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    narrow = Running(window_bytes=10_000, new_loop=new_loop)
    try:
        with closing(links_to(narrow)) as links, closing(Raw(narrow.address)) as raw:
            reply(links, "a", Open("p", 1, "q", False))
            narrow.run(lambda: setattr(narrow.sidecar.committer, "after_sync", lambda then: None))
            for number in (2, 3):
                raw.send(append("p", number - 2, [b"x" * 9_000]), number)
            assert raw.refusal() == (0, Code.TOO_LARGE)
            assert raw.ended()
            assert narrow.engine.replicas()["p"].end == 1
    finally:
        narrow.stop()


# --- who is slow, and who waits -----------------------------------------------------------------


def test_a_client_that_stops_reading_is_not_read_from_and_then_closed(
    sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(links_to(sidecar)) as links, closing(Raw(sidecar.address)) as raw:
        reply(links, "a", Open("p", 1, "q", False))
        reply(links, "a", append("p", 0, [b"x" * 1_000_000]))
        read = b"".join(b"".join(request_parts(Read("p", 0, 1, 1, 1, 0), n)) for n in range(2, 502))
        raw.socket.sendall(read)
        (stuck,) = eventually(
            "it is paused", lambda: [s for s in sidecar.sidecar.server.sessions if s.blocked()]
        )
        kept = sidecar.run(stuck._transport.get_write_buffer_size)
        assert kept <= connection.HIGH_BYTES + 1_100_000
        handled = sidecar.run(sidecar.sidecar.facts)["requests"]["Read"]
        assert handled < 100, "the others wait for their turn"
        # It reads again: all of them are answered.
        for number in range(2, 252):
            assert raw.answer()[0] == number
        # And stops again.
        monkeypatch.setattr(connection, "STALLED_SECONDS", 0.0)
        eventually(
            "it is closed",
            lambda: (sidecar.run(stuck.sweep), stuck not in sidecar.sidecar.server.sessions)[1],
        )
        assert reply(links, "a", Read("p", 0, 1, 1, 1, 0)).end == 1


def test_long_polls_are_answered_when_the_extent_grows(sidecar: Running) -> None:
    with closing(links_to(sidecar)) as links:
        reply(links, "a", Open("p", 1, "q", False))
        frame = append("p", 0, [b"1", b"2"])
        answers: list[Frames] = []

        def work(number: int) -> None:
            if number < 20:
                answers.append(reply(links, "a", Read("p", 0, 2, 1000, 1, WAIT_MS_MAX)))
                return
            eventually(
                "they wait",
                lambda: (
                    sum(len(s.requester.waiters) for s in list(sidecar.sidecar.server.sessions))
                    == 20
                ),
            )
            reply(links, "a", frame)

        watch = Stopwatch()
        in_threads(21, work)
        assert watch.seconds() < WAIT_MS_MAX / 1000
        assert answers == [Frames(2, b"".join(frame.frame))] * 20  # type: ignore[arg-type]
        assert sidecar.run(lambda: sidecar.sidecar.dispatcher._waiters._by_pipe) == {}


def test_a_wait_for_news_of_ends_ends_with_a_mark_with_a_fence_or_with_its_time(
    sidecar: Running,
) -> None:
    with closing(links_to(sidecar)) as links, closing(Raw(sidecar.address)) as raw:
        for pipe_id in ("p", "q"):
            reply(links, "a", Open(pipe_id, 1, "q", False))
        watch = Stopwatch()
        raw.send(Ends([("p", 0), ("q", 0), ("none", 0)], 20_000), 2)
        assert raw.answer()[0] == 2, "nothing came that could be waited for"
        reply(links, "a", append("p", 0, [b"1"]))
        raw.send(Ends([("p", 0), ("q", 0)], 20_000), 3)
        raw.send(Info(), 4)
        assert raw.answer()[0] == 4, "others are answered before it"
        links.tell("a", "", [Mark("p", 1, 1, False)])
        number, fields = raw.answer()
        assert number == 3
        assert fields[0][0][:4] == [1, 1, False, False]  # type: ignore[index]
        raw.send(Ends([("p", 1)], 20_000), 5)
        assert raw.answer()[0] == 5
        assert watch.seconds() < 15
        reply(links, "a", append("p", 1, [b"2"]))
        raw.send(Ends([("p", 1)], 50), 6)
        number, fields = raw.answer()
        assert number == 6
        assert fields[0][0][:2] == [1, 2]  # type: ignore[index]
        raw.send(Read("p", 2, 3, 1000, 1, 50), 7)
        assert raw.answer() == (7, [2, b""])


def test_a_client_that_goes_away_leaves_no_waiter_behind(sidecar: Running) -> None:
    with closing(links_to(sidecar)) as links:
        reply(links, "a", Open("p", 1, "q", False))
        raws = [Raw(sidecar.address) for _ in range(5)]
        waiters = sidecar.sidecar.dispatcher._waiters
        for raw in raws:
            for number in range(2, 1012):
                raw.send(Read("p", 0, 1, 1000, 1, 30_000), number)
            for number in range(1002, 1012):
                assert raw.refusal() == (number, Code.BUSY), "a thousand at most"
        assert sidecar.run(lambda: len(waiters._by_pipe["p"])) == 5000
        for raw in raws:
            raw.close()
        # Long before their time is over.
        eventually("they are gone", lambda: sidecar.run(lambda: waiters._by_pipe) == {}, seconds=9)


def test_many_clients_at_once(sidecar: Running) -> None:
    with closing(links_to(sidecar)) as links:
        for number in range(10):
            reply(links, "a", Open(f"p{number}", 1, "q", False))

        def work(number: int) -> None:
            pipe_id = f"p{number}"
            for start in range(0, 100, 10):
                frames = [append(pipe_id, seq, [b"%d" % seq]) for seq in range(start, start + 10)]
                answer = call(links, "a", *frames)
                assert answer.error is None
            reply(links, "a", Read(pipe_id, 0, 100, 1 << 20, 100, 0))

        in_threads(10, work)
        assert all(replica.end == 100 for replica in sidecar.engine.replicas().values())
        assert sidecar.engine.syncs < 1000, "syncs are shared"  # type: ignore[attr-defined]


def test_one_connection_too_many_gets_an_error_that_says_so(
    sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SESSIONS_MAX", 3)
    raws = [Raw(sidecar.address) for _ in range(3)]
    with pytest.raises(RefusedError, match="3 connections are open") as caught:
        ask(sidecar.address, Info())
    assert caught.value.code is Code.BUSY
    for raw in raws:
        raw.close()
    eventually("they are gone", lambda: not sidecar.sidecar.server.sessions)


def test_silent_clients_make_room_for_others(
    sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are closed before their time, the oldest first; a client that was admitted stays."""
    monkeypatch.setattr(acceptor, "UNIDENTIFIED_MAX", 5)
    monkeypatch.setattr(acceptor, "UNIDENTIFIED_SECONDS", 0.0)
    with closing(Raw(sidecar.address)) as known:
        silent = [Raw(sidecar.address, hello=False) for _ in range(40)]
        assert ask(sidecar.address, Info()).facts["connections"] <= 7
        assert all(raw.ended() for raw in silent[:35])
        known.send(Info(), 2)
        assert known.answer()[0] == 2
    for raw in silent:
        raw.close()
    eventually("all are gone", lambda: not sidecar.sidecar.server.acceptor.connections.open)
    assert not sidecar.sidecar.server.acceptor.connections.unidentified


def test_silent_clients_leave_half_of_few_connections_to_others(
    sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "UNIDENTIFIED_SECONDS", 0.0)
    sidecar.sidecar.server.acceptor.connections_max = 8
    silent = [Raw(sidecar.address, hello=False) for _ in range(30)]
    assert ask(sidecar.address, Info()).facts["sidecar"] == "a"
    assert all(raw.ended() for raw in silent[:24])
    for raw in silent:
        raw.close()


def test_connections_beyond_the_bound_are_closed_and_logged(
    sidecar: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="cassq")
    sidecar.sidecar.server.acceptor.connections_max = 3
    there = [Raw(sidecar.address) for _ in range(3)]
    more = [Raw(sidecar.address, hello=False) for _ in range(20)]
    assert all(raw.ended() for raw in more)
    logged = [line for line in caplog.messages if "3 connections are open already" in line]
    assert len(logged) == rare_log.LINES_MAX
    there[0].send(Info(), 2)
    assert there[0].answer()[0] == 2
    for raw in [*there, *more]:
        raw.close()
    eventually("they are gone", lambda: not sidecar.sidecar.server.acceptor.connections.open)


def test_a_port_that_is_taken_is_reported(sidecar: Running) -> None:
    from cassq.errors import ConfigError

    with pytest.raises(ConfigError, match=r"cannot listen at 127\.0\.0\.1:\d+: .*in use"):
        Running("b", listen=sidecar.address)
    with socket.create_server(("127.0.0.1", 0)) as plain:
        host, port = plain.getsockname()
        with pytest.raises(BackendUnavailableError, match="did not answer within"):
            ask(f"{host}:{port}", Info(), seconds=0.2)
