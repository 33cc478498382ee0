"""The history of a task: its records, and whether its code still reaches the same ones. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from cassq.errors import StepMismatchError, UsageError
from cassq.tasks.calls import Codec, decode_record

# Records of an inactive task expire this long after the task is due.
KEPT_SECONDS = 365 * 86_400.0
NAME_LENGTH_MAX = 200
STEP, SLEEP, WAIT = "step", "sleep", "wait"
# Keys of two records: where the call is, and that the task is over. Other keys have a prefix.
PLACE, OVER = "place", "over"
STEP_PREFIX, SIGNAL_PREFIX = "step:", "signal:"
# States of a place.
WAITING = "waiting"  # its message is, or is about to be, there
BEGUN = "begun"  # its message was delivered, and runs or is tried again
CANCELLED = "cancelled"  # its message does not run


class CallPlace(NamedTuple):
    """Where a task's call is after its move number `moves`.

    label: the sleep or wait that it was moved for. until_ms: wall time when it is due. group_id: of
    the group that runs it. came_from: if a signal woke it, the place of the message that waited.
    """

    moves: int
    label: str
    until_ms: int
    queue: str
    group_id: str
    pipe_id: str = ""
    seq: int = 0
    state: str = WAITING
    came_from: tuple[str, int] | None = None

    @property
    def spot(self) -> tuple[str, int]:
        return self.pipe_id, self.seq

    def encoded(self) -> bytes:
        return json.dumps(self._asdict(), separators=(",", ":"), sort_keys=True).encode()


def place_in(rows: Mapping[str, bytes]) -> CallPlace | None:
    """Where a task's call is, by its records; None: where it was first pushed."""
    raw = rows.get(PLACE)
    if raw is None:
        return None
    fields = json.loads(raw)
    came_from = fields["came_from"]
    return CallPlace(**{**fields, "came_from": None if came_from is None else tuple(came_from)})


def over_at(at_ms: int) -> bytes:
    """The record that a task is over since this wall time."""
    return json.dumps({"at_ms": at_ms}).encode()


class Record(NamedTuple):
    """What is recorded of a step, sleep or wait. Times are wall milliseconds.

    at: how many steps, sleeps and waits came before it in the run. failed: labels of steps that
    raised before it, in the same run. error: why its result could not be written. until_ms: when a
    sleep or wait is due to end. signal: the key of the signal that ended a wait, "" if none did.
    ended_ms: None while it sleeps or waits.
    """

    kind: str
    at: int
    value: Any = None
    error: str = ""
    failed: tuple[str, ...] = ()
    until_ms: int | None = None
    signal: str = ""
    began_ms: int = 0
    ended_ms: int | None = None

    def encoded(self, codec: Codec, where: str) -> bytes:
        """where: names the value in errors. Raises UsageError if it cannot be written."""
        fields = self._asdict()
        value = fields.pop("value")
        return codec.record(where, value, {**fields, "failed": list(self.failed)})


def record_of(raw: bytes) -> Record:
    fields = decode_record(raw)
    return Record(**{**fields, "failed": tuple(fields["failed"])})


def records_in(rows: Mapping[str, bytes]) -> dict[str, Record]:
    """The records of steps, sleeps and waits by label, in the order in which the task reached
    them."""
    found = {
        key.removeprefix(STEP_PREFIX): record_of(raw)
        for key, raw in rows.items()
        if key.startswith(STEP_PREFIX)
    }
    return dict(sorted(found.items(), key=lambda item: (item[1].at, item[1].began_ms)))


def free_signal(rows: Mapping[str, bytes], name: str) -> str | None:
    """The key of the first signal of this name that no wait has taken."""
    taken = {record.signal for record in records_in(rows).values()}
    for number in range(len(rows)):
        key = signal_key(name, number)
        if key in rows and key not in taken:
            return key
    return None


def signal_key(name: str, number: int) -> str:
    return f"{SIGNAL_PREFIX}{name}#{number}"


def name_of(label: str) -> str:
    """The name in a label."""
    return label.rpartition("#")[0]


def check_name(name: str) -> str:
    """The name of a step, sleep, wait or signal, if it is valid. Raises UsageError."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH_MAX:
        raise UsageError(
            f"the name of a step must be a str of 1 to {NAME_LENGTH_MAX} characters, not {name!r}"
        )
    return name


class History:
    """The records of a task, and how far one run of it has come. task: its name, for errors."""

    def __init__(self, task: str, rows: Mapping[str, bytes]) -> None:
        self.task: str = task
        self.records: dict[str, Record] = records_in(rows)
        self._uses: Counter[str] = Counter()
        self._at = 0
        self._returned: set[str] = set()
        self._failed: list[str] = []

    @property
    def failed(self) -> tuple[str, ...]:
        """Labels of steps that raised in this run."""
        return tuple(self._failed)

    def come_to(self, kind: str, name: str) -> tuple[str, int]:
        """The label and number of the next step, sleep or wait of this run. Raises
        StepMismatchError if the records have another one there."""
        label = f"{check_name(name)}#{self._uses[name]}"
        self._uses[name] += 1
        at, self._at = self._at, self._at + 1
        own = self.records.get(label)
        others = (
            (other, record)
            for other, record in self.records.items()
            # If it ran because another step failed, this run need not take that path.
            if record.at == at and other != label and self._returned.isdisjoint(record.failed)
        )
        if own is not None and own.kind != kind:
            raise self._mismatch(f"{kind} {label!r}", f"{own.kind} {label!r}")
        for other, record in others:
            raise self._mismatch(f"{kind} {label!r}", f"{record.kind} {other!r}")
        return label, at

    def _mismatch(self, now: str, before: str) -> StepMismatchError:
        return StepMismatchError(
            f"task {self.task!r} reached {now} where it reached {before} before",
            hint="its code has changed since the call began: run it with the code that it began"
            " with, or push it again",
        )

    def returned(self, label: str) -> None:
        """A step returned in this run, or its record did."""
        self._returned.add(label)

    def raised(self, label: str) -> None:
        """A step raised in this run."""
        self._failed.append(label)
