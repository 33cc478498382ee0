"""The consumer group that runs a queue's tasks: one in order of keys, if a task has a `key`."""

from __future__ import annotations

from collections.abc import Iterable

from cassq.client.queue import Queue
from cassq.errors import ConfigError
from cassq.model.queues import DEFAULT_GROUP

KEYED_GROUP = "in-order"


def group_of(queue: Queue) -> str:
    """The group that runs a queue's tasks. Cost: two reads."""
    return chosen_group(group.name for group in queue.groups())


def chosen_group(groups: Iterable[str]) -> str:
    """The one of a queue's groups that runs tasks."""
    return KEYED_GROUP if KEYED_GROUP in groups else DEFAULT_GROUP


def have_keyed_group(queue: Queue) -> None:
    """Create the group that runs a queue's calls in order of keys, if it does not exist, and delete
    the default group. Raises ConfigError if the queue has messages already but no such group, or if
    the group keeps no order of keys."""
    groups = {group.name: group for group in queue.groups()}
    found = groups.get(KEYED_GROUP)
    if found is None and queue.stats().pushed:
        raise ConfigError(
            f"queue {queue.name!r} has messages, and no group that keeps tasks with key= in order",
            hint="put tasks with key= in a queue of their own: @app.task(queue=..., key=...)",
        )
    if found is None:
        queue.create_group(KEYED_GROUP, order="key")
    elif found.policy.order != "key":
        raise ConfigError(
            f"group {KEYED_GROUP!r} of queue {queue.name!r} does not keep the order of keys",
            hint="put tasks with key= in another queue: @app.task(queue=..., key=...)",
        )
    if DEFAULT_GROUP in groups:
        queue.delete_group(DEFAULT_GROUP)
