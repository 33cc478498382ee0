"""The scheduler of Celery's beat whose memory is in the catalog: any number of beats may run.

    celery -A mail beat --scheduler cassq.celery:Scheduler

When an entry was last sent is a text that all beats share, changed by compare-and-set: of several
beats that find an entry due, one sends it. So another beat can stand by, and no file is kept. The
text is written before the task is pushed: a beat that is killed between the two leaves out a tick.
"""

from __future__ import annotations

import json
import logging
import uuid
from datetime import datetime
from typing import Any

from celery import beat

from cassq.catalog.port import Leases
from cassq.kombu.brokers import broker_of

logger: logging.Logger = logging.getLogger("cassq")


class Scheduler(beat.Scheduler):
    """A scheduler; its queues must be cassq's."""

    def setup_schedule(self) -> None:
        self.install_default_entries(self.app.conf.beat_schedule)
        self.merge_inplace(self.app.conf.beat_schedule)
        for entry in self.schedule.values():
            last = self._last(self._read(entry))
            if last is not None:
                entry.last_run_at = last

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        if self._may_send(entry):
            super().apply_entry(entry, producer=producer)

    def _may_send(self, entry: Any) -> bool:
        """Whether this beat is the one that sends an entry which it finds due."""
        text = self._read(entry)
        last = self._last(text)
        if last is not None and not entry.schedule.is_due(last)[0]:
            return False  # another beat was quicker
        record = {
            "at": entry.default_now().isoformat(),
            "by": uuid.uuid4().hex,  # no two beats write the same text
        }
        return self._leases.swap(self._name(entry), text, json.dumps(record))

    @property
    def _leases(self) -> Leases:
        transport = self.connection.transport
        return broker_of(transport.url).client.ports.catalog.leases

    def _read(self, entry: Any) -> str:
        return self._leases.shared(self._name(entry))

    def _last(self, text: str) -> datetime | None:
        if not text:
            return None
        last: datetime = self.app.now().fromisoformat(json.loads(text)["at"])
        return last

    @staticmethod
    def _name(entry: Any) -> str:
        return f"celery-beat:{entry.name}"
