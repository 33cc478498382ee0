"""`cassq worker MODULE:APP`: an app's queues are made and worked for, each by its own processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest

import cassq
from cassq.tasks import App
from tests.integration.deadlines import eventually
from tests.integration.worker.processes import Home, WorkerProcess, home

__all__ = ["home"]

pytestmark = pytest.mark.embedded_only(reason="the command opens a directory")

JOBS = """
import os
from cassq.tasks import App, current
from tasks import note

app = App({url!r})

@app.task(name="make", retries=[0, 0])
def make(name):
    note("begun", current().message)
    if name == "wait" and current().attempt == 1:
        open("gate").close()  # waits until somebody has opened it for writing
    more.push(name)
    note("done", current().message)

@app.task(name="more", queue="more")
async def more(name):
    note("more", current().message)
"""


@pytest.fixture
def app(home: Home) -> Iterator[App]:
    """What pushes calls of the tasks in the module `jobs`."""
    (home.directory / "jobs.py").write_text(JOBS.replace("{url!r}", repr(home.url)))
    with App(home.url, routes={"more": "more"}) as app:
        yield app


def committed(client: cassq.Client, queue: str) -> int:
    return client.queue(queue).stats().groups["default"].committed


def is_served(worker: WorkerProcess, metric: str) -> bool:
    return metric in worker.get("/metrics")[1]


def test_its_queues_are_made_and_worked_for(home: Home, app: App) -> None:
    with WorkerProcess(home, "--processes", "2", "--log", "json", handler="jobs:app") as worker:
        eventually("they are there", lambda: len(worker.children()) == 4)
        for number in range(10):
            app.push("make", str(number))
        eventually("all ran", lambda: sum(home.noted("more").values()) == 10)
        assert worker.terminate() == 0
    assert committed(app.client, "tasks") == committed(app.client, "more") == 10
    found = {(line["queue"], line["task"]) for line in worker.logged if "outcome" in line}
    assert found == {("tasks", "make"), ("more", "more")}


def test_a_queue_may_be_chosen(home: Home, app: App) -> None:
    app.push("more", "x")
    with WorkerProcess(home, "--queue", "more", handler="jobs:app") as worker:
        eventually("it ran", lambda: bool(home.noted("more")))
        assert len(worker.children()) == 1
        assert worker.terminate() == 0
    with WorkerProcess(home, "--queue", "none", handler="jobs:app") as worker:
        assert worker.wait() == 2
    assert "no task of jobs:app uses queue 'none'\nhint: its tasks use more, tasks" in worker.errors


def test_what_a_killed_process_ran_is_run_again_at_once(home: Home, app: App) -> None:
    with WorkerProcess(home, "--queue", "tasks", handler="jobs:app") as worker:
        app.push("make", "wait")
        (line,) = home.until("begun", 1)
        os.kill(line.pid, signal.SIGKILL)
        (again,) = home.until("done", 1)
        assert (again.attempts, again.payload) == (2, line.payload)
        assert worker.terminate() == 0


def test_its_metrics_are_by_queue(home: Home, app: App) -> None:
    with WorkerProcess(home, "--listen", "127.0.0.1:0", handler="jobs:app") as worker:
        app.push("make", "x")
        eventually("both ran", lambda: bool(home.noted("more")))
        for queue in ("more", "tasks"):
            of = f'messaging_consumer_group_name="default",messaging_destination_name="{queue}"'
            metric = f'cassq_worker_tasks_total{{{of},outcome="done"}} 1.0'
            eventually(metric, partial(is_served, worker, metric))
        assert worker.terminate() == 0


def test_an_app_that_cannot_be_loaded_ends_the_command_with_the_reason(home: Home) -> None:
    (home.directory / "jobs.py").write_text("from cassq.tasks import App\napp = App(quue='x')\n")
    with WorkerProcess(home, handler="jobs:app") as worker:
        assert worker.wait() == 2
    assert "unexpected keyword argument 'quue'" in worker.errors


def test_an_app_of_another_place_is_warned_of(home: Home, app: App) -> None:
    other = f"file://{home.directory / 'other'}"
    (home.directory / "jobs.py").write_text(JOBS.replace("{url!r}", repr(other)))
    app.push("more", "x")
    with WorkerProcess(home, "--queue", "more", handler="jobs:app") as worker:
        eventually("it ran", lambda: bool(home.noted("more")))
        assert worker.terminate() == 0
    assert f"the app was made with {other}, but this worker uses {home.url}" in worker.errors
