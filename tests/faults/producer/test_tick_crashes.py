"""Processes that die while they push the ticks of schedules: each tick is one message."""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cassq
from tests.faults.actors import Act
from tests.faults.parts import DeadlyDisk, Deaths, Stage
from tests.integration.deadlines import eventually
from tests.integration.stage import Connect, LaterClock, alone, client_on, drain, reap

STEPS_MAX = 40
HOUR_MS = 3_600_000
KILLS = 40
TICKS = 400

_context = multiprocessing.get_context("forkserver")


def push_due(client: cassq.Client) -> list[str]:
    """One pass, without the lease by which reapers share work: a dead one has it for a while."""
    queue = client.queue("jobs")
    actions = client.reaper.reap([queue.row], only=("schedule",))
    return [action.detail for action in actions]


def tick_and_die(directory: str, step: int, hours: int) -> None:
    """Push the ticks that are due so many hours from now, and be killed right after the `step`th
    thing that was written: a commit of the catalog, or a write or sync of a pipe."""
    deaths = Deaths()
    clock = LaterClock(hours * HOUR_MS)
    disk = DeadlyDisk(deaths)
    with client_on(Path(directory), disk, committed=deaths.step, clock=clock) as client:
        deaths.await_step(step)
        push_due(client)
        deaths.await_step(0)


def died(directory: Path, step: int, hours: int) -> bool:
    """Whether the process was killed in its pass."""
    process = _context.Process(target=tick_and_die, args=(str(directory), step, hours))
    process.start()
    process.join(60)
    assert process.exitcode in (0, -9)
    return process.exitcode != 0


@pytest.mark.parametrize("retired", [True, False])
@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_a_tick_whose_pusher_died_anywhere_is_one_message(
    client: cassq.Client, directory: Path, consistency: Any, retired: bool
) -> None:
    """retired: what the dead process wrote is consumed and removed before the next pass."""
    client.create_queue("jobs", consistency=consistency, lease=0.5)
    client.create_schedule("tidy", "jobs", every=3600, missed="all")
    kills: list[bool] = []
    for step in range(1, STEPS_MAX):
        kills.append(died(directory, step, step))
        with client_on(directory, clock=LaterClock(step * HOUR_MS + 60_000)) as later:
            alone(later)
            queue, found = later.queue("jobs"), []
            if retired:
                reap_but_schedules(later)
                found = drain(queue.popper())
                reap_but_schedules(later)
            push_due(later)
            reap(later)
            found += drain(queue.popper())
            assert len(found) == 1, f"killed after step {step}"
            assert push_due(later) == []
            assert queue.audit().findings == []
            assert later.schedule("tidy").info().pushing is None
        if not kills[-1]:
            break
    assert kills[-1] is False, "the pass has more steps than were tried"
    assert sum(kills) >= 4, "it was killed before and after note, append and settling"


def reap_but_schedules(client: cassq.Client) -> None:
    rows = client.ports.catalog.queues.listed()
    client.reaper.reap(rows, only=[name for name in client.reaper.names if name != "schedule"])


def push_ticks_always(stage: Stage, url: str) -> None:
    """Push the ticks that are due, over and over."""
    with cassq.connect(url) as client:
        stage.tell("begun")
        while not stage.over():
            push_due(client)
            stage.tell("passed")


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_processes_that_push_the_same_ticks_and_are_killed_at_random_push_each_once(
    client: cassq.Client, connect: Connect, act: Act, url: str, consistency: Any
) -> None:
    chance = random.Random(7)
    alone(client)
    queue = client.create_queue("jobs", consistency=consistency, lease=0.5)
    client.create_schedule("tidy", "jobs", every=1, missed="all")
    records = client.ports.catalog.records
    row = records.schedule("tidy")
    assert row is not None
    now_ms = client.ports.catalog.wall_ms()
    first_ms = now_ms - TICKS * 3_600_000
    hourly = replace(row, cron="@every 1h", created_ms=first_ms - 3_600_000, next_ms=first_ms)
    assert records.change_schedule(row, hourly)
    part = "tests.faults.producer.test_tick_crashes:push_ticks_always"
    crew = [act(part, url) for _ in range(3)]
    for _ in range(KILLS):
        number = chance.randrange(len(crew))
        crew[number].listen(chance.random() / 10)
        crew[number].kill()
        crew[number] = act(part, url)

    def all_pushed() -> bool:
        now = records.schedule("tidy")
        assert now is not None
        return now.firing is None and now.next_ms > now_ms

    eventually("all ticks are pushed", all_pushed)
    for actor in crew:
        actor.kill()
    reap(client)
    popper = queue.popper()
    seen: Counter[str] = Counter()

    def all_came() -> bool:
        reap(client)
        seen.update(message.headers["cassq-tick"] for message in drain(popper))
        return len(seen) > TICKS

    eventually("all ticks are delivered", all_came)
    assert set(seen.values()) == {1}
    assert len(seen) == TICKS + 1
    assert queue.audit().findings == []
