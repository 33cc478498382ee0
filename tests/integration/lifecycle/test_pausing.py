"""Pause, resume, drain and purge of a queue."""

from __future__ import annotations

import resource
import threading

import pytest

import cassq
from cassq.base.clock import ManualClock, Stopwatch
from cassq.errors import (
    BackendError,
    ClaimLostError,
    GroupNotFoundError,
    QueueNotFoundError,
    QueuePausedError,
    ReceiptError,
    UsageError,
)
from tests.integration.deadlines import eventually, joined
from tests.integration.fronts import client_with, front_catalog
from tests.integration.places import Place
from tests.integration.stage import Connect, drain, numbers, payloads, push
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


# --- pausing ----------------------------------------------------------------------------------


def test_a_push_to_a_paused_queue_is_refused_until_it_is_resumed(queue: cassq.Queue) -> None:
    pusher = queue.pusher()
    pusher.push(b"1")
    queue.pause(pop=False)
    for attempt in (lambda: pusher.push(b"2"), lambda: pusher.push_many([b"2", b"3"])):
        with pytest.raises(QueuePausedError, match="jobs") as caught:
            attempt()
        assert isinstance(caught.value, BackendError)
        assert caught.value.retryable
    assert isinstance(pusher.push_soon(b"2").exception(30), QueuePausedError)
    assert payloads(drain(queue.popper())) == [b"1"], "popping goes on"
    queue.resume()
    pusher.push(b"2")
    assert payloads(drain(queue.popper())) == [b"2"]


def test_a_paused_pop_finds_nothing_and_what_is_out_can_be_committed(queue: cassq.Queue) -> None:
    push(queue, *numbers(3))
    popper = queue.popper()
    held = popper.pop(1)
    queue.pause(push=False)
    assert popper.pop(5) == []
    popper.commit(held)
    push(queue, b"pushing goes on")
    queue.resume()
    assert len(drain(popper)) == 3


def test_what_an_iteration_claimed_ahead_waits_for_the_end_of_the_pause(
    queue: cassq.Queue,
) -> None:
    push(queue, *numbers(100))
    popper = queue.popper()
    done = 0
    for message in popper:
        message.ack()
        popper.flush()  # it learns that messages are finished fast, and claims ahead
        done += 1
        if popper._buffer or done == 90:
            break
    assert popper._buffer
    queue.pause(push=False)
    assert popper.pop(5) == []
    queue.resume()
    assert len(drain(popper)) == 100 - done


def test_a_waiting_popper_waits_and_does_not_spin(queue: cassq.Queue) -> None:
    queue.pause(push=False)
    push(queue, b"x")
    popper = queue.popper()
    found: list[bytes] = []
    busy: list[float] = []

    def wait() -> None:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_utime
        found.extend(popper.pop(1, wait=30).payloads)
        busy.append(resource.getrusage(resource.RUSAGE_THREAD).ru_utime - before)

    thread = threading.Thread(target=wait)
    thread.start()
    watch = Stopwatch()
    eventually("some time has passed", lambda: watch.seconds() > 1)
    assert found == []
    queue.resume()
    joined("the popper", thread)
    assert found == [b"x"]
    assert busy[0] < 0.3


def test_running_clients_of_other_processes_notice_a_pause(
    queue: cassq.Queue, connect: Connect
) -> None:
    pusher, popper = queue.pusher(), queue.popper()
    pusher.push(b"x")
    connect().queue("jobs").pause()

    def refused() -> bool:
        try:
            pusher.push(b"x")
        except QueuePausedError:
            return True
        return False

    eventually("pushes are refused", refused)
    eventually("pops find nothing", lambda: not popper.pop())


@pytest.mark.parametrize(("lease", "seconds"), [(0.5, 0.25), (3, 1.0), (30, 1.0)])
def test_settings_are_read_again_within_half_a_lease_and_within_a_second_by_a_popper(
    client: cassq.Client, lease: float, seconds: float
) -> None:
    queue = client.create_queue("jobs", lease=lease)
    assert queue.watched.refresh() == min(lease / 2, 2.0)
    queue.popper()
    assert queue.watched.refresh() == seconds


def test_this_client_s_pushers_and_poppers_see_its_changes_at_once(client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    pusher, popper = queue.pusher(), queue.popper()
    pusher.push(b"x")
    client.queue("jobs").pause()
    with pytest.raises(QueuePausedError):
        pusher.push(b"x")
    assert popper.pop() == []
    client.queue("jobs").resume()
    pusher.push(b"y")
    assert payloads(drain(popper)) == [b"x", b"y"]
    client.delete_queue("jobs")
    with pytest.raises(QueueNotFoundError):
        popper.pop()


def test_a_group_deleted_by_this_client_is_gone_for_its_poppers_at_once(
    queue: cassq.Queue,
) -> None:
    queue.create_group("billing")
    popper = queue.popper("billing")
    queue.delete_group("billing")
    with pytest.raises(GroupNotFoundError):
        popper.pop()


def test_a_pause_names_what_it_is_of(queue: cassq.Queue) -> None:
    with pytest.raises(UsageError, match="neither"):
        queue.pause(push=False, pop=False)
    queue.pause()
    queue.resume(push=False)
    assert (queue.policy.push_paused, queue.policy.pop_paused) == (True, False)


# --- draining ---------------------------------------------------------------------------------


def test_a_queue_is_drained_when_every_group_has_committed_everything(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    queue.create_group("second")
    push(queue, *numbers(3))
    assert len(drain(queue.popper())) == 3
    assert queue.drain(5) == 3, "the slowest group's"
    assert queue.policy.push_paused
    assert len(drain(queue.popper("second"))) == 3
    assert queue.drain(5) == 0


def test_draining_outlasts_what_running_pushers_do_not_know_yet(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", lease=1.0)
    before_ms = clock.boot_ms()
    assert queue.drain(0) == 0
    assert clock.boot_ms() - before_ms >= 1000


# --- purging ----------------------------------------------------------------------------------


def test_a_purge_removes_what_waits_and_leaves_what_is_held(
    queue: cassq.Queue, client: cassq.Client
) -> None:
    queue.create_group("second")
    push(queue, *numbers(10))
    with queue.pusher() as pusher:
        pusher.push_many(numbers(5, 10))
        pusher.push_many(numbers(3, 15), delay=3600)
        popper = queue.popper()
        held = popper.pop(4)
        popper.rollback(held[:2])
        assert queue.count_waiting("default") == {"default": 16}
        assert queue.purge("default") == {"default": 16}
        assert popper.pop(20) == []
        popper.commit(held[2:])
        pusher.push(b"after")
        assert payloads(drain(popper)) == [b"after"]
    stats = queue.audit().groups["default"]
    assert (stats.purged, stats.committed, stats.waiting) == (16, 3, 0)
    assert queue.audit().findings == []
    assert len(drain(queue.popper("second"))) == 16
    assert queue.purge() == {"default": 0, "second": 3}
    client.reaper.reap(client.ports.catalog.queues.listed())
    assert queue.audit().findings == []
    assert queue.stats().groups["default"].purged == 16


def test_a_claim_past_its_deadline_is_purged(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", claim_timeout=1)
    push(queue, *numbers(3))
    popper = queue.popper()
    popper.commit(popper.pop(3)[:1])
    clock.advance(1)
    assert queue.purge() == {"default": 2}
    assert queue.popper().pop() == []
    assert queue.audit().findings == []


def test_a_purge_of_a_strict_queue_leaves_its_order(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", consistency="cp")
    push(queue, *numbers(3))
    push(queue, *numbers(3, 3))
    popper = queue.popper()
    held = popper.pop(1)
    assert queue.purge() == {"default": 5}
    push(queue, b"after")
    assert popper.pop() == []
    popper.commit(held)
    assert payloads(drain(popper)) == [b"after"]
    assert queue.audit().findings == []


# --- purging what poppers hold ------------------------------------------------------------------


def test_a_purge_of_what_is_held_takes_it_from_the_poppers(queue: cassq.Queue) -> None:
    queue.create_group("second")
    push(queue, *numbers(10))
    popper = queue.popper()
    popper.commit(popper.pop(2))
    held = popper.pop(3)
    assert queue.count_waiting("default", held=True) == {"default": 8}
    assert queue.purge("default", held=True) == {"default": 8}
    assert queue.purge("default", held=True) == {"default": 0}
    with pytest.raises(ClaimLostError):
        popper.commit(held[:1])
    with pytest.raises(ClaimLostError):
        popper.rollback(held[1:])
    stats = queue.audit().groups
    assert (stats["default"].purged, stats["default"].committed) == (8, 2)
    assert stats["default"].waiting == stats["default"].pending == 0
    assert queue.audit().findings == []
    assert len(drain(queue.popper("second"))) == 10
    push(queue, b"after")
    assert payloads(drain(queue.popper())) == [b"after"]


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "dead", "extend"])
def test_a_receipt_of_what_was_purged_is_refused(queue: cassq.Queue, verb: str) -> None:
    push(queue, *numbers(3))
    messages = queue.popper().pop(3)
    dated, other = messages[0].receipt, messages[1].receipt
    queue.settle(dated).extend(3600)
    assert queue.purge(held=True) == {"default": 3}
    for receipt in (dated, other):
        settlement = queue.settle(receipt)
        with pytest.raises(ReceiptError):
            settlement.extend(5) if verb == "extend" else getattr(settlement, verb)()
    stats = queue.audit().groups["default"]
    assert (stats.purged, stats.committed, stats.dead) == (3, 0, 0)
    assert queue.audit().findings == []


def test_what_was_acked_before_a_purge_of_what_is_held_stays_acked(queue: cassq.Queue) -> None:
    push(queue, *numbers(5))
    messages = queue.popper().pop(5)
    queue.settle([messages[1].receipt, messages[3].receipt]).ack()
    assert queue.purge(held=True) == {"default": 3}
    stats = queue.audit().groups["default"]
    assert (stats.purged, stats.committed) == (3, 2)
    assert queue.audit().findings == []


@pytest.mark.parametrize("consistency", ["cp", "ap"])
def test_a_purge_of_what_is_held_in_order_fences_the_holder(
    client: cassq.Client, connect: Connect, consistency: str
) -> None:
    queue = client.create_queue("jobs", consistency=consistency)
    queue.create_group("alone", exclusive=True)
    with queue.pusher() as pusher:
        pusher.push_many(numbers(4))
        popper = queue.popper("alone")
        held = popper.pop(2)
        (before,) = queue._ports.catalog.claims.cursors(queue._group("alone").id)
        assert queue.purge("alone", held=True) == {"alone": 4}
        (after,) = queue._ports.catalog.claims.cursors(queue._group("alone").id)
        assert after.epoch > before.epoch
        pusher.push(b"after")
        with pytest.raises(ClaimLostError):
            popper.commit(held)
    found = connect().queue("jobs").popper("alone").pop(5, wait=30)
    assert payloads(found) == [b"after"]
    stats = queue.audit().groups["alone"]
    assert (stats.purged, stats.committed, stats.pending) == (4, 0, 1)
    assert queue.audit().findings == []


def test_a_purge_of_what_is_held_leaves_what_was_pushed_after_it_began(
    place: Place, connect: Connect
) -> None:
    """Somebody pushes to the pipe, and claims all of it, after the purge has looked at its end."""
    meddle: list[tuple[cassq.Pusher, cassq.Popper]] = []
    found: list[bytes] = []

    def push_and_claim(verb: str) -> None:
        if meddle and verb == "claims.cursor":
            pusher, popper = meddle.pop()
            pusher.push_many([b"late 1", b"late 2"])
            messages = popper.pop(10)
            found.extend(payloads(messages))
            popper.release(messages[-1:])

    with client_with(place, catalog=lambda real: front_catalog(real, push_and_claim)) as client:
        queue = client.create_queue("jobs", claim_timeout=1000)
        theirs_too = connect().queue("jobs")
        with theirs_too.pusher() as pusher, theirs_too.popper() as theirs:
            pusher.push_many(numbers(3))
            meddle.append((pusher, theirs))
            assert queue.purge(held=True) == {"default": 3}
            assert found == [b"0", b"1", b"2", b"late 1", b"late 2"]
            stats = queue.audit().groups["default"]
            assert (stats.purged, stats.waiting + stats.pending) == (3, 2)
            theirs.close()
            assert sorted(payloads(drain(queue.popper()))) == [b"late 1", b"late 2"]
        assert queue.audit().findings == []


def test_a_purge_of_what_is_held_beside_busy_poppers_counts_each_message_once(
    queue: cassq.Queue,
) -> None:
    push(queue, *numbers(2000))
    popper = queue.popper()
    done: list[bytes] = []
    lost = 0

    def work() -> None:
        nonlocal lost
        while messages := popper.pop(7):
            try:
                popper.commit(messages)
                done.extend(messages.payloads)
            except ClaimLostError:
                lost += 1

    thread = threading.Thread(target=work)
    thread.start()
    eventually("some are done", lambda: len(done) > 50)
    purged = queue.purge(held=True)["default"]
    joined("the popper", thread)
    audit = queue.audit()
    stats = audit.groups["default"]
    assert audit.findings == []
    assert (stats.purged, stats.committed) == (purged, 2000 - purged)
    assert len(done) <= stats.committed


def test_a_purge_for_a_group_that_is_not_there_is_refused(queue: cassq.Queue) -> None:
    push(queue, b"x")
    with pytest.raises(GroupNotFoundError):
        queue.purge("billing")
    assert len(drain(queue.popper())) == 1


def test_a_purge_looks_again_when_somebody_claims_meanwhile(place: Place, connect: Connect) -> None:
    meddle: list[cassq.Popper] = []

    def claim_one(verb: str) -> None:
        if meddle and verb == "claims.rows":
            assert len(meddle.pop().pop(1)) == 1

    with client_with(place, catalog=lambda real: front_catalog(real, claim_one)) as client:
        queue = client.create_queue("jobs", claim_timeout=1000)
        push(queue, *numbers(10))
        theirs, mine = connect().queue("jobs").popper(), queue.popper()
        assert len(theirs.pop(1)) == 1
        mine.rollback(mine.pop(2), delay=500)
        meddle.append(theirs)
        assert queue.purge() == {"default": 8}
        assert meddle == []
        assert queue.count_waiting() == {"default": 0}
        assert queue.audit().findings == []


def test_a_purge_beside_a_busy_popper_loses_and_doubles_nothing(queue: cassq.Queue) -> None:
    push(queue, *numbers(2000))
    popper = queue.popper()
    done: list[bytes] = []

    def work() -> None:
        while messages := popper.pop(7):
            popper.commit(messages)
            done.extend(messages.payloads)

    thread = threading.Thread(target=work)
    thread.start()
    eventually("some are done", lambda: len(done) > 50)
    purged = queue.purge()["default"]
    joined("the popper", thread)
    stats = queue.audit().groups["default"]
    assert (stats.purged, stats.committed) == (purged, len(done))
    assert purged + len(done) == 2000
