"""Declaring tasks: their names, queues and options, and what is refused at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cassq.errors import ConfigError, UsageError
from cassq.tasks import App


def send(user_id: int, text: str = "") -> str:
    return f"{user_id}{text}"


def test_a_task_is_still_its_function() -> None:
    task = App().task(send)
    assert task(3, text="x") == "3x"
    assert task.name == "tests.unit.tasks.test_declaring.send"
    assert repr(task) == "<Task tests.unit.tasks.test_declaring.send>"


def test_a_queue_comes_from_the_task_or_a_route_or_the_app() -> None:
    app = App(queue="rest", routes={"mail.*": "mails", "*": "others"})
    assert app.task(name="mail.send")(send).settings.queue == "mails"
    assert app.task(name="x", queue="own")(send).settings.queue == "own"
    assert app.task(name="y")(send).settings.queue == "others"
    assert App(queue="rest").task(send).settings.queue == "rest"
    assert app.queues == ["mails", "others", "own"]
    assert App(queue="rest").queues == ["rest"]


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda app: app.task(retries=10)(send), "retries"),
        (lambda app: app.task(retries="10")(send), "retries"),
        (lambda app: app.task(retries=[-1])(send), "retries"),
        (lambda app: app.task(timeout=0)(send), "timeout"),
        (lambda app: app.task(priority=10)(send), "priority"),
        (lambda app: app.task(unique=("user",))(send), "unique of task .* names 'user'"),
        (lambda app: app.task(unique="user_id")(send), "unique"),
        (lambda app: app.task(key="user")(send), "key of task .* names 'user'"),
        (lambda app: app.task(queue="no good!")(send), "no good!"),
        (lambda app: app.task(generator), "generator"),
        (lambda app: app.task(int), "a task must be a function"),
        (lambda app: app.cron("0 3 * *")(lambda: None), "0 3"),
        (lambda app: app.cron("@daily", tz="Mars")(lambda: None), "Mars"),
        (lambda app: app.cron("@daily")(send), "callable without arguments"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_declared(
    declare: Callable[[App], Any], said: str
) -> None:
    with pytest.raises((UsageError, ConfigError), match=said):
        declare(App())


def test_two_tasks_of_one_name_are_refused() -> None:
    app = App()
    app.task(send)
    with pytest.raises(UsageError, match="two tasks"):
        app.task(send)


def test_arguments_that_do_not_fit_are_refused_before_anything_is_opened() -> None:
    task = App("file:/nowhere/at/all").task(send)
    with pytest.raises(UsageError, match=r"missing a required argument: 'user_id'.*it takes"):
        task.push()  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="unexpected keyword argument 'txt'"):
        task.push_many([(1,), {"user_id": 2, "txt": "x"}])
    with pytest.raises(UsageError, match="must be a tuple or a dict"):
        task.push_many([3])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="delay"):
        task.options(delay=-1)
