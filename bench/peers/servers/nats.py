"""A JetStream stream with one durable pull consumer, through nats-py: by its own calls, and leaner.

An acknowledgement covers all messages before it, and is itself answered; the stream then lets go of
what was acknowledged. On several servers each has everything.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from bench.peers.peer import Peer, Place, Traits, slices

CONSUMER = "popper"
REQUEST_SECONDS = 30.0
IN_FLIGHT = 4_000
# What a consumer may have handed out that is not acknowledged; more than any batch.
UNACKED_MAX = 50_000
# An empty hand without a wait: as long as an answer may take.
LOOK_SECONDS = 0.1
BULK_MESSAGES = 1_000
FILL_SECONDS = 0.02
# For how long a request for messages stands; a new one is made then.
STANDING_SECONDS = 20.0
# Messages written between two looks at what was answered.
BURST = 200

T = TypeVar("T")


class Line:
    """A connection and the loop it lives in, which runs while somebody waits for an answer."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self.client: Client = self.run(nats.connect(address.split(",")))
        self.streams: JetStreamContext = self.client.jetstream(
            timeout=REQUEST_SECONDS, publish_async_max_pending=IN_FLIGHT
        )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        self.run(self.client.close())
        self._loop.close()


class NatsPeer(Peer):
    name = "nats"
    title = "NATS"
    traits = Traits(
        server="nats",
        soon_warm=True,
        slowness=10,
        only=("sidecars",),
        durable="page cache",
        note=f"JetStream in files, pull consumer, a batch acknowledged at once; publish_async with"
        f" {IN_FLIGHT:,} in flight, fetch in batches of 5,000, as nats-py has them",
    )
    batch_of_size: ClassVar[dict[int, int]] = {100: 5_000, 1_000: 5_000}

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._lanes: list[Line] = []
        self._last: Msg | None = None

    @cached_property
    def _line(self) -> Line:
        return Line(self.place.address)

    def create(self) -> None:
        self._line.run(self._create(self._line.streams))

    async def _create(self, streams: JetStreamContext) -> None:
        name = self.place.queue
        await streams.add_stream(
            StreamConfig(
                name=name,
                subjects=[name],
                storage=StorageType.FILE,
                # What all consumers have acknowledged goes; there is but one.
                retention=RetentionPolicy.INTEREST,
                num_replicas=len(self.place.address.split(",")),
            )
        )
        await streams.add_consumer(
            name,
            ConsumerConfig(
                durable_name=CONSUMER,
                ack_policy=AckPolicy.ALL,
                ack_wait=2 * REQUEST_SECONDS,
                max_ack_pending=UNACKED_MAX,
            ),
        )

    def push(self, chunks: Iterable[Sequence[bytes]]) -> None:
        self._line.run(self._push(self._line.streams, chunks))

    async def _push(self, streams: JetStreamContext, chunks: Iterable[Sequence[bytes]]) -> None:
        publish, subject = streams.publish_async, self.place.queue
        earlier: list[asyncio.Future[Any]] = []
        for batch in slices(chunks, self.batch):
            answers = [await publish(subject, payload) for payload in batch]
            for answer in earlier:
                await answer
            earlier = answers
        for answer in earlier:
            await answer

    def lane(self, *, wakes: bool = False) -> Callable[[bytes], None]:
        # A connection a thread, each with its loop.
        line, subject = Line(self.place.address), self.place.queue
        self._lanes.append(line)
        run, publish = line.run, line.streams.publish

        def push_one(payload: bytes) -> None:
            run(publish(subject, payload))

        return push_one

    @cached_property
    def _consumer(self) -> JetStreamContext.PullSubscription:
        streams = self._line.streams
        return self._line.run(streams.pull_subscribe_bind(CONSUMER, self.place.queue))

    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        try:
            found = self._line.run(self._fetch(self._consumer, limit, wait_s))
        except TimeoutError:
            return []  # nothing came; nats-py has several kinds of it
        return self._held(found)

    async def _fetch(
        self, consumer: JetStreamContext.PullSubscription, limit: int, wait_s: float
    ) -> list[Msg]:
        # `fetch` waits until it has all that it asked for: who waits for the next message asks for
        # that one, and then for those that are there as well.
        if not wait_s or limit >= BULK_MESSAGES:
            return list(await consumer.fetch(limit, timeout=wait_s or LOOK_SECONDS))
        found = list(await consumer.fetch(1, timeout=wait_s))
        more = min(found[-1].metadata.num_pending, limit - 1)
        try:
            return found + (await consumer.fetch(more, timeout=LOOK_SECONDS) if more else [])
        except TimeoutError:
            return found

    def _held(self, found: Sequence[Msg]) -> list[bytes]:
        if found:
            self._last = found[-1]
        return [message.data for message in found]

    def ack(self) -> None:
        if self._last is not None:
            self._line.run(self._last.ack_sync(REQUEST_SECONDS))
        self._last = None

    def close(self) -> None:
        lines = [*self._lanes, *([self._line] if "_line" in self.__dict__ else [])]
        for line in lines:
            line.close()

    def drop(self) -> None:
        line = Line(self.place.address)
        line.run(line.streams.delete_stream(self.place.queue))
        line.close()


class NatsLeanPeer(NatsPeer):
    """The same requests, written without a future for each: one inbox gets all answers, which are
    counted, and one request stands for a batch of messages, which are taken as they come."""

    name = "nats-lean"
    title = "NATS, lean client"
    traits = Traits(
        server="nats",
        soon_warm=True,
        slowness=4,
        only=("sidecars",),
        durable="page cache",
        note="as above, but answers come to one inbox and are counted, and requests for messages"
        " are written by hand",
    )

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._answers = 0
        self._refusals: list[bytes] = []
        self._come: deque[Msg] = deque()
        self._asked = 0  # messages that a request stands for

    @cached_property
    def _news(self) -> asyncio.Event:
        return asyncio.Event()

    async def _push(self, streams: JetStreamContext, chunks: Iterable[Sequence[bytes]]) -> None:
        client, subject = self._line.client, self.place.queue
        self._answers, pushed = 0, 0
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox, cb=self._answered)
        for batch in slices(chunks, BURST):
            for payload in batch:
                await client.publish(subject, payload, reply=inbox)
            pushed += len(batch)
            await asyncio.sleep(0)  # what came in is looked at only while nobody else works
            await self._answered_until(pushed - IN_FLIGHT)
        await self._answered_until(pushed)
        await answers.unsubscribe()

    async def _answered(self, answer: Msg) -> None:
        if b'"error"' in answer.data or b'"seq"' not in answer.data:
            self._refusals.append(answer.data)
        self._answers += 1
        self._news.set()

    async def _answered_until(self, count: int) -> None:
        while self._answers < count:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), REQUEST_SECONDS)
        if self._refusals:
            raise RuntimeError(f"not stored: {self._refusals[0]!r}")

    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        return self._held(self._line.run(self._pop(limit, wait_s or LOOK_SECONDS)))

    @cached_property
    def _inbox(self) -> str:
        return str(self._line.client.new_inbox())

    async def _pop(self, limit: int, wait_s: float) -> list[Msg]:
        if "_inbox" not in self.__dict__:
            await self._line.client.subscribe(self._inbox, cb=self._came)
        come = self._come
        # Bulk readers wait a moment for a full batch, so that they acknowledge less often.
        fill = limit >= BULK_MESSAGES
        if not come:
            await self._ask(limit)
            await self._look(lambda: bool(come), wait_s)
        if fill and 0 < len(come) < limit:
            await self._ask(limit - len(come))
            await self._look(lambda: len(come) >= limit, FILL_SECONDS)
        return [come.popleft() for _ in range(min(limit, len(come)))]

    async def _ask(self, count: int) -> None:
        """See to it that a request stands."""
        if self._asked > 0:
            return
        self._asked = count
        request = {"batch": count, "expires": int(STANDING_SECONDS * 1e9)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.place.queue}.{CONSUMER}"
        await self._line.client.publish(subject, json.dumps(request).encode(), reply=self._inbox)

    async def _came(self, message: Msg) -> None:
        if message.headers:
            self._asked = 0  # a status: the request's time is over, or the leader went elsewhere
        else:
            self._come.append(message)
            self._asked -= 1
        self._news.set()

    async def _look(self, enough: Callable[[], bool], wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while not enough() and (left := deadline - loop.time()) > 0:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except TimeoutError:
                return


class NatsSyncedPeer(NatsLeanPeer):
    name = "nats-synced"
    title = "NATS, lean client, synced"
    traits = Traits(
        server="nats-synced",
        batches=False,
        soon_warm=True,
        warmup_messages=2_000,
        slowness=100,
        only=("sidecars",),
        note="as above with sync_interval: always",
    )
