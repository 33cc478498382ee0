"""A row per message in Cassandra: the design of CassandraQueue (2011), as fast as it can be made.

A pipe is two partitions under one key, the messages that wait and those that are pending. Each
pusher fills a pipe of its own; each popper takes a pipe and keeps it until it is empty. Three
writes a message:

- a push inserts the waiting row, and the pipe's new count in the same mutation;
- a pop reads the oldest rows and moves each to the pending ones, one mutation again;
- a commit deletes the pending row.

Where the original took one message after another on each of many threads, here one thread has as
many requests under way; and where it looked for the oldest message from the start of the partition
each time, over the tombstones of all that were popped before, here the popper reads ahead, from
where it was. It writes no count of pops and no time of each pop, as the original did, and takes no
distributed lock: one process pops. All of that is in its favour.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import RoundRobinPolicy, TokenAwarePolicy
from cassandra.query import PreparedStatement, tuple_factory

from bench.peers.peer import Peer, Place, Traits, poll

KEYSPACE = "rows"
REQUEST_SECONDS = 60.0
IN_FLIGHT = 256
# Clients of the original, each with a pipe of its own, that this process stands for.
PUSHERS = 16
POPPERS = 16  # maxPopWidth
PIPE_MESSAGES_MAX = 1_000  # maxPushesPerPipe, as the original came
PAGE_MESSAGES = 500
ACTIVE, FINISHED, EMPTY = "PA", "PF", "E"
BEFORE_ALL = uuid.UUID("00000000-0000-1000-8080-808080808080")  # the least of all time UUIDs

TABLES = """
CREATE TABLE {queue}_waiting (pipe timeuuid, message timeuuid, payload blob,
    PRIMARY KEY (pipe, message));
CREATE TABLE {queue}_pending (pipe timeuuid, message timeuuid, payload blob,
    PRIMARY KEY (pipe, message));
CREATE TABLE {queue}_descriptors (pipe timeuuid PRIMARY KEY, status text, pushed int, at bigint);
CREATE TABLE {queue}_pipes (queue text, pipe timeuuid, PRIMARY KEY (queue, pipe))
"""
# Batches of one partition's rows: each is one mutation, atomic. Prepared as a whole, they cost the
# client no more than a single statement does.
STATEMENTS = {
    "push": """BEGIN UNLOGGED BATCH
        INSERT INTO {queue}_waiting (pipe, message, payload) VALUES (?, ?, ?);
        UPDATE {queue}_descriptors SET pushed = ?, at = ? WHERE pipe = ?;
        APPLY BATCH""",
    "move": """BEGIN UNLOGGED BATCH
        INSERT INTO {queue}_pending (pipe, message, payload) VALUES (?, ?, ?);
        DELETE FROM {queue}_waiting WHERE pipe = ? AND message = ?;
        APPLY BATCH""",
    "commit": "DELETE FROM {queue}_pending WHERE pipe = ? AND message = ?",
    "oldest": "SELECT message, payload FROM {queue}_waiting"
    " WHERE pipe = ? AND message > ? ORDER BY message LIMIT ?",
    "list": "INSERT INTO {queue}_pipes (queue, pipe) VALUES (?, ?)",
    "unlist": "DELETE FROM {queue}_pipes WHERE queue = ? AND pipe = ?",
    "pipes": "SELECT pipe FROM {queue}_pipes WHERE queue = ? LIMIT ?",
    "mark": "UPDATE {queue}_descriptors SET status = ?, at = ? WHERE pipe = ?",
    "status": "SELECT status FROM {queue}_descriptors WHERE pipe = ?",
}


Row = tuple[uuid.UUID, uuid.UUID, bytes]  # pipe, message, payload


class Flight:
    """Requests under way, at most so many; `land` waits for all and raises what went wrong."""

    def __init__(self, session: Session, most: int) -> None:
        self._session = session
        self._most = most
        self._free = threading.Semaphore(most)
        self._errors: list[BaseException] = []

    def send(self, statement: Any) -> None:
        self._free.acquire()
        self._session.execute_async(statement).add_callbacks(self._landed, self._failed)

    def _landed(self, _rows: object) -> None:
        self._free.release()

    def _failed(self, error: BaseException) -> None:
        self._errors.append(error)
        self._free.release()

    def land(self) -> None:
        for _ in range(self._most):
            self._free.acquire()
        self._free.release(self._most)
        if self._errors:
            raise self._errors[0]


@dataclass
class PushedPipe:
    """A pipe that a pusher fills."""

    key: uuid.UUID = field(default_factory=uuid.uuid1)
    pushed: int = 0


@dataclass
class PoppedPipe:
    """A pipe that a popper holds, with what was read ahead."""

    key: uuid.UUID
    ahead: deque[tuple[uuid.UUID, bytes]] = field(default_factory=deque)
    after: uuid.UUID = BEFORE_ALL


class CassandraRowsPeer(Peer):
    name = "cassandra-rows"
    title = "Cassandra, a row per message"
    traits = Traits(
        server="cassandra",
        slowness=100,
        warmup_messages=5_000,
        only=("cassandra", "cassandra-single"),
        durable="commit log",
        note=f"CassandraQueue's design; QUORUM, {IN_FLIGHT} requests in flight, {PUSHERS} pipes of "
        f"{PIPE_MESSAGES_MAX:,} messages filled and emptied at a time, rows read ahead in pages",
    )
    batch_of_size: ClassVar[dict[int, int]] = {100: 4_000, 1_000: 4_000}
    in_flight: ClassVar[int] = IN_FLIGHT

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._table = place.queue.replace("-", "_")
        self._held: list[tuple[uuid.UUID, uuid.UUID]] = []
        self._popped: dict[uuid.UUID, PoppedPipe] = {}
        self._filled: list[PushedPipe] = []
        self._lanes: list[PushedPipe] = []

    # --- the session ----------------------------------------------------------------------------

    @cached_property
    def _cluster(self) -> Cluster:
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(RoundRobinPolicy()),
            consistency_level=ConsistencyLevel.QUORUM,
            request_timeout=REQUEST_SECONDS,
            row_factory=tuple_factory,
        )
        return Cluster(
            self.place.address.split(","),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            # Without it small requests wait for one another's answers.
            sockopts=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
            compression=False,
            # The last version whose messages carry no checksums: a tenth less work here.
            protocol_version=4,
        )

    @cached_property
    def _session(self) -> Session:
        return self._cluster.connect(KEYSPACE)

    @cached_property
    def _flight(self) -> Flight:
        return Flight(self._session, self.in_flight)

    @cached_property
    def _prepared(self) -> dict[str, PreparedStatement]:
        return {
            name: self._session.prepare(text.format(queue=self._table))
            for name, text in STATEMENTS.items()
        }

    def _bound(self, name: str, *values: Any) -> Any:
        return self._prepared[name].bind(values)

    def create(self) -> None:
        replicas = min(3, len(self.place.address.split(",")))
        session = self._cluster.connect()
        session.execute(
            f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication ="
            f" {{'class': 'SimpleStrategy', 'replication_factor': {replicas}}}"
        )
        session.shutdown()
        for statement in TABLES.format(queue=self._table).split(";"):
            self._session.execute(statement)

    # --- pushing --------------------------------------------------------------------------------

    @cached_property
    def _pushed(self) -> list[PushedPipe]:
        return [self._opened() for _ in range(PUSHERS)]

    def _opened(self) -> PushedPipe:
        """A new pipe, in the queue's list before anything is in it."""
        pipe = PushedPipe()
        self._session.execute(self._marked(ACTIVE, pipe.key))
        self._session.execute(self._bound("list", self.place.queue, pipe.key))
        return pipe

    def _marked(self, status: str, key: uuid.UUID) -> Any:
        return self._bound("mark", status, time.time_ns(), key)

    def _rows(
        self, chunks: Iterable[Sequence[bytes]]
    ) -> Iterator[tuple[PushedPipe, uuid.UUID, bytes]]:
        """Each message with its pipe and its id, the pushers taking turns."""
        pipes = self._pushed
        turns = itertools.cycle(range(PUSHERS))
        for payload in itertools.chain.from_iterable(chunks):
            turn = next(turns)
            pipe = pipes[turn]
            if pipe.pushed == PIPE_MESSAGES_MAX:
                self._filled.append(pipe)
                pipe = pipes[turn] = self._opened()
            pipe.pushed += 1
            yield pipe, uuid.uuid1(), payload

    def push(self, chunks: Iterable[Sequence[bytes]]) -> None:
        send = self._flight.send
        for pipe, message, payload in self._rows(chunks):
            send(self._push_of(pipe, message, payload))
        self._finish_filled()

    def _push_of(self, pipe: PushedPipe, message: uuid.UUID, payload: bytes) -> Any:
        key = pipe.key
        return self._bound("push", key, message, payload, pipe.pushed, time.time_ns(), key)

    def _finish_filled(self) -> None:
        """Mark pipes that are full, once all is in them: whoever finds one empty closes it."""
        self._flight.land()
        for pipe in self._filled:
            self._flight.send(self._marked(FINISHED, pipe.key))
        self._flight.land()
        self._filled.clear()

    def lane(self, *, wakes: bool = False) -> Callable[[bytes], None]:
        pipe = self._opened()
        self._lanes.append(pipe)

        def push_one(payload: bytes) -> None:
            nonlocal pipe
            if pipe.pushed == PIPE_MESSAGES_MAX:
                self._session.execute(self._marked(FINISHED, pipe.key))
                pipe = self._opened()
                self._lanes.append(pipe)
            pipe.pushed += 1
            self._session.execute(self._push_of(pipe, uuid.uuid1(), payload))

        return push_one

    # --- popping --------------------------------------------------------------------------------

    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        return poll(lambda: self._moved(limit), wait_s)

    def _moved(self, limit: int) -> list[bytes]:
        """Move up to so many messages to the pending ones."""
        payloads: list[bytes] = []
        while (left := limit - len(payloads)) > 0 and self._read_ahead(left):
            share = -(-left // len(self._popped))
            for pipe in self._popped.values():
                count = min(share, len(pipe.ahead), limit - len(payloads))
                rows = [(pipe.key, *pipe.ahead.popleft()) for _ in range(count)]
                self._move(rows)
                self._held += ((key, message) for key, message, _ in rows)
                payloads += (payload for _, _, payload in rows)
        self._flight.land()
        return payloads

    def _move(self, rows: Sequence[Row]) -> None:
        send, bound = self._flight.send, self._bound
        for key, message, payload in rows:
            send(bound("move", key, message, payload, key, message))

    def _read_ahead(self, limit: int) -> bool:
        """Let each popper that has nothing read the oldest messages; whether any has some now."""
        if any(pipe.ahead for pipe in self._popped.values()):
            return True
        while True:
            if not self._popped:
                listed = self._session.execute(self._bound("pipes", self.place.queue, POPPERS))
                self._popped = {key: PoppedPipe(key) for (key,) in listed}
            if not self._popped:
                return False
            if self._read_pages(min(limit, PAGE_MESSAGES)) or not self._close_finished():
                return any(pipe.ahead for pipe in self._popped.values())

    def _read_pages(self, limit: int) -> bool:
        pipes = list(self._popped.values())
        asked = [
            self._session.execute_async(self._bound("oldest", pipe.key, pipe.after, limit))
            for pipe in pipes
        ]
        for pipe, future in zip(pipes, asked, strict=True):
            pipe.ahead.extend(future.result())
            if pipe.ahead:
                pipe.after = pipe.ahead[-1][0]
        return any(pipe.ahead for pipe in pipes)

    def _close_finished(self) -> bool:
        """Nothing is in any of them: give up those that are finished; whether to look again."""
        self._flight.land()
        keys = list(self._popped)
        asked = [self._session.execute_async(self._bound("status", key)) for key in keys]
        finished = [
            key
            for key, future in zip(keys, asked, strict=True)
            if future.result().one() == (FINISHED,)
        ]
        late = False
        for key in finished:
            # Requests overtake one another: what landed behind the reader is there by now.
            pipe = PoppedPipe(key)
            self._popped[key] = pipe
            pipe.ahead.extend(
                self._session.execute(self._bound("oldest", key, BEFORE_ALL, PAGE_MESSAGES))
            )
            if pipe.ahead:
                pipe.after, late = pipe.ahead[-1][0], True
                continue
            self._flight.send(self._marked(EMPTY, key))
            self._flight.send(self._bound("unlist", self.place.queue, key))
            del self._popped[key]
        self._flight.land()
        if not late and not finished:
            # Still being filled: from the start the next time, and whatever is listed by then.
            self._popped.clear()
        return bool(finished) and not late

    def ack(self) -> None:
        self._commit(self._held)
        self._flight.land()
        self._held = []

    def _commit(self, held: Sequence[tuple[uuid.UUID, uuid.UUID]]) -> None:
        send, bound = self._flight.send, self._bound
        for key, message in held:
            send(bound("commit", key, message))

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        opened = self.__dict__
        if "_pushed" in opened:
            self._filled += self._pushed
        self._filled += self._lanes
        self._lanes.clear()
        if self._filled:
            self._finish_filled()
        for name in ("_session", "_flight", "_prepared", "_pushed"):
            opened.pop(name, None)
        if "_cluster" in opened:
            self._cluster.shutdown()
            del opened["_cluster"]

    def drop(self) -> None:
        for statement in TABLES.format(queue=self._table).split(";"):
            table = statement.split()[2]
            self._session.execute(f"DROP TABLE {table}")
        self.close()
