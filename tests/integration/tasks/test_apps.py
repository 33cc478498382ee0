"""Tasks: their calls are pushed, run once, tried again as they say, and end where they should."""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import cassq
from cassq.errors import AbandonedTasksError, ConfigError, QueueNotFoundError, UsageError
from cassq.tasks import App, Handle, Reject, Retry, TaskFailedError, current
from cassq.tasks.calls import Call
from cassq.tasks.testing import inline_tasks, recorded_tasks
from tests.integration.deadlines import eventually
from tests.integration.stage import push
from tests.integration.worker.running import Running

__all__ = ["inline_tasks", "recorded_tasks"]

Ran = list[tuple[Any, ...]]


@pytest.fixture
def ran() -> Ran:
    """What tasks noted."""
    return []


def run(app: App, count: int) -> None:
    """Run so many attempts of calls in the app's only queue, and end."""
    app.run(max_tasks=count, concurrency=2)


def counts(client: cassq.Client, queue: str = "tasks", group: str = "default") -> tuple[int, ...]:
    found = client.queue(queue).stats().groups[group]
    return found.committed, found.waiting + found.pending, found.dead


def test_calls_are_run_with_their_arguments(client: cassq.Client, app: App, ran: Ran) -> None:
    @app.task
    def add(one: int, /, two: int = 2, *more: int, three: int = 3) -> int:
        ran.append((one, two, more, three))
        return one

    handle = add.push(1)
    add.push(1, 2, 5, 6, three=7)
    handles = add.push_many([(8,), (1, 1)])
    assert [handle.queue, *(each.queue for each in handles)] == ["tasks"] * 3
    assert client.explain(handle.id)
    run(app, 4)
    assert sorted(ran) == [(1, 1, (), 3), (1, 2, (), 3), (1, 2, (5, 6), 7), (8, 2, (), 3)]
    assert counts(client) == (4, 0, 0)


def test_async_tasks_share_a_loop_and_are_pushed_without_blocking_one(
    client: cassq.Client, app: App, ran: Ran
) -> None:
    @app.task
    async def note(number: int) -> None:
        await asyncio.sleep(0)
        ran.append((number, asyncio.get_running_loop(), current().attempt))

    async def push_all() -> list[Any]:
        return await asyncio.gather(*(note.push_async(number) for number in range(20)))

    handles = asyncio.run(push_all())
    assert len({each.id for each in handles}) == 20
    run(app, 20)
    assert sorted(number for number, _, _ in ran) == list(range(20))
    assert len({loop for _, loop, _ in ran}) == 1
    assert {attempt for _, _, attempt in ran} == {1}


def test_async_tasks_in_a_queue_with_others_share_a_loop_too(
    client: cassq.Client, app: App, ran: Ran
) -> None:
    @app.task
    async def note(number: int) -> None:
        ran.append((number, asyncio.get_running_loop()))

    @app.task
    def other() -> None:
        ran.append((threading.current_thread(), None))

    note.push_many([(number,) for number in range(10)])
    other.push()
    run(app, 11)
    assert len({loop for _, loop in ran if loop}) == 1
    assert counts(client) == (11, 0, 0)


def test_async_tasks_alone_run_by_the_hundred_in_no_thread_of_their_own(
    client: cassq.Client, app: App
) -> None:
    arrived: list[asyncio.Event] = []

    @app.task(results=True)
    async def meet(number: int) -> int:
        arrived.append(asyncio.Event())
        if len(arrived) == 50:
            for event in arrived:
                event.set()
        await arrived[number].wait()  # goes on when fifty are there
        return threading.get_ident()

    handles = meet.push_many([(number,) for number in range(50)])
    app.run(max_tasks=50)
    assert {handle.result(timeout=10) for handle in handles} == {threading.get_ident()}


def test_a_call_fails_as_often_as_its_retries_say_and_is_a_dead_letter_then(
    client: cassq.Client, app: App, ran: Ran
) -> None:
    @app.task(retries=[0, 0])
    def send(user: int) -> None:
        ran.append((user, current().attempt))
        raise ValueError("no such address")

    @app.task
    def others() -> None:
        """Its attempts are as the queue's policy says."""

    send.push(7)
    others.push()
    run(app, 4)
    assert ran == [(7, 1), (7, 2), (7, 3)]
    assert counts(client) == (1, 0, 1)
    (letter,) = client.queue("tasks").dead_letters().peek()
    assert letter.death["error"] == "ValueError: no such address"


def test_a_failed_call_waits_as_its_retries_say(client: cassq.Client, app: App) -> None:
    @app.task(retries=[3600])
    def send() -> None:
        raise ValueError("no such address")

    handle = send.push()
    before = datetime.now(UTC)
    run(app, 1)
    due_at = client.explain(handle.id).groups["default"][-1].due_at
    assert due_at is not None
    assert due_at - before > timedelta(minutes=50)


def test_more_retries_than_the_policy_allows_are_had_by_a_queue_made_for_them(
    client: cassq.Client, app: App
) -> None:
    app.task(retries=[1] * 30)(lambda: None).push()
    assert client.queue("tasks").policy.max_deliveries == 31
    client.queue("tasks").update(max_deliveries=30)
    other = App()
    other.use(client)
    with pytest.raises(ConfigError, match=r"30 deliveries.*30 retries.*max_deliveries=31"):
        other.task(retries=[1] * 30)(lambda: None).push()


def test_a_task_can_say_how_it_goes_on(client: cassq.Client, app: App, ran: Ran) -> None:
    @app.task
    def send(way: str) -> None:
        ran.append((way, current().attempt))
        if way == "reject":
            raise Reject("the address is gone")
        if current().attempt < 3:
            raise Retry("busy", delay=0)

    send.push_many([("reject",), ("retry",)])
    run(app, 4)
    assert sorted(ran) == [("reject", 1), ("retry", 1), ("retry", 2), ("retry", 3)]
    assert counts(client) == (1, 0, 1)
    (letter,) = client.queue("tasks").dead_letters().peek()
    assert letter.death["error"] == "Reject: the address is gone"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_attempt_that_takes_too_long_has_failed(
    client: cassq.Client, app: App, ran: Ran, kind: str
) -> None:
    over = threading.Event()

    def wait() -> None:
        ran.append((current().attempt,))
        over.wait()

    async def wait_async() -> None:
        ran.append((current().attempt,))
        await asyncio.get_running_loop().create_future()

    task = app.task(name="wait", timeout=0.3, retries=[0])(wait_async if kind == "async" else wait)
    task.push()
    running = Running(app.worker(concurrency=1))
    eventually("it is dead", lambda: counts(client) == (0, 0, 1))
    running.worker.stop()
    running.join()
    over.set()
    # A thread cannot be ended, so the worker says that it is still there.
    assert isinstance(running.error, AbandonedTasksError) == (kind == "sync")
    assert ran == [(1,), (2,)]
    (letter,) = client.queue("tasks").dead_letters().peek()
    assert "it ran for over 0.3 s" in letter.death["error"]


def test_the_same_call_is_pushed_once(client: cassq.Client, app: App, ran: Ran) -> None:
    @app.task(unique=["user"])
    def send(user: int, text: str = "") -> None:
        ran.append((user, text))

    @app.task(unique=True, name="other")
    def other(user: int, text: str = "a") -> None:
        ran.append((user, text))

    assert send.push(1, "first").id == send.push(user=1, text="second").id
    assert send.push(2).id != send.push(1).id
    assert other.push(1).id == other.push(1, "a").id == other.push(user=1).id
    assert len({each.id for each in other.push_many([(1,), (1, "b"), (1, "b")])}) == 2
    run(app, 4)
    assert sorted(ran) == [(1, "a"), (1, "b"), (1, "first"), (2, "")]


def test_calls_of_one_key_run_one_after_another(client: cassq.Client, app: App, ran: Ran) -> None:
    running: list[int] = []

    @app.task(key="user", queue="ordered")
    def send(user: int, number: int) -> None:
        running.append(user)
        assert running.count(user) == 1
        ran.append((user, number))
        running.remove(user)

    send.push_many([(number % 3, number) for number in range(60)])
    app.run(max_tasks=60, concurrency=4)
    for user in range(3):
        assert [number for each, number in ran if each == user] == list(range(user, 60, 3))
    assert counts(client, "ordered", "in-order") == (60, 0, 0)
    assert list(client.queue("ordered").stats().groups) == ["in-order"]


def test_a_key_needs_a_queue_that_never_had_calls_without_order(
    client: cassq.Client, app: App
) -> None:
    push(client.create_queue("tasks"), b"{}")
    send = app.task(key="user")(lambda user: None)
    with pytest.raises(ConfigError, match="a queue of their own"):
        send.push(3)


def test_priorities_and_delays_are_kept(client: cassq.Client, app: App, ran: Ran) -> None:
    @app.task(priority=1)
    def note(name: str) -> None:
        ran.append((name,))

    note.push("low")
    note.options(priority=9).push("high")
    late = note.options(delay=3600).push("late")
    assert note.settings.priority == 1
    app.run(max_tasks=2, concurrency=1)
    assert ran == [("high",), ("low",)]
    assert client.queue("tasks").cancel(late.id)


def test_what_this_worker_does_not_know_waits_for_one_that_does(
    client: cassq.Client, app: App, ran: Ran
) -> None:
    queue = client.create_queue("tasks", retry_schedule=[0], max_deliveries=2, sick_check=False)
    app.push("another.task", 1, name="x")
    app.task(name="mail.send")(lambda user: None)
    push(queue, b'{"task": "mail.send", "kwargs": {"usr": 3}}', b"cat.jpg")
    run(app, 5)
    letters = {each.payload: each.death["error"] for each in queue.dead_letters().peek()}
    assert len(letters) == 3
    assert "no such task: 'another.task'; this worker has mail.send" in str(letters)
    assert "do not fit task 'mail.send': missing a required argument: 'user'" in str(letters)
    assert "not a call of a task" in letters[b"cat.jpg"]


def test_a_call_by_name_is_checked_if_the_task_is_known(app: App) -> None:
    app.task(name="mail.send")(lambda user: None)
    with pytest.raises(UsageError, match="do not fit"):
        app.push("mail.send")


def test_workers_of_several_queues_end_together(client: cassq.Client, app: App, ran: Ran) -> None:
    def note(name: str) -> None:
        ran.append((name,))

    one, two = app.task(name="one", queue="one")(note), app.task(name="two", queue="two")(note)
    running = Running(app.worker())
    one.push("one")
    two.push("two")
    eventually("both ran", lambda: len(ran) == 2)
    running.stop()
    assert counts(client, "one") == counts(client, "two") == (1, 0, 0)
    with pytest.raises(UsageError, match="no task uses queue 'three'"):
        app.worker("three")


def test_an_error_of_one_queue_ends_all(client: cassq.Client, app: App) -> None:
    def note() -> None:
        """Nothing."""

    app.task(name="one", queue="one")(note)
    app.task(name="two", queue="two")(note)
    running = Running(app.worker())
    client.delete_queue("two")
    running.join()
    assert isinstance(running.error, QueueNotFoundError)


def test_a_declared_schedule_ticks_while_a_worker_runs(app: App, ran: Ran) -> None:
    app.cron("@every 1s", name="often")(lambda: ran.append(("ticked",)))
    run(app, 1)
    assert ran == [("ticked",)]


def test_a_schedule_is_as_the_program_declares_it(client: cassq.Client, ran: Ran) -> None:
    def declared(cron: str, priority: int = 0) -> App:
        app = App()
        app.use(client)
        declaring = app.cron(cron, tz="Europe/Vienna", name="nightly", priority=priority)
        declaring(lambda: ran.append(("ran",)))
        app.prepare()
        app.prepare()
        return app

    declared("0 3 * * *")
    assert client.schedule("nightly").info().cron == "0 3 * * *"
    created_at = client.schedule("nightly").info().created_at
    app = declared("0 4 * * *", priority=5)
    info = client.schedule("nightly").info()
    assert (info.cron, info.priority, info.created_at) == ("0 4 * * *", 5, created_at)
    client.schedule("nightly").run()
    run(app, 1)
    assert ran == [("ran",)]


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_results_are_kept_if_asked_for(client: cassq.Client, serializer: Any) -> None:
    app = App(serializer=serializer)
    app.use(client)

    @app.task(results=True)
    def add(one: int, two: int) -> dict[str, int | None]:
        return {"sum": one + two}

    @app.task(results=True)
    async def nothing() -> None:
        """Returns None."""

    @app.task
    def kept_not() -> int:
        return 3

    sums = add.push_many([(1, 2), (3, 4)])
    handles: list[Handle[Any]] = [*sums, nothing.push(), kept_not.push()]
    with pytest.raises(TimeoutError):
        sums[0].result(timeout=0)
    run(app, 4)
    assert [handle.result(timeout=10) for handle in handles[:3]] == [{"sum": 3}, {"sum": 7}, None]
    assert app.handle(sums[1].id).result() == {"sum": 7}
    assert asyncio.run(sums[0].result_async(10)) == {"sum": 3}
    with pytest.raises(UsageError, match="results=True"):
        handles[3].result()


def test_a_caller_gets_the_error_of_a_result_that_cannot_be_kept_and_it_costs_no_attempt(
    client: cassq.Client, app: App, ran: Ran
) -> None:
    @app.task(results=True)
    def bad() -> object:
        ran.append(())
        return object()

    handle = bad.push()
    run(app, 1)
    assert (ran, counts(client)) == ([()], (1, 0, 0))
    with pytest.raises(TaskFailedError, match="the result of task .* has the type object"):
        handle.result()


def test_what_other_groups_did_with_a_call_says_nothing_of_its_result(
    client: cassq.Client, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cassq.tasks.handles.ASK_SECONDS", 0.0)
    queue = client.create_queue("tasks")
    queue.create_group("audit")
    handle = app.task(name="add", results=True)(lambda: 3).push()
    with queue.popper("audit") as popper:
        popper.commit(popper.pop())
    with pytest.raises(TimeoutError):
        handle.result(timeout=0.01)
    run(app, 1)
    assert handle.result() == 3


def test_a_caller_that_waits_for_a_task_that_will_never_run_gets_an_error(
    client: cassq.Client, app: App
) -> None:
    @app.task(results=True, retries=[])
    def fails() -> None:
        raise ValueError("no such address")

    failed, cancelled = fails.push(), fails.options(delay=3600).push()
    run(app, 1)
    client.queue("tasks").cancel(cancelled.id)
    with pytest.raises(TaskFailedError, match=r"is dead \(.*ValueError: no such address"):
        failed.result()
    with pytest.raises(TaskFailedError, match="is cancelled"):
        cancelled.result()
    with pytest.raises(UsageError, match="is not the id of a message"):
        app.handle("x")


@pytest.mark.usefixtures("inline_tasks")
def test_inline_calls_run_where_they_are_pushed(ran: Ran) -> None:
    app = App("file:/nowhere/at/all")

    @app.task
    def note(*values: object) -> None:
        ran.append(values)
        if values == ("bad",):
            raise ValueError("bad")

    @app.task
    async def note_async(value: object) -> None:
        ran.append((value,))

    note.options(delay=3600).push((1, 2))
    note_async.push(3)
    asyncio.run(_awaited(note_async))
    assert ran == [([1, 2],), (3,), (4,)]
    assert app.task(results=True, name="x")(lambda: 5).push().result() == 5
    with pytest.raises(ValueError, match="bad"):
        note.push("bad")
    with pytest.raises(UsageError, match="type bytes"):
        note.push(b"x")


async def _awaited(task: Any) -> None:
    await task.push_async(4)


def test_recorded_calls_are_not_run(recorded_tasks: list[Call], ran: Ran) -> None:
    app = App("file:/nowhere/at/all")
    app.task(name="n")(lambda value: ran.append((value,))).push_many([(1,), {"value": 2}])
    assert not ran
    assert recorded_tasks == [Call("n", [1]), Call("n", [], {"value": 2})]


@pytest.mark.embedded_only(reason="it forks, and opens the directory in the child")
def test_a_child_after_a_fork_opens_a_client_of_its_own(url: str, client: cassq.Client) -> None:
    app = App(url)
    task = app.task(name="note")(lambda value: None)
    task.push(1)
    pid = os.fork()
    if not pid:
        try:
            task.push(2)
            app.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    task.push(3)
    app.close()
    assert client.queue("tasks").stats().pushed == 3
    task.push(4)  # a closed app opens again
    app.close()
    assert client.queue("tasks").stats().pushed == 4
