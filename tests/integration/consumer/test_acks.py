"""Acks and commits: what is done, twice, too late, and of a mix."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.errors import ClaimLostError, UsageError
from tests.integration.deadlines import eventually
from tests.integration.stage import Connect, alone, drain, numbers, payloads, push
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


def lose(queue: cassq.Queue) -> list[cassq.Message]:
    """Wait until somebody else has been given what is out."""
    popper = queue.popper()
    return eventually("the claim expires and is taken over", lambda: popper.pop(1000))


@pytest.fixture
def hasty(client: cassq.Client) -> cassq.Queue:
    """A queue whose claims expire at once, and are taken over by nobody but the test."""
    alone(client)
    return client.create_queue("jobs", claim_timeout=0.05)


def test_a_commit_is_seen_by_every_client(queue: cassq.Queue, connect: Connect) -> None:
    push(queue, *numbers(10))
    popper = queue.popper()
    popper.commit(popper.pop(7))
    stats = connect().queue("jobs").stats().groups["default"]
    assert (stats.waiting, stats.pending, stats.committed) == (3, 0, 7)


def test_an_ack_becomes_durable_by_itself(queue: cassq.Queue, connect: Connect) -> None:
    push(queue, b"a", b"b")
    first, _ = queue.popper().pop(2)
    first.ack()
    other = connect().queue("jobs")
    eventually("the ack is written", lambda: other.stats().groups["default"].committed == 1)


def test_a_message_that_comes_at_once_does_not_wait_for_the_write_of_the_last_ack(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    popper = queue.popper()

    def committed() -> int:
        return queue.stats().groups["default"].committed

    with ThreadPoolExecutor(1) as thread:
        for payload in numbers(5):
            waiting = thread.submit(popper.pop, 1, 60)
            push(queue, payload)
            (message,) = waiting.result()
            message.ack()
        assert committed() == 0
        clock.advance(0.05)
        popper.maintain()
        assert committed() == 5


def test_what_is_given_back_is_written_before_the_popper_waits(timed: cassq.Client) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(1))
    with queue.popper() as popper, ThreadPoolExecutor(1) as thread:
        popper.pop()[0].nack(delay=3600)
        waiting = thread.submit(popper.pop, 1, 60)
        eventually("it is written", lambda: queue.stats().groups["default"].delayed == 1)
        popper.stop()
        assert waiting.result() == []


def test_messages_may_be_committed_in_any_order_and_in_parts(queue: cassq.Queue) -> None:
    push(queue, *numbers(10))
    popper = queue.popper()
    messages = popper.pop(10)
    popper.commit([messages[9], messages[2], messages[3]])
    popper.commit(messages[5:7][::-1])
    assert queue.audit().groups["default"].pending == 5
    popper.commit([])
    popper.commit([messages[n] for n in (0, 1, 4, 7, 8)])
    audit = queue.audit()
    assert audit.findings == []
    assert audit.groups["default"].committed == 10


def test_acking_twice_is_not_an_error_and_counts_once(queue: cassq.Queue) -> None:
    push(queue, b"a", b"b")
    popper = queue.popper()
    messages = popper.pop(2)
    messages[0].ack()
    messages[0].ack()
    popper.commit(messages)
    popper.commit(messages)
    messages[0].ack()
    assert queue.audit().groups["default"].committed == 2


def test_a_message_given_twice_to_one_commit_counts_once(queue: cassq.Queue) -> None:
    push(queue, b"a", b"b")
    popper = queue.popper()
    first, second = popper.pop(2)
    popper.commit([first, first, second, first])
    assert queue.audit().groups["default"].committed == 2
    assert queue.audit().findings == []


def test_an_ack_after_giving_back_is_refused(queue: cassq.Queue) -> None:
    push(queue, b"a", b"b")
    popper = queue.popper()
    first, second = popper.pop(2)
    first.nack()
    second.release()
    for message in (first, second):
        with pytest.raises(ClaimLostError, match="given back"):
            message.ack()
    popper.flush()
    assert sorted(payloads(drain(queue.popper()))) == [b"a", b"b"]


def test_giving_back_after_an_ack_changes_nothing(queue: cassq.Queue) -> None:
    push(queue, b"a")
    popper = queue.popper()
    (message,) = popper.pop()
    message.ack()
    message.nack()
    message.release()
    popper.rollback([message])
    popper.flush()
    assert queue.stats().groups["default"].committed == 1
    assert queue.popper().pop() == []


def test_a_message_belongs_to_its_popper(queue: cassq.Queue) -> None:
    push(queue, b"a")
    (message,) = queue.popper().pop()
    stranger = queue.popper()
    for verb in (stranger.commit, stranger.rollback):
        with pytest.raises(UsageError, match="popper it came from"):
            verb([message])
    message.ack()


def test_a_commit_after_the_claim_was_taken_over_is_refused(hasty: cassq.Queue) -> None:
    push(hasty, *numbers(3))
    popper = hasty.popper(keep_alive=0)
    messages = popper.pop(3)
    (*others,) = lose(hasty)
    with pytest.raises(ClaimLostError) as caught:
        popper.commit(messages)
    assert caught.value.hint
    assert popper.lost == 3
    assert [(m.payload, m.attempts) for m in others] == [(b"0", 2), (b"1", 2), (b"2", 2)]


def test_a_commit_after_another_popper_committed_is_refused(hasty: cassq.Queue) -> None:
    push(hasty, *numbers(3))
    popper = hasty.popper(keep_alive=0)
    messages = popper.pop(3)
    hasty.update(claim_timeout=60)  # what is taken over is kept
    other = hasty.popper(keep_alive=0)
    other.commit(eventually("the claim expires", lambda: other.pop(3)))
    with pytest.raises(ClaimLostError):
        popper.commit(messages)
    assert hasty.audit().groups["default"].committed == 3


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "extend"])
def test_every_verb_of_a_lost_message_says_that_it_is_lost(hasty: cassq.Queue, verb: str) -> None:
    push(hasty, b"x")
    popper = hasty.popper(keep_alive=0)
    (message,) = popper.pop()
    lose(hasty)
    with pytest.raises(ClaimLostError):
        message.extend(5) if verb == "extend" else getattr(message, verb)()
    assert hasty.audit().findings == []


def test_a_late_commit_counts_when_the_claim_was_not_taken_over(hasty: cassq.Queue) -> None:
    push(hasty, *numbers(3))
    popper = hasty.popper(keep_alive=0)
    messages = popper.pop(3)
    catalog = popper._catalog
    due_ms = messages[0]._delivery.due_ms
    eventually("the deadline passes", lambda: catalog.now_ms() > due_ms)
    popper.commit(messages)
    assert hasty.stats().groups["default"].committed == 3


def test_of_lost_and_held_messages_the_held_ones_are_committed(client: cassq.Client) -> None:
    alone(client)
    queue = client.create_queue("jobs", claim_timeout=0.05)
    push(queue, *numbers(3))
    popper = queue.popper(keep_alive=0)
    lost = popper.pop(3)
    taken = lose(queue)
    queue.update(claim_timeout=60)
    push(queue, *numbers(2, first=3))

    def own_claim() -> list[cassq.Message]:
        found = popper.pop(10)
        return found if found and found[0].payload == b"3" else []

    own = eventually("a claim of our own", own_claim)
    with pytest.raises(ClaimLostError):
        popper.commit([lost[0], *own, lost[1]])
    assert queue.stats().groups["default"].committed == 2
    assert payloads(taken) == numbers(3)


def test_extending_keeps_a_claim_past_its_deadline(hasty: cassq.Queue) -> None:
    push(hasty, b"x")
    popper, other = hasty.popper(keep_alive=0), hasty.popper(keep_alive=0)
    (message,) = popper.pop()
    message.extend(60)
    catalog = popper._catalog
    end_ms = catalog.now_ms() + 150  # three claim timeouts
    eventually("its first deadline is long over", lambda: catalog.now_ms() > end_ms)
    assert other.pop() == []
    popper.commit([message])
    assert hasty.stats().groups["default"].committed == 1


def test_extending_may_shorten_a_claim(queue: cassq.Queue) -> None:
    push(queue, b"x")
    (message,) = queue.popper().pop()
    message.extend(0.01)
    other = queue.popper()
    (again,) = eventually("it is delivered again", other.pop)
    assert again.attempts == 2


@pytest.mark.parametrize("seconds", [-1, "1", None, float("nan"), float("inf"), 10**9, True])
def test_extending_by_no_number_of_seconds_is_refused(queue: cassq.Queue, seconds: object) -> None:
    push(queue, b"x")
    (message,) = queue.popper().pop()
    with pytest.raises(UsageError):
        message.extend(seconds)
    message.ack()
