"""Turns on cp queues and in exclusive groups: a popper keeps a pipe's lock between messages, as on
Cassandra, until another wants it or it has no use for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from typing import Any

import pytest

import cassq
from cassq.base.clock import Clock, ManualClock, SystemClock
from cassq.errors import BackendTimeoutError, ClaimLostError
from cassq.locks.line import REQUEST_MS, turn_lease
from cassq.locks.turns import (
    IDLE_MS,
    LOOK_MS,
    OVERSTAY_MS,
    STALE_SHARE,
    TURN_MS,
    TURN_TIMES,
    Turns,
    TurnState,
)
from cassq.model.rows import Cursor
from tests.integration.deadlines import in_threads
from tests.integration.places import Place
from tests.integration.stage import numbers, payloads, push
from tests.integration.timed import clock

__all__ = ["clock"]

Open = Callable[[], cassq.Client]
TIMEOUT = 10
# Within this time a holder sees that another waits, and gives back what it claimed ahead.
SOON_MS = LOOK_MS + OVERSTAY_MS


def keeping(place: Place, clock: Clock) -> cassq.Client:
    """A client that keeps locks, wherever its queues are."""
    embedded = place.open(clock)
    ports = embedded.ports
    turns = Turns(ports.catalog.leases, ports.locker, clock, ports.ids.client)
    return cassq.Client(place.url, embedded._replace(ports=ports._replace(turns=turns)), clock)


def without_turns(place: Place, clock: Clock) -> cassq.Client:
    """A client that locks for each claim."""
    embedded = place.open(clock)
    return cassq.Client(
        place.url, embedded._replace(ports=embedded.ports._replace(turns=None)), clock
    )


@pytest.fixture
def opened(place: Place, clock: ManualClock) -> Iterator[Open]:
    """Clients on the test's clock, whose housekeepers do what the test calls."""
    with ExitStack() as clients:

        def open_one() -> cassq.Client:
            client = clients.enter_context(keeping(place, clock))
            client.runtime.housekeeper.stop()
            return client

        yield open_one


def jobs(client: cassq.Client, count: int) -> cassq.Queue:
    queue = client.create_queue("jobs", consistency="cp", claim_timeout=TIMEOUT)
    push(queue, *numbers(count))
    return queue


def epoch(client: cassq.Client) -> int:
    return cursor(client).epoch


def cursor(client: cassq.Client) -> Cursor:
    queue = client.queue("jobs")
    (group,) = client.ports.catalog.queues.groups(queue.id)
    (pipe,) = client.ports.catalog.pipes.live(queue.id)
    found = client.ports.catalog.claims.cursor(group.id, pipe.id)
    assert found is not None
    return found


def one(popper: cassq.Popper) -> bytes | None:
    """Pop and commit one message."""
    messages = popper.pop(1)
    popper.commit(messages)
    return messages[0].payload if messages else None


def some(popper: cassq.Popper, clock: ManualClock, ms: int) -> list[bytes]:
    """Pop and commit for so long, with a housekeeper that looks after it; what came."""
    found: list[bytes] = []
    for _ in range(ms // 10):
        payload = one(popper)
        if payload is not None:
            found.append(payload)
        clock.advance(0.01)
        popper.maintain()
    return found


def test_a_lock_is_kept_from_one_message_to_the_next(opened: Open) -> None:
    client = opened()
    popper = jobs(client, 5).popper()
    assert one(popper) == b"0"
    first = epoch(client)
    assert [one(popper) for _ in range(4)] == numbers(4, first=1)
    assert epoch(client) == first
    assert one(popper) is None


def test_a_turn_that_is_not_used_ends(opened: Open, clock: ManualClock) -> None:
    client = opened()
    popper, other = jobs(client, 5).popper(), opened().queue("jobs").popper()
    assert one(popper) == b"0"
    before = epoch(client)
    clock.advance((IDLE_MS - 1) / 1000)
    popper.maintain()
    assert one(popper) == b"1"
    assert epoch(client) == before, "it was kept until then"
    clock.advance(IDLE_MS / 1000)
    popper.maintain()
    assert one(other) == b"2"


def test_a_turn_with_a_message_in_hand_does_not_end(opened: Open, clock: ManualClock) -> None:
    popper = jobs(opened(), 5).popper()
    other = opened().queue("jobs").popper()
    messages = popper.pop(1)
    for _ in range(20):
        clock.advance(0.2)
        popper.maintain()
        assert one(other) is None
    popper.commit(messages)
    popper.maintain()
    assert one(other) == b"1", "it waited long enough"


def test_poppers_of_two_clients_take_turns(opened: Open, clock: ManualClock) -> None:
    poppers = [jobs(opened(), 3000).popper(), opened().queue("jobs").popper()]
    order: list[tuple[int, bytes]] = []
    for _ in range(400):
        for who, popper in enumerate(poppers):
            payload = one(popper)
            order += [(who, payload)] if payload is not None else []
        clock.advance(0.01)
        for popper in poppers:
            popper.maintain()
    assert [payload for _, payload in order] == numbers(len(order))
    turns = [len(list(run)) for _, run in groupby(order, key=itemgetter(0))]
    assert len(turns) >= 400 * 10 // (2 * SOON_MS)
    assert min(turns[:-1]) >= TURN_MS // 10, "a turn lasts while another waits"
    assert max(turns) <= (TURN_MS + SOON_MS) // 10, "it ends though much is claimed ahead"


def test_a_turn_lasts_longer_where_taking_it_takes_long(
    opened: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [opened(), opened()]
    jobs(clients[0], 3000)
    for client in clients:
        slow(client, clock, monkeypatch)
    turns = at_work([client.queue("jobs").popper() for client in clients], clock, 600)
    assert min(turns[:-1]) >= (TURN_TIMES - 1) * 100 // 10
    assert max(turns) <= (TURN_TIMES * 100 + 2 * LOOK_MS) // 10


def slow(client: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let raising an epoch take a tenth of a second."""
    fence = client.ports.catalog.claims.fence

    def fence_slowly(*args: Any) -> Any:
        clock.advance(0.1)
        return fence(*args)

    monkeypatch.setattr(client.ports.catalog.claims, "fence", fence_slowly)


def test_nothing_is_claimed_ahead_beyond_the_end_of_a_turn(
    opened: Open, clock: ManualClock
) -> None:
    poppers = [jobs(opened(), 3000).popper(), opened().queue("jobs").popper()]
    turns = at_work(poppers, clock, 400, task_ms=15)
    assert min(turns[:-1]) >= TURN_MS // 15
    assert max(turns) <= TURN_MS // 15 + 1


def at_work(
    poppers: list[cassq.Popper], clock: ManualClock, steps: int, task_ms: int = 10
) -> list[int]:
    """Let poppers work on each message for so long; how many each turn had."""
    order: list[int] = []
    for _ in range(steps):
        held = [popper.pop(1) for popper in poppers]
        clock.advance(task_ms / 1000)
        for who, popper in enumerate(poppers):
            order += [who] * len(held[who])
            popper.commit(held[who])
            popper.maintain()
    return [len(list(run)) for _, run in groupby(order)]


def test_what_was_given_back_untried_is_claimed_ahead_again(
    opened: Open, clock: ManualClock
) -> None:
    popper = jobs(opened(), 3000).popper()
    some(popper, clock, TURN_MS)
    held = popper.pop(1)
    ahead = len(popper._buffer)
    assert ahead > 1
    popper.release(held)
    assert len(popper._buffer) == 0
    (again,) = popper.pop(1)
    assert (again.payload, again.attempts) == (held[0].payload, 1)
    assert len(popper._buffer) == ahead


def test_a_popper_that_gave_way_goes_on_if_the_next_one_never_comes(
    opened: Open, clock: ManualClock
) -> None:
    popper = jobs(opened(), 60).popper()
    other = opened().queue("jobs").popper()
    some(popper, clock, TURN_MS)
    assert one(other) is None
    some(popper, clock, LOOK_MS + 60)
    assert some(popper, clock, REQUEST_MS // 2) == []
    clock.advance(REQUEST_MS / 1000)
    assert len(some(popper, clock, 100)) == 10


@pytest.mark.parametrize("how", ["close", "stop", "pause"])
def test_a_popper_that_takes_no_more_ends_its_turn(opened: Open, how: str) -> None:
    client = opened()
    queue = jobs(client, 5)
    popper, other = queue.popper(), opened().queue("jobs").popper()
    assert one(popper) == b"0"
    assert one(other) is None
    if how == "pause":
        queue.pause(pop=True)
    else:
        getattr(popper, how)()
    popper.maintain()
    if how == "pause":
        queue.resume()
    with opened() as third:
        assert one(third.queue("jobs").popper()) == b"1"


def test_another_popper_of_the_client_takes_a_turn_that_rests(opened: Open) -> None:
    client = opened()
    queue = jobs(client, 5)
    popper, other = queue.popper(), queue.popper()
    held = popper.pop(1)
    assert one(other) is None
    popper.commit(held)
    before = epoch(client)
    assert one(other) == b"1"
    assert epoch(client) > before, "whatever the first still wrote would be refused"
    assert one(popper) == b"2"


def test_poppers_of_one_client_take_turns(opened: Open, clock: ManualClock) -> None:
    queue = jobs(opened(), 100)
    popper, other = queue.popper(), queue.popper()
    held = popper.pop(1)
    clock.advance(TURN_MS / 1000)
    assert one(other) is None
    popper.commit(held)
    assert one(popper) is None, "it has had its turn, and another waits"
    assert one(other) == b"1"


def test_poppers_of_one_client_do_not_keep_another_client_out(
    opened: Open, clock: ManualClock
) -> None:
    queue = jobs(opened(), 100)
    poppers, other = [queue.popper(), queue.popper()], opened().queue("jobs").popper()
    for number in range(50):
        if one(other) is not None:
            return
        one(poppers[number % 2])
        clock.advance(0.01)
        for popper in poppers:
            popper.maintain()
    raise AssertionError("they pass the turn to each other for ever")


def test_a_popper_that_waits_for_a_dead_one_goes_on_when_its_lock_lapses(
    opened: Open, clock: ManualClock
) -> None:
    popper = jobs(opened(), 5).popper(keep_alive=0)
    other = opened().queue("jobs").popper()
    assert one(popper) == b"0"
    clock.advance(TIMEOUT - 0.2)  # nobody looks after it from here on
    assert one(other) is None
    clock.advance(0.2)
    assert one(other) == b"1"


@pytest.mark.parametrize("kept", [True, False], ids=["turns", "a lock a claim"])
def test_a_popper_that_stands_still_with_a_new_lock_leaves_the_claim_of_the_next(
    place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    with ExitStack() as clients:

        def open_one() -> cassq.Client:
            opened = keeping if kept else without_turns
            client = clients.enter_context(opened(place, clock))
            client.runtime.housekeeper.stop()
            return client

        client = open_one()
        slow = jobs(client, 3).popper(keep_alive=0)
        other = open_one().queue("jobs").popper(keep_alive=0)
        ports = client.ports
        acquire, read = ports.locker.acquire, ports.catalog.claims.cursor
        locks: list[object] = []
        held: list[cassq.Message] = []

        def acquired(*args: Any, **more: Any) -> Any:
            locks.append(acquire(*args, **more))
            return locks[-1]

        def read_late(*args: Any) -> Any:
            if locks and not held:
                clock.advance(TIMEOUT + 1)
                held.extend(other.pop(1))
            return read(*args)

        monkeypatch.setattr(ports.locker, "acquire", acquired)
        monkeypatch.setattr(ports.catalog.claims, "cursor", read_late)
        assert not slow.pop(1)
        assert payloads(held) == [b"0"]
        other.commit(held)
        assert [one(other), one(other)] == [b"1", b"2"]


@pytest.mark.parametrize("passed", [0.1, 0.9])
def test_a_message_popped_late_in_a_turn_has_its_whole_time(
    opened: Open, clock: ManualClock, passed: float
) -> None:
    """Also if nobody renews the lock any more."""
    popper = jobs(opened(), 5).popper(keep_alive=0)
    other = opened().queue("jobs").popper()
    assert one(popper) == b"0"
    clock.advance(TIMEOUT * passed)
    assert payloads(popper.pop(1)) == [b"1"]
    for seconds in (TIMEOUT / 2, TIMEOUT / 2 - 0.001):
        clock.advance(seconds)
        assert one(other) is None
    clock.advance(0.001)
    assert one(other) == b"1"


def test_a_lock_that_was_shortened_for_a_message_is_whole_for_the_next(
    opened: Open, clock: ManualClock
) -> None:
    """Another popper does not get what is in hand long before its claim is over."""
    popper = jobs(opened(), 5).popper(keep_alive=0)
    other = opened().queue("jobs").popper()
    (message,) = popper.pop(1)
    message.extend(TIMEOUT / 20)
    popper.commit([message])
    assert payloads(popper.pop(1)) == [b"1"]
    for seconds in (TIMEOUT / 10, TIMEOUT * 0.9 - 0.001):
        clock.advance(seconds)
        assert one(other) is None
    clock.advance(0.001)
    assert one(other) == b"1"


def test_a_lock_that_could_not_be_renewed_is_renewed_before_the_next_claim(
    opened: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another popper gets what is in hand before its claim is over."""
    client = opened()
    popper = jobs(client, 20).popper(keep_alive=0)
    other = opened().queue("jobs").popper()
    assert one(popper) == b"0"
    for number in range(1, 13):
        clock.advance(STALE_SHARE * TIMEOUT / 12)
        assert one(popper) == b"%d" % number
    clock.advance(0.1)
    assert client.ports.turns is not None
    (turn,) = client.ports.turns._kept.values()
    with monkeypatch.context() as patched:
        patched.setattr(turn.lock, "renew", failing_renewal)
        with pytest.raises(BackendTimeoutError):
            popper.pop(1)
    assert payloads(popper.pop(1)) == [b"13"]
    for _ in range(10 * TIMEOUT - 1):
        clock.advance(0.1)
        assert one(other) is None
    clock.advance(0.1)
    assert one(other) == b"13"


def failing_renewal(ttl_ms: int) -> bool:
    raise BackendTimeoutError("no answer", outcome_unknown=True)


def test_a_lock_is_renewed_in_the_background(opened: Open, clock: ManualClock) -> None:
    client = opened()
    popper = jobs(client, 20).popper()
    assert one(popper) == b"0"
    assert client.ports.turns is not None
    (turn,) = client.ports.turns._kept.values()
    for _ in range(10):
        clock.advance(0.1)
        held = popper.pop(1)
        popper.maintain()
        assert clock.boot_ms() - turn.renewed_ms <= 0.06 * 1000 * TIMEOUT
        popper.commit(held)
    assert turn.state is TurnState.RESTING


def test_a_popper_that_lost_its_lock_meanwhile_is_refused(opened: Open, clock: ManualClock) -> None:
    popper = jobs(opened(), 5).popper(keep_alive=0)
    other = opened().queue("jobs").popper()
    assert one(popper) == b"0"
    held = popper.pop(1)
    clock.advance(TIMEOUT)
    taken = other.pop(1)
    assert [(m.payload, m.attempts) for m in taken] == [(b"1", 2)]
    with pytest.raises(ClaimLostError):
        popper.commit(held)
    assert one(popper) is None
    other.commit(taken)
    other.close()
    assert one(popper) == b"2"


def test_a_nacked_message_comes_again_before_later_ones(opened: Open) -> None:
    popper = jobs(opened(), 5).popper()
    assert one(popper) == b"0"
    for message in popper.pop(3):
        if message.payload == b"1":
            message.nack()
    assert [(m.payload, m.attempts) for m in popper.pop(5)] == [
        *[(b"1", 2)],
    ]


def test_what_others_did_to_the_pipe_meanwhile_is_seen(opened: Open) -> None:
    """A purge moves the group past what its popper has not taken."""
    client = opened()
    queue = jobs(client, 5)
    popper = queue.popper()
    assert one(popper) == b"0"
    queue.purge()
    push(queue, b"after")
    found = [one(popper) for _ in range(3)]
    assert [payload for payload in found if payload is not None] == [b"after"]


def test_a_lock_extended_for_hours_is_released_with_its_message(opened: Open) -> None:
    popper = jobs(opened(), 5).popper()
    other = opened().queue("jobs").popper()
    (message,) = popper.pop(1)
    message.extend(3600)
    popper.commit([message])
    assert one(other) == b"1"


def test_nothing_is_left_of_turns_and_requests(opened: Open, clock: ManualClock) -> None:
    client = opened()
    popper = jobs(client, 60).popper()
    second = opened()
    other = second.queue("jobs").popper()
    some(popper, clock, TURN_MS)
    assert one(other) is None
    some(popper, clock, LOOK_MS + 60)
    assert one(other) is not None
    other.maintain()
    (group,) = client.ports.catalog.queues.groups(client.queue("jobs").id)
    assert client.ports.catalog.leases.owner(turn_lease(group.id)) is None


@pytest.mark.waits(reason="turns last for a tenth of a second")
@pytest.mark.parametrize("workers", [2, 8])
def test_workers_that_compete_all_get_turns_and_keep_the_order(place: Place, workers: int) -> None:
    """In real time, each with a client of its own."""
    clients = [keeping(place, SystemClock()) for _ in range(workers)]
    queue = clients[0].create_queue("jobs", consistency="cp")
    order: list[tuple[int, bytes]] = []
    with ExitStack() as stack:
        for each in clients:
            stack.enter_context(each)
        count = 1000 * workers  # far more than it takes until each had a turn
        with queue.pusher() as pusher:
            pusher.push_many(numbers(count))

        def work(number: int) -> None:
            with clients[number].queue("jobs").popper() as popper:
                while len({who for who, _ in order}) < workers or len(order) < 20 * workers:
                    messages = popper.pop(1, wait=0.2)
                    order.extend((number, payload) for payload in payloads(messages))
                    clients[number].ports.clock.sleep(0.005)
                    popper.commit(messages)
                    if len(order) >= count:
                        return

        in_threads(workers, work)
    assert [payload for _, payload in order] == numbers(len(order))
    assert {who for who, _ in order} == set(range(workers)), "nobody starves"
