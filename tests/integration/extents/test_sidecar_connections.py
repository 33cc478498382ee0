"""Links and a sidecar's server over real sockets: requests, patience, broken connections."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from cassq.base.clock import Stopwatch
from cassq.errors import BackendTimeoutError, BackendUnavailableError
from cassq.extents.protocol.messages import (
    Appended,
    Code,
    Done,
    Ends,
    Frames,
    Info,
    Mark,
    Open,
    Read,
    RefusedError,
    Scrub,
)
from cassq.extents.sidecar.net.connection import Access
from cassq.extents.sidecar.net.connection_pool import ConnectionPool
from cassq.extents.sidecar.net.network import Patience, SidecarCall
from cassq.extents.sidecar.net.sidecar_connection import SidecarConnection, ask
from tests.integration.deadlines import DEADLINE_SECONDS, eventually, in_threads
from tests.integration.sidecars import PATIENCE, Running, append, call, links_to, reply


def _loops() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    import uvloop

    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=["asyncio", "uvloop"])
def sidecar(request: pytest.FixtureRequest) -> Iterator[Running]:
    running = Running(new_loop=_loops()[request.param])
    yield running
    running.stop()


@pytest.fixture
def links(sidecar: Running) -> Iterator[ConnectionPool]:
    with closing(links_to(sidecar)) as links:
        yield links


def test_what_is_appended_is_synced_before_it_is_acknowledged_and_read_again(
    sidecar: Running, links: ConnectionPool
) -> None:
    reply(links, "a", Open("p", 1, "q", False))
    frames = [append("p", seq * 10, [b"%d" % seq] * 10) for seq in range(200)]
    answer = call(links, "a", *frames)
    assert answer.error is None
    assert [each.end for each in answer.replies] == list(range(10, 2010, 10))
    assert sidecar.engine.syncs >= 1  # type: ignore[attr-defined]
    assert sidecar.engine._unsynced == {}  # type: ignore[attr-defined]
    got = reply(links, "a", Read("p", 0, 2000, 1 << 20, 1000, 0))
    assert got == Frames(2000, b"".join(part for frame in frames for part in frame.frame))


def test_requests_larger_than_the_window_go_one_by_one(
    sidecar: Running, links: ConnectionPool
) -> None:
    reply(links, "a", Open("p", 1, "q", False))
    large = 12 * 1024 * 1024
    assert large > sidecar.handshake.window_bytes
    payloads = [b"x" * large, b"y" * large, b"z"]
    answer = call(links, "a", *(append("p", seq, [p]) for seq, p in enumerate(payloads)))
    assert answer.error is None
    got = reply(links, "a", Read("p", 1, 3, 1, 1, 0))
    assert got.frames.endswith(b"y" * large)


def test_a_refusal_in_the_middle_ends_a_call_there(links: ConnectionPool) -> None:
    reply(links, "a", Open("p", 1, "q", False))
    answer = call(links, "a", append("p", 0, [b"1"]), append("p", 7, [b"2"]), Info())
    assert answer.replies == [Appended(1, False, False)]
    assert isinstance(answer.error, RefusedError)
    assert answer.error.code is Code.GAP
    assert answer.error.fields["end"] == 1
    assert reply(links, "a", append("p", 1, [b"2"])).end == 2, "the connection is as good as before"


def test_what_follows_a_refusal_is_not_sent() -> None:
    narrow = Running(window_bytes=1000)
    try:
        with closing(links_to(narrow)) as links:
            reply(links, "a", Open("p", 1, "q", False))
            answer = call(links, "a", *(append("p", seq, [b"x" * 900]) for seq in range(1, 30)))
            assert isinstance(answer.error, RefusedError)
            assert answer.error.code is Code.GAP
            assert narrow.run(narrow.sidecar.facts)["requests"]["Append"] == 1
    finally:
        narrow.stop()


def test_connections_are_used_again_and_unanswered_requests_go_over_them(
    sidecar: Running, links: ConnectionPool
) -> None:
    reply(links, "a", Open("p", 1, "q", False))
    reply(links, "a", append("p", 0, [b"1"]))
    links.tell("a", "a-1", [Mark("p", 1, 1, False)])
    links.tell("a", "another", [Mark("p", 1, 1, True)])
    (end,) = reply(links, "a", Ends([("p", 0)], 5000)).ends
    assert end[:4] == (1, 1, False, False)
    assert len(sidecar.sidecar.server.sessions) == 1
    in_threads(20, lambda _: reply(links, "a", Info()))
    assert len(links._idle["a"]) <= 8
    eventually("the others are closed", lambda: len(sidecar.sidecar.server.sessions) <= 8)


def test_unanswered_requests_are_sent_when_a_lent_connection_is_given_back(
    sidecar: Running, links: ConnectionPool
) -> None:
    links.tell("a", "a-1", [Mark("p", 1, 1, False)])  # there is none yet
    links.tell("a", "another", [Mark("p", 1, 1, True)])
    with closing(links_to(sidecar)) as others:
        reply(others, "a", Open("p", 1, "q", False))
        reply(others, "a", append("p", 0, [b"1"]))
        reply(links, "a", Info())
        (end,) = reply(others, "a", Ends([("p", 0)], 5000)).ends
    assert end[:4] == (1, 1, False, False)
    assert links._unsent == {}


def test_a_sidecar_that_came_back_is_connected_to_again(sidecar: Running) -> None:
    current = [sidecar]
    with closing(ConnectionPool(lambda: [current[0].row()], lambda: "")) as links:
        reply(links, "a", Open("p", 1, "q", False))
        reply(links, "a", append("p", 0, [b"1"]))
        sidecar.stop()
        # At another address: the catalog tells.
        current[0] = Running(engine=sidecar.engine)
        again = append("p", 0, [b"1"]), append("p", 1, [b"2"])
        try:
            done = eventually("it is found", lambda: call(links, "a", *again).replies)
            assert done[-1].end == 2
        finally:
            current[0].stop()
        answer = call(links, "a", Info())
        assert isinstance(answer.error, BackendUnavailableError)
        assert "running" in answer.error.hint


def test_a_connection_that_breaks_in_the_middle_is_opened_again_and_the_rest_sent_again(
    sidecar: Running, links: ConnectionPool
) -> None:
    reply(links, "a", Open("p", 1, "q", False))
    cut = threading.Event()
    engine_append = sidecar.engine.append

    def append_and_cut(*args: object) -> None:
        engine_append(*args)  # type: ignore[arg-type]
        if args[1] == 50 and not cut.is_set():
            cut.set()
            for session in list(sidecar.sidecar.server.sessions):
                session._transport.abort()

    sidecar.engine.append = append_and_cut  # type: ignore[method-assign]
    answer = call(links, "a", *(append("p", seq, [b"x" * 50_000]) for seq in range(300)))
    assert cut.is_set()
    assert answer.error is None
    assert [each.end for each in answer.replies][-1] == 300


def test_no_call_waits_for_a_laggard_longer_than_its_patience(sidecar: Running) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        rows = [sidecar.row(), sidecar.row(name="silent", address=f"{host}:{port}")]
        with closing(ConnectionPool(lambda: rows, lambda: "")) as links:
            calls = [SidecarCall("a", "", [Info()]), SidecarCall("silent", "", [Info()])]
            watch = Stopwatch()
            good, bad = links.exchange(calls, Patience(20.0, 0.2, 1))
            assert 0.15 < watch.seconds() < 20
            assert good.done
            assert isinstance(bad.error, BackendUnavailableError), "it never let us in"
            assert "welcome" in bad.error.message
            watch = Stopwatch()
            (bad,) = links.exchange(calls[1:], Patience(0.3, 0.2, 1))
            assert 0.25 < watch.seconds() < DEADLINE_SECONDS


def test_a_sidecar_that_stops_answering_is_reported_as_such(
    sidecar: Running, links: ConnectionPool
) -> None:
    reply(links, "a", Open("p", 1, "q", False))
    sidecar.engine.sync = lambda: None  # type: ignore[method-assign]
    sidecar.run(lambda: setattr(sidecar.sidecar.committer, "after_sync", lambda then: None))
    answer = call(links, "a", append("p", 0, [b"1"]), patience=Patience(0.3, 0.3, 1))
    assert isinstance(answer.error, BackendTimeoutError)
    assert answer.error.outcome_unknown
    assert reply(links, "a", Info()), "over another connection"


def test_another_sidecar_or_directory_than_expected_is_reported(sidecar: Running) -> None:
    rows = [sidecar.row(), sidecar.row(name="b")]
    with closing(ConnectionPool(lambda: rows, lambda: "")) as links:
        (answer,) = links.exchange([SidecarCall("b", "", [Info()])], PATIENCE)
        assert "belongs to sidecar 'a', not 'b'" in str(answer.error)
        (answer,) = links.exchange([SidecarCall("a", "older", [Info()])], PATIENCE)
        assert "another data directory" in str(answer.error)
        (answer,) = links.exchange([SidecarCall("c", "", [Info()])], PATIENCE)
        assert "knows no sidecar 'c'" in str(answer.error)
        assert isinstance(answer.error, BackendUnavailableError)
        (answer,) = links.exchange([SidecarCall("a", "a-1", [Info()])], PATIENCE)
        assert answer.done


def test_one_thing_is_asked_of_one_address(sidecar: Running) -> None:
    assert ask(sidecar.address, Info()).facts["sidecar"] == "a"
    with SidecarConnection(sidecar.address, Access(client="a tool")) as connection:
        assert connection(Open("p", 1, "q", False)) == Done()
        with pytest.raises(RefusedError, match="no extent 'other'"):
            connection(Scrub("other", 0))
        connection(append("p", 0, [b"1", b"2"]))
        assert connection(Scrub("p", 0)).seq == 2
    with pytest.raises(BackendUnavailableError, match="not the address"):
        ask("nonsense", Info())
