"""Calls begun ahead over real sockets: answered later, dropped, or broken meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from cassq.errors import BackendTimeoutError, BackendUnavailableError
from cassq.extents.protocol.messages import (
    Code,
    Frames,
    Info,
    Mark,
    Open,
    Read,
    RefusedError,
    Request,
)
from cassq.extents.sidecar.net.connection_pool import ConnectionPool
from cassq.extents.sidecar.net.network import InFlightCall, Patience, SidecarCall
from tests.integration.deadlines import eventually
from tests.integration.sidecars import PATIENCE, Running, append, call, links_to, reply

LARGE = 6 * 1024 * 1024  # more than fits between the two


@pytest.fixture
def sidecar() -> Iterator[Running]:
    running = Running()
    yield running
    running.stop()


@pytest.fixture
def links(sidecar: Running) -> Iterator[ConnectionPool]:
    """With one connection, over which an extent of two frames was written."""
    with closing(links_to(sidecar)) as links:
        reply(links, "a", Open("p", 1, "q", False))
        for seq in range(2):
            reply(links, "a", append("p", seq, [b"%d" % seq * LARGE]))
        yield links


def read(seq: int, wait_ms: int = 0) -> Read:
    return Read("p", seq, 100, 1, 10, wait_ms)


def begun(links: ConnectionPool, request: Request, generation: str = "") -> InFlightCall:
    found = links.begin(SidecarCall("a", generation, [request]))
    assert found is not None
    return found


def idle(links: ConnectionPool) -> int:
    return len(links._idle.get("a", ()))


def facts(links: ConnectionPool) -> dict[str, Any]:
    answer: dict[str, Any] = reply(links, "a", Info()).facts
    return answer


def is_whole(frames: Frames, seq: int) -> bool:
    return frames.end == 2 and frames.frames.endswith(b"%d" % seq * LARGE)


def test_the_answer_is_there_when_it_is_wanted(sidecar: Running, links: ConnectionPool) -> None:
    first = begun(links, read(0))
    assert idle(links) == 0
    answer = first.end(PATIENCE)
    assert answer.error is None
    assert is_whole(answer.replies[0], 0)
    assert idle(links) == 1, "its connection serves others"


def test_a_call_ahead_makes_progress_at_each_look(sidecar: Running, links: ConnectionPool) -> None:
    first = begun(links, read(1))

    def came() -> bool:
        first.go_on()
        return first._exchange.done  # type: ignore[attr-defined]

    eventually("it came", came)
    assert is_whole(first.end(Patience(0.0, 0.0, 1)).replies[0], 1)


def test_others_are_answered_meanwhile_each_his_own(
    sidecar: Running, links: ConnectionPool
) -> None:
    first = begun(links, read(0))
    assert is_whole(reply(links, "a", read(1)), 1)
    assert facts(links)["sidecar"] == "a"
    assert is_whole(first.end(PATIENCE).replies[0], 0)


def test_one_that_is_dropped_is_not_an_answer_to_anybody_else(
    sidecar: Running, links: ConnectionPool
) -> None:
    waits = read(2, 30_000)
    for request in (read(0), read(0), waits):
        first = begun(links, request)
        came = first._exchange.done  # type: ignore[attr-defined]
        assert not (came and request is waits), "others may have been answered at once"
        first.drop()
        assert idle(links) == came
        assert is_whole(reply(links, "a", read(1)), 1)
    eventually("the others are closed", lambda: facts(links)["connections"] == 1)
    assert not sidecar.sidecar.dispatcher.refusals


def test_one_that_is_dropped_after_it_came_leaves_its_connection(
    sidecar: Running, links: ConnectionPool
) -> None:
    first = begun(links, read(0))

    def came() -> bool:
        first.go_on()
        return first._exchange.done  # type: ignore[attr-defined]

    eventually("it came", came)
    first.drop()
    assert idle(links) == 1
    assert is_whole(reply(links, "a", read(1)), 1)


def test_without_a_connection_at_hand_nothing_is_begun(
    sidecar: Running, links: ConnectionPool
) -> None:
    first = begun(links, read(0))
    assert links.begin(SidecarCall("a", "", [read(1)])) is None
    assert links.begin(SidecarCall("b", "", [read(1)])) is None
    first.drop()


def test_a_refusal_is_reported(sidecar: Running, links: ConnectionPool) -> None:
    answer = begun(links, Read("none", 0, 1, 1, 1, 0)).end(PATIENCE)
    assert isinstance(answer.error, RefusedError)
    assert answer.error.code is Code.UNKNOWN
    assert idle(links) == 1


def test_a_sidecar_that_dies_meanwhile_is_reported(sidecar: Running, links: ConnectionPool) -> None:
    first = begun(links, read(2, 30_000))
    sidecar.stop()
    answer = first.end(PATIENCE)
    assert isinstance(answer.error, BackendUnavailableError)
    assert idle(links) == 0
    assert links.begin(SidecarCall("a", "", [read(0)])) is None


def test_no_call_waits_longer_than_its_patience(sidecar: Running, links: ConnectionPool) -> None:
    first = begun(links, read(2, 30_000))
    answer = first.end(Patience(0.05, 0.0, 1))
    assert isinstance(answer.error, BackendTimeoutError)
    assert idle(links) == 0
    assert is_whole(reply(links, "a", read(1)), 1)


def test_another_directory_than_expected_is_reported(
    sidecar: Running, links: ConnectionPool
) -> None:
    answer = begun(links, read(0), "another").end(PATIENCE)
    assert isinstance(answer.error, BackendUnavailableError)
    assert is_whole(reply(links, "a", read(1)), 1)


def test_what_is_sent_meanwhile_goes_over_another_connection(
    sidecar: Running, links: ConnectionPool
) -> None:
    first = begun(links, read(0))
    links.tell("a", "", [Mark("p", 1, 2, False)])
    call(links, "a", Info())
    assert is_whole(first.end(PATIENCE).replies[0], 0)
    eventually("it was told", lambda: sidecar.engine.replicas()["p"].acked == 2)
