"""What a channel has in hand, and the threads that pop for it.

Each queue that a channel consumes has a fetcher: a thread with a popper. It waits for room below
the channel's prefetch limit, then for messages, and hands them to the thread that delivers them.

Invariants:
1. A channel never has more messages in hand than its prefetch limit. Two fetchers may pop more at
   the same moment; those go back untried.
2. Messages that were not delivered when their consumer is cancelled go back untried, and so do
   messages that were not settled when their channel is closed.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cassq.base.clock import Stopwatch
from cassq.consumer.delivery import Message
from cassq.errors import (
    BackendError,
    CassqError,
    ClaimLostError,
    ClosedError,
    CorruptionError,
    UsageError,
)
from cassq.extents.port import ExtentMissingError
from cassq.popper import Popper

logger: logging.Logger = logging.getLogger("cassq")

READY_MAX = 1000  # messages that wait to be delivered if there is no prefetch limit
WAIT_SECONDS = 60.0
# A fetcher that has just popped waits this long for more room: a pop after each settled message
# costs three times as much as one after several.
GATHER_SECONDS = 0.002
# The errors of reading a message that kombu did not write.
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)


class Taken(NamedTuple):
    """A message that was popped. tag: its delivery tag. raw: kombu's form of it. settled: whether
    it was acked when it was popped."""

    queue: str
    tag: int
    message: Message
    popper: Popper
    raw: dict[str, Any]
    settled: bool = False


# Makes a delivery of a message that was popped for a queue of kombu; None: not meant for it.
Opened = Callable[[str, Message, Popper], Taken | None]


class ChannelPrefetch:
    """The messages in hand of one channel. Thread-safe.

    limit: how many it may have; 0: any number. on_ready: called when a message is ready.
    """

    def __init__(self, on_ready: Callable[[], None], opened: Opened) -> None:
        self._on_ready = on_ready
        self._opened = opened
        self._change = threading.Condition()
        self._limit = 0
        self._wanted = 1  # how much room wakes the fetchers
        self._ready: deque[Taken] = deque()
        self._held: dict[int, Taken] = {}
        self._failure: CassqError | None = None
        self._fetchers: dict[str, list[ChannelFetcher]] = {}
        self._retired: list[ChannelFetcher] = []

    # --- consumers ------------------------------------------------------------------------------

    def consume(self, queue: str, poppers: Iterable[Popper], *, no_ack: bool) -> None:
        """Begin to pop for a queue."""
        fetchers = [ChannelFetcher(self, queue, popper, no_ack) for popper in poppers]
        self._fetchers.setdefault(queue, []).extend(fetchers)
        for fetcher in fetchers:
            fetcher.start()

    def cancel(self, queue: str) -> list[ChannelFetcher]:
        """Pop no more for a queue. Messages in hand can still be settled. Returns its fetchers."""
        fetchers = self._fetchers.pop(queue, [])
        for fetcher in fetchers:
            fetcher.stop()
        with self._change:
            self._change.notify_all()
            back = [taken for taken in self._ready if taken.queue == queue]
            self._ready = deque(taken for taken in self._ready if taken.queue != queue)
        for fetcher in fetchers:
            fetcher.join()
        give_back(taken for taken in back if not taken.settled)
        self._retired += fetchers
        return fetchers

    def close(self) -> None:
        """Give all messages in hand back, untried, and close the poppers."""
        for queue in list(self._fetchers):
            self.cancel(queue)
        self.give_back_held()
        retired, self._retired = self._retired, []
        for fetcher in retired:
            fetcher.close()

    def give_back_held(self) -> None:
        """Give back messages that were delivered and not settled."""
        with self._change:
            held, self._held = list(self._held.values()), {}
            self._change.notify_all()
        give_back(held)

    # --- taking ---------------------------------------------------------------------------------

    @property
    def limit(self) -> int:
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._change:
            self._limit = limit
            self._change.notify_all()

    def room(self) -> int:
        """How many more messages it may have. An estimate, unless the lock is held."""
        if not self._limit:
            return max(0, READY_MAX - len(self._ready))
        return max(0, self._limit - len(self._held) - len(self._ready))

    def room_for(self, fetcher: ChannelFetcher) -> int:
        """Wait for room; returns how many messages to pop, 0 if the fetcher was stopped."""
        with self._change:
            self._gather(fetcher)
            while not fetcher.stopped:
                room = self.room()
                if room:
                    return room if len(self._fetchers) == 1 else 1
                self._change.wait(WAIT_SECONDS)
        return 0

    def _gather(self, fetcher: ChannelFetcher) -> None:
        """If a fetcher has just popped, wait until half of the limit is free, but only a moment."""
        self._wanted = (self._limit or READY_MAX) // 2
        while not fetcher.stopped and self.room() < self._wanted:
            left = GATHER_SECONDS - fetcher.since_last.seconds()
            if left <= 0:
                break
            self._change.wait(left)
        self._wanted = 1
        self._change.notify_all()  # other fetchers, which were not woken meanwhile

    def _made_room(self) -> None:
        """Wake the fetchers if there is as much room as they wait for. The lock must be held."""
        if self.room() >= self._wanted:
            self._change.notify_all()

    def add(self, fetcher: ChannelFetcher, messages: Iterable[Message]) -> None:
        """Keep what a fetcher popped until it is delivered."""
        beyond: list[Taken] = []
        done: list[Message] = []
        bad: list[tuple[Message, str]] = []
        with self._change:
            room = self.room()
            for message in messages:
                try:
                    taken = self._opened(fetcher.queue, message, fetcher.popper)
                except UNREADABLE as exc:
                    bad.append((message, f"it cannot be read: {exc}"))
                    continue
                if taken is None or fetcher.no_ack:
                    done.append(message)
                if taken is None:
                    continue
                if fetcher.no_ack:
                    self._ready.append(taken._replace(settled=True))
                elif fetcher.stopped or room <= 0:
                    beyond.append(taken)
                else:
                    room -= 1
                    self._ready.append(taken)
        try:
            for message in done:
                message.ack()
            for message, reason in bad:
                message.dead(reason)
        except ClaimLostError as exc:
            logger.warning("a message of %s was lost: %s", fetcher.queue, exc)
        give_back(beyond)
        self._on_ready()

    def next(self) -> Taken | None:
        """The next message to deliver, in hand from now on; None if none is ready. Raises the error
        that ended a fetcher."""
        if not (self._ready or self._failure):
            return None
        with self._change:
            if not self._ready:
                failure, self._failure = self._failure, None
                if failure is not None:
                    raise failure
                return None
            taken = self._ready.popleft()
            if taken.settled:
                self._made_room()
            else:
                self._held[taken.tag] = taken
            return taken

    def hold(self, taken: Taken) -> None:
        """Count a message that was popped outside of a fetcher as in hand."""
        with self._change:
            self._held[taken.tag] = taken

    def failed(self, failure: CassqError) -> None:
        """A fetcher ended: the thread that delivers raises the error."""
        with self._change:
            self._failure = failure
        self._on_ready()

    # --- settling -------------------------------------------------------------------------------

    def drop(self, tag: int) -> Taken | None:
        """Remove a message from those in hand, and return it; None if it is not in hand."""
        with self._change:
            taken = self._held.pop(tag, None)
            self._made_room()
        return taken

    def held(self, tag: int) -> Taken | None:
        return self._held.get(tag)

    def __len__(self) -> int:
        return len(self._held)


class ChannelFetcher:
    """The thread that pops for one queue of a channel."""

    def __init__(self, intake: ChannelPrefetch, queue: str, popper: Popper, no_ack: bool) -> None:
        self.queue: str = queue
        self.popper: Popper = popper
        self.no_ack: bool = no_ack
        self.stopped: bool = False
        self.since_last: Stopwatch = Stopwatch()  # since it took messages
        self._intake = intake
        self._thread = threading.Thread(target=self._run, name=f"cassq-take-{queue}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopped = True
        self.popper.stop()

    def join(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join()

    def close(self) -> None:
        """Close the popper. If this fails, its claims expire."""
        try:
            self.popper.close()
        except CassqError as exc:
            logger.warning("the popper of queue %s was not closed: %s", self.queue, exc)

    def _run(self) -> None:
        try:
            while room := self._intake.room_for(self):
                self._take(room)
        except ClosedError:
            return
        except CassqError as exc:
            if not self.stopped:
                self._intake.failed(exc)

    def _take(self, room: int) -> None:
        try:
            messages = self.popper.pop(room, wait=WAIT_SECONDS)
        except (CorruptionError, ExtentMissingError) as exc:
            logger.error("a pipe of queue %s cannot be read: %s", self.queue, exc)
            return
        self.since_last = Stopwatch()
        if messages:
            self._intake.add(self, messages)


def give_back(some: Iterable[Taken]) -> None:
    """Give messages back, untried."""
    by_popper: dict[Popper, list[Message]] = {}
    for taken in some:
        by_popper.setdefault(taken.popper, []).append(taken.message)
    for popper, messages in by_popper.items():
        try:
            popper.release(messages)
        except (ClaimLostError, ClosedError, BackendError, UsageError) as exc:
            logger.info("messages could not be given back, and come again later: %s", exc)
