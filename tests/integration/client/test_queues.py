"""Queues: created, found, changed, listed and deleted, and which names and settings they take."""

from __future__ import annotations

from typing import Any

import pytest

import cassq
from cassq.errors import (
    ConfigError,
    InvalidNameError,
    QueueExistsError,
    QueueNotFoundError,
)
from tests.integration.deadlines import eventually
from tests.integration.stage import Connect, alone, drain, extents, payloads, push, reap

BAD_NAMES = ["", " ", "a b", "a/b", "/", "//", "/a/", "/a//b", ".", "..", "/a/../b", "ü", "a~b",
             "a\n", "x" * 201, "a\x00", 7, None, b"bytes"]  # fmt: skip


@pytest.mark.parametrize("name", ["a", "a.b-c_D9", "/team/name", "x" * 200, "..."])
def test_plain_names_and_paths_are_taken(client: cassq.Client, name: str) -> None:
    assert client.create_queue(name).name == name
    assert client.queue(name).name == name


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_wrong_name_is_refused_with_what_is_allowed(client: cassq.Client, name: Any) -> None:
    for verb in (client.create_queue, client.queue, client.delete_queue):
        with pytest.raises((InvalidNameError, QueueNotFoundError)) as caught:
            verb(name)
        assert caught.value.hint
    with pytest.raises(InvalidNameError):
        client.create_queue(name)
    assert client.queues() == []


def test_an_unknown_queue_is_an_error_that_says_how_to_make_it(client: cassq.Client) -> None:
    for verb in (client.queue, client.delete_queue):
        with pytest.raises(QueueNotFoundError, match=r"no queue 'nothing' \(create it with"):
            verb("nothing")


def test_creating_the_same_again_is_not_an_error(client: cassq.Client, connect: Connect) -> None:
    client.create_queue("jobs", claim_timeout=5, max_deliveries=3)
    again = connect().create_queue("jobs", max_deliveries=3, claim_timeout=5.0)
    push(again, b"x")
    assert payloads(drain(client.queue("jobs").popper())) == [b"x"]
    assert len(client.queues()) == 1


def test_creating_with_another_policy_names_the_differences(client: cassq.Client) -> None:
    client.create_queue("jobs", claim_timeout=5)
    with pytest.raises(QueueExistsError) as caught:
        client.create_queue("jobs", max_deliveries=3)
    text = str(caught.value)
    assert "claim_timeout is 5.0, not 30.0" in text
    assert "max_deliveries is 10, not 3" in text
    assert "update" in caught.value.hint
    assert caught.value.fields["differences"] == {
        "claim_timeout": (5.0, 30.0),
        "max_deliveries": (10, 3),
    }


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("claim_timeout", 0),
        ("claim_timeout", -1),
        ("claim_timeout", "10"),
        ("claim_timeout", float("nan")),
        ("claim_timeout", float("inf")),
        ("claim_timeout", True),
        ("claim_timeout", None),
        ("max_deliveries", 0),
        ("max_deliveries", 2.5),
        ("max_deliveries", True),
        ("max_pop_width", 0),
        ("max_claim_messages", -1),
        ("max_pushes_per_pipe", 0),
        ("max_push_time_of_pipe", -0.1),
        ("consistency", "CP"),
        ("compression", "zip"),
    ],
)
def test_a_setting_out_of_its_bounds_is_named(
    client: cassq.Client, setting: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=setting):
        client.create_queue("jobs", **{setting: value})
    queue = client.create_queue("jobs")
    with pytest.raises(ConfigError, match=setting):
        queue.update(**{setting: value})
    assert queue.policy == client.create_queue("jobs").policy


def test_an_unknown_setting_is_an_error_that_lists_the_known(client: cassq.Client) -> None:
    with pytest.raises(ConfigError, match="no setting 'max_width'") as caught:
        client.create_queue("jobs", max_width=3)  # type: ignore[call-arg]
    assert "max_pop_width" in caught.value.hint


def test_consistency_cannot_be_changed(queue: cassq.Queue) -> None:
    with pytest.raises(ConfigError, match="consistency"):
        queue.update(consistency="cp")


def test_an_update_is_seen_by_every_client(queue: cassq.Queue, connect: Connect) -> None:
    queue.update(claim_timeout=7)
    assert connect().queue("jobs").policy.claim_timeout == 7.0
    assert queue.update(claim_timeout=7).claim_timeout == 7.0  # the same again


def test_queues_are_listed_by_prefix_and_name(client: cassq.Client) -> None:
    for name in ("/b/two", "/a/one", "/b/one", "plain"):
        client.create_queue(name)
    assert [queue.name for queue in client.queues()] == ["/a/one", "/b/one", "/b/two", "plain"]
    assert [queue.name for queue in client.queues("/b/")] == ["/b/one", "/b/two"]
    assert client.queues("/c") == []


def test_a_deleted_queue_is_gone_with_its_files_and_dead_letters(client: cassq.Client) -> None:
    alone(client)
    queue = client.create_queue("jobs", max_deliveries=1, sick_check=False)
    other = client.create_queue("jobs2")
    push(other, b"stays")
    push(queue, b"dies", b"waits")
    with queue.popper() as popper:
        popper.pop()[0].nack()
    assert len(client.queues("jobs~")) == 1
    client.delete_queue("jobs")
    assert [queue.name for queue in client.queues()] == ["jobs2"]
    assert len(extents(client)) == 1
    with pytest.raises(QueueNotFoundError):
        client.queue("jobs")
    assert payloads(drain(other.popper())) == [b"stays"]


def test_a_queue_made_again_under_a_deleted_name_is_empty(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", claim_timeout=5)
    push(queue, b"old")
    client.delete_queue("jobs")
    queue = client.create_queue("jobs", claim_timeout=6)
    assert queue.stats().pushed == 0
    assert queue.popper().pop() == []
    push(queue, b"new")
    assert payloads(drain(queue.popper())) == [b"new"]


@pytest.mark.parametrize("deleted_by", ["the same client", "another"])
def test_a_push_to_a_deleted_queue_is_refused(
    queue: cassq.Queue, client: cassq.Client, connect: Connect, deleted_by: str
) -> None:
    pusher = queue.pusher()
    pusher.push(b"before")
    (client if deleted_by == "the same client" else connect()).delete_queue("jobs")
    for verb in (lambda: pusher.push(b"after"), lambda: pusher.push_many([b"after"])):
        with pytest.raises(QueueNotFoundError):
            verb()
    pusher.close()
    assert extents(client) == []


def test_a_popper_of_a_deleted_queue_says_so(queue: cassq.Queue, connect: Connect) -> None:
    push(queue, b"a", b"b")
    popper = queue.popper()
    (message,) = popper.pop()
    connect().delete_queue("jobs")

    def refused() -> bool:
        try:
            return popper.pop(10) != []
        except QueueNotFoundError:
            return True

    eventually("the popper notices", refused)
    popper.close()
    assert message.payload == b"a"


def test_every_verb_of_a_deleted_queue_says_so(client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    client.delete_queue("jobs")
    for verb in (
        queue.pusher,
        queue.popper,
        queue.stats,
        queue.groups,
        queue.peek,
        queue.audit,
        lambda: queue.create_group("g"),
        lambda: queue.update(claim_timeout=3),
        lambda: queue.delete_group("default"),
    ):
        with pytest.raises(QueueNotFoundError, match="deleted"):
            verb()


def test_a_sweep_after_deletion_leaves_no_row(queue: cassq.Queue, client: cassq.Client) -> None:
    alone(client)
    push(queue, b"x")
    queue.popper().pop()
    client.delete_queue("jobs")
    reap(client)
    assert client.ports.catalog.pipes.ids() == set()
    assert client.ports.catalog.queues.listed(deleted=True) == []


def test_a_queue_cannot_be_iterated(queue: cassq.Queue) -> None:
    with pytest.raises(TypeError, match="popper"):
        iter(queue)
