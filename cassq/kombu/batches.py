"""Publishing many messages together: `with producer.batch(): ...` of kombu 5.7."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

from cassq.message.message_ids import MessageId

logger: logging.Logger = logging.getLogger("cassq")


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
