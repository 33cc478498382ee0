"""Celery's groups are published in batches.

Celery publishes the tasks of a group one by one, and so those of a chord's header: each would be on
disk before the next one is sent. Here they share their syncs, as in a block of
`cassq.celery.batch()`: all of them are on disk when `apply_async` returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any

from celery.canvas import group

MARK = "_cassq_in_batches"


def publish_in_batches() -> None:
    """Have groups that this process publishes to queues of cassq share their syncs. Other brokers
    notice nothing. Where Celery has no such method, groups stay as they are."""
    one_by_one = getattr(group, "_apply_tasks", None)
    if one_by_one is None or hasattr(one_by_one, MARK):
        return

    @wraps(one_by_one)
    def together(*args: Any, **kwargs: Any) -> Iterator[Any]:
        from cassq.kombu.batches import group_batch

        with group_batch():
            yield from one_by_one(*args, **kwargs)

    setattr(together, MARK, True)
    group._apply_tasks = together
