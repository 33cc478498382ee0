"""The audit beside others at work: what is amiss for a moment is not told, what stays amiss is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import cassq
from cassq.inspect.audit import LOOKS_MAX
from cassq.model.rows import Claim, RetiredSum
from tests.integration.stage import Connect, alone, drain, numbers, push, reap


def work(queue: cassq.Queue, client: cassq.Client) -> None:
    """One pipe more that is pushed, popped and retired."""
    push(queue, *numbers(10))
    drain(queue.popper())
    reap(client)


class Sums:
    """The sums of retired pipes, read by an audit that is disturbed just before."""

    def __init__(self, client: cassq.Client, patch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        self.wrong = 0
        self.disturb: Callable[[], object] = lambda: None
        self._read = client.ports.catalog.pipes.retired_sums
        self._disturbing = False
        patch.setattr(client.ports.catalog.pipes, "retired_sums", self)

    def __call__(self, queue_id: str) -> list[RetiredSum]:
        if self._disturbing:  # the reaper reads them too
            return self._read(queue_id)
        self.looks += 1
        self._disturbing = True
        self.disturb()
        self._disturbing = False
        return [replace(each, pushed=each.pushed + self.wrong) for each in self._read(queue_id)]


@pytest.fixture
def sums(client: cassq.Client, monkeypatch: pytest.MonkeyPatch) -> Sums:
    alone(client)
    return Sums(client, monkeypatch)


def test_a_pipe_that_is_retired_during_a_look_is_not_a_finding(
    queue: cassq.Queue, client: cassq.Client, sums: Sums
) -> None:
    def retire_once() -> None:
        if sums.looks == 1:
            assert any(action.verb == "retire" for action in reap(client))

    push(queue, *numbers(10))
    drain(queue.popper())
    sums.disturb = retire_once
    audit = queue.audit()
    assert audit.findings == []
    assert (audit.pushed, audit.groups["default"].committed) == (10, 10)
    assert sums.looks > 1


def test_totals_that_are_wrong_are_reported(
    queue: cassq.Queue, client: cassq.Client, sums: Sums
) -> None:
    work(queue, client)
    sums.wrong, sums.looks = 1, 0
    assert any("the sums of retired pipes" in each for each in queue.audit().findings)
    assert sums.looks == 2  # before their rows are read, and after


def test_a_queue_that_never_rests_is_looked_at_a_bounded_number_of_times(
    queue: cassq.Queue, client: cassq.Client, connect: Connect, sums: Sums
) -> None:
    work(queue, client)
    sums.wrong, sums.looks = 10_000, 0
    other = connect()  # the audit's own is in the middle of a call
    sums.disturb = lambda: work(other.queue("jobs"), other)
    assert not queue.audit().balanced
    assert sums.looks == 2 * LOOKS_MAX


def test_a_reaper_that_retires_pipes_all_the_time_makes_no_finding(
    client: cassq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more before each read of what retired pipes held, however often that is."""
    alone(client)
    queue = client.create_queue("jobs", max_pushes_per_pipe=5)
    pipes = 4 * LOOKS_MAX
    push(queue, *numbers(5 * pipes))
    with queue.popper() as popper:
        popper.dead(popper.pop(3))
        drain(popper)
    assert queue.stats().groups["default"].waiting == 0
    catalog = client.ports.catalog

    def retiring(read: Callable[..., Any]) -> Callable[..., Any]:
        def after_one_more(queue_id: str) -> Any:
            oldest = catalog.pipes.live(queue_id)[0]
            version = catalog.queues.by_id(queue_id).groups_version  # type: ignore[union-attr]
            assert catalog.pipes.retire([oldest.id], version)
            return read(queue_id)

        return after_one_more

    monkeypatch.setattr(catalog.pipes, "retired", retiring(catalog.pipes.retired))
    monkeypatch.setattr(catalog.pipes, "retired_sums", retiring(catalog.pipes.retired_sums))
    audit = queue.audit()
    assert audit.findings == []
    assert (audit.pipes + audit.retired_pipes, audit.pushed) == (pipes, 5 * pipes)
    group = audit.groups["default"]
    assert (group.pushed, group.dead, group.committed) == (5 * pipes, 3, 5 * pipes - 3)
    assert audit.retired_pipes >= LOOKS_MAX


def test_rows_that_change_while_they_are_read_are_read_again(
    client: cassq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something is committed between two reads, more often than a look at the whole would bear."""
    alone(client)
    queue = client.create_queue("jobs")
    push(queue, *numbers(20))
    popper = queue.popper()
    catalog = client.ports.catalog
    left = [message for _ in range(LOOKS_MAX - 2) for message in popper.pop(1)]
    read = catalog.claims.rows

    def claims(group_id: str, pipe_id: str) -> list[Claim]:
        if left:
            popper.commit([left.pop(0)])
        return read(group_id, pipe_id)

    monkeypatch.setattr(catalog.claims, "rows", claims)
    audit = queue.audit()
    assert audit.findings == []
    assert (audit.groups["default"].committed, left) == (LOOKS_MAX - 2, [])


def test_what_is_retired_while_its_rows_are_read_is_counted_as_what_became_of_it(
    client: cassq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tells of the dead was gone when it was read, and they seemed committed."""
    alone(client)
    queue = client.create_queue("jobs")
    push(queue, *numbers(10))
    popper = queue.popper()
    popper.dead(popper.pop(4))
    popper.commit(popper.pop(6))
    popper.close()
    catalog, verbs = client.ports.catalog, list[str]()
    read = catalog.claims.rows

    def claims(group_id: str, pipe_id: str) -> list[Claim]:
        rows = read(group_id, pipe_id)
        if not verbs:
            verbs.append("audit")
            verbs.extend(action.verb for action in reap(client))
        return rows

    monkeypatch.setattr(catalog.claims, "rows", claims)
    group = queue.audit().groups["default"]
    assert "retire" in verbs
    assert (group.dead, group.committed, group.pushed) == (4, 6, 10)
