"""Clients: which URLs they open, and what is closed with them."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.client import client as client_module
from cassq.doorbell import Doorbell
from cassq.errors import (
    BackendUnavailableError,
    ClosedError,
    ConfigError,
    InvalidPayloadError,
    UsageError,
)
from tests.integration.deadlines import DEADLINE_SECONDS, joined
from tests.integration.stage import Connect, alone, drain, payloads, push


@pytest.mark.embedded_only(reason="it is about the directory")
@pytest.mark.parametrize(
    "url",
    ["nonsense", "http://host/", "file:", "file://", "file://host/dir", ":x", 7, b"file:x",
     "cassandra://host", "file:x?durability=no", "file:x?what=1"],
)  # fmt: skip
def test_a_url_that_names_no_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        cassq.connect(url)
    assert caught.value.message


def test_an_unknown_durability_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="durability"):
        cassq.connect(url, durability="none")


@pytest.mark.embedded_only(reason="it is about the directory")
def test_the_environment_says_where_when_no_url_is_given(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASSQ_URL", f"file://{directory}")
    with cassq.connect() as client:
        client.create_queue("jobs")
    assert (directory / "catalog.sqlite").exists()


@pytest.mark.embedded_only(reason="it is about the directory")
def test_without_any_url_a_directory_is_made_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CASSQ_URL", raising=False)
    with cassq.connect() as client:
        client.create_queue("jobs")
    assert (tmp_path / "cassq-data" / "catalog.sqlite").exists()


@pytest.mark.embedded_only(reason="it is about the directory")
def test_a_missing_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    with cassq.connect(f"file://{tmp_path}/a/b/c") as client:
        push(client.create_queue("jobs"), b"x")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_a_closed_client_refuses_everything(client: cassq.Client, queue: cassq.Queue) -> None:
    push(queue, b"x")
    popper = queue.popper()
    (message,) = popper.pop()
    client.close()
    client.close()  # twice is no error
    for verb in (
        client.queues,
        lambda: client.queue("jobs"),
        lambda: client.create_queue("more"),
        lambda: client.delete_queue("jobs"),
        queue.stats,
        queue.pusher,
        queue.popper,
        popper.pop,
        lambda: popper.commit([message]),
        message.ack,
        message.nack,
    ):
        with pytest.raises(ClosedError):
            verb()


def test_a_block_may_end_after_its_client_was_closed(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    with queue.pusher() as pusher, queue.popper() as popper:
        pusher.push(b"x")
        assert len(popper.pop()) == 1
        client.close()
    assert pusher.closed
    assert popper.closed


def test_closing_a_client_makes_its_acks_durable_and_gives_the_rest_back(
    client: cassq.Client, queue: cassq.Queue, connect: Connect
) -> None:
    push(queue, b"done", b"left")
    popper = queue.popper()
    done, _ = popper.pop(2)
    done.ack()
    client.close()
    found = drain(connect().queue("jobs").popper())
    assert [(m.payload, m.attempts) for m in found] == [(b"left", 2)]


def test_two_clients_of_one_process_see_each_other(connect: Connect) -> None:
    one, other = connect(), connect()
    queue = one.create_queue("jobs")
    push(other.queue("jobs"), b"x")
    assert payloads(drain(queue.popper())) == [b"x"]


def test_many_threads_open_and_close_pushers_of_one_client(connect: Connect) -> None:
    queue = connect().create_queue("jobs")
    failed: list[BaseException] = []
    often = sys.getswitchinterval()

    def open_and_close() -> None:
        try:
            pushers = [queue.pusher() for _ in range(50)]
            for pusher in pushers:
                pusher.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=open_and_close) for _ in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            joined("opening and closing", thread)
    finally:
        sys.setswitchinterval(often)
    assert not failed


def test_at_exit_a_client_that_cannot_be_closed_keeps_no_other_open(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a cluster is gone: what the others have collected is still to be written."""
    clients = [connect(), connect(), connect()]

    def failing(close: Callable[[], None]) -> Callable[[], None]:
        def close_and_fail() -> None:
            close()
            raise BackendUnavailableError("it is gone")

        return close_and_fail

    for each in clients[:2]:
        monkeypatch.setattr(each, "close", failing(each.close))
    monkeypatch.setattr(client_module, "_clients", clients)
    with caplog.at_level("WARNING", logger="cassq"):
        client_module._at_exit()
    assert all(each.ports.life.closed for each in clients)
    assert caplog.text.count("could not be closed") == 2
    monkeypatch.undo()


# --- misuse -------------------------------------------------------------------------------------


def test_what_cannot_be_pickled_says_what_to_do_instead(
    url: str, client: cassq.Client, queue: cassq.Queue
) -> None:
    push(queue, b"x")
    popper = queue.popper()
    (message,) = popper.pop()
    for thing in (client, queue, queue.pusher(), popper, message):
        for copied in (pickle.dumps, copy.deepcopy):
            with pytest.raises(UsageError, match="cannot be pickled") as caught:
                copied(thing)
            assert "there" in caught.value.hint


@pytest.mark.parametrize("payloads", [None, 5, object()])
def test_push_many_of_something_else_than_a_list_says_so(queue: cassq.Queue, payloads: Any) -> None:
    with queue.pusher() as pusher, pytest.raises(InvalidPayloadError, match="a list of payloads"):
        pusher.push_many(payloads)


@pytest.mark.parametrize(
    ("said", "call"),
    [
        ("headers must be a list", lambda q: q.pusher().push_many([b"x"], headers=5)),
        ("keys must be a list", lambda q: q.pusher().push_many([b"x"], keys=5)),
        ("keys must be a list", lambda q: q.pusher().push_many([b"x"], keys={b"k"})),
        ("headers must be a list", lambda q: q.pusher().push_many([b"x"], headers={"a": "b"})),
        ("keys must be a list", lambda q: q.pusher().push_many([b"x"], keys=5, priority=[1])),
        ("dedup_ids must be a list", lambda q: q.pusher().push_many([b"x"], dedup_ids=5)),
        ("a list of Push", lambda q: q.pusher().push_each(None)),
        ("a list of Push, not of int", lambda q: q.pusher().push_each([5])),
        ("a list of Push, not of bytes", lambda q: q.pusher().push_each([b"x"])),
        ("message_id must be a str", lambda q: q.explain(None)),
        ("ids must be a list", lambda q: q.dead_letters().merge(ids=5)),
        ("reason must be one of", lambda q: q.dead_letters().peek(reason="rejectd")),
    ],
)
def test_arguments_of_the_wrong_type_are_named(
    queue: cassq.Queue, said: str, call: Callable[[cassq.Queue], object]
) -> None:
    with pytest.raises((UsageError, InvalidPayloadError), match=said):
        call(queue)
    assert queue.stats().pushed == 0


@pytest.mark.parametrize("priority", [None, [3, 4]])
def test_keys_and_headers_may_be_views_with_a_length(
    queue: cassq.Queue, priority: list[int] | None
) -> None:
    keys, headers = {1: b"k", 2: None}, {1: {"a": "b"}, 2: None}
    leveled = {} if priority is None else {"priority": priority}
    queue.pusher().push_many(
        [b"x", b"y"],
        keys=keys.values(),  # type: ignore[arg-type]
        headers=headers.values(),  # type: ignore[arg-type]
        **leveled,
    )
    popper = queue.popper()
    found = sorted((*popper.pop(), *popper.pop()), key=lambda message: message.payload)
    assert [(m.payload, m.key, m.headers) for m in found] == [
        (b"x", b"k", {"a": "b"}),
        (b"y", None, {}),
    ]


def test_a_prefix_of_queues_is_a_text(client: cassq.Client) -> None:
    with pytest.raises(UsageError, match="prefix must be a str, not 5"):
        client.queues(5)  # type: ignore[arg-type]


def test_to_settle_one_message_or_none_says_how(queue: cassq.Queue) -> None:
    push(queue, b"x")
    popper = queue.popper()
    (message,) = popper.pop()
    for settle in (popper.commit, popper.rollback, popper.release, popper.dead):
        with pytest.raises(UsageError, match="many messages, not one") as caught:
            settle(message)  # type: ignore[operator]
        assert "[message]" in caught.value.hint
        for wrong in (None, 7):
            with pytest.raises(UsageError, match="many messages, not"):
                settle(wrong)  # type: ignore[operator]
        with pytest.raises(UsageError, match="only messages that pop"):
            settle(["id"])  # type: ignore[operator]
    popper.commit([message])
    assert queue.stats().groups["default"].committed == 1


# --- what is left at the end ------------------------------------------------------------------


@pytest.mark.parametrize("consistency", ["ap", "cp"])
@pytest.mark.parametrize("says", ["nack", "dead"])
def test_a_last_message_that_failed_is_among_the_dead_letters_when_its_client_is_closed(
    connect: Connect, consistency: str, says: str
) -> None:
    """Nobody else has to come by: no popper, and no reaper."""
    queue = connect().create_queue(
        "jobs", consistency=consistency, max_deliveries=1, sick_check=False
    )
    push(queue, b"x")
    looking = connect()
    alone(looking)
    with connect() as closing:
        popper = closing.queue("jobs").popper()
        (message,) = popper.pop()
        getattr(message, says)()
    stats = looking.queue("jobs").stats().groups["default"]
    assert (stats.waiting, stats.pending, stats.dead) == (0, 0, 1)
    assert payloads(looking.queue("jobs~default~dead").popper().pop()) == [b"x"]


def test_a_retry_that_is_due_at_once_waits_when_its_client_is_closed(connect: Connect) -> None:
    queue = connect().create_queue("jobs", claim_timeout=3600)
    push(queue, b"x")
    with connect() as closing:
        closing.queue("jobs").popper().pop()[0].nack()
    (message,) = queue.popper().pop()
    assert (message.payload, message.attempts) == (b"x", 2)


def test_threads_that_open_a_doorbell_at_once_get_the_same_one(
    client: cassq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, place = client.runtime, client.runtime._place
    both = threading.Barrier(2)
    opened: list[Doorbell] = []
    got: list[Doorbell] = []

    def open_together(queue_id: str) -> Doorbell:
        both.wait(DEADLINE_SECONDS)
        bell = place.doorbell(queue_id)
        opened.append(bell)
        close = bell.close
        monkeypatch.setattr(bell, "close", lambda: (opened.remove(bell), close()))
        return bell

    monkeypatch.setattr(runtime, "_place", place._replace(doorbell=open_together))
    threads = [
        threading.Thread(target=lambda: got.append(runtime.doorbell("jobs"))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined("a doorbell is opened", thread)
    assert got == [opened[0]] * 2
    assert len(opened) == 1, "the other one is closed"
