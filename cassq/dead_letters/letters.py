"""Letters: dead letters in their queue, filters that select them, and their JSON lines."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, get_args

from cassq.base.arguments import check_seconds
from cassq.errors import CassqError, CorruptionError, UsageError
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.moves import slices_of
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import DEATH_HEADER, LetterGroup, death_of
from cassq.lifecycle.sealing import end_of, live_pipe
from cassq.message.batches import Batch
from cassq.message.columns import encode_headers
from cassq.message.decoding import text_or_base64
from cassq.message.frames import Frame
from cassq.message.ranges import RangeSet
from cassq.model.ledger import Fate, Unfinished, unfinished
from cassq.model.priorities import by_priority, check_priority
from cassq.model.rows import GroupRow, PipeRow
from cassq.producer.admission import check_key, check_payload
from cassq.settings import DeathReason

AGE_MAX_SECONDS = 100 * 365 * 86400.0
ID_LENGTH_MAX = 200
DEATH_REASONS: tuple[DeathReason, ...] = get_args(DeathReason)


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter. death: its death record; empty if the message was pushed here directly.

    state: "waiting", or "pending" while a consumer of the dead letters has it. priority: see
    `cassq.model.priorities`.
    """

    id: str
    payload: bytes
    headers: dict[str, str]
    key: bytes | None
    pushed_at: datetime
    death: dict[str, Any] = field(default_factory=dict)
    state: str = "waiting"
    priority: int = 0

    @property
    def died_at(self) -> datetime:
        """When it became a dead letter; without a death record, when it was pushed."""
        at_ms = self.death.get("at_ms")
        return self.pushed_at if at_ms is None else _moment(at_ms)

    def to_json(self) -> str:
        """The letter as one line of JSON, which `letter_from_json` reads back."""
        fields = {
            "id": self.id,
            "pushed_at": self.pushed_at.isoformat(timespec="milliseconds"),
            "headers": self.headers,
            "death": _with_times(self.death),
            **({"priority": self.priority} if self.priority else {}),
            **text_or_base64("key", self.key),
            **text_or_base64("payload", self.payload),
        }
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def letter_from_json(line: str | bytes) -> Letter:
    """The letter in a line that `Letter.to_json` wrote. Raises UsageError for an invalid line."""
    try:
        fields = json.loads(line)
    except ValueError as exc:
        raise UsageError(f"this is not JSON: {exc}") from exc
    if not isinstance(fields, dict):
        raise UsageError("a dead letter must be a JSON object")
    letter_id, headers, death = fields.get("id"), fields.get("headers", {}), fields.get("death", {})
    if not isinstance(letter_id, str) or not 0 < len(letter_id) <= ID_LENGTH_MAX:
        raise UsageError(
            f"the id of a dead letter must be a string of 1 to {ID_LENGTH_MAX} characters"
        )
    if not isinstance(headers, dict) or not isinstance(death, dict):
        raise UsageError("the headers and the death of a dead letter must be JSON objects")
    payload = _bytes_of(fields, "payload")
    if payload is None:
        raise UsageError("a dead letter must have either a payload or payload_base64")
    deaths = _without_times(death)
    encode_headers(_with_death(headers, deaths))
    try:
        pushed_at = datetime.fromisoformat(fields["pushed_at"])
    except (KeyError, TypeError, ValueError) as exc:
        raise UsageError(
            "the pushed_at of a dead letter must be a time in ISO 8601, with a time zone"
        ) from exc
    if pushed_at.tzinfo is None:
        raise UsageError("the pushed_at of a dead letter needs a time zone, such as +00:00")
    priority = check_priority(fields.get("priority", 0))
    key = check_key(_bytes_of(fields, "key"))
    payload = check_payload(payload)
    return Letter(letter_id, payload, headers, key, pushed_at, deaths, priority=priority)


def _bytes_of(fields: Mapping[str, Any], name: str) -> bytes | None:
    text, encoded = fields.get(name), fields.get(f"{name}_base64")
    if not isinstance(text, str | None) or not isinstance(encoded, str | None):
        raise UsageError(f"the {name} of a dead letter must be a string")
    try:
        if encoded is not None:
            return base64.b64decode(encoded, validate=True)
        return None if text is None else text.encode()
    except (binascii.Error, UnicodeEncodeError) as exc:
        raise UsageError(f"the {name} of a dead letter cannot be read: {exc}") from exc


def batches_of(letters: Sequence[Letter]) -> Iterator[Batch]:
    """The batches that push letters again, with their ids, push times and death records; one for
    each priority."""
    for priority, which in by_priority([letter.priority for letter in letters]).items():
        yield _batch_of([letters[index] for index in which], priority)


def _batch_of(found: Sequence[Letter], priority: int) -> Batch:
    return Batch(
        [letter.payload for letter in found],
        [round(letter.pushed_at.timestamp() * 1000) for letter in found],
        [encode_headers(_with_death(letter.headers, letter.death)) for letter in found],
        [letter.key for letter in found],
        [letter.id.encode() for letter in found],
        priority=priority,
    )


def _with_death(headers: Mapping[str, str], death: Mapping[str, Any]) -> dict[str, str]:
    if not death:
        return dict(headers)
    return {**headers, DEATH_HEADER: json.dumps(death, separators=(",", ":"))}


# A death record has times in wall-clock milliseconds; its JSON has them in ISO 8601.
_TIMES = {"at_ms": "at", "first_ms": "first_at", "last_ms": "last_at"}
_MS = {name: stored for stored, name in _TIMES.items()}


def _with_times(death: Mapping[str, Any]) -> dict[str, Any]:
    """A death record with its times in ISO 8601, also in its earlier deaths."""
    fields: dict[str, Any] = {}
    for name, value in death.items():
        if name in _TIMES and isinstance(value, int):
            fields[_TIMES[name]] = _moment(value).isoformat(timespec="milliseconds")
        elif name == "earlier" and isinstance(value, list):
            fields[name] = [_with_times(each) if isinstance(each, dict) else each for each in value]
        else:
            fields[name] = value
    return fields


def _without_times(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The death record of a letter in JSON, also of one that an earlier version of cassq wrote."""
    death: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _MS:
            death[_MS[name]] = _ms_of(name, value)
        elif name == "earlier" and isinstance(value, list):
            death[name] = [_without_times(e) if isinstance(e, dict) else e for e in value]
        else:
            death[name] = value
    return death


def _ms_of(name: str, value: object) -> int:
    try:
        when = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise UsageError(
            f"{name!r} in the death of a dead letter must be a time in ISO 8601, with a time zone"
        )
    return round(when.timestamp() * 1000)


def _moment(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


# --- which are selected -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects dead letters: those that match every field given.

    reason: of the death, or of the failure that led to it: a message that a consumer rejected as
    often as allowed died of "delivery_limit", but also matches "rejected". older_than, newer_than:
    seconds since the death. headers: each must have exactly this value. text: must occur in the
    payload, as UTF-8, or in the error of the last failure. ids: must include the letter's; an empty
    list matches none. died_in: the queue and the group.
    """

    reason: DeathReason | None = None
    older_than: float | None = None
    newer_than: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None
    ids: Collection[str] | None = None
    died_in: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        if self.reason is not None and self.reason not in DEATH_REASONS:
            raise UsageError(
                f"reason must be one of {', '.join(DEATH_REASONS)}, not {self.reason!r}"
            )
        if self.text is not None and (not isinstance(self.text, str) or not self.text):
            raise UsageError(f"text must be a non-empty string, not {self.text!r}")
        for name in ("older_than", "newer_than"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name), AGE_MAX_SECONDS)
        if self.ids is not None:
            is_list = isinstance(self.ids, Collection) and not isinstance(self.ids, str)
            if not is_list or not all(isinstance(i, str) and i for i in self.ids):
                raise UsageError("ids must be a list of message ids")
            object.__setattr__(self, "ids", frozenset(self.ids))
        object.__setattr__(self, "headers", dict(self.headers))

    def at(self, place: LetterGroup) -> Filter:
        """The filter for one place; if it may have letters of other groups, they do not match."""
        return self if place.died_in is None else replace(self, died_in=place.died_in)

    @property
    def is_empty(self) -> bool:
        """Whether it selects all letters."""
        ages = self.older_than, self.newer_than
        unsaid = (self.reason, *ages, self.text, self.ids, self.died_in)
        return not self.headers and unsaid == (None,) * len(unsaid)

    def picked(self, frame: Frame, first: int, last: int, pipe_id: str, now_ms: int) -> RangeSet:
        """Which of the messages `first .. last` of a frame it selects. now_ms: wall time."""
        if self.is_empty:
            return RangeSet.run(first, last)
        picked = (i for i in range(first, last) if self._matches(frame, i, pipe_id, now_ms))
        return RangeSet.of(picked)

    def _matches(self, frame: Frame, at: int, pipe_id: str, now_ms: int) -> bool:
        if self.ids is not None and frame.id_at(at, pipe_id).decode() not in self.ids:
            return False
        headers, death = _headers_of(frame, at)
        if self.died_in not in (None, (death.get("queue"), death.get("group"))):
            return False
        if self.reason is not None and self.reason not in (
            death.get("reason"),
            death.get("failure"),
        ):
            return False
        age = (now_ms - death.get("at_ms", frame.time_ms(at))) / 1000
        if self.older_than is not None and age < self.older_than:
            return False
        if self.newer_than is not None and age > self.newer_than:
            return False
        if any(headers.get(name) != value for name, value in self.headers.items()):
            return False
        if self.text is None or self.text in str(death.get("error", "")):
            return True
        return self.text.encode() in frame.payloads(at, at + 1)[0]


def _headers_of(frame: Frame, at: int) -> tuple[dict[str, str], dict[str, Any]]:
    """A message's headers without the death header, and its death."""
    headers = frame.headers_at(at)
    death = death_of(headers)
    headers.pop(DEATH_HEADER, None)
    return headers, death


# --- where they are -----------------------------------------------------------------------------


def parts_of(ports: Ports, group: GroupRow, pipe: PipeRow, end_seq: int) -> list[Unfinished]:
    """What a group has not finished in a pipe, in order. Cost: a read of its open claims there.

    Delayed messages that are not scheduled yet are left out.
    """
    cursor = ports.catalog.claims.cursor(group.id, pipe.id)
    if cursor is None:
        return []  # it was retired
    rows = ports.catalog.claims.rows(group.id, pipe.id)
    parts = unfinished(cursor, rows, end_seq, ports.catalog.now_ms())
    return [part for part in parts if part.row is not None or pipe.timer_ms is None]


def letters_of(
    ports: Ports, group: GroupRow, where: Filter, broken: dict[str, CassqError]
) -> Iterator[Letter]:
    """The selected letters that a group has not finished, oldest pipe first.

    A pipe that cannot be read is recorded in `broken`, and skipped. Cost: reads every frame.
    """
    now_ms = ports.clock.wall_ms()
    for pipe in ports.catalog.pipes.live(group.queue_id):
        if not pipe.is_for(group.id):
            continue
        try:
            yield from _letters_in(ports, group, pipe, where, now_ms)
        except (ExtentMissingError, CorruptionError) as exc:
            if live_pipe(ports.catalog, pipe.id) is not None:
                broken[pipe.id] = exc


def _letters_in(
    ports: Ports, group: GroupRow, pipe: PipeRow, where: Filter, now_ms: int
) -> Iterator[Letter]:
    end_seq = end_of(ports.catalog, ports.store, pipe).seq
    reader = ports.store.reader(pipe.id)
    try:
        for part in parts_of(ports, group, pipe, end_seq):
            state = Fate.PENDING if part.fate is Fate.PENDING else Fate.WAITING
            for _, (frame, first, last) in slices_of(reader, part.start, part.seqs):
                for at in where.picked(frame, first, last, pipe.id, now_ms):
                    yield _letter(frame, at, pipe, str(state))
    finally:
        reader.close()


def _letter(frame: Frame, at: int, pipe: PipeRow, state: str) -> Letter:
    headers, death = _headers_of(frame, at)
    (payload,) = frame.payloads(at, at + 1)
    return Letter(
        frame.id_at(at, pipe.id).decode(),
        payload,
        headers,
        frame.keys[at] if frame.keys else None,
        _moment(frame.time_ms(at)),
        death,
        state,
        pipe.priority,
    )
