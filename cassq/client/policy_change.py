"""Changing a queue's policy while other clients may change it too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cassq.base.clock import attempts, contended
from cassq.client.runtime import Runtime
from cassq.errors import ConfigError
from cassq.message.compression import check_compression
from cassq.model.queues import FIXED_QUEUE_SETTINGS, QueuePolicy, changed
from cassq.model.rows import QueueRow
from cassq.settings import QueueSettings


def change_policy(
    runtime: Runtime,
    load: Callable[[], QueueRow],
    change: Callable[[QueuePolicy], QueueSettings],
) -> QueuePolicy:
    """Change settings of a queue; returns its new policy. load: reads its row. change: called with
    the present policy; returns the settings to change.

    Raises ConfigError for a setting that does not exist or cannot be changed. Cost: a read, and a
    conditional write if anything changes; more of both if others change the policy meanwhile.
    """
    row = load()
    for _ in attempts(runtime.clock):
        new = changed(row.policy, change(row.policy))
        for name in FIXED_QUEUE_SETTINGS:
            if getattr(new, name) != getattr(row.policy, name):
                raise ConfigError(
                    f"{name} cannot be changed", hint="create another queue and use that one"
                )
        check_compression(new.compression)
        if new == row.policy:
            return new
        if runtime.ports.catalog.queues.update(row.id, row.version, new):
            runtime.changed(replace(row, policy=new, version=row.version + 1))
            return new
        row = load()
    raise contended(f"queue {row.name!r}")
