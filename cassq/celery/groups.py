"""Celery's groups are published in batches.

Celery publishes the tasks of a group, or of a chord's header, one by one: each would be on disk
before the next is sent. With this module they share syncs, as in a block of `cassq.celery.batch()`,
and all are on disk when `apply_async` returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any

from celery.canvas import group

MARK = "_cassq_in_batches"


def publish_in_batches() -> None:
    """Make the tasks of a group that this process publishes to cassq share syncs. Other brokers are
    not affected. If Celery has no method `group._apply_tasks`, nothing is changed."""
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
