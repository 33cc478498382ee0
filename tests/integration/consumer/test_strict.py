"""Strict queues (cp) and exclusive groups: one order for all, one holder at a time."""

from __future__ import annotations

import threading

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.errors import ClaimLostError, CorruptionError
from cassq.extents.files.disk import PAGE
from cassq.lifecycle.sealing import seal_pipe
from cassq.model.rows import PipeRow, PipeState
from tests.faults.actors import Act
from tests.integration.deadlines import eventually, in_threads, joined
from tests.integration.stage import (
    Connect,
    alone,
    drain,
    numbers,
    payloads,
    pipe_file,
    push,
    reap,
)
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


@pytest.fixture
def strict(client: cassq.Client) -> cassq.Queue:
    return client.create_queue("jobs", consistency="cp", claim_timeout=0.2)


def test_pushers_of_a_strict_queue_share_one_order(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", consistency="cp", max_pushes_per_pipe=40)
    returned: list[tuple[int, int, bytes]] = []
    clock = threading.Lock()
    tick = 0

    def now() -> int:
        nonlocal tick
        with clock:
            tick += 1
            return tick

    def work(number: int) -> None:
        with queue.pusher() as pusher:
            for n in range(60):
                began = now()
                payload = b"%d/%d" % (number, n)
                pusher.push(payload)
                returned.append((began, now(), payload))

    in_threads(3, work)
    order = {payload: at for at, payload in enumerate(payloads(drain(queue.popper())))}
    assert len(order) == 180
    # What had returned before another push began comes before it, whoever pushed.
    for _, end, payload in returned:
        assert all(order[payload] < order[p] for began, _, p in returned if began > end)


def test_pushers_in_processes_each_keep_their_order(
    strict: cassq.Queue, url: str, act: Act
) -> None:
    strict.update(claim_timeout=60)
    actors = [act("push_each", url, name, 0, 60) for name in "abc"]
    for actor in actors:
        actor.expect("done")
    found = payloads(drain(strict.popper()))
    assert len(found) == 180
    for name in "abc":
        mine = [payload for payload in found if payload.startswith(name.encode())]
        assert mine == [b"%s:%d" % (name.encode(), n) for n in range(60)]


def test_poppers_in_threads_and_processes_get_one_order(
    client: cassq.Client, url: str, act: Act, connect: Connect
) -> None:
    queue = client.create_queue("jobs", consistency="cp", max_pushes_per_pipe=50)
    push(queue, *numbers(300))
    order: list[bytes] = []
    far = act("pop_orderly", url, "default", 5)
    poppers = [queue.popper(), connect().queue("jobs").popper()]

    def work(number: int) -> None:
        while queue.stats().groups["default"].committed < 300:
            messages = poppers[number].pop(5, wait=0.05)
            order.extend(payloads(messages))  # before the commit: nobody may have any now
            poppers[number].commit(messages)

    in_threads(2, work)
    far.say("enough")
    assert far.join() == 0
    theirs = [payload for _, _, batch in far.reports("got") for payload in batch]
    assert sorted(order + theirs) == sorted(numbers(300))  # each once
    for mine in (order, theirs):
        assert [int(payload) for payload in mine] == sorted(map(int, mine))
    assert sum(popper.lost for popper in poppers) == 0


def test_poppers_of_one_client_pass_a_strict_queue_on_without_loss(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs", consistency="cp")
    push(queue, *numbers(200))
    order: list[bytes] = []

    def work(_: int) -> None:
        with queue.popper() as popper:
            while queue.stats().groups["default"].committed < 200:
                messages = popper.pop(5, wait=0.02)
                order.extend(payloads(messages))
                popper.commit(messages)

    in_threads(4, work)
    assert order == numbers(200)


def test_nothing_passes_an_unacked_message(strict: cassq.Queue) -> None:
    strict.update(claim_timeout=60)
    push(strict, *numbers(10))
    popper, other = strict.popper(), strict.popper()
    messages = popper.pop(3)
    assert payloads(messages) == numbers(3)
    assert popper.pop(3) == other.pop(3) == []
    popper.commit(messages[:2])
    assert popper.pop(3) == other.pop(3) == []
    popper.commit(messages[2:])
    assert payloads(other.pop(3)) == numbers(3, first=3)


def test_a_nacked_head_holds_the_queue_until_it_is_done(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", consistency="cp", claim_timeout=60)
    push(queue, *numbers(5))
    popper, other = queue.popper(), queue.popper()
    first, second, _ = popper.pop(3)
    popper.commit([first])
    second.nack(delay=1)  # what came after it in the claim goes back as well
    clock.advance(0.999)
    assert popper.pop(5) == other.pop(5) == []
    clock.advance(0.001)
    again = other.pop(5)
    assert (again[0].payload, again[0].attempts) == (b"1", 2)
    other.commit(again)
    assert payloads(again) + payloads(drain(other)) == numbers(4, first=1)


def test_what_was_behind_a_nacked_head_counts_as_untried(strict: cassq.Queue) -> None:
    strict.update(claim_timeout=60)
    push(strict, *numbers(3))
    popper = strict.popper()
    popper.pop(3)[0].nack()
    found = {m.payload: m.attempts for m in drain(popper)}
    assert found == {b"0": 2, b"1": 1, b"2": 1}


@pytest.mark.parametrize("done_by_the_other", [False, True])
def test_a_fenced_poppers_ack_is_refused(strict: cassq.Queue, done_by_the_other: bool) -> None:
    push(strict, *numbers(3))
    popper, other = strict.popper(keep_alive=0), strict.popper(keep_alive=0)
    messages = popper.pop(2)
    strict.update(claim_timeout=60)  # what is taken over is kept
    taken = eventually("the lock passes on", lambda: other.pop(3))
    assert [m.attempts for m in taken] == [2, 2]
    if done_by_the_other:
        other.commit(taken)
    for verb in (messages[0].ack, lambda: popper.commit(messages), messages[1].nack):
        with pytest.raises(ClaimLostError):
            verb()
    if not done_by_the_other:
        other.commit(taken)
    assert payloads(drain(other)) == [b"2"]
    assert strict.audit().findings == []


def test_a_strict_order_holds_across_pipes_and_waits_for_the_earlier_one(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs", consistency="cp", max_pushes_per_pipe=3)
    push(queue, *numbers(12))
    assert queue.stats().pipes["sealed"] == 4
    popper, other = queue.popper(), queue.popper()
    held = popper.pop(2)
    assert other.pop(10) == []
    popper.commit(held)
    found: list[bytes] = payloads(held)
    while messages := other.pop(10):
        found += payloads(messages)
        other.commit(messages)
    assert found == numbers(12)


def test_ids_of_a_strict_queue_rise_though_its_pipes_are_made_in_one_moment(
    timed: cassq.Client,
) -> None:
    queue = timed.create_queue("jobs", consistency="cp", max_pushes_per_pipe=1)
    with queue.pusher() as pusher:
        ids = [pusher.push(b"") for _ in range(10)]
    assert ids == sorted(ids)


def test_a_strict_queue_goes_on_after_its_pipes_are_retired(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", consistency="cp", max_pushes_per_pipe=3)
    pusher, popper = queue.pusher(), queue.popper()
    found: list[bytes] = []
    for first in range(0, 30, 5):
        pusher.push_many(numbers(5, first=first))
        found += payloads(drain(popper))
        reap(client)
    assert found == numbers(30)
    assert queue.stats().pipes["sealed"] == 0
    assert queue.audit().findings == []


def test_a_pipe_that_was_retired_since_it_was_listed_does_not_hide_the_next(
    client: cassq.Client,
) -> None:
    alone(client)
    queue = client.create_queue("jobs", consistency="cp", max_pushes_per_pipe=3)
    push(queue, *numbers(6))
    popper = queue.popper()
    popper.commit(popper.pop(3))
    popper.flush()
    reap(client)
    assert queue.stats().pipes["retired"] == 1
    assert payloads(popper.pop(3)) == numbers(3, first=3)


def test_the_turn_to_push_passes_from_an_idle_pusher(strict: cassq.Queue) -> None:
    strict.update(claim_timeout=60)
    one, other = strict.pusher(), strict.pusher()
    for n in range(0, 40, 2):
        one.push(b"%d" % n)
        other.push(b"%d" % (n + 1))
    one.close()
    other.close()
    assert payloads(drain(strict.popper())) == numbers(40)


def test_an_exclusive_group_gives_a_pipe_to_one_popper_at_a_time(queue: cassq.Queue) -> None:
    queue.create_group("single", exclusive=True)
    push(queue, *numbers(4))
    push(queue, *numbers(4, first=10))
    one, other, third = (queue.popper("single") for _ in range(3))
    mine, yours = one.pop(2), other.pop(2)
    assert [payloads(mine), payloads(yours)] == [numbers(2), numbers(2, first=10)]
    assert third.pop(2) == []  # both pipes are taken
    one.commit(mine)
    assert payloads(third.pop(2)) == numbers(2, first=2)
    other.commit(yours)


def test_an_exclusive_group_hands_a_silent_holders_pipe_on(client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    queue.create_group("single", exclusive=True, claim_timeout=0.1)
    push(queue, *numbers(3))
    silent, other = queue.popper("single", keep_alive=0), queue.popper("single", keep_alive=0)
    messages = silent.pop(2)
    taken = eventually("the lock passes on", lambda: other.pop(2))
    assert [(m.payload, m.attempts) for m in taken] == [(b"0", 2), (b"1", 2)]
    with pytest.raises(ClaimLostError):
        silent.commit(messages)


def test_a_group_beside_an_exclusive_one_shares_as_ever(queue: cassq.Queue) -> None:
    queue.create_group("single", exclusive=True)
    push(queue, *numbers(10))
    queue.popper("single").pop(5)
    one, other = queue.popper(), queue.popper()
    assert payloads(one.pop(5)) + payloads(other.pop(5)) == numbers(10)


def test_a_waiting_strict_popper_is_woken_when_its_turn_comes(strict: cassq.Queue) -> None:
    strict.update(claim_timeout=60)
    push(strict, *numbers(2))
    popper, waiting = strict.popper(), strict.popper()
    held = popper.pop(1)
    found: list[bytes] = []
    thread = threading.Thread(
        target=lambda: found.extend(payloads(waiting.pop(1, wait=30))), daemon=True
    )
    thread.start()
    popper.commit(held)
    joined("the waiting popper", thread)
    assert found == [b"1"]


def test_what_was_claimed_ahead_waits_while_a_message_is_unacked(timed: cassq.Client) -> None:
    queue = timed.create_queue("jobs", consistency="cp")
    push(queue, *numbers(20))
    popper = queue.popper()
    messages = iter(popper)
    next(messages).ack()
    second = next(messages)
    assert queue.stats().groups["default"].pending > 1, "some are claimed ahead"
    assert popper.pop(5) == []
    second.ack()
    assert payloads(popper.pop(1)) == [b"2"]


def add_empty_pipe(queue: cassq.Queue, client: cassq.Client) -> None:
    """A pipe behind all others of a strict queue, sealed before anything was written."""
    ports = client.ports
    row = ports.catalog.queues.by_id(queue.id)
    assert row is not None
    pipe_id = ports.ids.new(ports.catalog.now_ms())
    ports.store.create(pipe_id, queue.name, strict=True).close()
    empty = PipeRow(pipe_id, queue.id, PipeState.OPEN, "me", 5, 9, predecessor=row.tail)
    assert ports.catalog.pipes.add(empty)
    assert seal_pipe(ports.catalog, ports.store, pipe_id) is not None


@pytest.mark.parametrize("empty_between", [False, True])
def test_a_pipe_waits_until_what_is_before_it_is_acked_and_not_only_claimed(
    timed: cassq.Client, empty_between: bool
) -> None:
    """Also behind an empty one, and also when the first is claimed to its end."""
    queue = timed.create_queue("jobs", consistency="cp")
    push(queue, *numbers(3))
    if empty_between:
        add_empty_pipe(queue, timed)
    push(queue, b"after")
    popper, other = queue.popper(), queue.popper()
    held = popper.pop(3)
    assert payloads(held) == numbers(3)
    assert other.pop(10) == []
    popper.commit(held[:2])
    assert other.pop(10) == []
    popper.commit(held[2:])
    assert payloads(other.pop(10)) == [b"after"]


@pytest.mark.embedded_only(reason="it damages a file")
@pytest.mark.parametrize("empty_between", [False, True])
def test_nothing_follows_a_damaged_pipe_that_is_claimed_and_not_acked(
    timed: cassq.Client, clock: ManualClock, empty_between: bool
) -> None:
    """It is left alone by who cannot read it, and so is what comes after it."""
    queue = timed.create_queue("jobs", consistency="cp", claim_timeout=10)
    message_id = push(queue, *numbers(3))[0]
    if empty_between:
        add_empty_pipe(queue, timed)
    push(queue, b"after")
    assert len(queue.popper().pop(3)) == 3, "it is claimed to its end"
    path = pipe_file(timed, message_id.split(":")[0])
    data = bytearray(path.read_bytes())
    data[PAGE + 40] ^= 1
    path.write_bytes(data)
    clock.advance(20)
    other = queue.popper()
    with pytest.raises(CorruptionError):
        other.pop(10)
    assert list(other.broken) == [message_id.split(":")[0]]
    for _ in range(3):
        assert other.pop(10) == []
        clock.advance(2)


def test_each_popper_that_gets_a_pipe_s_lock_raises_its_epoch(
    timed: cassq.Client, clock: ManualClock
) -> None:
    """Whatever its last holder still writes is refused, also where that left no claim open."""
    policy = {"claim_timeout": 10, "sick_check": False}
    queue = timed.create_queue("jobs", consistency="cp", **policy)
    push(queue, *numbers(3))
    (group,) = timed.ports.catalog.queues.groups(queue.id)
    (pipe,) = timed.ports.catalog.pipes.live(queue.id)
    epochs: list[int] = []
    for _ in range(3):
        assert len(queue.popper().pop(1)) == 1
        cursor = timed.ports.catalog.claims.cursor(group.id, pipe.id)
        assert cursor is not None
        epochs.append(cursor.epoch)
        clock.advance(20)
    assert epochs == sorted(set(epochs))
