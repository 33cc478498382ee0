"""Schedules of tasks: each `App.cron` has one in the catalog, as the program declares it."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from cassq.client.client import Client
from cassq.errors import ScheduleExistsError, ScheduleNotFoundError
from cassq.settings import Missed, Overlap


class CronEntry(NamedTuple):
    """When the task of this name is pushed; see `App.cron`."""

    name: str
    cron: str
    tz: str
    missed: Missed
    overlap: Overlap


def put_schedule(client: Client, queue: str, entry: CronEntry, payload: bytes) -> None:
    """Have the schedule as the program declares it. One with other settings is replaced, and its
    ticks count from now."""
    try:
        _create(client, queue, entry, payload)
    except ScheduleExistsError:
        with suppress(ScheduleNotFoundError):  # another process was faster
            client.schedule(entry.name).delete()
        _create(client, queue, entry, payload)


def _create(client: Client, queue: str, entry: CronEntry, payload: bytes) -> None:
    client.create_schedule(
        entry.name,
        queue,
        cron=entry.cron,
        tz=entry.tz,
        payload=payload,
        missed=entry.missed,
        overlap=entry.overlap,
    )
