"""Where the calls of tasks are, and what they wait for: for handles, signals and `cassq task`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cassq.client.client import Client
from cassq.errors import MessageNotFoundError
from cassq.inspect.explain import step_at
from cassq.inspect.whereabouts import MessageStep
from cassq.tasks.groups import chosen_group
from cassq.tasks.steps.moving import MoveContext, put_signal
from cassq.tasks.steps.records import (
    CANCELLED,
    OVER,
    SLEEP,
    WAITING,
    CallPlace,
    check_name,
    place_in,
    records_in,
)

# States of a message whose task will not run any more.
ENDED = frozenset({"dead", "expired", "purged", "cancelled", "lost", "gone", "committed"})


# States of a task that holds no worker.
SLEEPING, SIGNAL = "sleeping", "signal"


class CallState(NamedTuple):
    """Where the call of a task is now, with the records of its steps. now: the state of its
    message. place: where it was moved, if it ever slept or waited."""

    now: MessageStep
    rows: dict[str, bytes]
    place: CallPlace | None

    @property
    def state(self) -> str:
        """One of "waiting", "delayed", "running", "sleeping", "signal" (it waits for one), "done",
        "dead", "cancelled", or another state of its message."""
        if self.place is not None and self.place.state == CANCELLED:
            return CANCELLED
        match self.now.state:
            case "pending":
                return "running"
            case "committed" | "gone":
                return "done"
            case "waiting" | "delayed" if self.place is not None and self.place.state == WAITING:
                return paused_as(self.rows, self.place)
        return self.now.state


def paused_as(rows: Mapping[str, bytes], place: CallPlace) -> str:
    """The state of a call that was moved to this place: "sleeping" or "signal"."""
    record = records_in(rows).get(place.label)
    return SLEEPING if record is None or record.kind == SLEEP else SIGNAL


def whereabouts(client: Client, queue: str | None, message_id: str) -> CallState:
    """Where the call with this id is. queue: its name; None: look in all queues. Raises
    MessageNotFoundError, UsageError. Cost: a read of its records, and that of `Queue.explain`."""
    rows = client.ports.catalog.steps.find(message_id)
    place = place_in(rows)
    if place is not None:
        home = client.ports.catalog.queues.named(place.queue)
        groups = client.ports.catalog.queues.groups(home.id) if home else []
        group = next((each for each in groups if each.id == place.group_id), None)
        if home is not None and group is not None:
            now = step_at(client.ports, home, group, place.spot, message_id)
            if now.state == "missing" and place.came_from is not None:
                now = step_at(client.ports, home, group, place.came_from, message_id)
            return CallState(now, rows, place)
    asked = client if queue is None else client.queue(queue)
    found = asked.explain(message_id).groups
    return CallState(found[chosen_group(found)][-1], rows, place)


def send_signal(
    context: MoveContext, client: Client, queue: str | None, message_id: str, name: str, value: Any
) -> bool:
    """See `Task.signal`."""
    check_name(name)
    rows = context.rows(message_id)
    if OVER in rows:
        return False
    if not rows:  # it has not begun, has no steps, or does not exist
        try:
            if whereabouts(client, queue, message_id).now.state in ENDED - {"dead"}:
                return False
        except MessageNotFoundError:
            if not context.rows(message_id):
                raise
    return put_signal(context, message_id, name, value)
