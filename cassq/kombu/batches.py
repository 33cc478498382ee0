"""Publishing many messages together: `cassq.celery.batch()`, and `producer.batch()` of kombu 5.7.

A message by itself is on disk before the call that publishes it returns, which costs a sync each.
Those of a batch share syncs, and are on disk when the batch ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

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

    Tasks may run before the block ends. Raises the error of the first message that was not
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
        self._futures: list[Future[MessageId]] = []

    def publish(self, message: dict[str, Any], **kwargs: Any) -> None:
        self.channel.basic_publish(message, batch=self, **kwargs)

    def add(self, future: Future[MessageId]) -> None:
        self._futures.append(future)
        if len(self._futures) >= self._max:
            self.flush()

    def flush(self) -> None:
        """Raises the first error of a message that was not published."""
        futures, self._futures = self._futures, []
        for future in futures:
            future.result()

    def discard(self) -> None:
        """What was published is on its way: it stays."""
        self._futures = []

    def close(self) -> None:
        """Nothing is held."""


def log_failure(future: Future[MessageId]) -> None:
    """Log the error of a message whose publisher does not wait for it."""
    exc = future.exception()
    if exc is not None:
        logger.error("a message was not published: %s", exc)
