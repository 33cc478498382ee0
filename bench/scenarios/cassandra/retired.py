"""On Cassandra, what a pop costs when few, many and very many retired pipes lie behind it."""

from __future__ import annotations

import threading
from statistics import median
from time import perf_counter

import cassq
from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import LostMessagesError
from bench.measuring.payloads import chunk
from bench.peers.ours.embedded import as_cassq
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.cassandra.through import OWN
from bench.scenarios.scenario import Case, Column, Scenario
from cassq.catalog.cassandra import CassandraCatalog
from cassq.catalog.cassandra.pipes.listing import DAY_US, DROP_ENTRY, NOTE_ENTRY, NOTE_SLICE

SECONDS_MAX = 3_600.0
# So many pipes are filled, emptied and retired for good; of the others, what a popper's listing
# comes upon is written, and removed, as they do it: a hundred thousand would take an hour.
WHOLE_PIPES = 1_000
# So many pipes are filled, emptied and retired at a time, by so many threads.
ROUND_PIPES = 500
ROUND_LISTED = 5_000
PUSHERS = 8
WAIT_SECONDS = 30.0


def retire(client: cassq.Client, queue: cassq.Queue, count: int, payload: bytes) -> None:
    """Let so many more pipes be filled with a message each, emptied and retired."""
    shares = [count // PUSHERS + (number < count % PUSHERS) for number in range(PUSHERS)]
    failures: list[BaseException] = []

    def push(share: int) -> None:
        try:
            with queue.pusher() as pusher:
                for _ in range(share):
                    pusher.push(payload)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=push, args=(share,)) for share in shares]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    with queue.popper() as popper:
        left = count
        while left:
            messages = popper.pop(left, wait=WAIT_SECONDS)
            if not messages:
                raise LostMessagesError(f"{left} of {count} messages did not come")
            popper.commit(messages)
            left -= len(messages)
    started = perf_counter()
    while live := sum(count for state, count in queue.stats().pipes.items() if state != "retired"):
        if perf_counter() - started > SECONDS_MAX / 10:
            raise LostMessagesError(f"{live} pipes are not retired")
        client.reap([queue.name])


def list_and_unlist(client: cassq.Client, queue: cassq.Queue, count: int) -> None:
    """Let so many more pipes be listed and unlisted, as those that were retired have been, while
    somebody lists what is there, as poppers do once a second."""
    catalog = client.ports.catalog
    assert isinstance(catalog, CassandraCatalog)
    row = catalog.queues.named(queue.name)
    assert row is not None
    for first in range(0, count, ROUND_PIPES):
        slices: set[tuple[str, int]] = set()
        entries = []
        for _ in range(first, min(first + ROUND_PIPES, count)):
            position = catalog._keyspace.cql.stamp()
            slices.add((row.id, position // DAY_US))
            entries.append((row.id, position // DAY_US, position, client.ports.ids.new(0)))
        catalog._keyspace.cql.write_many([(NOTE_SLICE, values) for values in slices])
        catalog._keyspace.cql.write_many([(NOTE_ENTRY, values) for values in entries])
        catalog._keyspace.cql.write_many([(DROP_ENTRY, values) for values in entries])
        catalog.pipes.unsealed([row.id])


def pop_one_by_one(queue: cassq.Queue, count: int, payload: bytes) -> list[float]:
    """So many messages, each pushed, popped and committed before the next: milliseconds of the
    pop and its commit. They share a pipe."""
    taken: list[float] = []
    with queue.pusher() as pusher, queue.popper() as popper:
        for _ in range(count):
            pusher.push(payload)
            started = perf_counter()
            messages = popper.pop(1, wait=WAIT_SECONDS)
            popper.commit(messages)
            taken.append((perf_counter() - started) * 1e3)
            if len(messages) != 1:
                raise LostMessagesError("a message did not come")
    return taken


def pop_behind(
    _gate: Gate, seat: Seat, depths: tuple[int, ...], pops: int, fill_s: float
) -> Figures:
    """Retire more and more pipes of one queue, and look at what a pop costs on the way."""
    peer = as_cassq(seat.peer())
    peer.create()
    client, queue = peer.client, peer.client.queue(seat.place.queue)
    payload = chunk(seat.place.size, 1)[0]
    # The first pops find caches cold and connections new.
    pop_one_by_one(queue, pops // 5, payload)
    figures: Figures = {}
    retired, spent = 0, 0.0
    for depth in sorted(depths):
        queue.update(max_pushes_per_pipe=1)
        while retired < depth and spent < fill_s:
            started = perf_counter()
            if retired < WHOLE_PIPES:
                count = min(ROUND_PIPES, depth - retired)
                retire(client, queue, count, payload)
            else:
                count = min(ROUND_LISTED, depth - retired)
                list_and_unlist(client, queue, count)
            spent += perf_counter() - started
            retired += count
        if retired < depth:
            break
        queue.update(max_pushes_per_pipe=1_000_000)
        figures[f"pop@{depth}"] = median(pop_one_by_one(queue, pops, payload))
    peer.close()
    peer.drop()
    deepest, shallowest = f"pop@{max(depths)}", f"pop@{min(depths)}"
    if deepest in figures:
        figures["grown"] = figures[deepest] / figures[shallowest]
    return {**figures, "retired": float(retired), "fill": rate(retired, spent)}


class CassandraRetired(Scenario):
    name = "cassandra-retired"
    title = "On Cassandra, the cost of a pop and its commit, by pipes retired before"
    headline = "grown"
    own = OWN
    alone = True

    def cases(self, plan: Plan) -> list[Case]:
        return [Case("cassandra-retired", "one message a pop, median of ms")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            *(Column(f"pop@{count}", f"{count:,} retired, ms", "ms") for count in plan.retired),
            Column("grown", "last over first", "ratio"),
            Column("retired", "pipes retired, or listed and unlisted", "rate"),
            Column("fill", "retired a second", "rate"),
        ]

    def rounds(self, plan: Plan) -> int:
        return 1  # filling is what takes long

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        arguments = (seat, plan.retired, plan.retired_pops, plan.retired_fill_s)
        return run([Job(pop_behind, arguments)], SECONDS_MAX)[0]
