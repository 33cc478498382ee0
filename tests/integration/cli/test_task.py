"""`cassq task`: what its verbs do and write, and how they fail."""

from __future__ import annotations

from typing import Any

import pytest

import cassq
from cassq.tasks import App, Context
from tests.integration.cli.test_verbs import Cli, cli

__all__ = ["cli"]


@pytest.fixture
def app(client: cassq.Client) -> App:
    app = App()
    app.use(client)

    @app.task(name="order", results=True, retries=[])
    def order(ctx: Context, number: int) -> str:
        paid = ctx.step("charge", lambda: number * 2)
        ctx.sleep("cool off", seconds=0 if number else 3600)
        if number == 13:
            raise ValueError("bad luck")
        return f"{paid} {ctx.wait('approved')}"

    return app


def run(app: App, count: int) -> None:
    app.run(max_tasks=count, concurrency=1)


def test_calls_are_listed_with_what_they_wait_for(cli: Cli, app: App) -> None:
    order = app.tasks["order"]
    ids = [order.push(number).id for number in (0, 1, 13)]
    run(app, 5)
    ids.append(order.push(4).id)
    ids.append(order.options(delay=60).push(5).id)
    listed = {row["id"]: row for row in cli("task", "list", "--json").json()}
    assert [listed[each]["state"] for each in ids] == [
        "sleeping",
        "signal",
        "dead",
        "waiting",
        "delayed",
    ]
    assert [listed[each]["waits_for"] for each in ids] == ["cool off", "approved", "", "", ""]
    assert {row["task"] for row in listed.values()} == {"order"}
    (dead,) = cli("task", "list", "tasks", "--state", "dead", "--json").json()
    assert dead["id"] == ids[2]
    assert "cool off" in cli("task", "list", "--max", 1, "--state", "sleeping").out.decode()
    assert "sleeping" in cli("task", "show", ids[0]).out.decode()


def test_a_call_is_shown_with_its_steps_and_signalled(cli: Cli, app: App) -> None:
    handle = app.tasks["order"].push(7)
    assert "State: waiting" in cli("task", "show", handle.id).out.decode()
    run(app, 2)
    shown = cli("task", "show", handle.id, "--json").json()
    assert (shown["task"], shown["args"], shown["state"]) == ("order", [7], "signal")
    assert shown["waits_for"] == "approved"
    assert [(step["name"], step["kind"], step["value"]) for step in shown["steps"]] == [
        ("charge", "step", 14),
        ("cool off", "sleep", None),
        ("approved", "wait", None),
    ]
    assert cli("task", "signal", handle.id, "approved", '"yes"').out == b"signalled\n"
    run(app, 1)
    shown = cli("task", "show", handle.id, "--json").json()
    assert (shown["state"], shown["result"]) == ("done", "14 yes")
    late = cli("task", "signal", handle.id, "approved", code=1)
    assert late.out == b"not sent: the task is over\n"


def test_a_dead_call_is_retried_and_a_sleeping_one_cancelled(cli: Cli, app: App) -> None:
    handle = app.tasks["order"].push(13)
    run(app, 2)
    assert "bad luck" in cli("task", "show", handle.id).out.decode()
    assert cli("task", "retry", handle.id).out == b"retried\n"
    assert cli("task", "retry", handle.id, "--json", code=1).json() == {
        "id": handle.id,
        "retried": False,
    }
    sleeper = app.tasks["order"].push(0)
    run(app, 2)
    assert cli("task", "cancel", sleeper.id).out == b"cancelled\n"
    assert cli("task", "cancel", sleeper.id).out == b"cancelled\n", "again"
    delayed = app.tasks["order"].options(delay=60).push(1)
    assert cli("task", "cancel", delayed.id, "--json").json()["cancelled"] is True
    soon = app.tasks["order"].push(1)
    assert cli("task", "cancel", soon.id).out == b"cancelled\n"
    assert cli("task", "show", soon.id, "--json").json()["state"] == "cancelled"
    assert cli("task", "cancel", handle.id, code=1).out == b"not cancelled: it is dead\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("show", "nonsense"), "'nonsense' is not a message ID"),
        (("signal", "0000:1", "go"), "is not a message"),
        (("signal", "0000:1", "go", "{"), "the value of a signal must be JSON"),
        (("list", "none"), "'none'"),
    ],
)
def test_bad_use_is_told(
    cli: Cli, client: cassq.Client, words: tuple[Any, ...], error: str
) -> None:
    assert error in cli("task", *words, code=2).err


def test_a_message_that_is_not_a_call_is_not_listed(cli: Cli, client: cassq.Client) -> None:
    with client.create_queue("mail").pusher() as pusher:
        message_id = pusher.push(b"plain")
    assert cli("task", "list", "--json").json() == []
    assert "is not a call of a task" in cli("task", "show", message_id, code=2).err
