"""Merging dead letters back to their group, and purging them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.base.clock import Stopwatch
from cassq.dead_letters.bulk_job import BATCH_MESSAGES, BulkOutcome
from cassq.dead_letters.letters import Letter
from cassq.doorbell import LOOK_AGAIN_SECONDS
from cassq.errors import GroupNotFoundError, UsageError
from tests.integration.deadlines import eventually, joined
from tests.integration.places import Place
from tests.integration.stage import (
    Connect,
    alone,
    client_on,
    drain,
    numbers,
    payloads,
    push,
    reap,
)

DEAD = "jobs~default~dead"
ODD = {"odd": "1"}


def letters_of_jobs(
    client: cassq.Client, count: int, group: str = "default", *, first: int = 0
) -> None:
    """So many dead letters in a pipe of their own: numbers, with a header that tells odd ones."""
    died = [
        Letter(
            f"{n:024x}:0",
            b"%d" % n,
            {"odd": str(n % 2)},
            None,
            datetime(2026, 1, 1, tzinfo=UTC),
            {"reason": "rejected", "error": f"no customer {n}", "at_ms": 1_000},
        )
        for n in range(first, first + count)
    ]
    lines = [letter.to_json() for letter in died]
    assert client.queue("jobs").dead_letters(group).import_(lines).messages == count


def die(queue: cassq.Queue, *messages: bytes) -> list[str]:
    """Push messages and give each up."""
    ids = push(queue, *messages)
    with queue.popper() as popper:
        popper.dead(popper.pop(len(messages)), "no such customer")
        assert popper.pop() == []  # in a strict queue the next pop puts them away
    return ids


def assert_balanced(client: cassq.Client) -> None:
    for queue in client.queues():
        assert queue.audit().findings == []


@pytest.fixture(autouse=True)
def no_other_passes(client: cassq.Client) -> None:
    """What the client's reaper is burying in passing, the test would find nowhere for a moment."""
    alone(client)


@pytest.fixture
def jobs(client: cassq.Client) -> cassq.Queue:
    return client.create_queue("jobs", sick_check=False)


# --- merging ----------------------------------------------------------------------------------


def test_merged_letters_come_back_with_all_they_had_and_their_attempts_at_1(
    jobs: cassq.Queue, client: cassq.Client
) -> None:
    with jobs.pusher() as pusher:
        message_id = pusher.push(b"bad", headers={"kind": "invoice"}, key=b"k7")
    (before,) = jobs.peek()
    popper = jobs.popper()
    popper.dead(popper.pop(), "no such customer")
    outcome = jobs.dead_letters().merge()
    assert (outcome.messages, outcome.complete, outcome.held) == (1, True, 0)
    (message,) = popper.pop()
    assert (message.payload, message.id, message.key) == (b"bad", message_id, b"k7")
    assert (message.attempts, message.pushed_at) == (1, before.pushed_at)
    death = json.loads(message.headers.pop("cassq-death"))
    assert death["error"] == "no such customer"
    assert message.headers["kind"] == "invoice"
    popper.commit([message])
    assert client.queue(DEAD).stats().groups["default"].merged == 1
    stats = jobs.stats().groups["default"]
    assert (stats.dead, stats.committed, stats.waiting) == (1, 1, 0)
    assert_balanced(client)
    reap(client)
    assert_balanced(client)


def test_a_letter_that_dies_again_counts_its_deaths(jobs: cassq.Queue) -> None:
    push(jobs, b"bad")
    popper = jobs.popper()
    letters = jobs.dead_letters()
    for count in (1, 2, 3):
        popper.dead(popper.pop(wait=30), f"the {count}. time")
        (letter,) = letters.peek()
        assert (letter.death["count"], letter.death["error"]) == (count, f"the {count}. time")
        letters.merge()
    (message,) = popper.pop(wait=30)
    death = json.loads(message.headers["cassq-death"])
    assert death["first_ms"] < death["last_ms"]


def test_a_whole_merge_moves_pipes_and_copies_only_what_was_claimed_from(
    jobs: cassq.Queue, client: cassq.Client
) -> None:
    letters_of_jobs(client, 100)
    consumer = client.queue(DEAD).popper()
    consumer.commit(consumer.pop(10))
    letters_of_jobs(client, 100, first=100)
    letters_of_jobs(client, 100, first=200)
    before = {pipe.id for pipe in client.ports.catalog.pipes.live(client.queue(DEAD).row.id)}
    outcome = jobs.dead_letters().merge()
    assert (outcome.messages, outcome.pipes) == (290, 2)
    after = {pipe.id for pipe in client.ports.catalog.pipes.live(jobs.row.id)}
    assert (len(after), len(after & before)) == (3, 2)
    found = drain(jobs.popper())
    assert sorted(payloads(found)) == sorted(numbers(290, 10))
    assert {message.id for message in found} == {f"{n:024x}:0" for n in range(10, 300)}
    assert_balanced(client)


def test_merging_reaches_only_the_group_in_which_the_letters_died(
    jobs: cassq.Queue, client: cassq.Client
) -> None:
    jobs.create_group("billing")
    letters_of_jobs(client, 10)
    letters_of_jobs(client, 10, "billing")
    jobs.dead_letters().merge(headers=ODD)
    jobs.dead_letters("billing").merge()
    odd = [payload for payload in numbers(10) if int(payload) % 2]
    assert payloads(drain(jobs.popper())) == odd
    assert payloads(drain(jobs.popper("billing"))) == numbers(10)
    assert_balanced(client)


def test_only_what_is_meant_is_merged_and_the_rest_stays_in_its_order(
    jobs: cassq.Queue, client: cassq.Client
) -> None:
    letters_of_jobs(client, 20)
    letters = jobs.dead_letters()
    assert letters.merge(headers=ODD).messages == 10
    assert letters.merge(headers=ODD).messages == 0
    assert [letter.payload for letter in letters.peek(100)] == numbers(20)[::2]
    assert payloads(drain(client.queue(DEAD).popper())) == numbers(20)[::2]
    assert payloads(drain(jobs.popper())) == numbers(20)[1::2]
    assert_balanced(client)


def test_chosen_letters_are_merged_by_their_ids(jobs: cassq.Queue, client: cassq.Client) -> None:
    ids = die(jobs, *numbers(5))
    assert jobs.dead_letters().merge(ids=[ids[3], ids[1], "unknown:7"]).messages == 2
    assert payloads(drain(jobs.popper())) == [b"1", b"3"]


def test_letters_that_a_consumer_holds_are_left_and_counted(
    jobs: cassq.Queue, client: cassq.Client
) -> None:
    letters_of_jobs(client, 20)
    consumer = client.queue(DEAD).popper()
    mine = consumer.pop(5)
    assert jobs.dead_letters().merge(dry_run=True).held == 5
    outcome = jobs.dead_letters().merge()
    assert (outcome.messages, outcome.held, outcome.pipes) == (15, 5, 0)
    assert payloads(drain(jobs.popper())) == numbers(20)[5:]
    consumer.commit(mine[:3])
    consumer.release(mine[3:])
    assert jobs.dead_letters().merge().messages == 2
    assert payloads(drain(jobs.popper())) == [b"3", b"4"]
    assert client.queue(DEAD).stats().groups["default"].committed == 3
    assert_balanced(client)


def test_consumers_of_dead_letters_and_merges_share_them_without_duplicates(
    jobs: cassq.Queue, client: cassq.Client, connect: Connect
) -> None:
    letters_of_jobs(client, 3000)
    taken: list[bytes] = []

    def consume() -> None:
        with connect().queue(DEAD).popper() as popper:
            while messages := popper.pop(7):
                taken.extend(payloads(messages))
                popper.commit(messages)

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    letters = jobs.dead_letters()
    for digit in range(10):
        letters.merge(text=f"{digit}", limit=100)
    joined("the consumer", thread)
    letters.merge()
    back = payloads(drain(jobs.popper()))
    assert Counter(back + taken) == Counter(numbers(3000))
    assert_balanced(client)


def test_a_merge_while_letters_keep_coming_and_messages_keep_dying_again_ends(
    jobs: cassq.Queue, client: cassq.Client, connect: Connect
) -> None:
    stop = threading.Event()
    letters_of_jobs(client, 50)

    def kill_everything() -> None:
        with connect().queue("jobs").popper() as popper:
            while not stop.is_set():
                popper.dead(popper.pop(10, wait=0.01), "again")

    thread = threading.Thread(target=kill_everything, daemon=True)
    thread.start()
    try:
        for _ in range(5):
            assert jobs.dead_letters().merge().complete
    finally:
        stop.set()
        joined("the killer", thread)
    jobs.dead_letters().merge()
    assert sorted(payloads(drain(jobs.popper()))) == sorted(numbers(50))
    assert_balanced(client)


def test_other_groups_of_the_dead_letters_keep_theirs(
    jobs: cassq.Queue, client: cassq.Client
) -> None:
    letters_of_jobs(client, 10)
    client.queue(DEAD).create_group("auditor")
    assert jobs.dead_letters().merge().pipes == 0
    assert payloads(drain(jobs.popper())) == numbers(10)
    assert payloads(drain(client.queue(DEAD).popper("auditor"))) == numbers(10)
    assert_balanced(client)


def test_a_strict_queue_takes_its_letters_back(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", consistency="cp", sick_check=False)
    die(queue, b"1")
    push(queue, b"2")
    assert queue.dead_letters().merge().messages == 1
    assert sorted(payloads(drain(queue.popper()))) == [b"1", b"2"]
    assert_balanced(client)


def test_what_is_merged_back_to_a_strict_queue_passes_no_unacked_message(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs", consistency="cp", sick_check=False)
    die(queue, b"1")
    push(queue, b"2")
    with queue.popper() as popper, queue.popper() as another:
        held = popper.pop()
        assert payloads(held) == [b"2"]
        assert queue.dead_letters().merge().messages == 1
        assert not another.pop()
        popper.commit(held)
        assert payloads(another.pop(wait=30)) == [b"1"]


def test_letters_go_into_as_many_pipes_as_the_policy_asks_for(client: cassq.Client) -> None:
    jobs = client.create_queue("jobs", max_pushes_per_pipe=7)
    letters_of_jobs(client, 100)
    assert jobs.dead_letters().merge(headers=ODD).messages == 50
    assert payloads(drain(jobs.popper())) == numbers(100)[1::2]
    assert_balanced(client)


def test_a_dry_run_counts_and_changes_nothing(jobs: cassq.Queue, client: cassq.Client) -> None:
    letters_of_jobs(client, 20)
    letters = jobs.dead_letters()
    outcome = letters.merge(dry_run=True)
    assert (outcome.messages, outcome.pipes, outcome.dry_run) == (20, 1, True)
    assert letters.merge(dry_run=True, headers=ODD).messages == 10
    assert letters.purge(dry_run=True).messages == 20
    assert len(letters.peek(100)) == 20
    assert jobs.stats().groups["default"].pushed == 0


def test_a_limit_ends_a_merge_and_another_goes_on(jobs: cassq.Queue, client: cassq.Client) -> None:
    letters_of_jobs(client, 20)
    outcome = jobs.dead_letters().merge(limit=8)
    assert (outcome.messages, outcome.complete) == (8, False)
    assert jobs.dead_letters().merge(limit=100).messages == 12
    assert payloads(drain(jobs.popper())) == numbers(20)


def test_a_rate_is_kept(jobs: cassq.Queue, client: cassq.Client) -> None:
    letters_of_jobs(client, 30)
    watch = Stopwatch()
    assert jobs.dead_letters().merge(rate=60).messages == 30
    assert jobs.dead_letters().purge(everything=True, rate=60).messages == 0
    letters_of_jobs(client, 100)
    jobs.dead_letters().merge(rate=80)
    assert watch.seconds() > 1.0


def test_a_watcher_may_end_a_merge_after_any_step(jobs: cassq.Queue, client: cassq.Client) -> None:
    letters_of_jobs(client, 20)
    seen: list[int] = []

    def look(outcome: BulkOutcome) -> bool:
        seen.append(outcome.messages)
        return outcome.messages >= 5

    outcome = jobs.dead_letters().merge(rate=5, watch=look)
    assert (outcome.messages, outcome.complete) == (5, False)
    assert seen == sorted(seen)


@pytest.mark.linux_only
def test_a_whole_merge_rings_for_the_poppers_that_wait(
    jobs: cassq.Queue, client: cassq.Client
) -> None:
    letters_of_jobs(client, 3)
    rung = threading.Event()
    waiter = client.runtime.doorbell(jobs.row.id).listen()

    def wait() -> None:
        began = Stopwatch()
        waiter.wait(LOOK_AGAIN_SECONDS, lambda: False)
        if began.seconds() < LOOK_AGAIN_SECONDS * 0.9:
            rung.set()

    def merge() -> bool:
        letters_of_jobs(client, 3)
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        assert jobs.dead_letters().merge().pipes == 1
        joined("the wait", thread)
        return rung.is_set()

    jobs.dead_letters().purge(everything=True)
    eventually("the bell rings", merge)  # a merge may be over before the wait begins
    waiter.close()


def test_a_broken_pipe_is_reported_and_the_others_are_merged(
    jobs: cassq.Queue, client: cassq.Client, place: Place
) -> None:
    letters_of_jobs(client, 3)
    (broken,) = client.ports.catalog.pipes.live(client.queue(DEAD).row.id)
    die(jobs, b"good")
    assert place.damage(b"customer") == broken.id
    outcome = jobs.dead_letters().merge(text="o")
    assert list(outcome.broken) == [broken.id]
    assert payloads(drain(jobs.popper())) == [b"good"]


def test_a_merge_needs_its_group(jobs: cassq.Queue, client: cassq.Client) -> None:
    jobs.create_group("billing")
    letters_of_jobs(client, 3, "billing")
    jobs.delete_group("billing")
    letters = jobs.dead_letters("billing")
    with pytest.raises(GroupNotFoundError):
        letters.merge()
    assert len(letters.peek()) == 3
    jobs.create_group("billing", start="now")
    assert letters.merge().messages == 3
    assert payloads(drain(jobs.popper("billing"))) == numbers(3)


def test_without_dead_letters_there_is_nothing_to_do(jobs: cassq.Queue) -> None:
    letters = jobs.dead_letters()
    assert letters.peek() == []
    assert letters.merge().messages == 0
    assert letters.purge(everything=True) == BulkOutcome(complete=True)


@pytest.mark.parametrize("wrong", [{"rate": 0}, {"rate": "fast"}, {"limit": 0}, {"limit": 1.5}])
def test_a_pace_that_makes_no_sense_is_refused(jobs: cassq.Queue, wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        jobs.dead_letters().merge(**wrong)  # type: ignore[arg-type]


# --- purging ------------------------------------------------------------------------------------


def test_a_purge_deletes_the_chosen_letters_and_no_others(
    jobs: cassq.Queue, client: cassq.Client
) -> None:
    letters_of_jobs(client, 20)
    letters = jobs.dead_letters()
    assert letters.purge(headers=ODD).messages == 10
    assert payloads(drain(client.queue(DEAD).popper())) == numbers(20)[::2]
    stats = client.queue(DEAD).stats().groups["default"]
    assert (stats.purged, stats.committed) == (10, 10)
    assert_balanced(client)
    reap(client)
    assert_balanced(client)


@pytest.mark.parametrize("limit", [None, 1000])
def test_a_purge_of_everything_leaves_what_a_consumer_has(
    jobs: cassq.Queue, client: cassq.Client, limit: int | None
) -> None:
    letters_of_jobs(client, 20)
    consumer = client.queue(DEAD).popper()
    mine = consumer.pop(8)
    consumer.release(mine[:2])
    outcome = jobs.dead_letters().purge(everything=True, limit=limit)
    assert (outcome.messages, outcome.held) == (14, 6)
    consumer.commit(mine[2:])
    assert drain(consumer) == []
    consumer.close()
    reap(client)
    stats = client.queue(DEAD).stats().groups["default"]
    assert (stats.purged, stats.committed, stats.pushed) == (14, 6, 20)
    assert_balanced(client)


def test_a_purge_without_a_filter_must_be_asked_for(
    jobs: cassq.Queue, client: cassq.Client
) -> None:
    letters_of_jobs(client, 3)
    with pytest.raises(UsageError, match="all dead letters"):
        jobs.dead_letters().purge()
    with pytest.raises(UsageError, match="not both"):
        jobs.dead_letters().purge(everything=True, reason="rejected")
    with pytest.raises(TypeError):
        jobs.dead_letters().purge(reasons="rejected")  # type: ignore[call-arg]
    assert len(jobs.dead_letters().peek()) == 3


@pytest.mark.embedded_only(reason="it counts commits of SQLite")
def test_what_a_merge_and_a_purge_cost(client: cassq.Client, directory: Path) -> None:
    """Synced commits of the catalog; opening a pipe to push to, and sealing it, cost two."""
    commits: list[bool] = []
    client.create_queue("jobs")
    letters_of_jobs(client, 10_000)
    with client_on(directory, committed=commits.append) as counting:
        letters = counting.queue("jobs").dead_letters()

        def cost(verb: Callable[..., BulkOutcome], count: int, **how: Any) -> int:
            commits.clear()
            assert verb(**how).messages == count
            return commits.count(True)

        batches = -(-3439 // BATCH_MESSAGES)
        assert cost(letters.merge, 3439, text="1") <= 3 * batches + 2
        assert cost(letters.purge, 6561, everything=True) <= 3
        letters_of_jobs(counting, 20_000, first=10_000)
        assert cost(letters.merge, 10_000, headers=ODD) <= 3 * -(-10_000 // BATCH_MESSAGES) + 2
        letters_of_jobs(counting, 20_000, first=30_000)
        assert cost(letters.purge, 10_000, headers=ODD) <= -(-10_000 // BATCH_MESSAGES) + 3
        letters_of_jobs(counting, 20_000, first=50_000)
        assert cost(letters.purge, 40_000, everything=True) <= 8
        letters_of_jobs(counting, 20_000, first=70_000)
        assert cost(letters.merge, 20_000) == 1
