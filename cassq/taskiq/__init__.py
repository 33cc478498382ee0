"""For taskiq: the broker, `Broker("file:cassq-data")`, and a source of schedules."""

from __future__ import annotations

from cassq.taskiq.broker import Broker
from cassq.taskiq.schedules import ScheduleSource

__all__ = ["Broker", "ScheduleSource"]
