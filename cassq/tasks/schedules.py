"""Schedules of tasks: each `App.cron` has one in the catalog, as the program declares it."""

from __future__ import annotations

from typing import NamedTuple

from cassq.client.client import Client
from cassq.errors import ScheduleExistsError
from cassq.settings import Missed, Overlap


class CronEntry(NamedTuple):
    """When the task of this name is pushed; see `App.cron`."""

    name: str
    cron: str
    tz: str
    missed: Missed
    overlap: Overlap


def put_schedule(
    client: Client, queue: str, entry: CronEntry, payload: bytes, priority: int
) -> None:
    """Create the schedule that the program declares, or change the existing one to match."""
    try:
        client.create_schedule(
            entry.name,
            queue,
            cron=entry.cron,
            tz=entry.tz,
            payload=payload,
            missed=entry.missed,
            overlap=entry.overlap,
            priority=priority,
        )
    except ScheduleExistsError:
        client.schedule(entry.name).update(
            queue=queue,
            cron=entry.cron,
            tz=entry.tz,
            payload=payload,
            headers=None,
            key=None,
            missed=entry.missed,
            overlap=entry.overlap,
            priority=priority,
        )
