"""Processes that die at any write of a task with steps: no step runs twice, and no task is lost."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

import cassq
from cassq.catalog.sqlite import SqliteCatalog
from cassq.catalog.sqlite.step_tables import SqliteSteps
from cassq.tasks import App, Context
from cassq.tasks.steps.overview import whereabouts
from tests.faults.parts import DeadlyDisk, Deaths
from tests.integration.stage import LaterClock, alone, client_on, reap

STEPS_MAX = 90
HOUR_MS = 3_600_000

_context = multiprocessing.get_context("forkserver")


class DeadlySteps(SqliteSteps):
    """Records after each write of which the process may die."""

    def __init__(self, steps: SqliteSteps, deaths: Deaths) -> None:
        self.file = steps.file
        self._steps = steps
        self._deaths = deaths

    def find(self, task_id: str) -> dict[str, bytes]:
        return self._steps.find(task_id)

    def add(self, task_id: str, key: str, value: bytes, kept_seconds: float) -> bytes:
        found = self._steps.add(task_id, key, value, kept_seconds)
        self._deaths.step(True)
        return found

    def change(self, task_id: str, key: str, old: bytes, new: bytes, kept_seconds: float) -> bool:
        changed = self._steps.change(task_id, key, old, new, kept_seconds)
        self._deaths.step(True)
        return changed

    def keep(self, task_id: str, kept_seconds: float) -> None:
        self._steps.keep(task_id, kept_seconds)
        self._deaths.step(True)


def app_of(client: cassq.Client, notes: Path) -> App:
    """An app with a task whose steps note each time that they are called."""
    app = App()
    app.use(client)

    def note(name: str) -> str:
        with notes.open("a") as file:
            file.write(f"{name}\n")
        return name

    @app.task(name="order", results=True)
    def order(ctx: Context) -> list[str]:
        names = [ctx.step("a", note, "a")]
        ctx.sleep("cool off", seconds=0.001)
        names.append(ctx.step("b", note, "b"))
        names.append(ctx.wait("go", timeout=10 * HOUR_MS))
        names.append(ctx.step("c", note, "c"))
        return names

    return app


def run(client: cassq.Client, app: App) -> None:
    """Run all messages that are due, and ack each durably."""
    with client.queue("tasks").popper() as popper:
        while messages := popper.pop(1, wait=0.05):
            app(messages[0])
            popper.commit(messages)


def run_and_signal(client: cassq.Client, app: App, task_id: str) -> None:
    run(client, app)
    app.signal(task_id, "go", "gone")
    run(client, app)


def run_and_die(directory: str, notes: str, task_id: str, step: int, hours: int) -> None:
    """Run the task, so many hours from now, and be killed right after the `step`th thing that was
    written: a record of it, a commit of the catalog, or a write or sync of a pipe."""
    deaths = Deaths()
    clock, disk = LaterClock(hours * HOUR_MS), DeadlyDisk(deaths)
    with client_on(Path(directory), disk, committed=deaths.step, clock=clock) as client:
        catalog = client.ports.catalog
        assert isinstance(catalog, SqliteCatalog)
        catalog.steps = DeadlySteps(catalog.steps, deaths)
        app = app_of(client, Path(notes))
        deaths.await_step(step)
        run_and_signal(client, app, task_id)
        deaths.await_step(0)


def died(*arguments: object) -> bool:
    """Whether the process was killed."""
    process = _context.Process(target=run_and_die, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode in (0, -9)
    return process.exitcode != 0


def check(directory: Path, notes: Path, client: cassq.Client, step: int) -> bool:
    """Kill a process after one step; whether it had so many."""
    alone(client)
    notes.unlink(missing_ok=True)
    handle = app_of(client, notes).tasks["order"].push()
    killed = died(str(directory), str(notes), str(handle.id), step, 2 * step)
    with client_on(directory, clock=LaterClock((2 * step + 1) * HOUR_MS)) as later:
        alone(later)
        app = app_of(later, notes)
        reap(later)
        run_and_signal(later, app, handle.id)
        assert notes.read_text().split() == ["a", "b", "c"], f"killed after step {step}"
        assert app.handle(handle.id).result(timeout=10) == ["a", "b", "gone", "c"]
        assert whereabouts(later, "tasks", handle.id).state == "done"
        stats = later.queue("tasks").stats().groups["default"]
        left = (stats.waiting, stats.pending, stats.delayed, stats.dead)
        assert left == (0, 0, 0, 0), f"killed after step {step}"
        assert later.queue("tasks").audit().findings == []
    return killed


@pytest.mark.parametrize("step", [3, 8, 13])
def test_a_task_whose_worker_is_killed_goes_on_and_no_step_runs_twice(
    client: cassq.Client, directory: Path, tmp_path: Path, step: int
) -> None:
    client.create_queue("tasks", lease=0.5)
    assert check(directory, tmp_path / "notes", client, step)


@pytest.mark.long(reason="a process for each of about 50 writes")
def test_a_task_may_be_killed_after_any_write_of_it(
    client: cassq.Client, directory: Path, tmp_path: Path
) -> None:
    client.create_queue("tasks", lease=0.5)
    step = 1
    while check(directory, tmp_path / "notes", client, step):
        step += 1
        assert step < STEPS_MAX, "it has more writes than were tried"
    assert step > 20, "it was killed before and after each record, push and ack"
