"""Publishing many messages together: `cassq.celery.batch()`, and `producer.batch()` of kombu 5.7.

A message by itself is on disk before the call that publishes it returns, which costs a sync each.
Those of a batch share syncs, and are on disk when the batch ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from cassq.errors import BackendError
from cassq.message.message_ids import MessageId

logger: logging.Logger = logging.getLogger("cassq")

BATCH_MAX = 10_000
_of_thread = threading.local()


@contextmanager
def batch() -> Iterator[None]:
    """Have what this thread publishes in the block share syncs: groups, chords, any number of
    `delay` and `apply_async`. All of it is durable when the block ends.

        with cassq.celery.batch():
            group(resize.s(name) for name in names).apply_async()

    Tasks may run before the block ends. Raises the error of the first message that could not be
    published. Blocks may be nested.
    """
    if batch_of_thread() is not None:
        yield
        return
    found = _of_thread.batch = Batch(None, BATCH_MAX)
    try:
        yield
    finally:
        del _of_thread.batch
        found.flush()


def batch_of_thread() -> Batch | None:
    """The batch of the block that this thread is in."""
    return getattr(_of_thread, "batch", None)


class Batch:
    """Messages that are published together, by one thread; durable when `flush` returns.

    max_size: how many there may be before they are flushed.
    """

    def __init__(self, channel: Any, max_size: int) -> None:
        self.channel = channel
        self._max = max_size
        self._published: list[tuple[Future[MessageId], Callable[[], object]]] = []

    def publish(self, message: dict[str, Any], **kwargs: Any) -> None:
        self.channel.basic_publish(message, batch=self, **kwargs)

    def add(self, future: Future[MessageId], again: Callable[[], object]) -> None:
        """Add a message. again: publishes it by itself."""
        self._published.append((future, again))
        if len(self._published) >= self._max:
            self.flush()

    def flush(self) -> None:
        """Wait until all are durable. What failed in the backend is published again by itself, as
        kombu does with a message outside of a batch. Raises the first error of one that was not
        published."""
        published, self._published = self._published, []
        for future, again in published:
            try:
                future.result()
            except BackendError as exc:
                logger.warning("a message is published again: %s", exc)
                again()

    def discard(self) -> None:
        """What was published is on its way: it stays."""
        self._published = []

    def close(self) -> None:
        """Nothing is held."""


def log_failure(future: Future[MessageId]) -> None:
    """Log the error of a message whose publisher does not wait for it."""
    exc = future.exception()
    if exc is not None:
        logger.error("a message was not published: %s", exc)
