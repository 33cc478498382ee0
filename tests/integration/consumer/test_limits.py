"""Limits of a group: a rate, and how many messages are in hand, over all of its poppers."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from click.testing import CliRunner

import cassq
from cassq.base.clock import ManualClock
from cassq.catalog.port import limit_names
from cassq.cli.main import main
from cassq.errors import BackendTimeoutError, ConfigError
from cassq.inspect.metrics import queue_metrics
from cassq.model.limits import slots_of
from tests.integration.places import Place
from tests.integration.stage import Connect
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


def push(queue: cassq.Queue, count: int, key: bytes | None = None) -> None:
    with queue.pusher() as pusher:
        pusher.push_many([b"%d" % number for number in range(count)], keys=key and [key] * count)


def pass_time(clock: ManualClock, popper: cassq.Popper, ms: int) -> None:
    """Let time pass, in which a popper's housekeeper does its work."""
    for _ in range(ms // 100):
        clock.advance(0.1)
        popper.maintain()


# --- concurrency --------------------------------------------------------------------------------


def test_poppers_together_never_have_more_in_hand(queue: cassq.Queue, connect: Connect) -> None:
    queue.update(concurrency=3)
    push(queue, 20)
    first = queue.popper()
    second = connect().queue("jobs").popper()
    held = [*first.pop(2), *second.pop(10)]
    assert len(held) == 3
    assert [*first.pop(10), *second.pop(10)] == []
    held[2].ack()
    assert len(second.pop(10)) == 1
    first.commit(held[:2])
    assert len(first.pop(10)) == 2


def test_all_of_them_are_used_and_all_messages_come(queue: cassq.Queue, connect: Connect) -> None:
    queue.update(concurrency=4)
    push(queue, 400)
    inside, most, done = 0, 0, Counter[bytes]()
    mutex = threading.Lock()
    met = threading.Barrier(4, timeout=60)

    def work() -> None:
        nonlocal inside, most
        popper = connect().queue("jobs").popper()
        while messages := popper.pop(1, wait=2):
            with mutex:
                inside += 1
                most = max(most, inside)
                first = len(done) < 4
                done[messages[0].payload] += 1
            if first:
                met.wait()  # so many are in hand at once
            with mutex:
                inside -= 1
            messages[0].ack()
        popper.close()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 4
    assert len(done) == done.total() == 400


@pytest.mark.parametrize("poppers", [1, 4])
def test_nearly_all_that_is_allowed_is_in_hand_under_load(
    timed: cassq.Client, clock: ManualClock, poppers: int
) -> None:
    """Consumers ask for more every ten milliseconds, and need some tenths of a second for each."""
    queue, rng = timed.create_queue("jobs", concurrency=10), random.Random(7)
    push(queue, 1500)
    found = [queue.popper() for _ in range(poppers)]
    hands: list[tuple[int, cassq.Message]] = []
    counts: list[int] = []
    for at_ms in range(0, 8_000, 10):
        for _, message in [each for each in hands if each[0] <= at_ms]:
            message.ack()
        hands = [each for each in hands if each[0] > at_ms]
        for popper in found:
            messages = popper.pop(rng.randint(1, 3))
            hands += [(at_ms + rng.randint(50, 400), message) for message in messages]
            popper.maintain()
        counts.append(len(hands))
        clock.advance(0.01)
    assert max(counts) == 10
    assert sum(counts) >= 0.9 * 10 * len(counts)


def test_an_iteration_claims_nothing_ahead(queue: cassq.Queue, connect: Connect) -> None:
    queue.update(concurrency=5)
    push(queue, 50)
    popper = queue.popper()
    seen = iter(popper)
    for _ in range(20):
        next(seen).ack()
    message = next(seen)
    popper.flush()
    assert queue.stats().groups["default"].pending == 1
    assert len(connect().queue("jobs").popper().pop(10)) == 4
    message.ack()


def test_a_popper_that_closes_leaves_its_permits(queue: cassq.Queue, connect: Connect) -> None:
    queue.update(concurrency=2)
    push(queue, 10)
    first = queue.popper()
    second = connect().queue("jobs").popper()
    assert len(first.pop(2)) == 2
    assert second.pop(2) == []
    first.close()
    assert len(second.pop(2)) == 2


def test_a_popper_that_finds_nothing_leaves_its_permits(
    queue: cassq.Queue, connect: Connect
) -> None:
    queue.create_group("keyed", order="key", concurrency=1)
    queue.delete_group("default")
    push(queue, 2, key=b"a")
    first = queue.popper("keyed")
    (message,) = first.pop(5)
    message.ack()
    first.flush()
    second = connect().queue("jobs").popper("keyed")
    for _ in range(5):
        assert second.pop(5) == []  # the first one has the lane
    assert len(first.pop(5)) == 1


def test_permits_that_may_have_gone_back_are_not_used(
    queue: cassq.Queue, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.update(concurrency=2)
    push(queue, 9)
    client = connect()
    popper = client.queue("jobs").popper()
    popper.commit(popper.pop(2))
    swap = client.ports.catalog.leases.swap

    def lost_answer(*texts: str) -> bool:
        swap(*texts)
        raise BackendTimeoutError("it may be written")

    with monkeypatch.context() as patch:
        patch.setattr(client.ports.catalog.leases, "swap", lost_answer)
        with pytest.raises(BackendTimeoutError):
            popper._limits.give_back()
    assert len([*queue.popper().pop(9), *popper.pop(2)]) == 2


def test_permits_that_are_not_used_go_back(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", concurrency=4)
    push(queue, 20)
    first, second = queue.popper(), queue.popper()
    messages = first.pop(4)
    for message in messages[1:]:
        message.ack()
    first.flush()
    assert second.pop(4) == []
    pass_time(clock, first, 1000)
    assert len(second.pop(4)) == 3


def test_a_long_task_keeps_its_permit(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", concurrency=1, claim_timeout=2)
    push(queue, 2)
    first, second = queue.popper(), queue.popper()
    (message,) = first.pop(1)
    for _ in range(100):
        pass_time(clock, first, 200)
        assert second.pop(1) == []
    message.ack()
    first.close()
    assert len(second.pop(1)) == 1


KILLED = """
import os, sys, cassq
popper = cassq.connect(sys.argv[1]).queue("jobs").popper()
print(len(popper.pop(2)), flush=True)
os.kill(os.getpid(), 9)
"""


def test_the_permits_of_a_killed_popper_come_back(client: cassq.Client, place: Place) -> None:
    queue = client.create_queue("jobs", concurrency=2, claim_timeout=0.5)
    push(queue, 4)
    child = subprocess.run([sys.executable, "-c", KILLED, place.url], capture_output=True)
    assert child.stdout == b"2\n", child.stderr
    popper = queue.popper()
    done: set[bytes] = set()
    while len(done) < 4:
        messages = popper.pop(4, wait=60)
        assert 1 <= len(messages) <= 2
        done |= {message.payload for message in messages}
        popper.commit(messages)


def test_what_was_claimed_after_its_permits_were_over_is_not_handed_out(
    timed: cassq.Client, place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A popper that is paused between the two, or has a slow catalog, may find that others have
    permits now: then it gives back what it claimed."""
    queue = timed.create_queue("jobs", concurrency=3, claim_timeout=6)
    push(queue, 5)
    paused, claims = queue.popper(), timed.ports.catalog.claims
    claim, theirs = claims.claim, list[cassq.Message]()
    with cassq.Client(place.url, place.open(clock), clock) as client:
        other = client.queue("jobs").popper()

        def pause_and_claim(*args: Any, **settings: Any) -> bool:
            monkeypatch.undo()
            clock.advance(2 * 6 + 1)
            theirs.extend(other.pop(2))
            return claim(*args, **settings)

        monkeypatch.setattr(claims, "claim", pause_and_claim)
        mine = [*paused.pop(3)]
        assert (len(mine), len(theirs)) == (1, 2)
        paused.commit(mine)
        other.commit(theirs)
        rest = other.pop(10)
        assert [message.attempts for message in rest] == [1, 1], "they were not tried before"


def test_what_a_closed_popper_left_with_a_deadline_does_not_count(queue: cassq.Queue) -> None:
    queue.update(concurrency=1)
    push(queue, 2)
    with queue.popper() as first:
        receipt = first.pop(1)[0].receipt
        queue.settle(receipt).extend(600)
    (second,) = queue.popper().pop(2)
    assert second.payload == b"1"
    queue.settle(receipt).ack()


def test_a_limit_can_come_and_go_while_there_are_poppers(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, 30)
    popper = queue.popper()
    assert len(popper.pop(10)) == 10
    queue.update(concurrency=12)
    assert len(popper.pop(10)) == 2
    queue.update(concurrency=None)
    assert len(popper.pop(10)) == 10
    popper.maintain()
    shared = limit_names(queue.popper()._group().id)[1]
    assert timed.ports.catalog.leases.shared(shared) == ""


def test_a_group_has_its_own_limit_or_that_of_its_queue(queue: cassq.Queue) -> None:
    queue.update(concurrency=2)
    queue.create_group("many", concurrency=5)
    push(queue, 10)
    assert len(queue.popper().pop(10)) == 2
    assert len(queue.popper("many").pop(10)) == 5


# --- the rate -----------------------------------------------------------------------------------


def taken_at(clock: ManualClock, poppers: list[cassq.Popper], ms: int, most: int) -> list[int]:
    """When messages came, in milliseconds, of poppers that take all they can get."""
    times: list[int] = []
    for at_ms in range(ms):
        for popper in poppers:
            messages = popper.pop(most)
            popper.commit(messages)
            times += [at_ms] * len(messages)
        clock.advance(0.001)
    return times


@pytest.mark.parametrize("most", [1, 100])
def test_poppers_together_never_get_more_than_the_rate(
    timed: cassq.Client, clock: ManualClock, most: int
) -> None:
    queue = timed.create_queue("jobs", rate="100/s")
    push(queue, 1000)
    times = taken_at(clock, [queue.popper() for _ in range(3)], 3000, most)
    assert all(last - first >= 1000 for first, last in zip(times, times[100:], strict=False))
    assert len(times) >= 0.9 * 300


def test_a_popper_that_is_paused_in_a_pop_exceeds_the_rate_by_that_pop_at_most(
    timed: cassq.Client, place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after it has claimed, and before its consumer has the messages, it cannot know that
    their time is over."""
    rate, count = "100/s", 100
    queue = timed.create_queue("jobs", rate=rate)
    push(queue, 1000)
    paused, second = queue.popper(), cassq.Client(place.url, place.open(clock), clock)
    claim, times = timed.ports.catalog.claims.claim, list[int]()

    def claim_and_stop(*args: Any, **settings: Any) -> bool:
        done = claim(*args, **settings)
        monkeypatch.undo()
        with second:
            times.extend(taken_at(clock, [second.queue("jobs").popper()], 2000, 100))
        return done

    monkeypatch.setattr(timed.ports.catalog.claims, "claim", claim_and_stop)
    late = len(paused.pop(100))
    assert 0 < late <= slots_of(rate).most <= 0.03 * count + 1
    last_second = sum(at_ms >= 1000 for at_ms in times)
    assert last_second <= count, "without it"


@pytest.mark.parametrize(
    ("swap_ms", "share"), [(10, 0.9), (30, 0.9), (60, 0.85), (300, 0.75), (2000, 0.3)]
)
def test_a_group_gets_messages_though_its_catalog_is_slower_than_slots_last(
    timed: cassq.Client,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    swap_ms: int,
    share: float,
) -> None:
    queue = timed.create_queue("jobs", rate="30/s")
    push(queue, 1000)
    leases = timed.ports.catalog.leases
    swap, times = leases.swap, list[int]()

    def swap_slowly(*args: Any) -> bool:
        clock.advance(swap_ms / 1000)
        return swap(*args)

    monkeypatch.setattr(leases, "swap", swap_slowly)
    popper, until_ms = queue.popper(), clock.boot_ms() + 30_000
    while clock.boot_ms() < until_ms:
        messages = popper.pop(10)
        popper.commit(messages)
        times += [clock.boot_ms()] * len(messages)
        clock.advance(0.01)
    assert len(times) >= share * 30 * 30
    assert all(last - first >= 1000 for first, last in zip(times, times[30:], strict=False))


def test_slow_rates_are_kept_by_poppers_that_come_and_go(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", rate="2/m")
    push(queue, 20)
    times: list[int] = []
    for second in range(300):
        with queue.popper() as popper:
            messages = popper.pop(5)
            popper.commit(messages)
        times += [second] * len(messages)
        clock.advance(1)
    assert all(last - first >= 60 for first, last in zip(times, times[2:], strict=False))
    assert len(times) >= 9


def two_seconds_after(
    timed: cassq.Client, clock: ManualClock, before: str, after: str
) -> cassq.Popper:
    """The popper of a queue whose rate was changed two seconds ago, after it had a message."""
    queue = timed.create_queue("jobs", rate=before)
    push(queue, 20)
    popper = queue.popper()
    popper.commit(popper.pop(1))
    queue.update(rate=after)
    clock.advance(2.0)
    return popper


def test_a_rate_that_is_raised_counts_from_then_on(timed: cassq.Client, clock: ManualClock) -> None:
    popper = two_seconds_after(timed, clock, "1/h", "100/s")
    found = popper.pop(1)
    assert found, "what was reserved for an hour holds up nothing"
    popper.commit(found)


def test_a_rate_that_is_lowered_counts_from_then_on(
    timed: cassq.Client, clock: ManualClock
) -> None:
    popper = two_seconds_after(timed, clock, "100/s", "1/h")
    assert not popper.pop(10), "there was one less than an hour ago"
    clock.advance(1.1 * 3600)
    assert len(popper.pop(10)) == 1


def test_a_popper_waits_until_the_rate_allows_more(queue: cassq.Queue) -> None:
    queue.update(rate="20/s")
    push(queue, 5)
    popper = queue.popper()
    at_ms: list[int] = []
    for _ in range(5):
        (message,) = popper.pop(1, wait=60)
        at_ms.append(message._delivery.claimed_ms)
        message.ack()
    slot_ms = 53  # each message has its own, unless it comes late
    assert all(last - first >= slot_ms - 40 for first, last in pairwise(at_ms))
    assert at_ms[-1] - at_ms[0] >= 4 * slot_ms - 40


def test_a_pop_that_finds_nothing_uses_nothing_up(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", rate="1/m")
    poppers = [queue.popper(), queue.popper()]
    for popper in poppers * 5:
        assert popper.pop(1) == []
    push(queue, 2)
    assert sum(len(popper.pop(2)) for popper in poppers) == 1


def test_retries_and_keys_count_as_well(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs")
    queue.create_group("keyed", order="key", rate="3/m")
    push(queue, 3, key=b"a")
    popper = queue.popper("keyed")
    found: list[bytes] = []
    for _ in range(60):
        for message in popper.pop(1):
            found.append(message.payload)
            message.nack(delay=0)
            popper.flush()
        pass_time(clock, popper, 1000)
    assert found == [b"0"] * 3


# --- how one sees it ----------------------------------------------------------------------------


def test_the_permits_in_use_are_shown(url: str, queue: cassq.Queue) -> None:
    queue.update(concurrency=3)
    queue.create_group("other", concurrency=1)
    push(queue, 5)
    popper = queue.popper()
    messages = popper.pop(2)
    stats = queue.stats()
    shown = {name: (group.permits, group.concurrency) for name, group in stats.groups.items()}
    assert shown == {"default": (2, 3), "other": (0, 1)}
    metrics = {metric.name: metric.values for metric in queue_metrics([stats])}
    assert sorted(count for _, count in metrics["cassq_group_permits"]) == [0, 2]
    assert sorted(count for _, count in metrics["cassq_group_concurrency"]) == [1, 3]
    text = CliRunner().invoke(main, ["stats", "jobs", "--url", url]).stdout
    assert "consumers of group default have 2 of the 3 messages that they may have at once" in text
    popper.commit(messages)
    popper.close()
    assert queue.stats().groups["default"].permits == 0
    queue.update(concurrency=None)
    assert queue.stats().groups["default"].permits is None


def test_what_waits_for_a_limit_is_explained_and_counted(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", concurrency=1, rate="1/h")
    with queue.pusher() as pusher:
        message_id = pusher.push_many([b"first", b"second"])[1]
    assert "concurrency" not in str(queue.explain(message_id))
    popper = queue.popper()
    assert len(popper.pop(5)) == 1
    said = str(queue.explain(message_id).sentences())
    assert "may at once (concurrency is 1): it waits for one of these" in said
    assert "gets at most 1/h (rate): the next slot is at" in said
    assert popper.pop(5) == []
    assert popper.tally.limited == 2


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rate": "fast"}, "rate 'fast' is not a rate"),
        ({"rate": 5}, "rate 5 is not a rate"),
        ({"rate": "0/s"}, "rate '0/s' is not a rate"),
        ({"concurrency": 0}, "concurrency must be a whole number between 1 and"),
        ({"concurrency": 1.5}, "concurrency must be a whole number"),
    ],
)
def test_bad_limits_are_named(queue: cassq.Queue, settings: dict[str, object], said: str) -> None:
    for change in (queue.update, lambda **given: queue.create_group("g", **given)):
        with pytest.raises(ConfigError, match=said):
            change(**settings)  # type: ignore[arg-type]
