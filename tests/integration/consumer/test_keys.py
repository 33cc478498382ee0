"""Keyed groups: messages of one key one after another, and everything else side by side."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.consumer.keyed import lane
from cassq.errors import (
    BackendError,
    ClaimLostError,
    CorruptionError,
    OwnershipError,
    UsageError,
)
from tests.integration.consumer.keyed_stage import (
    by_key,
    counts,
    drained,
    keyed,
    pass_time,
    push,
    texts,
)
from tests.integration.places import Place
from tests.integration.stage import Connect, alone, client_on, payloads
from tests.integration.timed import clock, timed

__all__ = ["clock", "keyed", "timed"]


# --- order --------------------------------------------------------------------------------------


def test_one_message_of_a_key_at_a_time(keyed: cassq.Queue) -> None:
    push(keyed, ["a1", "a2", "b1", "a3", "b2", "-1", "-2"])
    popper = keyed.popper("keyed")
    first = popper.pop(10)
    assert texts(first) == ["a1", "b1", "-1", "-2"]
    assert texts(popper.pop(10)) == []
    first[0].ack()
    assert texts(popper.pop(10)) == ["a2"]
    first[1].ack()
    assert texts(popper.pop(10)) == ["b2"]
    assert texts(popper.pop(10)) == []


def test_a_commit_lets_the_next_of_each_key_come(keyed: cassq.Queue) -> None:
    push(keyed, [f"{key}{number}" for number in range(9) for key in "abc"])
    popper = keyed.popper("keyed")
    for number in range(9):
        messages = popper.pop(10)
        assert texts(messages) == [f"{key}{number}" for key in "abc"]
        popper.commit(messages)
    assert counts(keyed) == (0, 27, 0)
    assert keyed.audit().findings == []


def test_the_order_of_a_key_holds_over_pipes(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_pushes_per_pipe=5)
    queue.create_group("keyed", order="key")
    sent = [f"{random.choice('abc')}{number:02}" for number in range(60)]
    push(queue, sent)
    found = drained(queue.popper("keyed"))
    assert by_key(found) == by_key(sent)


def test_on_a_cp_queue_the_order_of_a_key_holds_over_pushers(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", consistency="cp", max_pushes_per_pipe=4)
    queue.create_group("keyed", order="key")
    sent = [f"{'ab'[number % 2]}{number:02}" for number in range(24)]
    for at in range(0, 24, 3):
        push(queue, sent[at : at + 3])  # each time another pusher
    popper = queue.popper("keyed")
    assert texts(popper.pop(10)) == ["a00", "b01"]
    popper.close()
    found = drained(queue.popper("keyed"))
    assert by_key(found) == by_key(sent)


def test_one_message_of_a_key_at_a_time_whichever_pusher_pushed_it(keyed: cassq.Queue) -> None:
    with keyed.pusher() as first, keyed.pusher() as second:
        for number in range(3):
            first.push(b"first %d" % number, key=b"a")
            second.push(b"second %d" % number, key=b"a")
        popper = keyed.popper("keyed")
        found: list[str] = []
        while messages := popper.pop(10):
            assert len(messages) == 1
            found += texts(messages)
            popper.commit(messages)
    for name in ("first", "second"):
        assert [text for text in found if name in text] == [f"{name} {n}" for n in range(3)]


def test_messages_with_keys_go_to_one_pipe_of_many(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", min_open_pipes=4)
    queue.create_group("keyed", order="key")
    sent = [f"{'-a'[number % 2]}{number:02}" for number in range(40)]
    with queue.pusher() as pusher:
        pusher.maintain()  # learns how many pipes it should have open
        for text in sent:
            pusher.push(text.encode(), key=b"a" if text[0] == "a" else None)
        pipes = client.ports.catalog.pipes.live(queue.row.id)
        assert len({pipe.owner for pipe in pipes}) == 4
        found = drained(queue.popper("keyed"))
    assert by_key(found)["a"] == by_key(sent)["a"]
    assert sorted(found) == sorted(sent)


def test_consumers_side_by_side_never_have_two_of_a_key(keyed: cassq.Queue) -> None:
    sent = [f"{random.choice('abcdefgh')}{number:03}" for number in range(400)]
    push(keyed, sent)
    popper = keyed.popper("keyed")
    mutex, busy, found, wrong = threading.Lock(), set[str](), list[str](), list[str]()

    def work() -> None:
        for message in popper:
            key = message.payload.decode()[0]
            with mutex:
                if key in busy:
                    wrong.append(key)
                busy.add(key)
                found.append(message.payload.decode())
            with mutex:
                busy.discard(key)
            message.ack()
            if len(found) == len(sent):
                popper.stop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert by_key(found) == by_key(sent)


# --- failures -----------------------------------------------------------------------------------


def test_a_failed_message_holds_its_key_and_no_other(keyed: cassq.Queue) -> None:
    push(keyed, ["a1", "b1", "a2", "b2", "b3"])
    popper = keyed.popper("keyed")
    first = popper.pop(10)
    first[0].nack(delay=3600)
    first[1].ack()
    assert drained(popper) == ["b2", "b3"]
    assert counts(keyed) == (2, 3, 0)


FAR_BEHIND = 110_000  # messages, over a dozen claims


@pytest.mark.parametrize("failed", [False, True])
def test_a_stuck_key_with_many_messages_does_not_stop_the_others(
    keyed: cassq.Queue, *, failed: bool
) -> None:
    others = [b"key-%d" % number for number in range(50)]
    with keyed.pusher() as pusher:
        for _ in range(FAR_BEHIND // 10_000):
            pusher.push_many([b"stuck"] * 10_000, keys=[b"stuck"] * 10_000)
        pusher.push_many(others, keys=others)
    popper = keyed.popper("keyed")
    (stuck,) = popper.pop()
    if failed:
        stuck.nack(delay=3600.0)
    found = popper.pop(100, wait=60.0)
    assert sorted(payloads(found)) == sorted(others)
    popper.commit(found)
    push(keyed, ["n1"])
    assert texts(popper.pop(100, wait=60.0)) == ["n1"]


def test_a_call_looks_behind_a_stuck_key_for_a_second_and_the_next_goes_on(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = timed.create_queue("slow", claim_timeout=10.0)
    queue.create_group("keyed", order="key")
    push(queue, [*["s"] * 20, "o"])
    monkeypatch.setattr(lane, "ROW_MESSAGES", 1)
    monkeypatch.setattr(lane, "LOOK_MESSAGES", 1)
    claim_more = lane.Lane._claim_more

    def slowly(self: lane.Lane, now_ms: int) -> bool:
        clock.advance(4.0)
        return claim_more(self, now_ms)

    monkeypatch.setattr(lane.Lane, "_claim_more", slowly)
    popper = queue.popper("keyed")
    (stuck,) = popper.pop()
    stuck.extend(12 * 3600.0)
    calls = [texts(popper.pop()) for _ in range(20)]
    assert calls == [*[[]] * 19, ["o"]], "each of these claims takes four seconds"


def test_a_wait_behind_a_stuck_key_goes_on_until_something_is_ready(
    keyed: cassq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(keyed, [*["s"] * 20, "o"])
    monkeypatch.setattr(lane, "ROW_MESSAGES", 1)
    monkeypatch.setattr(lane, "LOOK_MS_MAX", 0)
    monkeypatch.setattr(lane, "LOOK_MESSAGES", 1)
    popper = keyed.popper("keyed")
    assert texts(popper.pop()) == ["s"]
    assert texts(popper.pop()) == []
    assert texts(popper.pop(wait=60.0)) == ["o"]


def test_a_call_that_has_something_does_not_look_far_for_more(
    keyed: cassq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would make its consumer wait for what may never come; the next calls look further."""
    push(keyed, ["n", *["s"] * 20, "o"])
    monkeypatch.setattr(lane, "ROW_MESSAGES", 1)
    monkeypatch.setattr(lane, "LOOK_MESSAGES", 4)
    popper = keyed.popper("keyed")
    assert texts(popper.pop(3)) == ["n", "s"]
    assert texts(popper.pop(3)) == ["o"]


def test_a_failed_message_comes_again_before_the_next_of_its_key(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", retry_schedule=[10], sick_check=False)
    queue.create_group("keyed", order="key")
    push(queue, ["a1", "a2"])
    popper = queue.popper("keyed")
    (message,) = popper.pop(10)
    message.nack(error="not yet")
    assert not popper.pop(10)
    clock.advance(9)
    assert not popper.pop(10)
    clock.advance(2)
    (again,) = popper.pop(10)
    assert (again.payload, again.attempts) == (b"a1", 2)
    again.ack()
    assert texts(popper.pop(10)) == ["a2"]


def test_after_a_dead_letter_its_key_goes_on(client: cassq.Client) -> None:
    alone(client)
    queue = client.create_queue("jobs", max_deliveries=2, sick_check=False)
    queue.create_group("keyed", order="key")
    push(queue, ["a1", "a2", "a3"])
    popper = queue.popper("keyed")
    for _ in range(2):
        (message,) = popper.pop(10)
        assert message.payload == b"a1"
        popper.rollback([message])
    (message,) = popper.pop(10)
    assert message.payload == b"a2"
    popper.dead([message], "no good")
    assert drained(popper) == ["a3"]
    assert counts(queue) == (0, 1, 2)
    letters = [letter.payload for letter in queue.dead_letters("keyed").peek(10)]
    assert sorted(letters) == [b"a1", b"a2"]
    assert queue.audit().findings == []


def test_a_released_message_comes_first_and_does_not_count(keyed: cassq.Queue) -> None:
    push(keyed, ["a1", "a2", "b1"])
    popper = keyed.popper("keyed")
    first = popper.pop(10)
    first[0].release()
    (again,) = popper.pop(10)
    assert (again.payload, again.attempts) == (b"a1", 1)
    popper.commit([again, first[1]])
    assert drained(popper) == ["a2"]


def test_a_release_is_durable(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", claim_timeout=1)
    queue.create_group("keyed", order="key")
    push(queue, ["a1", "b1", "c1"])
    dies = queue.popper("keyed")
    first, second, _ = dies.pop(3)
    first.release()
    dies.release([second])
    popper = queue.popper("keyed")  # the other one is never heard of again
    pass_time(clock, popper, 5)
    found = {message.payload: message.attempts for message in popper.pop(10)}
    assert found == {b"a1": 1, b"b1": 1, b"c1": 2}


def test_a_message_kept_too_long_is_taken_away(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", claim_timeout=30, sick_check=False)
    queue.create_group("keyed", order="key")
    push(queue, ["a1", "a2", "b1"])
    popper = queue.popper("keyed", keep_alive=0)
    late, other = popper.pop(10)
    other.extend(300)
    pass_time(clock, popper, 40)
    (again,) = popper.pop(10)
    assert (again.payload, again.attempts) == (b"a1", 2)
    with pytest.raises(ClaimLostError):
        late.ack()
    popper.commit([again, other])
    assert drained(popper) == ["a2"]


def test_a_long_task_keeps_its_message_while_its_thread_lives(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", claim_timeout=30)
    queue.create_group("keyed", order="key")
    push(queue, ["a1", "a2"])
    popper = queue.popper("keyed")
    (message,) = popper.pop(10)
    for _ in range(30):
        pass_time(clock, popper, 10)
        assert not popper.pop(10)
    popper.commit([message])
    assert drained(popper) == ["a2"]


def test_rows_are_kept_for_a_claim_timeout_at_least_and_not_written_more_often(
    timed: cassq.Client, clock: ManualClock
) -> None:
    timeout, seconds = 30, 300
    queue = timed.create_queue("jobs", claim_timeout=timeout)
    queue.create_group("keyed", order="key")
    push(queue, ["a1", "b1"])
    popper = queue.popper("keyed")
    (message, _) = popper.pop(10)
    catalog = timed.runtime.ports.catalog
    group_id, pipe_id = popper._group().id, message.id.partition(":")[0]
    deadlines: set[int] = set()
    for _ in range(seconds):
        pass_time(clock, popper, 1)
        (row,) = catalog.claims.rows(group_id, pipe_id)
        assert row.due_ms >= catalog.now_ms() + timeout * 1000
        deadlines.add(row.due_ms)
    assert len(deadlines) <= seconds / timeout * 2


# --- who has the lane ---------------------------------------------------------------------------


def test_one_popper_has_the_lane_until_it_closes(keyed: cassq.Queue, connect: Connect) -> None:
    push(keyed, ["a1", "a2", "b1", "b2"])
    popper = keyed.popper("keyed")
    first = popper.pop(10)
    other = connect().queue("jobs").popper("keyed")
    assert not other.pop(10)
    popper.commit(first[:1])
    popper.close()
    found = other.pop(10)
    assert sorted((m.payload, m.attempts) for m in found) == [(b"a2", 1), (b"b1", 2)]
    other.commit(found)
    assert drained(other) == ["b2"]


def test_a_popper_that_takes_nothing_leaves_the_lane(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    queue.create_group("keyed", order="key")
    push(queue, ["a1", "a2"])
    popper, other = queue.popper("keyed"), queue.popper("keyed")
    popper.commit(popper.pop(10))
    assert not other.pop(10)
    clock.advance(lane.IDLE_MS / 1000 + 1)
    popper.maintain()
    (message,) = other.pop(10)
    assert (message.payload, message.attempts) == (b"a2", 1)


def test_a_stopped_popper_leaves_the_lane_after_its_last_message(
    keyed: cassq.Queue, connect: Connect
) -> None:
    push(keyed, ["a1", "a2"])
    popper = keyed.popper("keyed")
    (message,) = popper.pop(10)
    popper.stop()
    message.ack()
    other = connect().queue("jobs").popper("keyed")
    (found,) = other.pop(1, wait=30)
    assert (found.payload, found.attempts) == (b"a2", 1)


def test_a_lane_that_lapsed_is_taken_over_and_its_acks_are_refused(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", claim_timeout=30, sick_check=False)
    queue.create_group("keyed", order="key")
    push(queue, ["a1", "a2", "b1", "c1"])
    stalled, popper = queue.popper("keyed"), queue.popper("keyed")
    first = stalled.pop(2)
    assert texts(first) == ["a1", "b1"]
    clock.advance(lane.HELD_FOR * 30 + 1)
    found = popper.pop(10)
    assert sorted((m.payload, m.attempts) for m in found) == [(b"a1", 2), (b"b1", 2), (b"c1", 1)]
    with pytest.raises(ClaimLostError):
        stalled.commit(first)
    popper.commit(found)
    assert drained(popper) == ["a2"]
    assert queue.audit().findings == []


KILLED = """
import os, sys, cassq
queue = cassq.connect(sys.argv[1]).queue("jobs")
popper = queue.popper("keyed")
messages = popper.pop(3)
popper.commit(messages[:1])
print(len(messages), flush=True)
os.kill(os.getpid(), 9)
"""


def test_attempts_are_exact_after_a_kill(client: cassq.Client, place: Place) -> None:
    queue = client.create_queue("jobs", claim_timeout=1, sick_check=False)
    queue.create_group("keyed", order="key")
    push(queue, ["a1", "a2", "b1", "c1", "d1", "e1"])
    child = subprocess.run([sys.executable, "-c", KILLED, place.url], capture_output=True)
    assert child.stdout == b"3\n", child.stderr
    popper = queue.popper("keyed")
    found: dict[bytes, int] = {}
    while len(found) < 5:
        messages = popper.pop(10, wait=30)
        found |= {message.payload: message.attempts for message in messages}
        popper.commit(messages)
    assert found == {b"a2": 1, b"b1": 2, b"c1": 2, b"d1": 1, b"e1": 1}


def test_a_damaged_pipe_holds_up_its_pusher_and_no_other(
    timed: cassq.Client, clock: ManualClock, place: Place
) -> None:
    queue = timed.create_queue("jobs", max_pushes_per_pipe=4)
    queue.create_group("keyed", order="key")
    push(queue, ["a1", "a2", "b1", "a-damaged", "a3", "b2"])  # two pipes
    push(queue, ["c1", "c2"])
    first = queue.popper("keyed")
    assert texts(first.pop(10)) == ["a1", "b1", "c1"]  # all of it is claimed
    first.close()
    damaged = place.damage(b"a-damaged")
    popper = queue.popper("keyed")
    for found in (["a1", "b1", "c1"], ["a2", "c2"]):  # these are in rows of their own
        messages = popper.pop(10)
        assert texts(messages) == found
        popper.commit(messages)
    with pytest.raises(CorruptionError, match=damaged):
        popper.pop(10)
    push(queue, ["d1", "d2"])  # by another pusher
    assert drained(popper) == ["d1", "d2"]
    assert queue.skip_damage(damaged).groups["keyed"].lost == 1
    assert texts(popper.pop(10)) == []  # it is tried again after a while
    pass_time(clock, popper, 6)
    assert by_key(drained(popper)) == {"a": ["a3"], "b": ["b2"]}
    assert counts(queue) == (0, 9, 0)


def test_a_damaged_message_that_was_handed_out_before_holds_up_its_pusher(
    client: cassq.Client, place: Place
) -> None:
    queue = client.create_queue("jobs", max_pushes_per_pipe=1)
    queue.create_group("keyed", order="key")
    push(queue, ["a-damaged", "a2"])
    push(queue, ["b1"])
    first = queue.popper("keyed")
    assert sorted(texts(first.pop(2))) == ["a-damaged", "b1"]
    assert texts(first.pop(1)) == [], "a2 is claimed, too"
    first.close()
    damaged = place.damage(b"a-damaged")
    popper = queue.popper("keyed")
    found = popper.pop(10)
    assert texts(found) == ["b1"]
    popper.commit(found)
    with pytest.raises(CorruptionError, match=damaged):
        popper.pop(10)
    assert texts(popper.pop(10)) == []


# --- limits and bad input -------------------------------------------------------------------------


def test_a_limit_per_key_without_order(queue: cassq.Queue) -> None:
    queue.create_group("keyed", limit_per_key=2)
    push(queue, ["a1", "a2", "a3", "b1", "a4"])
    popper = queue.popper("keyed")
    first = popper.pop(10)
    assert texts(first) == ["a1", "a2", "b1"]
    first[0].nack(delay=3600)
    assert texts(popper.pop(10)) == ["a3"], "a message that failed leaves its place to others"
    popper.commit([first[1]])
    assert texts(popper.pop(10)) == ["a4"]


def test_a_rate_per_key_is_never_exceeded_by_poppers_one_after_another(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    queue.create_group("keyed", rate_per_key="2/s")
    push(queue, [f"a{number:02}" for number in range(12)] + ["-1"])
    popper, found = queue.popper("keyed"), list[tuple[int, str]]()
    for step in range(120):
        messages = popper.pop(10)
        found += [(step * 50, text) for text in texts(messages)]
        popper.commit(messages)
        if step % 25 == 24:
            popper.close()
            popper = queue.popper("keyed")
        clock.advance(0.05)
    assert found[0] == (0, "-1"), "what has no key has no limit"
    times = [ms for ms, text in found if text != "-1"]
    assert all(later - earlier >= 500 for earlier, later in pairwise(times))
    assert 7 <= len(times) <= 12


def test_delayed_messages_wait_for_their_key_when_they_are_due(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    queue.create_group("keyed", order="key")
    with queue.pusher() as pusher:
        pusher.push(b"later", key=b"a", delay=60)
        pusher.push(b"now", key=b"a")
    popper = queue.popper("keyed")
    (now,) = popper.pop(10)
    assert now.payload == b"now"
    pass_time(clock, popper, 61)
    assert not popper.pop(10)
    popper.commit([now])
    assert texts(popper.pop(10)) == ["later"]


def test_a_delayed_message_in_hand_keeps_its_key_when_its_popper_restarts(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error of the storage a popper takes the lane again, with what was unsettled."""
    queue = timed.create_queue("jobs")
    queue.create_group("keyed", order="key")
    with queue.pusher() as pusher:
        pusher.push(b"later", key=b"a", delay=60)
    popper = queue.popper("keyed")
    pass_time(clock, popper, 61)
    assert texts(popper.pop(10)) == ["later"]
    push(queue, ["a2"])

    begin_anew(timed, popper, monkeypatch)
    assert not popper.pop(10)
    clock.advance(31)
    assert drained(popper) == ["later", "a2"]


def test_a_message_in_hand_keeps_its_key_from_other_pushers_when_its_popper_restarts(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = timed.create_queue("jobs")
    queue.create_group("keyed", order="key")
    popper = queue.popper("keyed")
    with queue.pusher() as first, queue.pusher() as second:
        first.push(b"b1", key=b"b")
        second.push(b"a1", key=b"a")
        in_hand = popper.pop(10)
        assert texts(in_hand) == ["b1", "a1"]
        first.push(b"a2", key=b"a")
        popper.commit([in_hand[0]])
        assert not popper.pop(10), "a2 is in line now, behind a1"
        first.push(b"a3", key=b"a")
        begin_anew(timed, popper, monkeypatch)
    assert not popper.pop(10)
    clock.advance(31)
    assert drained(popper) == ["a1", "a2", "a3"]


def test_a_message_in_hand_keeps_its_key_from_urgent_ones_when_its_popper_restarts(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = timed.create_queue("jobs")
    queue.create_group("keyed", order="key")
    popper = queue.popper("keyed")
    with queue.pusher() as pusher:
        pusher.push(b"b1", key=b"b", priority=9)
        pusher.push(b"a1", key=b"a")
        in_hand = popper.pop(10)
        assert texts(in_hand) == ["b1", "a1"]
        pusher.push(b"a2", key=b"a", priority=9)
        popper.commit([in_hand[0]])
        assert not popper.pop(10), "a2 is in line now, behind a1"
        pusher.push(b"a3", key=b"a", priority=9)
        begin_anew(timed, popper, monkeypatch)
    assert not popper.pop(10)
    clock.advance(31)
    assert drained(popper) == ["a1", "a2", "a3"]


def begin_anew(client: cassq.Client, popper: cassq.Popper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a popper's claim of what was pushed last fail, so that it does not know what it has."""

    def fails(*_: object, **__: object) -> NoReturn:
        raise BackendError("disk I/O error", outcome_unknown=True)

    with monkeypatch.context() as patched:
        patched.setattr(client.ports.catalog.claims, "claim", fails)
        with pytest.raises(BackendError):
            popper.pop(10)


@pytest.mark.parametrize("how", ["purged", "given up"])
def test_a_key_goes_on_when_others_settle_its_failed_message(
    timed: cassq.Client, clock: ManualClock, how: str
) -> None:
    """The popper with the lane would not look at it before it is due."""
    queue = timed.create_queue("jobs", sick_check=False)
    queue.create_group("keyed", order="key")
    push(queue, ["a1", "a2", "b1", "a3"])
    popper = queue.popper("keyed")
    first, other = popper.pop(10)
    popper.rollback([first], delay=3600)
    assert not popper.pop(10)
    if how == "purged":
        assert queue.purge("keyed") == {"keyed": 1}, "the others are claimed"
    else:
        assert queue.release_key("keyed", b"a", give_up=True) == 1
        assert [letter.payload for letter in queue.dead_letters("keyed").peek()] == [b"a1"]
    pass_time(clock, popper, 2)
    assert drained(popper) == ["a2", "a3"]
    popper.commit([other])
    assert queue.audit().findings == []


def test_a_failed_message_among_others_is_given_up_alone(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", sick_check=False)
    queue.create_group("keyed", order="key", on_dead="hold")
    push(queue, ["a1", "b1", "c1", "b2", "a2"])
    popper = queue.popper("keyed")
    popper.rollback(popper.pop(3), delay=3600)
    assert queue.release_key("keyed", b"b", give_up=True) == 1
    assert queue.release_key("keyed", b"b", give_up=True) == 0
    pass_time(clock, popper, 2)
    assert drained(popper) == ["b2"]
    pass_time(clock, popper, 3600)
    assert sorted(drained(popper)) == ["a1", "a2", "c1"]
    assert queue.audit().findings == []


def test_a_key_in_hand_is_not_given_up(timed: cassq.Client) -> None:
    queue = timed.create_queue("jobs")
    queue.create_group("keyed", order="key")
    push(queue, ["a1", "a2"])
    popper = queue.popper("keyed")
    (message,) = popper.pop(10)
    assert not popper.pop(10)
    with pytest.raises(OwnershipError, match=f"{popper.name} has the message {message.id}"):
        queue.release_key("keyed", b"a", give_up=True)
    with pytest.raises(UsageError, match="hold no keys"):
        queue.release_key("default", b"a", give_up=True)
    popper.commit([message])
    assert texts(popper.pop(10)) == ["a2"]


def test_expired_messages_do_not_hold_their_key(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", message_ttl=100, sick_check=False)
    queue.create_group("keyed", order="key")
    push(queue, ["a1", "a2"])
    popper = queue.popper("keyed")
    (message,) = popper.pop(10)
    message.nack(delay=90)
    popper.flush()
    pass_time(clock, popper, 60)
    push(queue, ["a3"])
    pass_time(clock, popper, 60)
    assert drained(popper) == ["a3"]
    assert queue.stats().groups["keyed"].expired == 2


@pytest.mark.embedded_only(reason="it makes a commit of the catalog fail")
def test_a_claim_that_may_have_been_made_comes_before_what_follows(directory: Path) -> None:
    """Its commit fails after its effect: its messages are not forgotten."""
    failing = False

    def committed(_synced: bool) -> None:
        nonlocal failing
        if not failing:
            return
        claims = client.ports.catalog.claims._db._connection.execute(  # type: ignore[attr-defined]
            "SELECT count(*) FROM claims"
        )
        if claims.fetchone()[0]:
            failing = False
            raise sqlite3.OperationalError("disk I/O error")

    clock = ManualClock()
    with client_on(directory, clock=clock, committed=committed) as client:
        client.runtime.housekeeper.stop()
        queue = client.create_queue("jobs")
        queue.create_group("keyed", order="key")
        pusher = queue.pusher()
        pusher.push_many([b"0", b"1"], keys=[b"k"] * 2)
        popper = queue.popper("keyed")
        failing = True
        with pytest.raises(BackendError):
            popper.pop()
        assert not failing
        pusher.push(b"2", key=b"k")
        found: list[bytes] = []
        for _ in range(100):
            messages = popper.pop()
            found += payloads(messages)
            popper.commit(messages)
            clock.advance(1)
        assert found == [b"0", b"1", b"2"]
