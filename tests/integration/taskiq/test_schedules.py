"""The source of schedules for taskiq: shared by schedulers, each time sent by one of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.errors import UsageError
from tests.integration.deadlines import DEADLINE_SECONDS, eventually

pytestmark = pytest.mark.needs("module:taskiq")
ROOT = Path(__file__).resolve().parents[3]


def scheduling(url: str, act: Callable[[Any, Any, Any], Awaitable[None]], **options: Any) -> None:
    """Run `act` with a broker that has the task `nothing`, and two schedulers' sources."""
    from cassq.taskiq import Broker, ScheduleSource

    async def main() -> None:
        broker = Broker(url)

        @broker.task(task_name="nothing")
        async def nothing(number: int) -> None:
            """Do nothing."""

        sources = [ScheduleSource(url, **options) for _ in range(2)]
        await broker.startup()
        for source in sources:
            await source.startup()
        try:
            await asyncio.wait_for(act(broker, *sources), DEADLINE_SECONDS)
        finally:
            for source in sources:
                await source.shutdown()
            await broker.shutdown()

    asyncio.run(main())


def sent(client: cassq.Client) -> int:
    return client.queue("taskiq").stats().groups["default"].waiting


def task_of(broker: Any) -> Any:
    return broker.find_task("nothing")


def test_schedules_are_shared_until_they_are_removed(url: str, client: cassq.Client) -> None:
    async def act(broker: Any, source: Any, other: Any) -> None:
        task = task_of(broker)
        cron = await task.schedule_by_cron(source, "0 9 * * *", 1)
        often = await task.schedule_by_interval(source, timedelta(minutes=5), number=2)
        found = {each.schedule_id: each for each in await other.get_schedules()}
        assert found[cron.schedule_id].cron == "0 9 * * *"
        assert found[often.schedule_id].kwargs == {"number": 2}
        await cron.unschedule()
        assert [each.schedule_id for each in await other.get_schedules()] == [often.schedule_id]
        with pytest.raises(UsageError, match="cannot be written as JSON"):
            await task.schedule_by_cron(source, "0 9 * * *", object())

    scheduling(url, act)


def test_each_time_is_sent_by_one_scheduler(url: str, client: cassq.Client) -> None:
    async def act(broker: Any, source: Any, other: Any) -> None:
        from taskiq import TaskiqScheduler

        scheduler = TaskiqScheduler(broker, [source, other])
        for add in (
            lambda: task_of(broker).schedule_by_time(source, datetime.now(UTC), 1),
            lambda: task_of(broker).schedule_by_interval(source, 3600, 2),
        ):
            before = sent(client)
            await add()
            (schedule,) = await other.get_schedules()
            both = [scheduler.on_ready(each, schedule) for each in (source, other)]
            await asyncio.gather(*both)
            assert sent(client) == before + 1
            await other.delete_schedule(schedule.schedule_id)
            assert await source.get_schedules() == []

    scheduling(url, act)


def test_what_a_scheduler_did_not_send_as_it_died_another_sends(
    url: str, client: cassq.Client
) -> None:
    async def act(broker: Any, source: Any, other: Any) -> None:
        from taskiq import TaskiqScheduler

        await task_of(broker).schedule_by_time(source, datetime.now(UTC), 1)
        (schedule,) = await source.get_schedules()
        await source.pre_send(schedule)  # and no more: it died
        await TaskiqScheduler(broker, [other]).on_ready(other, schedule)
        assert sent(client) == 1
        assert await other.get_schedules() == []

    scheduling(url, act, claim_timeout=0.2)


MODULE = """
from taskiq import TaskiqScheduler
from cassq.taskiq import Broker, ScheduleSource
broker = Broker({url!r})
scheduler = TaskiqScheduler(broker, [ScheduleSource({url!r})])
"""


@pytest.mark.long(reason="a process of taskiq starts and ends")
def test_its_own_scheduler_sends_them(url: str, client: cassq.Client, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(MODULE.replace("{url!r}", repr(url)))

    async def act(broker: Any, source: Any, other: Any) -> None:
        await task_of(broker).schedule_by_time(source, datetime.now(UTC), 1)

    scheduling(url, act)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), "."])}
    words = [sys.executable, "-m", "taskiq", "scheduler", "jobs:scheduler"]
    with subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL) as scheduler:
        try:
            eventually("it was sent", lambda: sent(client) == 1)
        finally:
            scheduler.terminate()
