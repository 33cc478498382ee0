"""Cancelling calls: what is cancelled never runs, and what a worker has is said to be too late."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

import cassq
from cassq.errors import MessageNotFoundError, UsageError
from cassq.tasks import App, Context, Handle, TaskFailedError
from cassq.tasks.steps import listing
from tests.integration.deadlines import eventually
from tests.integration.tasks.test_steps import run, state
from tests.integration.worker.running import Running

Ran = list[int]


@pytest.fixture
def ran() -> Ran:
    """What tasks noted."""
    return []


def note_task(app: App, ran: Ran) -> cassq.tasks.Task[[int], None]:
    @app.task(name="note", results=True, retries=[0])
    def note(number: int) -> None:
        ran.append(number)
        if number < 0 and ran.count(number) == 1:
            raise ValueError("once")

    return note


def test_a_call_that_waits_for_a_worker_never_runs(
    client: cassq.Client, app: App, ran: Ran
) -> None:
    note = note_task(app, ran)
    handles = note.push_many([(number,) for number in range(6)])
    for number in (3, 1, 5, 0, 3):  # behind others, among those, the last, the first, again
        assert handles[number].cancel()
    later = note.push(6)
    assert [state(client, each) for each in handles[:3]] == ["cancelled", "cancelled", "waiting"]
    assert [row.id for row in listing.listed(client, "tasks", None, 9)] == [
        handles[2].id,
        handles[4].id,
        later.id,
    ]
    run(app, 3)
    assert sorted(ran) == [2, 4, 6]
    with pytest.raises(TaskFailedError, match="is cancelled"):
        handles[3].result(timeout=10)
    found = client.queue("tasks").stats().groups["default"]
    assert (found.committed, found.waiting, found.purged) == (3, 0, 4)
    assert client.queue("tasks").audit().findings == []


def test_it_is_said_when_it_is_too_late(client: cassq.Client, app: App, ran: Ran) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task(results=True)
    def wait() -> None:
        begun.set()
        go_on.wait()

    @app.task(retries=[])
    def fail() -> None:
        raise ValueError("no such address")

    handle = wait.push()
    running = Running(app.worker(concurrency=1))
    begun.wait()
    assert not handle.cancel()
    assert listing.cancel(client, handle.id) == "running"
    go_on.set()
    running.stop()
    assert handle.result(timeout=10) is None
    assert listing.cancel(client, handle.id) == "done"
    dead = fail.push()
    run(app, 1)
    assert listing.cancel(client, dead.id) == "dead"
    with pytest.raises(MessageNotFoundError):
        app.cancel(f"{handle.id.partition(':')[0]}:99")


def test_a_call_that_waits_for_a_retry_is_cancelled(
    client: cassq.Client, app: App, ran: Ran
) -> None:
    note = note_task(app, ran)

    @app.task(name="steps", retries=[3600])
    def steps(ctx: Context) -> None:
        ctx.step("first", str)
        raise ValueError("not yet")

    again, with_steps = note.push(-1), steps.push()
    run(app, 2)
    assert ran == [-1]
    assert again.cancel()
    assert with_steps.cancel()
    assert not with_steps.signal("go")
    note.push(1)
    run(app, 1)
    assert ran == [-1, 1]
    assert [state(client, each) for each in (again, with_steps)] == ["cancelled", "cancelled"]


def test_calls_are_cancelled_or_run_but_not_both(client: cassq.Client, app: App, ran: Ran) -> None:
    note = note_task(app, ran)
    handles: list[Handle[None]] = note.push_many([(number,) for number in range(60)])
    running = Running(app.worker(concurrency=2))
    cancelled = {number for number in range(1, 60, 2) if handles[number].cancel()}
    rest = set(range(60)) - cancelled
    eventually("the others ran", lambda: rest <= set(ran))
    running.stop()
    assert Counter(ran) == Counter(rest)
    assert client.queue("tasks").audit().findings == []


def test_where_calls_have_an_order_only_the_first_that_waits_is_cancelled(
    client: cassq.Client, app: App, ran: Ran
) -> None:
    @app.task(key="of")
    def note(of: str, number: int) -> None:
        ran.append(number)

    handles = note.push_many([("a", number) for number in range(3)])
    with pytest.raises(UsageError, match="waits behind others in group 'in-order'"):
        handles[1].cancel()
    assert handles[0].cancel()
    assert handles[1].cancel()
    run(app, 1)
    assert ran == [2]
