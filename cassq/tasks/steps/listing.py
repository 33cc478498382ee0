"""Calls of tasks as `cassq task` shows them, from the catalog and the messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from cassq.client.client import Client
from cassq.errors import MissingExtraError, UsageError
from cassq.inspect.peeking import Peeked
from cassq.model.queues import is_dead_letter_name, origin_of
from cassq.settings import State, TaskState
from cassq.tasks.calls import (
    Call,
    Codec,
    NotACallError,
    decode,
    decode_record,
    decode_result,
    result_key,
)
from cassq.tasks.groups import group_of
from cassq.tasks.steps.cancelling import cancel_call
from cassq.tasks.steps.moving import MoveContext, call_at, moves_of
from cassq.tasks.steps.overview import (
    SIGNAL,
    SLEEPING,
    CallState,
    paused_as,
    send_signal,
    whereabouts,
)
from cassq.tasks.steps.records import (
    BEGUN,
    CANCELLED,
    SIGNAL_PREFIX,
    WAIT,
    name_of,
    place_in,
    records_in,
)

# For each state of a call, the state of the messages to look at.
_PEEKED: dict[TaskState, State] = {
    "waiting": "waiting",
    "delayed": "delayed",
    "running": "pending",
    "sleeping": "delayed",
    "signal": "delayed",
    "dead": "dead",
}
LOOKED_AT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A call in a list. state: "signal": it waits for one. waits_for: the name of its sleep or
    signal. due_at: when a call that is not waiting comes due, or its claim ends."""

    id: str
    queue: str
    task: str
    state: str
    attempts: int
    pushed_at: datetime
    due_at: datetime | None = None
    waits_for: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As plain values; times in ISO 8601, in UTC."""
        return {name: _plain(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class StepShown:
    """A step, sleep or wait that a task came to. until: the end of a sleep or wait. value: what the
    step returned, or the signal brought."""

    name: str
    kind: str
    began_at: datetime
    ended_at: datetime | None = None
    until: datetime | None = None
    value: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class TaskShown:
    """All that is known of one call. call: None if its message is not stored any more. signals: the
    names of signals that no wait has taken."""

    id: str
    queue: str
    state: str
    call: Call | None
    attempts: int
    waits_for: str = ""
    steps: list[StepShown] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)
    result: Any = None
    error: str = ""
    sentences: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As plain values; times in ISO 8601, in UTC."""
        found = asdict(self)
        del found["call"]
        steps = [{name: _plain(value) for name, value in step.items()} for step in found["steps"]]
        call = {"task": None} if self.call is None else self.call.as_dict()
        return {**found, **call, "steps": steps}


def listed(client: Client, queue: str | None, state: TaskState | None, limit: int) -> list[TaskRow]:
    """The first `limit` calls in this queue and state. queue: None: all queues. state: None: any
    but done.

    Messages that are not calls are left out. Cost: reads the frames of up to 10,000 messages of
    each queue, and as many dead letters if no state is given; for each call that has slept or
    waited, a read of its records.
    """
    names = [queue] if queue is not None else [each.name for each in client.queues()]
    found: list[TaskRow] = []
    for name in names:
        if queue is None and is_dead_letter_name(name):
            continue
        for row in _rows(client, name, state):
            if state is None or row.state == state:
                found.append(row)
            if len(found) == limit:
                return found
    return found


def _rows(client: Client, name: str, state: TaskState | None) -> Iterator[TaskRow]:
    queue = client.queue(name)
    group = group_of(queue)
    wanted: list[State | None] = [None, "dead"] if state is None else [_PEEKED[state]]
    for peeked in wanted:
        for message in queue.peek(LOOKED_AT_MAX, group=group, state=peeked):
            row = _row(client, name, message)
            if row is not None:
                yield row


def _row(client: Client, queue: str, message: Peeked) -> TaskRow | None:
    try:
        call = decode(message.payload)
    except (NotACallError, MissingExtraError):
        return None
    state, waits_for = "running" if message.state == "pending" else message.state, ""
    moves = moves_of(message.headers)
    if moves and state in ("waiting", "delayed"):
        rows = client.ports.catalog.steps.find(message.id)
        place = place_in(rows)
        if place is not None and (place.moves > moves or place.state == CANCELLED):
            return None  # it goes on in another message, or was cancelled
        if place is not None and place.state != BEGUN:
            waits_for = name_of(place.label)
            state = state if message.state == "waiting" else paused_as(rows, place)
    return TaskRow(
        message.id,
        queue,
        call.task,
        state,
        message.attempts,
        message.pushed_at,
        message.due_at,
        waits_for,
    )


def shown(client: Client, task_id: str) -> TaskShown:
    """All that is known of a call. Raises UsageError for an invalid id, MessageNotFoundError. Cost:
    that of `explain`, two reads, and a read of the message's frame."""
    found = whereabouts(client, None, task_id)
    now, call = found.now, _call_of(client, found, task_id)
    raw = client.ports.catalog.results.get(result_key(task_id))
    result, failed = (None, "") if raw is None else decode_result(raw)
    records = records_in(found.rows)
    taken = {record.signal for record in records.values()}
    label = found.place.label if found.place is not None else ""
    waits = found.state in (SLEEPING, SIGNAL)
    return TaskShown(
        task_id,
        _queue_of(found),
        found.state,
        call,
        now.deliveries,
        name_of(label) if waits else "",
        [_step(found.rows, name, record) for name, record in records.items()],
        [
            name_of(key.removeprefix(SIGNAL_PREFIX))
            for key in sorted(found.rows)
            if key.startswith(SIGNAL_PREFIX) and key not in taken
        ],
        result,
        failed or now.failure.get("error", ""),
        (*now.happened, *now.next),
    )


def _call_of(client: Client, found: CallState, task_id: str) -> Call | None:
    """The call in a message; None if it is not stored any more. Raises UsageError if the message is
    not a call."""
    call = call_at(client.ports, (found.now.pipe_id, found.now.seq), task_id)
    try:
        return None if call is None else decode(call.payload)
    except NotACallError as exc:
        raise UsageError(f"message {task_id} is not a call of a task: {exc}") from exc


def _queue_of(found: CallState) -> str:
    name = found.now.queue
    return origin_of(name)[0] if is_dead_letter_name(name) else name


def _step(rows: dict[str, bytes], label: str, record: Any) -> StepShown:
    value = record.value
    if record.kind == WAIT and record.signal:
        value = decode_record(rows[record.signal])["value"]
    return StepShown(
        label.removesuffix("#0"),
        record.kind,
        _moment(record.began_ms),
        None if record.ended_ms is None else _moment(record.ended_ms),
        None if record.until_ms is None else _moment(record.until_ms),
        value,
        record.error,
    )


def signal(client: Client, task_id: str, name: str, value: Any) -> bool:
    """`Task.signal` for a call of any queue."""
    return send_signal(_context(client), client, None, task_id, name, value)


def retry(client: Client, task_id: str) -> bool:
    """Have a dead call run again; False if it is not dead. Its attempts are counted from the start,
    and its recorded steps do not run again. Cost: that of `DeadLetterQueue.merge` with a filter."""
    now = whereabouts(client, None, task_id).now
    if not is_dead_letter_name(now.queue):
        return False
    queue, group = origin_of(now.queue)
    return client.queue(queue).dead_letters(group).merge(ids=[task_id]).messages == 1


def cancel(client: Client, task_id: str) -> str:
    """`cancel_call` for a call of any queue. Raises UsageError for a message that is not a call."""
    _call_of(client, whereabouts(client, None, task_id), task_id)
    return cancel_call(_context(client), client, None, task_id)


def _context(client: Client) -> MoveContext:
    return MoveContext(
        client.ports,
        Codec("json"),
        lambda queue, group_id: client.queue(queue).pusher_for(group_id),
    )


def _moment(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def _plain(value: Any) -> Any:
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value
