"""Delayed: many messages are pushed ahead of their time, and delivered when it has come."""

from __future__ import annotations

import random
from time import monotonic, perf_counter

import cassq
from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import LostMessagesError
from bench.measuring.meter import rss_bytes
from bench.measuring.payloads import chunk
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 600.0
PUSH_BATCH = 1_000
POP_BATCH = 5_000
# They come due, at random, within this time: faster than they are asked to be delivered.
SPREAD_SECONDS_PER_MILLION = 5.0
# How long pushing them may take, so that none is due before the last is pushed.
AHEAD_SECONDS_PER_MILLION = 12.0
AHEAD_SECONDS_MIN = 0.001


def ahead(due: float) -> float:
    """Seconds until then. What is pushed too late for it, as when the disk stood still, is due as
    soon as it can be: nothing is taken before all is pushed."""
    return max(AHEAD_SECONDS_MIN, due - monotonic())


def deliver(popper: cassq.Popper, count: int) -> tuple[float, float]:
    """Take all; messages a second from the first delivery to the last, and the growth of memory."""
    done, started, before = 0, 0.0, 0
    while done < count:
        messages = popper.pop(POP_BATCH, wait=60)
        if not messages:
            raise LostMessagesError(f"{count - done} of {count} delayed messages did not come")
        if not done:
            started, before = perf_counter(), rss_bytes()
        done += len(messages.payloads)
        popper.commit(messages)
    return rate(done, perf_counter() - started), rss_bytes() / before


def pass_ahead(_gate: Gate, seat: Seat, count: int) -> Figures:
    """Push batches each due at a random time ahead, wait, and take them all."""
    client = cassq.connect(f"file://{seat.place.directory.resolve()}")
    queue = client.create_queue("delayed", max_bytes_per_pipe=64 * 1024 * 1024)
    pusher, popper = queue.pusher(), queue.popper()
    spread = SPREAD_SECONDS_PER_MILLION * count / 1_000_000
    chance, load = random.Random(1), chunk(seat.place.size, PUSH_BATCH)
    first_due = monotonic() + 1.0 + AHEAD_SECONDS_PER_MILLION * count / 1_000_000
    started, before = perf_counter(), rss_bytes()
    for _ in range(count // PUSH_BATCH):
        pusher.push_many(load, delay=ahead(first_due + chance.uniform(0, spread)))
    pushed = rate(count, perf_counter() - started)
    push_growth = rss_bytes() / before
    popped, pop_growth = deliver(popper, count)
    single = count // 20
    first_due = monotonic() + 2.0 + single / 20_000
    payload = load[0]
    for _ in range(single):
        pusher.push_soon(payload, delay=ahead(first_due + chance.uniform(0, spread / 20)))
    pusher.flush()
    scattered, _ = deliver(popper, single)
    client.close()
    return {
        "push": pushed,
        "pop": popped,
        "scattered": scattered,
        "memory": max(push_growth, pop_growth),
        "messages": count,
    }


class Delayed(Scenario):
    name = "delayed"
    title = "Delayed: pushed ahead of their time, due at random times within five seconds"
    headline = "pop"
    alone = True

    def cases(self, plan: Plan) -> list[Case]:
        return [Case("delayed", f"{plan.delayed_messages:,} messages of 100 B")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("push", "push/s, 1,000 of one time together", "rate"),
            Column("pop", "delivered/s", "rate"),
            Column("scattered", "delivered/s, each of its own time", "rate"),
            Column("memory", "memory, at the end over at the start", "ratio"),
            Column("messages", "messages", "rate"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        return run([Job(pass_ahead, (seat, plan.delayed_messages))], SECONDS_MAX)[0]
