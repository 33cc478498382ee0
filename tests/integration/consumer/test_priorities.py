"""Priorities: what comes first, what keeps its priority, and that an unused one costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.consumer.claiming.candidates import REFRESH_MS, URGENT_MS
from tests.integration.places import Place
from tests.integration.producer.test_group_commit import CountingDisk
from tests.integration.stage import (
    Connect,
    alone,
    client_on,
    drain,
    numbers,
    payloads,
    pipe_files,
    push,
    reap,
)
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]

SHARE = 4


def push_all(queue: cassq.Queue, *levels: int, each: int = 1) -> None:
    """Messages named after their priorities."""
    with queue.pusher() as pusher:
        for level in levels:
            for n in range(each):
                pusher.push(b"%d.%d" % (level, n), priority=level)


def taken(popper: cassq.Popper, count: int) -> list[bytes]:
    """Pop one by one, and commit."""
    found: list[bytes] = []
    for _ in range(count):
        messages = popper.pop()
        found += payloads(messages)
        popper.commit(messages)
    return found


def beside(timed: cassq.Client, clock: ManualClock, place: Place) -> cassq.Client:
    """Another client of the same place, on the test's clock."""
    other = cassq.Client(timed.url, place.open(clock), clock)
    other.runtime.housekeeper.stop()
    return other


def levels_of(found: Sequence[bytes]) -> list[int]:
    return [int(payload[:1]) for payload in found]


# --- order ------------------------------------------------------------------------------------


def test_the_most_urgent_comes_first_and_each_priority_in_order(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", priority_share=0)
    push_all(queue, 0, 5, 9, 1, each=3)
    found = [(m.priority, m.payload) for m in drain(queue.popper(), 1)]
    assert found == [(level, b"%d.%d" % (level, n)) for level in (9, 5, 1, 0) for n in range(3)]


def test_what_is_pushed_later_goes_before_what_waits(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", priority_share=0)
    popper = queue.popper()
    push_all(queue, 0, each=5)
    assert taken(popper, 1) == [b"0.0"]
    push_all(queue, 3)
    push_all(queue, 7)
    assert taken(popper, 5) == [b"7.0", b"3.0", b"0.1", b"0.2", b"0.3"]
    push_all(queue, 3)
    assert taken(popper, 3) == [b"3.0", b"0.4"]


def test_a_pop_of_many_takes_the_most_urgent_alone(client: cassq.Client) -> None:
    """A claim is of one pipe; the next one goes on with what comes after."""
    queue = client.create_queue("jobs", priority_share=0)
    push_all(queue, 0, 9, each=3)
    popper = queue.popper()
    assert levels_of(payloads(popper.pop(100))) == [9, 9, 9]
    assert levels_of(payloads(popper.pop(100))) == [0, 0, 0]


def test_redeliveries_in_one_pop_go_by_priority(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", priority_share=0)
    push_all(queue, 0, 4, 8, each=3)
    popper = queue.popper()
    for _ in range(3):
        popper.release(popper.pop(100))  # of a claim's pipe, or of all that came back
    while len(messages := popper.pop(100)) < 9:
        popper.release(messages)
    assert levels_of(payloads(messages)) == [8] * 3 + [4] * 3 + [0] * 3


def test_an_iteration_goes_by_priority(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", priority_share=0)
    push_all(queue, 0, 4, 8, each=20)
    found: list[int] = []
    for message in (popper := queue.popper()):
        found.append(message.priority)
        message.ack()
        if len(found) == 60:
            popper.stop()
    assert found == [8] * 20 + [4] * 20 + [0] * 20


def test_what_was_prefetched_waits_for_what_is_more_urgent(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", priority_share=0)
    push(queue, *numbers(1000))
    popper, urgent = queue.popper(), queue.pusher()
    urgent.push(b"first", priority=1)
    assert taken(popper, 1) == [b"first"], "its pipe is known from now on"
    while not len(popper._buffer):
        messages = popper.pop()
        assert len(messages) == 1
        clock.advance(0.01)
        popper.commit(messages)
    for n in range(3):
        urgent.push(b"urgent %d" % n, priority=1)
    found = taken(popper, 4)
    assert found[:3] == [b"urgent 0", b"urgent 1", b"urgent 2"]
    assert len(popper._buffer), "what was prefetched comes after it, in order"
    rest = drain(popper, 1)
    assert [int(m.payload) for m in rest] == list(range(int(found[3]) + 1, 1000))


def test_another_clients_first_message_of_a_priority_is_seen_within_a_second(
    timed: cassq.Client, clock: ManualClock, place: Place
) -> None:
    with beside(timed, clock, place) as other:
        queue = timed.create_queue("jobs", priority_share=0)
        push(queue, *numbers(5))
        popper = queue.popper()
        assert taken(popper, 1) == [b"0"]
        pusher = other.queue("jobs").pusher()
        pusher.push(b"urgent", priority=9)
        clock.advance(REFRESH_MS / 1000)
        assert taken(popper, 1) == [b"urgent"]


@pytest.mark.embedded_only(reason="in a keyspace it takes a round trip")
def test_in_a_directory_it_is_seen_within_some_milliseconds(
    timed: cassq.Client, clock: ManualClock, place: Place
) -> None:
    with beside(timed, clock, place) as other:
        queue = timed.create_queue("jobs", priority_share=0)
        push(queue, *numbers(5))
        popper = queue.popper()
        assert taken(popper, 1) == [b"0"]
        pusher = other.queue("jobs").pusher()
        pusher.push(b"urgent", priority=9)
        clock.advance(URGENT_MS / 1000)
        assert taken(popper, 1) == [b"urgent"]
        pusher.push(b"again", priority=9)
        assert taken(popper, 2) == [b"again", b"1"], "its pipe is known: at once"


def test_messages_of_one_priority_keep_the_order_of_a_queue_without(client: cassq.Client) -> None:
    """One pusher, one popper: first in, first out, over pipes too."""
    queue = client.create_queue("jobs", max_pushes_per_pipe=10, max_pop_width=1)
    with queue.pusher() as pusher:
        for n in range(45):
            pusher.push(b"%d" % n, priority=2)
    assert payloads(drain(queue.popper(), 1)) == numbers(45)


# --- shares -----------------------------------------------------------------------------------


def test_none_starves_every_so_many_claims_one_is_of_the_least(timed: cassq.Client) -> None:
    queue = timed.create_queue("jobs", priority_share=SHARE)
    push_all(queue, 0, 5, 9, each=30)
    found = levels_of(taken(queue.popper(), 60))
    turns = [n for n, level in enumerate(found) if level == 0]
    assert [b - a for a, b in pairwise(turns)] == [SHARE] * (len(turns) - 1)
    assert turns[0] < SHARE
    assert found.count(0) == 60 // SHARE
    others = [level for level in found if level != 0]
    assert others == sorted(others, reverse=True), "all others strictly by priority"


def test_by_default_it_is_every_sixteenth(timed: cassq.Client) -> None:
    queue = timed.create_queue("jobs")
    assert queue.policy.priority_share == 16
    push_all(queue, 0, 9, each=30)
    found = levels_of(taken(queue.popper(), 32))
    assert [n for n, level in enumerate(found) if level == 0] == [15, 31]


def test_the_pipes_of_the_least_priority_have_their_turns_too(timed: cassq.Client) -> None:
    """Among those claims that are theirs, between the others."""
    queue = timed.create_queue("jobs", priority_share=2)
    for name in (b"a", b"b"):
        push(queue, *[name] * 20)
    push_all(queue, 9, each=25)
    found = taken(queue.popper(), 20)
    assert (found.count(b"a"), found.count(b"b")) == (5, 5)


def test_a_share_of_0_is_strict(timed: cassq.Client) -> None:
    queue = timed.create_queue("jobs", priority_share=0)
    push_all(queue, 0, 9, each=60)
    assert levels_of(taken(queue.popper(), 60)) == [9] * 60


def test_a_share_can_be_changed_while_poppers_run(timed: cassq.Client) -> None:
    queue = timed.create_queue("jobs", priority_share=0)
    push_all(queue, 0, 9, each=30)
    popper = queue.popper()
    assert levels_of(taken(popper, 10)) == [9] * 10
    queue.update(priority_share=2)
    assert levels_of(taken(popper, 8)).count(0) == 4


def test_the_least_that_waits_has_its_turn_among_redeliveries_too(
    timed: cassq.Client, clock: ManualClock
) -> None:
    """Messages of a priority that keep failing do not hold up the others for good."""
    queue = timed.create_queue("jobs", priority_share=SHARE, max_deliveries=1000)
    push_all(queue, 0, 9, each=4)
    popper = queue.popper()
    seen: list[int] = []
    for _ in range(8 * SHARE):
        (message,) = popper.pop()
        seen.append(message.priority)
        if message.priority:
            popper.rollback([message], delay=0)
        else:
            popper.commit([message])
        clock.advance(0.05)
    assert seen.count(0) == 4


# --- kept -------------------------------------------------------------------------------------


def test_a_retry_keeps_its_priority_and_goes_before_lower_ones(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", priority_share=0, retry_schedule=[10])
    push_all(queue, 0, 6, each=3)
    popper = queue.popper()
    (failed,) = popper.pop()
    failed.nack(error="no")
    popper.flush()
    assert taken(popper, 3) == [b"6.1", b"6.2", b"0.0"]
    clock.advance(11)
    (again,) = popper.pop()
    assert (again.payload, again.priority, again.attempts) == (b"6.0", 6, 2)


def test_an_expired_claim_of_a_priority_goes_before_lower_ones(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", priority_share=0, claim_timeout=5)
    push_all(queue, 0, 6, each=2)
    (held,) = queue.popper(keep_alive=0).pop()
    clock.advance(6)
    found = [(m.payload, m.priority) for m in drain(queue.popper(), 1)]
    assert found == [(b"6.0", 6), (b"6.1", 6), (b"0.0", 0), (b"0.1", 0)]
    assert held.priority == 6


def test_a_lower_redelivery_does_not_go_before_higher_new_messages(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", priority_share=0)
    push_all(queue, 1)
    popper = queue.popper()
    popper.rollback(popper.pop(), delay=1)
    push_all(queue, 0, 5, each=2)
    clock.advance(2)
    found: list[bytes] = []
    for _ in range(5):
        found += taken(popper, 1)
        clock.advance(0.05)
    assert found == [b"5.0", b"5.1", b"1.0", b"0.0", b"0.1"]


def test_many_lower_redeliveries_do_not_hide_a_higher_one(
    timed: cassq.Client, clock: ManualClock
) -> None:
    """More than are listed at once."""
    queue = timed.create_queue("jobs", priority_share=0)
    push(queue, *numbers(600))
    popper = queue.popper()
    for message in popper.pop(600)[::2]:
        message.nack(delay=1)
    popper.flush()
    push_all(queue, 2)
    popper.rollback(popper.pop(), delay=2)
    clock.advance(3)
    assert taken(popper, 1) == [b"2.0"]


def test_dead_letters_keep_their_priority_and_bring_it_back(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", priority_share=0)
    alone(client)
    push_all(queue, 0, 8)
    popper = queue.popper()
    for _ in range(2):
        popper.dead(popper.pop(), "bad")
    dead = queue.dead_letters()
    assert {letter.payload: letter.priority for letter in dead.peek()} == {b"8.0": 8, b"0.0": 0}
    assert [(m.payload, m.priority) for m in popper.pop(2)] == []
    letters = client.queue("jobs~default~dead")
    assert {m.payload: m.priority for m in letters.popper().pop(2)}, "and can be popped"
    letters.popper().close()


@pytest.mark.parametrize("whole", [True, False])
def test_a_merge_brings_dead_letters_back_with_their_priority(
    client: cassq.Client, whole: bool
) -> None:
    """whole: their pipes are given back; otherwise letters are chosen, and copied."""
    queue = client.create_queue("jobs", priority_share=0)
    alone(client)
    push_all(queue, 0, 3, 8)
    popper = queue.popper()
    for _ in range(3):
        popper.dead(popper.pop(), "bad")
    outcome = queue.dead_letters().merge(**({} if whole else {"reason": "rejected"}))
    assert outcome.messages == 3
    assert bool(outcome.pipes) == whole
    found = [(m.payload, m.priority) for m in drain(popper, 1)]
    assert found == [(b"8.0", 8), (b"3.0", 3), (b"0.0", 0)]


def test_exported_letters_keep_their_priority(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", priority_share=0)
    alone(client)
    push_all(queue, 0, 8)
    popper = queue.popper()
    for _ in range(2):
        popper.dead(popper.pop(), "bad")
    dead = queue.dead_letters()
    lines = [letter.to_json() for letter in dead.peek()]
    assert dead.purge(everything=True).messages == 2
    assert dead.import_(lines, to_queue=True).messages == 2
    assert [(m.payload, m.priority) for m in drain(popper, 1)] == [(b"8.0", 8), (b"0.0", 0)]


def test_a_delayed_message_keeps_its_priority(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", priority_share=0)
    pusher = queue.pusher()
    for level in (0, 7, 2):
        pusher.push(b"%d.due" % level, delay=5, priority=level)
    push_all(queue, 0, 4)
    popper = queue.popper()
    assert taken(popper, 1) == [b"4.0"]
    clock.advance(6)
    found = [(m.payload, m.priority) for m in drain(popper, 1)]
    assert found == [(b"7.due", 7), (b"2.due", 2), (b"0.0", 0), (b"0.due", 0)]


def test_each_group_gets_messages_by_priority(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", priority_share=0)
    queue.create_group("other")
    queue.create_group("alone", exclusive=True)
    push_all(queue, 0, 9, 4)
    for group in ("default", "other", "alone"):
        assert payloads(drain(queue.popper(group), 1)) == [b"9.0", b"4.0", b"0.0"], group


def test_a_group_in_the_order_of_keys_keeps_it_within_a_priority(client: cassq.Client) -> None:
    """A key's messages of two priorities are in two pipes: nothing orders them."""
    queue = client.create_queue("jobs", priority_share=0)
    queue.create_group("keyed", order="key")
    with queue.pusher() as pusher:
        for n in range(10):
            pusher.push(b"0.%d" % n, key=b"k")
            pusher.push(b"5.%d" % n, key=b"k", priority=5)
    found = payloads(drain(queue.popper("keyed"), 1))
    for level in (b"0", b"5"):
        assert [p for p in found if p.startswith(level)] == [level + b".%d" % n for n in range(10)]
    assert len(found) == 20
    assert found[0] == b"5.0", "what was claimed first is the most urgent"


def test_a_keyed_group_goes_by_priority_too(timed: cassq.Client, clock: ManualClock) -> None:
    """Also before what it has in line already; and now and then by the least."""
    queue = timed.create_queue("jobs", priority_share=0)
    queue.create_group("keyed", order="key")
    popper, pusher = queue.popper("keyed"), queue.pusher()
    for n in range(20):
        pusher.push(b"0.%d" % n, key=b"k%d" % n)
    assert taken(popper, 1) == [b"0.0"], "all of them are in line"
    for n in range(6):
        pusher.push(b"7.%d" % n, key=b"u%d" % (n % 2), priority=7)
    clock.advance(REFRESH_MS / 1000)
    assert taken(popper, 8) == [b"7.%d" % n for n in range(6)] + [b"0.1", b"0.2"]
    queue.update(priority_share=SHARE)
    for n in range(20):
        pusher.push(b"7.%d" % n, key=b"x%d" % n, priority=7)
    found = levels_of(taken(popper, 5 * SHARE))
    assert found.count(0) == 5


def test_messages_of_a_key_come_one_after_another_whatever_their_priorities(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs", priority_share=0)
    queue.create_group("keyed", order="key")
    with queue.pusher() as pusher:
        pusher.push(b"low", key=b"k")
        popper = queue.popper("keyed")
        (low,) = popper.pop()
        pusher.push(b"high", key=b"k", priority=9)
        assert popper.pop() == []
        popper.commit([low])
        assert payloads(popper.pop(wait=5)) == [b"high"]


# --- what it costs ----------------------------------------------------------------------------


def cost_of(directory: Path, act: Callable[[cassq.Queue], object]) -> tuple[int, int, int, int]:
    """Syncs of pipes, commits of the catalog, synced ones, and rows, of what is done to a queue."""
    disk, commits = CountingDisk(), []
    directory.mkdir()
    with client_on(directory, disk, committed=commits.append) as client:
        client.runtime.housekeeper.stop()
        queue = client.create_queue("jobs", priority_share=16)
        act(queue)
        rows = len(client.ports.catalog.pipes.live(queue.id))
        files = len(pipe_files(client))
        assert rows == files
        return disk.syncs, len(commits), sum(commits), rows


@pytest.mark.embedded_only(reason="it counts syncs and rows of a directory")
def test_unused_priorities_cost_nothing(tmp_path: Path) -> None:
    """A priority of 0 given, and none: the same syncs, commits and pipes; as many as one pipe
    needs. One that is used costs its own pipe, and each push to it as much as any."""

    def work(**priority: int) -> Callable[[cassq.Queue], object]:
        def act(queue: cassq.Queue) -> None:
            pusher, popper = queue.pusher(), queue.popper()
            for n in range(5):
                pusher.push(b"%d" % n, **priority)
            assert len(drain(popper, 1)) == 5

        return act

    plain = cost_of(tmp_path / "plain", work())
    assert cost_of(tmp_path / "zero", work(priority=0)) == plain
    assert plain[0] >= 5
    assert plain[3] == 1, "one pipe"
    assert cost_of(tmp_path / "five", work(priority=5)) == plain


@pytest.mark.embedded_only(reason="it counts syncs and rows of a directory")
def test_a_list_of_priorities_costs_a_sync_for_each_that_is_used(tmp_path: Path) -> None:
    def act(priority: int | list[int]) -> Callable[[cassq.Queue], object]:
        return lambda queue: queue.pusher().push_many([b"x"] * 6, priority=priority)

    one = cost_of(tmp_path / "one", act(0))
    assert cost_of(tmp_path / "same", act([0] * 6)) == one
    two = cost_of(tmp_path / "two", act([0, 3] * 3))
    assert two[0] == 2 * one[0]
    assert two[3] == 2


def test_an_idle_pipe_of_a_priority_is_sealed_and_retired(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", idle_seal=5)
    pusher = queue.pusher()
    pusher.push(b"x", priority=4)
    drain(queue.popper(), 1)
    for level in pusher._levels.values():
        clock.advance(3)
        level.maintain()
        clock.advance(6)
        level.maintain()
    reap(timed)
    assert timed.ports.catalog.pipes.live(queue.id) == []
    assert pusher.push(b"y", priority=4)


# --- pushing ----------------------------------------------------------------------------------


def test_ids_of_a_list_of_priorities_are_in_the_order_of_the_payloads(queue: cassq.Queue) -> None:
    priorities = [0, 9, 3, 9, 0, 3]
    ids = queue.pusher().push_many(numbers(6), priority=priorities, keys=[b"k"] * 6)
    found = {m.payload: (str(m.id), m.priority, m.key) for m in drain(queue.popper())}
    assert found == {b"%d" % n: (ids[n], priorities[n], b"k") for n in range(6)}


def test_push_soon_takes_a_priority(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", priority_share=0)
    with queue.pusher() as pusher:
        futures = [pusher.push_soon(b"%d.0" % level, priority=level) for level in (0, 2, 9)]
        pusher.flush()
        assert all(future.done() for future in futures)
    assert payloads(drain(queue.popper(), 1)) == [b"9.0", b"2.0", b"0.0"]


def test_a_dedup_id_is_one_message_whatever_its_priority(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", dedup_window=60)
    pusher = queue.pusher()
    first = pusher.push(b"x", dedup_id="a", priority=2)
    assert pusher.push(b"x", dedup_id="a", priority=7) == first
    ids = pusher.push_many([b"x", b"y", b"z"], dedup_ids=["a", "b", "b"], priority=[0, 1, 9])
    assert ids[0] == first
    assert ids[1] == ids[2]
    assert {m.payload: m.priority for m in drain(queue.popper())} == {b"x": 2, b"z": 9}


def test_a_closed_pusher_pushes_no_priority(queue: cassq.Queue) -> None:
    pusher = queue.pusher()
    pusher.push(b"x", priority=3)
    pusher.close()
    for level in (0, 3, 4):
        with pytest.raises(cassq.errors.ClosedError):
            pusher.push(b"y", priority=level)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1], "priority has 1 numbers for 2 payloads"),
        ([1, 10], "priority must be a whole number from 0 to 9, not 10"),
        ([1, None], "priority must be a whole number from 0 to 9, not None"),
        ("12", "priority must be a whole number, or a list"),
        (None, "priority must be a whole number, or a list"),
        (True, "priority must be a whole number from 0 to 9"),
        (-1, "priority must be a whole number from 0 to 9"),
    ],
)
def test_bad_priorities_are_refused_before_anything_is_pushed(
    queue: cassq.Queue, wrong: object, message: str
) -> None:
    pusher = queue.pusher()
    with pytest.raises(cassq.errors.UsageError, match=message):
        pusher.push_many([b"a", b"b"], priority=wrong)  # type: ignore[arg-type]
    if not isinstance(wrong, (list, str)):
        for call in (pusher.push, pusher.push_soon):
            with pytest.raises(cassq.errors.UsageError, match="priority must be"):
                call(b"a", priority=wrong)  # type: ignore[arg-type]
    assert queue.stats().pushed == 0


def test_a_cp_queue_refuses_priorities(client: cassq.Client) -> None:
    queue = client.create_queue("strict", consistency="cp")
    pusher = queue.pusher()
    with pytest.raises(cassq.errors.UsageError, match="a cp queue delivers .* priority"):
        pusher.push(b"x", priority=1)
    with pytest.raises(cassq.errors.UsageError, match="a cp queue delivers .* priority"):
        pusher.push_many([b"x", b"y"], priority=[0, 1])
    assert queue.stats().pushed == 0
    pusher.push(b"x", priority=0)
    assert [m.priority for m in drain(queue.popper())] == [0]


def test_poppers_of_two_clients_share_by_priority(connect: Connect) -> None:
    one, two = connect(), connect()
    queue = one.create_queue("jobs", priority_share=0)
    push_all(queue, 0, 9, each=10)
    poppers = [queue.popper(), two.queue("jobs").popper()]
    found = [m.priority for _ in range(10) for popper in poppers for m in popper.pop()]
    assert found == [9] * 10 + [0] * 10
