"""What a keyed group's popper notices too late, as a row of its lane was freed meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.consumer.delivery import Message
from cassq.consumer.keyed import lane
from cassq.consumer.keyed.lane import HELD_FOR
from cassq.consumer.keyed.take_over import FencedPipe, TakeOver
from cassq.errors import ClaimLostError
from cassq.extents.port import ExtentUnavailableError
from cassq.message.ranges import EMPTY
from cassq.model import claims as claim_rows
from cassq.model.rows import Cursor
from tests.integration.consumer.keyed_stage import (
    pass_time,
    pipe_for_each,
    push,
    texts,
    with_all_claimed,
)
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


@pytest.fixture
def queue(timed: cassq.Client) -> cassq.Queue:
    """Each message is in a pipe, and so in a row, of its own."""
    return pipe_for_each(timed, claim_timeout=2)


def freed(
    client: cassq.Client, clock: ManualClock, queue: cassq.Queue, popper: cassq.Popper
) -> Message:
    """The first of two messages, whose row expires and is freed by a reaper, while the popper has
    the lane, and the row of the second one, for longer."""
    push(queue, ["a1"])
    (message,) = popper.pop(10)
    clock.advance(1.3)
    push(queue, ["a2"])
    assert texts(popper.pop(10)) == []
    clock.advance(2.8)
    client.reap()
    return message


@pytest.mark.parametrize("pipes", ["two", "one, and another later"])
def test_what_an_earlier_holder_claims_at_the_last_moment_keeps_its_place(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, pipes: str
) -> None:
    """A popper stalls before it claims; another takes the lane, and has seen what is claimed when
    the first one goes on."""
    queue = strict_queue(timed)
    stalled, popper = queue.popper("keyed"), queue.popper("keyed", keep_alive=0)
    assert texts(stalled.pop(1)) == []
    clock.advance(0.5)
    push(queue, ["a1", "a2"] if pipes == "two" else ["a1"])
    claims = timed.runtime.ports.catalog.claims
    claim, cursors = claims.claim, claims.cursors
    found: list[Message] = []

    def claim_late(*given: Any, **options: Any) -> bool:
        """Stall until the other popper has seen what is claimed."""
        monkeypatch.setattr(claims, "claim", claim)
        outcome: list[bool] = []

        def see_first(*read: Any) -> list[Cursor]:
            monkeypatch.setattr(claims, "cursors", cursors)
            seen = cursors(*read)
            outcome.append(claim(*given, **options))
            return seen

        monkeypatch.setattr(claims, "cursors", see_first)
        clock.advance(2 * HELD_FOR - 0.4)
        with ThreadPoolExecutor() as pool:
            found.extend(pool.submit(popper.pop, 1).result())
        return outcome[0]

    monkeypatch.setattr(claims, "claim", claim_late)
    assert texts(stalled.pop(1)) == []
    if pipes != "two":
        push(queue, ["a2"])
    popper.commit(found)
    assert [*texts(found), *drained(clock, popper)] == ["a1", "a2"]


def strict_queue(client: cassq.Client) -> cassq.Queue:
    """One whose messages are in pipes of their own, all in one chain."""
    return pipe_for_each(client, claim_timeout=2, consistency="cp")


def claim_of_another(client: cassq.Client, queue: cassq.Queue, pipe: int) -> str:
    """Do what the claim of an earlier holder of the lane does that is accepted only now: all of a
    pipe is claimed. pipe: which. Returns its id."""
    catalog = client.runtime.ports.catalog
    (group,) = (each for each in catalog.queues.groups(queue.id) if each.name == "keyed")
    row = catalog.pipes.live(queue.id)[pipe]
    cursor = catalog.claims.cursor(group.id, row.id)
    assert cursor is not None
    end = row.end or client.runtime.ports.store.reader(row.id).published()
    until_ms = catalog.now_ms() + 2000 * HELD_FOR
    version = client.runtime.ports.ids.version
    mine = claim_rows.first(cursor, end, "another/1", until_ms, version, tried=EMPTY)
    assert catalog.claims.claim(cursor, end, [mine])
    return row.id


def test_a_late_claim_of_a_later_pipe_waits_for_what_was_claimed_ahead(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "AHEAD_MESSAGES", 1)
    queue = strict_queue(timed)
    names = [f"a{number:02}" for number in range(20)]
    push(queue, names)
    first, found = with_all_claimed(queue)
    first.commit(found)
    first.close()
    push(queue, ["a99"])
    popper = queue.popper("keyed", keep_alive=0)
    found = popper.pop(1)
    claim_of_another(timed, queue, -1)
    popper.commit(found)
    assert [*texts(found), *slowly_drained(clock, popper)] == [*names[1:], "a99"]


@pytest.mark.parametrize("tries", [1, 2, 3])
def test_a_late_claim_that_cannot_be_read_holds_up_what_follows_it(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    queue = strict_queue(timed)
    popper = queue.popper("keyed", keep_alive=0)
    push(queue, ["a1", "a2", "a3"])
    claims = timed.runtime.ports.catalog.claims
    cursors, unsettled = claims.cursors, TakeOver.unsettled
    late: list[str] = []
    left = list(range(tries))

    def see_first(*read: Any) -> list[Cursor]:
        monkeypatch.setattr(claims, "cursors", cursors)
        seen = cursors(*read)
        late.append(claim_of_another(timed, queue, 0))
        return seen

    def failing(self: TakeOver, fenced: FencedPipe, *, timed: bool) -> object:
        if fenced.cursor.pipe_id in late and left:
            left.pop()
            raise ExtentUnavailableError("away", pipe_id=fenced.cursor.pipe_id)
        return unsettled(self, fenced, timed=timed)

    monkeypatch.setattr(claims, "cursors", see_first)
    monkeypatch.setattr(TakeOver, "unsettled", failing)
    assert slowly_drained(clock, popper) == ["a1", "a2", "a3"]


def test_several_late_claims_keep_their_places(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = strict_queue(timed)
    popper = queue.popper("keyed", keep_alive=0)
    names = [f"a{number}" for number in range(1, 9)]
    push(queue, names)
    claims = timed.runtime.ports.catalog.claims
    cursors = claims.cursors

    def see_first(*read: Any) -> list[Cursor]:
        monkeypatch.setattr(claims, "cursors", cursors)
        seen = cursors(*read)
        for pipe in range(4):
            claim_of_another(timed, queue, pipe)
        return seen

    monkeypatch.setattr(claims, "cursors", see_first)
    assert slowly_drained(clock, popper) == names


def slowly_drained(clock: ManualClock, popper: cassq.Popper) -> list[str]:
    """One message after the other, a second each, in which the popper's housekeeper works."""
    found: list[str] = []
    for _ in range(40):
        try:
            messages = popper.pop(1)
        except ExtentUnavailableError:
            continue
        found += texts(messages)
        popper.commit(messages)
        pass_time(clock, popper, 1)
    return found


def drained(clock: ManualClock, popper: cassq.Popper) -> list[str]:
    found: list[str] = []
    for _ in range(100):
        messages = popper.pop(10)
        found += texts(messages)
        popper.commit(messages)
        clock.advance(0.1)
    return found


def test_what_follows_a_message_whose_ack_was_lost_waits_for_it(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    popper = queue.popper("keyed", keep_alive=0)
    message = freed(timed, clock, queue, popper)
    with pytest.raises(ClaimLostError):
        message.ack()
        popper.flush()
    assert drained(clock, popper) == ["a1", "a2"]


def test_a_key_goes_on_after_its_message_was_freed_by_another(
    timed: cassq.Client, clock: ManualClock, queue: cassq.Queue
) -> None:
    popper = queue.popper("keyed", keep_alive=0)
    freed(timed, clock, queue, popper)
    assert drained(clock, popper) == ["a1", "a2"]
