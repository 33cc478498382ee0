"""The group `delays`: running totals in SQLite, exact at every moment.

The pattern: the ids of the messages are stored in the same transaction as the totals they went
into. A message that comes again is recognised by its id, and not counted again.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cassq

SCHEMA = """
CREATE TABLE IF NOT EXISTS counted (message_id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS delays (
    carrier  TEXT NOT NULL,
    origin   TEXT NOT NULL,
    hour     INTEGER NOT NULL,  -- of the scheduled departure, local time
    flights  INTEGER NOT NULL,  -- planned
    departed INTEGER NOT NULL,  -- planned and not cancelled
    minutes  INTEGER NOT NULL,  -- the sum of the departure delays of those; early is negative
    PRIMARY KEY (carrier, origin, hour)
) WITHOUT ROWID;
"""

# True only for a message that was not counted before.
COUNT_ONCE = "INSERT INTO counted VALUES (?) ON CONFLICT DO NOTHING"

ADD = """
INSERT INTO delays VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (carrier, origin, hour) DO UPDATE SET
    flights = flights + excluded.flights,
    departed = departed + excluded.departed,
    minutes = minutes + excluded.minutes
"""

READ = "SELECT carrier, origin, hour, flights, departed, minutes FROM delays"


class Slot(NamedTuple):
    """What the totals are kept by."""

    carrier: str
    origin: str
    hour: int


class Total(NamedTuple):
    """The totals of one slot; `minutes` is the sum of the departure delays."""

    flights: int
    departed: int
    minutes: int


class Delays:
    """The totals, shared by all poppers of the group."""

    def __init__(self, directory: Path) -> None:
        self._database = sqlite3.connect(place(directory), timeout=60.0, isolation_level=None)
        # A committed transaction is on disk: the messages are committed right after it.
        self._database.execute("PRAGMA synchronous = FULL")

    def write(self, messages: Sequence[cassq.Message]) -> int:
        """Count those of the messages that were not counted before, and say how many."""
        with self._database:  # commits, or rolls back if anything below raises
            self._database.execute("BEGIN IMMEDIATE")
            new = [message for message in messages if self._is_new(message)]
            self._database.executemany(ADD, (slot + total for slot, total in totals(new).items()))
        return len(new)

    def _is_new(self, message: cassq.Message) -> bool:
        return self._database.execute(COUNT_ONCE, (message.id,)).rowcount == 1


def create(directory: Path) -> None:
    """Make the tables, once and before any popper starts."""
    database = sqlite3.connect(place(directory))
    database.execute("PRAGMA journal_mode = WAL")
    database.executescript(SCHEMA)
    database.close()


def read(directory: Path) -> dict[Slot, Total]:
    """All totals so far."""
    database = sqlite3.connect(place(directory))
    rows = database.execute(READ).fetchall()
    database.close()
    return {Slot(*row[:3]): Total(*row[3:]) for row in rows}


def totals(messages: Sequence[cassq.Message]) -> dict[Slot, Total]:
    """What these messages add to the totals."""
    sums: defaultdict[Slot, list[int]] = defaultdict(lambda: [0, 0, 0])
    for message in messages:
        flight = json.loads(message.payload)
        sum_ = sums[Slot(flight["carrier"], flight["origin"], flight["hour"])]
        sum_[0] += 1
        if flight["dep_delay"] is not None:
            sum_[1] += 1
            sum_[2] += flight["dep_delay"]
    return {slot: Total(*sum_) for slot, sum_ in sums.items()}


def place(directory: Path) -> Path:
    """The database's file."""
    return directory / "delays.db"
