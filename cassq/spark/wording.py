"""Hints for users of the data source: they name its options instead of the library's calls and
commands.

Hints about things that have no option, such as running a sidecar, stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cassq.client.backends.embedded import NAME_IT
from cassq.errors import (
    CassqError,
    GroupNotFoundError,
    InvalidPayloadError,
    QueueFullError,
    QueueNotFoundError,
    QueuePausedError,
)

# The library's hint → the hint of the data source.
HINTS: Mapping[str, str] = {
    NAME_IT: 'name it with .option("url", …) or CASSQ_URL; a directory is created with its first'
    " queue: cassq.connect(url).create_queue(name)",
    QueueNotFoundError.default_hint: 'check .option("queue", …) and .option("url", …), or the'
    " column of queues; Spark does not create queues: cassq.connect(url).create_queue(name) does",
    GroupNotFoundError.default_hint: 'check .option("group", …); Spark does not create groups:'
    " cassq.connect(url).queue(queue).create_group(name) does",
    InvalidPayloadError.default_hint: "correct these rows or leave them out: nothing of the write"
    " is published",
    QueueFullError.default_hint: "nothing of the write is published: write a smaller frame, or run"
    " it again when consumers have caught up",
    QueuePausedError.default_hint: "nothing of the write is published: run it again when pushing is"
    " resumed",
}


@contextmanager
def in_spark() -> Iterator[None]:
    """Replace the hint of an error that leaves the data source, as in `HINTS`."""
    try:
        yield
    except CassqError as exc:
        exc.hint = HINTS.get(exc.hint, exc.hint)
        raise
