"""Steps of tasks: what returned never runs again, and who sleeps or waits holds no worker."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

import cassq
from cassq.errors import MessageNotFoundError, UsageError
from cassq.tasks import App, Context, Handle, Reject, TaskFailedError
from cassq.tasks.inline import inline
from cassq.tasks.steps import listing
from cassq.tasks.steps.overview import whereabouts
from tests.integration.worker.running import Running

Ran = list[str]


@pytest.fixture
def ran() -> Ran:
    """What tasks noted."""
    return []


def run(app: App, count: int) -> None:
    """Run so many messages of the app's only queue, and end."""
    app.run(max_tasks=count, concurrency=1)


def committed(client: cassq.Client) -> int:
    return client.queue("tasks").stats().groups["default"].committed


def state(client: cassq.Client, handle: Handle[Any]) -> str:
    return whereabouts(client, handle.queue, handle.id).state


def test_a_step_that_returned_is_not_called_when_its_task_runs_again(app: App, ran: Ran) -> None:
    def noted(what: str) -> str:
        ran.append(what)
        return what.upper()

    @app.task(retries=[0, 0], results=True)
    def order(ctx: Context, what: str) -> list[str]:
        first = ctx.step("first", noted, what)
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return [first, ctx.step("second", noted, f"{what}2")]

    handle = order.push("a")
    run(app, 3)
    assert ran == ["a", "a2"]
    assert handle.result(timeout=10) == ["A", "A2"]


def test_each_use_of_a_name_is_a_step_and_one_that_raised_is_called_again(
    app: App, ran: Ran
) -> None:
    def add(number: int) -> tuple[int]:
        ran.append(str(number))
        if len(ran) == 2:
            raise ValueError("once")
        return (number,)

    @app.task(retries=[0], results=True)
    def total(ctx: Context) -> int:
        return sum(ctx.step("add", add, number)[0] for number in range(3))

    handle = total.push()
    run(app, 2)
    assert ran == ["0", "1", "1", "2"]
    assert handle.result(timeout=10) == 3


def test_the_log_says_until_when_a_task_sleeps_or_waits(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    def sleeper(ctx: Context) -> None:
        ctx.sleep("cool off", hours=24)

    @app.task
    def waiter(ctx: Context) -> None:
        ctx.wait("approved", timeout=3600)

    caplog.set_level(logging.INFO, "cassq.worker")
    sleeper.push()
    waiter.push()
    run(app, 2)
    lines = sorted(record.getMessage() for record in caplog.records)
    assert [" sleeps until 2" in lines[0], " waits for 'approved' until 2" in lines[1]] == [
        True
    ] * 2
    assert not any(" done " in line for line in lines)


@pytest.mark.parametrize("length", [0.0, 0.2])
def test_a_task_that_sleeps_ends_its_run_and_keeps_its_id(
    client: cassq.Client, app: App, ran: Ran, length: float
) -> None:
    @app.task(results=True)
    def order(ctx: Context, number: int) -> str:
        ctx.step("before", lambda: ran.append("before"))
        ctx.sleep("cool off", seconds=length)
        ctx.step("after", lambda: ran.append("after"))
        return ctx.id

    handle = order.push(7)
    run(app, 1)
    assert ran == ["before"]
    run(app, 1)
    assert ran == ["before", "after"]
    assert handle.result(timeout=10) == handle.id
    assert committed(client) == 2
    assert client.queue("tasks").audit().findings == []


def test_a_sleeping_task_is_not_over_and_another_group_gets_its_call_once(
    client: cassq.Client, app: App
) -> None:
    @app.task(results=True)
    def order(ctx: Context) -> None:
        ctx.sleep("a", hours=1)

    queue = client.create_queue("tasks")
    queue.create_group("others")
    handle = order.push()
    run(app, 1)
    assert state(client, handle) == "sleeping"
    with pytest.raises(TimeoutError):
        handle.result(timeout=1.2)
    assert queue.stats().groups["others"].waiting == 1


def test_a_signal_wakes_a_task_that_waits_and_one_that_came_before_counts(
    client: cassq.Client, app: App
) -> None:
    @app.task(results=True)
    def order(ctx: Context) -> list[Any]:
        return [ctx.wait("early"), ctx.wait("late", timeout=3600)]

    handle = order.push()
    assert order.signal(handle.id, "early", {"by": "Ann"})
    run(app, 1)
    assert state(client, handle) == "signal"
    assert handle.signal("other", 1)
    assert state(client, handle) == "signal"
    assert handle.signal("late", 2)
    run(app, 1)
    assert handle.result(timeout=10) == [{"by": "Ann"}, 2]
    assert not handle.signal("late", 3)
    stats = client.queue("tasks").stats().groups["default"]
    assert (stats.waiting, stats.delayed, stats.pending) == (0, 0, 0)
    assert client.queue("tasks").audit().findings == []


def test_a_signal_that_comes_just_before_it_waits_wakes_a_task(app: App) -> None:
    """It is recorded when the task has looked for signals, and has not been pushed again yet."""
    holder: list[Handle[Any]] = []

    @app.task(results=True)
    def order(ctx: Context) -> Any:
        try:
            return ctx.wait("go", timeout=3600)
        finally:
            holder[0].signal("go", 1)

    holder.append(order.push())
    running = Running(app.worker(concurrency=1))
    assert holder[0].result(timeout=10) == 1
    running.stop()


def test_a_worker_that_lost_its_claim_takes_no_signal_of_a_wait_that_is_over(
    client: cassq.Client, app: App
) -> None:
    """While it is in a step, another worker runs that, too, and goes on to the second wait."""
    left = ["another worker"]

    def step() -> None:
        if left:
            left.pop()
            app(message)
            assert handle.signal("go", 2)

    @app.task(results=True)
    def order(ctx: Context) -> list[Any]:
        ctx.step("slow", step)
        return [ctx.wait("go"), ctx.wait("go")]

    handle = order.push()
    assert handle.signal("go", 1)
    with client.queue("tasks").popper() as popper:
        (message,) = popper.pop()
        app(message)
        popper.commit([message])
    assert handle.result(timeout=10) == [1, 2]


def test_a_wait_is_over_after_its_timeout_and_each_signal_ends_one_wait(app: App) -> None:
    @app.task(results=True)
    def order(ctx: Context) -> list[Any]:
        return [ctx.wait("yes", timeout=0.1), ctx.wait("yes"), ctx.wait("yes", timeout=0)]

    handle = order.push()
    run(app, 2)
    assert handle.signal("yes", 1)
    run(app, 2)
    assert handle.result(timeout=10) == [None, 1, None]


@pytest.mark.parametrize("alone", [True, False])
def test_async_tasks_have_steps_too(app: App, ran: Ran, alone: bool) -> None:
    """alone: they have the queue for themselves, and so run in an event loop; else in threads."""
    if not alone:

        @app.task
        def other() -> None:
            """Is never pushed."""

    async def noted(what: str) -> str:
        ran.append(what)
        return what

    @app.task(results=True)
    async def order(ctx: Context, what: str) -> list[Any]:
        first = await ctx.step_async("first", noted, what)
        await ctx.sleep_async("cool off", seconds=0.1)
        return [first, await ctx.wait_async("go")]

    handle = order.push("a")
    run(app, 2)
    handle.signal("go", True)
    run(app, 1)
    assert handle.result(timeout=10) == ["a", True]
    assert ran == ["a"]


def test_a_cancelled_task_does_not_go_on(client: cassq.Client, app: App, ran: Ran) -> None:
    @app.task(results=True)
    def order(ctx: Context) -> None:
        ctx.sleep("a", seconds=0.2)
        ran.append("ran")

    handle, other = order.push(), order.push()
    run(app, 2)
    assert listing.cancel(client, handle.id) == "cancelled"
    assert listing.cancel(client, handle.id) == "cancelled"
    run(app, 1)
    assert ran == ["ran"]
    assert other.result(timeout=10) is None
    with pytest.raises(TaskFailedError, match="cancelled"):
        handle.result(timeout=10)
    assert client.queue("tasks").audit().findings == []


def test_code_that_changed_between_steps_is_an_error_that_names_both(
    client: cassq.Client, app: App
) -> None:
    names = ["charge", "ship"]

    @app.task(retries=[0])
    def order(ctx: Context) -> None:
        for name in names:
            ctx.step(name, str)
        if "bill" not in names:
            names.insert(0, "bill")
            raise ValueError("deployed")

    order.push()
    run(app, 2)
    (letter,) = client.queue("tasks").dead_letters().peek()
    assert "StepMismatchError" in letter.death["error"]
    assert "reached step 'bill#0' where it reached step 'charge#0'" in letter.death["error"]


def test_a_step_result_that_cannot_be_written_is_reported_and_the_step_is_not_called_again(
    client: cassq.Client, app: App, ran: Ran
) -> None:
    def charge() -> object:
        ran.append("charged")
        return object()

    @app.task(retries=[0])
    def order(ctx: Context) -> None:
        ctx.step("charge", charge)

    order.push()
    run(app, 2)
    assert ran == ["charged"]
    (letter,) = client.queue("tasks").dead_letters().peek()
    assert "the result of step 'charge#0' of task" in letter.death["error"]
    assert "has the type object" in letter.death["error"]


def test_a_dead_letter_that_is_merged_keeps_what_its_steps_returned(
    client: cassq.Client, app: App, ran: Ran
) -> None:
    broken = [True]

    @app.task(retries=[], results=True)
    def order(ctx: Context) -> str:
        ctx.step("charge", lambda: ran.append("charge"))
        ctx.sleep("cool off", seconds=0)
        if broken:
            raise Reject("no such customer")
        return "shipped"

    handle = order.push()
    run(app, 2)
    assert state(client, handle) == "dead"
    with pytest.raises(TaskFailedError, match="no such customer"):
        handle.result(timeout=10)
    broken.clear()
    assert client.queue("tasks").dead_letters().merge().messages == 1
    run(app, 1)
    assert app.handle(handle.id).result(timeout=10) == "shipped"
    assert ran == ["charge"]


def test_messages_of_earlier_moves_are_acked_and_not_run(
    client: cassq.Client, app: App, ran: Ran
) -> None:
    """As if the ack of the first message had been lost with its worker."""

    @app.task
    def order(ctx: Context) -> None:
        ran.append("ran")
        ctx.sleep("a", seconds=0)
        ctx.step("b", lambda: ran.append("step"))

    order.push()
    (message,) = client.queue("tasks").popper().pop()
    app(message)  # and its worker dies before the ack
    app(message)
    assert ran == ["ran"]
    (moved,) = client.queue("tasks").popper().pop(wait=5)
    assert moved.id == message.id
    app(moved)
    app(moved)  # it is over: nothing runs even if this ack is lost
    app(message)
    assert ran == ["ran", "ran", "step"]


def test_steps_run_inline_with_the_signals_that_a_test_gives(app: App, ran: Ran) -> None:
    @app.task(results=True)
    def order(ctx: Context, what: str) -> list[Any]:
        ctx.step("note", ran.append, what)
        ctx.sleep("cool off", hours=24)
        return [ctx.wait("approved"), ctx.wait("other", timeout=9)]

    with inline(signals={"approved": True}):
        assert order.push("a").result() == [True, None]
    assert order("b") == [None, None]
    assert ran == ["a", "b"]


def test_bad_use_is_told_where_it_is(client: cassq.Client, app: App) -> None:
    @app.task
    def plain() -> None:
        return None

    @app.task
    def order(ctx: Context, number: int) -> None:
        return None

    with pytest.raises(UsageError, match="do not fit"):
        order.push()  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="it takes|do not fit"):
        order.push(1, 2)  # type: ignore[call-arg]
    client.create_queue("tasks")
    with pytest.raises(MessageNotFoundError):
        app.signal("0000:7", "approved")
    handle = order.push(1)
    with pytest.raises(UsageError, match="signal 'a'"):
        handle.signal("a", object())
    with pytest.raises(UsageError, match="name of a step"):
        handle.signal("")


def test_a_task_in_a_cp_queue_gets_an_error_when_it_sleeps(client: cassq.Client) -> None:
    app = App(queues={"tasks": {"consistency": "cp"}})
    app.use(client)

    @app.task(retries=[])
    def order(ctx: Context) -> None:
        ctx.sleep("a", hours=1)

    order.push()
    run(app, 1)
    (letter,) = client.queue("tasks").dead_letters().peek()
    assert "cannot sleep or wait in cp queue 'tasks'" in letter.death["error"]


def test_signals_and_timeouts_at_the_same_time_lose_no_task(client: cassq.Client, app: App) -> None:
    @app.task(results=True)
    def order(ctx: Context) -> Any:
        return ctx.wait("go", timeout=0.05)

    handles = [order.push() for _ in range(40)]
    running = Running(app.worker(concurrency=4))
    threads = [threading.Thread(target=each.signal, args=("go", 1)) for each in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results = [each.result(timeout=30) for each in handles]
    running.stop()
    assert set(results) <= {1, None}
    stats = client.queue("tasks").stats().groups["default"]
    assert (stats.dead, stats.lost) == (0, 0)
    assert client.queue("tasks").audit().findings == []
