"""A scheduler for Celery's beat that keeps its state in the catalog: any number of beats may run.

    celery -A mail beat --scheduler cassq.celery:Scheduler

All beats share a note of when an entry was last sent, and change it by compare-and-set: of several
beats that find an entry due, one sends it. So another beat can stand by, and no file is kept. The
note is written before the task is pushed, and again afterwards. If a beat writes it but is killed
before the push, or its push fails, another beat pushes the task, or the same one when it runs
again.
"""

from __future__ import annotations

import json
import logging
import uuid
from datetime import datetime
from typing import Any, NamedTuple

from celery import beat

from cassq.base.clock import Stopwatch
from cassq.catalog.port import Leases
from cassq.kombu.brokers import broker_of

logger: logging.Logger = logging.getLogger("cassq")

# How long other beats leave a tick to the beat that noted it, and how often they check.
CLAIM_SECONDS = 10.0


class NotedEntry(NamedTuple):
    """The note of an entry. at: when it was last sent, or a beat began to send it. sent: whether it
    was sent."""

    at: datetime
    sent: bool


class Scheduler(beat.Scheduler):
    """A scheduler; the app's broker must be cassq."""

    def setup_schedule(self) -> None:
        self._look: Stopwatch | None = None  # since unsent ticks were looked for
        self._notes: dict[str, str] = {}  # what this beat noted of entries that it is sending
        self.install_default_entries(self.app.conf.beat_schedule)
        self.merge_inplace(self.app.conf.beat_schedule)
        for entry in self.schedule.values():
            noted = self._noted(self._read(entry))
            if noted is not None:
                entry.last_run_at = noted.at

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send entries that are due, and those that a beat noted but did not send. Returns the
        seconds until the next call."""
        if self._look is None or self._look.seconds() >= CLAIM_SECONDS:
            self._look = Stopwatch()
            for entry in list(self.schedule.values()):
                text = self._read(entry)
                if self._is_unsent(text) and self._note(entry, text):
                    logger.warning("beat sends %s, which was recorded but not sent", entry.name)
                    super().apply_entry(entry, producer=self.producer)
        seconds: float = super().tick(*args, **kwargs)
        return min(seconds, max(0.0, CLAIM_SECONDS - self._look.seconds()))

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        if self._may_send(entry):
            super().apply_entry(entry, producer=producer)

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        """Send an entry's task, and note that it was sent."""
        result = super().apply_async(entry, *args, **kwargs)
        note = self._notes.pop(entry.name, None)
        if note is not None:  # if it was changed, another beat took over
            self._leases.swap(self._name(entry), note, _text(json.loads(note)["at"], sent=True))
        return result

    def _may_send(self, entry: Any) -> bool:
        """Whether this beat, which finds an entry due, is the one that sends it."""
        text = self._read(entry)
        noted = self._noted(text)
        if noted is not None and not entry.schedule.is_due(noted.at)[0]:
            return False  # another beat was quicker
        return self._note(entry, text)

    def _note(self, entry: Any, old: str) -> bool:
        """Note that this beat sends an entry now; False if another beat changed the note."""
        new = _text(entry.default_now().isoformat(), sent=False)
        if not self._leases.swap(self._name(entry), old, new):
            return False
        self._notes[entry.name] = new
        return True

    def _is_unsent(self, text: str) -> bool:
        """Whether a tick was noted some time ago, and not sent."""
        noted = self._noted(text)
        if noted is None or noted.sent:
            return False
        age: float = (self.app.now() - noted.at).total_seconds()
        return age >= CLAIM_SECONDS

    @property
    def _leases(self) -> Leases:
        transport = self.connection.transport
        return broker_of(transport.url).client.ports.catalog.leases

    def _read(self, entry: Any) -> str:
        return self._leases.shared(self._name(entry))

    def _noted(self, text: str) -> NotedEntry | None:
        if not text:
            return None
        record = json.loads(text)
        # Earlier versions did not note whether a tick was sent.
        return NotedEntry(self.app.now().fromisoformat(record["at"]), record.get("sent", True))

    @staticmethod
    def _name(entry: Any) -> str:
        return f"celery-beat:{entry.name}"


def _text(at: str, *, sent: bool) -> str:
    """A note as it is stored; no two notes are equal."""
    return json.dumps({"at": at, "by": uuid.uuid4().hex, "sent": sent})
