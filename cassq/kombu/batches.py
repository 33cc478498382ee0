"""Publishing many messages together: `cassq.celery.batch()`, and `producer.batch()` of kombu 5.7.

A single message is on disk before the call that publishes it returns, which costs a sync each.
Messages of a batch share syncs, and are on disk when the batch ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from kombu.exceptions import OperationalError

from cassq.errors import BackendError, ClosedError, GroupNotFoundError, QueueNotFoundError
from cassq.message.message_ids import MessageId

logger: logging.Logger = logging.getLogger("cassq")

# The errors that kombu treats as a lost connection.
CONNECTION_ERRORS = (BackendError, ClosedError, GroupNotFoundError, QueueNotFoundError)
BATCH_MAX = 10_000
_of_thread = threading.local()


@contextmanager
def batch() -> Iterator[None]:
    """Let all messages that this thread publishes in the block share syncs: groups, chords, any
    number of `delay` and `apply_async`. All are durable when the block ends.

        with cassq.celery.batch():
            for name in names:
                resize.delay(name)

    Tasks may run before the block ends. At its end, raises the error of the first message that was
    not published, once all others are. If the block raises, messages that it published stay. Blocks
    may be nested.
    """
    with _batch(PublishBatch(None, BATCH_MAX)):
        yield


@contextmanager
def group_batch() -> Iterator[None]:
    """`batch` for what one call of Celery publishes. Raises kombu's OperationalError if the queues
    cannot be reached, as publishing a single task does after its retries. Leaves out messages of
    connections with `confirm_publish` off, which are not waited for."""
    with _batch(PublishBatch(None, BATCH_MAX, of_group=True)):
        yield


@contextmanager
def _batch(found: PublishBatch) -> Iterator[None]:
    if batch_of_thread() is not None:
        yield
        return
    _of_thread.batch = found
    try:
        yield
    except BaseException:
        found.discard()
        raise
    finally:
        del _of_thread.batch
    found.flush()


def batch_of_thread() -> PublishBatch | None:
    """The batch of the block that this thread is in; None outside of one."""
    return getattr(_of_thread, "batch", None)


class PublishBatch:
    """Messages that are published together, by one thread; durable when `flush` returns.

    max_size: how many may be in flight at once. of_group: whether it is a `group_batch`.
    """

    def __init__(self, channel: Any, max_size: int, *, of_group: bool = False) -> None:
        self.channel = channel
        self.of_group: bool = of_group
        self._max = max_size
        self._futures: list[Future[MessageId]] = []
        self._error: BaseException | None = None  # of the first message that was not published

    def publish(self, message: dict[str, Any], **kwargs: Any) -> None:
        self.channel.basic_publish(message, batch=self, **kwargs)

    def add(self, future: Future[MessageId]) -> None:
        """Add a message. Raises nothing: kombu would take an earlier message's error for this
        one's, and publish this message again."""
        self._futures.append(future)
        if len(self._futures) >= self._max:
            self._wait()

    def flush(self) -> None:
        """Wait until all are durable. Raises the error of the first message that was not
        published."""
        self._wait()
        error, self._error = self._error, None
        if self.of_group and isinstance(error, CONNECTION_ERRORS):
            raise OperationalError(str(error)) from error
        if error is not None:
            raise error

    def _wait(self) -> None:
        futures, self._futures = self._futures, []
        for future in futures:
            error = future.exception()
            self._error = self._error or error

    def discard(self) -> None:
        """Wait no longer: the messages stay published, and errors are only logged."""
        futures, self._futures = self._futures, []
        _log(self._error)
        for future in futures:
            future.add_done_callback(log_failure)

    def close(self) -> None:
        """Nothing to do."""


def log_failure(future: Future[MessageId]) -> None:
    """Log the error of a message whose publisher does not wait for it."""
    _log(future.exception())


def _log(error: BaseException | None) -> None:
    if error is not None:
        logger.error("a message was not published: %s", error)
