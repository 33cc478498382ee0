"""Looking at dead letters, and taking them out to files and in again."""

from __future__ import annotations

import pytest

import cassq
from cassq.dead_letters.letters import Letter
from cassq.errors import CorruptionError, UsageError
from tests.integration.dead_letters.test_merging import (
    DEAD,
    ODD,
    assert_balanced,
    die,
    letters_of_jobs,
)
from tests.integration.places import Place
from tests.integration.stage import Connect, alone, drain, numbers, payloads, push


@pytest.fixture(autouse=True)
def no_other_passes(client: cassq.Client) -> None:
    """What the client's reaper is burying in passing, the test would find nowhere for a moment."""
    alone(client)


@pytest.fixture
def jobs(client: cassq.Client) -> cassq.Queue:
    return client.create_queue("jobs", sick_check=False)


def seen(letters: list[Letter]) -> list[bytes]:
    return [letter.payload for letter in letters]


def test_a_peek_shows_the_letters_and_their_deaths_and_does_nothing(
    jobs: cassq.Queue, client: cassq.Client
) -> None:
    (message_id,) = die(jobs, b"bad")
    for _ in range(2):
        (letter,) = jobs.dead_letters().peek()
        assert (letter.id, letter.payload, letter.headers) == (message_id, b"bad", {})
        assert letter.death["reason"] == "rejected"
        assert letter.death["error"] == "no such customer"
        assert letter.state == "waiting"
    (message,) = client.queue(DEAD).popper().pop()
    assert message.attempts == 1


def test_a_peek_shows_no_more_than_asked_for_and_only_what_is_meant(
    jobs: cassq.Queue, client: cassq.Client
) -> None:
    letters_of_jobs(client, 30)
    letters = jobs.dead_letters()
    assert seen(letters.peek(3)) == numbers(3)
    assert seen(letters.peek(3, headers=ODD)) == [b"1", b"3", b"5"]
    assert seen(letters.peek(text="customer 2")) == [b"2", *numbers(9, 20)]
    assert seen(letters.peek(text="29", reason="rejected")) == [b"29"]
    assert letters.peek(newer_than=3600) == []


def test_a_peek_marks_what_a_consumer_holds_and_leaves_out_what_is_done(
    jobs: cassq.Queue, client: cassq.Client
) -> None:
    letters_of_jobs(client, 6)
    consumer = client.queue(DEAD).popper()
    messages = consumer.pop(4)
    consumer.commit(messages[1:3])
    found = jobs.dead_letters().peek()
    assert [(letter.payload, letter.state) for letter in found] == [
        (b"0", "pending"),
        (b"3", "pending"),
        (b"4", "waiting"),
        (b"5", "waiting"),
    ]


def test_a_peek_of_nothing_is_refused(jobs: cassq.Queue) -> None:
    with pytest.raises(UsageError):
        jobs.dead_letters().peek(0)


def test_the_log_says_how_often_a_dead_letter_was_delivered(
    jobs: cassq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    with jobs.pusher() as pusher:
        pusher.push(b"a")
    popper = jobs.popper()
    popper.dead(popper.pop(), "no such customer")
    assert "moved to the dead letters of group default, delivered 1 time" in caplog.messages[-1]


def test_exported_letters_are_imported_unchanged(jobs: cassq.Queue, client: cassq.Client) -> None:
    with jobs.pusher() as pusher:
        pusher.push(b"\xff\x00", headers={"kind": "invoice"}, key=b"\xfe")
        pusher.push("käse".encode())
    popper = jobs.popper()
    popper.dead(popper.pop(2), "no such customer")
    letters = jobs.dead_letters()
    before = letters.peek()
    lines = [letter.to_json() for letter in letters.export()]
    assert len(letters.peek()) == 2
    letters.purge(everything=True)
    assert letters.import_([*lines, "", "\n"]).messages == 2
    assert letters.peek() == before
    letters.merge()
    assert [m.id for m in drain(popper)] == [letter.id for letter in before]
    assert_balanced(client)


def test_an_import_again_skips_what_is_there(jobs: cassq.Queue, client: cassq.Client) -> None:
    letters_of_jobs(client, 10)
    letters = jobs.dead_letters()
    lines = [letter.to_json() for letter in letters.export()]
    letters.purge(headers=ODD)
    done = letters.import_([*lines, *lines])
    assert (done.messages, done.skipped) == (5, 15)
    assert sorted(seen(letters.peek(100))) == numbers(10)


def test_letters_are_imported_once_and_only_to_their_group(
    jobs: cassq.Queue, client: cassq.Client, connect: Connect
) -> None:
    jobs.create_group("other")
    letters_of_jobs(client, 10)
    lines = [letter.to_json() for letter in jobs.dead_letters().export(headers=ODD)]
    other = connect().create_queue("elsewhere")
    assert other.dead_letters().import_(lines, to_queue=True).messages == 5
    assert jobs.dead_letters().import_(lines, to_queue=True).messages == 5
    consumer = jobs.popper()
    held = consumer.pop(2)
    assert jobs.dead_letters().import_(lines, to_queue=True).skipped == 5
    consumer.commit(held)
    assert payloads(drain(consumer)) == [b"5", b"7", b"9"]
    assert drain(jobs.popper("other")) == []
    # What was finished since comes again: that much is not remembered.
    assert jobs.dead_letters().import_(lines, to_queue=True).messages == 5
    assert_balanced(client)


def test_a_wrong_line_is_named_and_nothing_is_imported(
    jobs: cassq.Queue, client: cassq.Client
) -> None:
    letters_of_jobs(client, 2)
    lines = [letter.to_json() for letter in jobs.dead_letters().export()]
    other = client.create_queue("elsewhere")
    with pytest.raises(UsageError, match="line 3"):
        other.dead_letters().import_([*lines, '{"id": "x"}'])
    assert client.queues("elsewhere~") == []


def test_an_export_reports_an_unreadable_pipe_after_all_others(
    jobs: cassq.Queue, client: cassq.Client, place: Place
) -> None:
    letters_of_jobs(client, 3)
    (broken,) = client.ports.catalog.pipes.live(client.queue(DEAD).row.id)
    die(jobs, b"good")
    assert place.damage(b"customer") == broken.id
    found: list[Letter] = []
    with pytest.raises(CorruptionError):
        found.extend(jobs.dead_letters().export())
    assert seen(found) == [b"good"]


def test_what_was_pushed_to_the_dead_letters_is_a_letter_as_well(
    jobs: cassq.Queue, client: cassq.Client
) -> None:
    die(jobs, b"bad")
    ids = push(client.queue(DEAD), b"by hand")
    assert jobs.dead_letters().peek(ids=ids)[0].death == {}
    assert jobs.dead_letters().merge(ids=ids).messages == 1
    (message,) = drain(jobs.popper())
    assert (message.payload, message.id) == (b"by hand", ids[0])


def test_what_was_rejected_as_often_as_allowed_is_found_by_that_reason(
    client: cassq.Client,
) -> None:
    """It died of its number of deliveries, and its record says that a consumer rejected it."""
    queue = client.create_queue("jobs", max_deliveries=1, sick_check=False)
    push(queue, *numbers(3))
    with queue.popper() as popper:
        given_up, nacked, _ = popper.pop(3)
        given_up.dead("no such customer")
        nacked.nack(error="no such customer")
        popper.flush()
    letters = queue.dead_letters()
    assert [letter.death["reason"] for letter in letters.peek()].count("rejected") == 1
    assert sorted(seen(letters.peek(reason="rejected"))) == numbers(3)
    assert sorted(seen(letters.peek(reason="delivery_limit"))) == numbers(2, 1)
    assert letters.peek(reason="expired") == []
    assert letters.purge(reason="rejected", dry_run=True).messages == 3
