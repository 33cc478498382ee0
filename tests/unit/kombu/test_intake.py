"""How much a fetcher pops at once, and that fetchers do not keep each other waiting."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from cassq.base.clock import Stopwatch
from cassq.consumer.delivery import Message
from cassq.kombu import intake
from cassq.kombu.intake import ChannelFetcher, ChannelPrefetch, Taken
from cassq.popper import Popper
from tests.integration.deadlines import eventually

LIMIT = 8
FOREVER = 3600.0


class StubPopper:
    def stop(self) -> None:
        """Nothing waits."""


POPPER = cast(Popper, StubPopper())


def no_delivery(queue: str, message: Message, popper: Popper) -> Taken | None:
    raise AssertionError("nothing is popped here")


def holding(count: int) -> ChannelPrefetch:
    """An intake with this many messages in hand, whose tags are 0, 1, …"""
    made = ChannelPrefetch(lambda: None, no_delivery)
    made.limit = LIMIT
    for tag in range(count):
        made.hold(Taken("mails", tag, cast(Any, None), POPPER, {}))
    return made


def taker_of(made: ChannelPrefetch, queue: str = "mails") -> ChannelFetcher:
    """A fetcher whose thread does not run, and that has taken this moment."""
    fetcher = ChannelFetcher(made, queue, POPPER, no_ack=False)
    made._fetchers[queue] = [fetcher]
    return fetcher


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def test_a_taker_that_has_just_taken_waits_for_half_of_the_room(
    beside: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "GATHER_SECONDS", FOREVER)
    made = holding(LIMIT)
    room = beside.submit(made.room_for, taker_of(made))
    for tag in range(LIMIT // 2):
        made.drop(tag)
    assert room.result(60) == LIMIT // 2


def test_it_waits_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "GATHER_SECONDS", 0.001)
    made = holding(LIMIT - 1)
    assert made.room_for(taker_of(made)) == 1


def test_where_one_message_is_all_that_fits_it_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "GATHER_SECONDS", FOREVER)
    made = holding(0)
    made.limit = 1
    assert made.room_for(taker_of(made)) == 1


def test_a_taker_that_gathers_wakes_the_others_when_it_leaves(
    beside: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = holding(LIMIT)
    first, other = taker_of(made, "mails"), taker_of(made, "letters")
    monkeypatch.setattr(intake, "GATHER_SECONDS", -1.0)
    waiting = beside.submit(made.room_for, other)
    eventually("the other waits", lambda: made._change._waiters)  # type: ignore[attr-defined]
    monkeypatch.setattr(intake, "GATHER_SECONDS", 0.05)
    first.since_last = Stopwatch()
    gathering = beside.submit(made.room_for, first)
    eventually("the first gathers", lambda: made._wanted > 1 or gathering.done())
    made.drop(0)
    assert (gathering.result(60), waiting.result(60)) == (1, 1)
