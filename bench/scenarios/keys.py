"""Keys: what it costs that the messages of a key come one after another."""

from __future__ import annotations

import random
from time import perf_counter
from typing import ClassVar

import cassq
from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import LostMessagesError
from bench.measuring.payloads import chunk
from bench.peers.ours.embedded import CassqPeer, as_cassq
from bench.plan import Plan
from bench.results.figures import percentile, rate
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 300.0
# How many messages a pop asks for in a directory; on servers, as many as make up for its trips.
POP, POP_THERE = 1_000, 10_000
STUCK = b"key 0"
# Case → how many keys, and whether one of them is stuck in one of the groups.
CASES = {"10,000 keys": (10_000, False), "100 keys": (100, False), "one of 1,000": (1_000, True)}
# A case of few keys and many messages, of which one is popped, and how many times as many it has.
FIRST, FIRST_KEYS, FIRST_TIMES = "first", 30, 5
FIRST_GROUPS = 5  # of which the median counts


def opened(seat: Seat) -> tuple[CassqPeer, cassq.Queue]:
    peer = as_cassq(seat.peer())
    peer.create()
    return peer, peer.client.queue(seat.place.queue)


def fill(queue: cassq.Queue, peer: CassqPeer, count: int, keys: int) -> int:
    """Push messages with random keys; how many have the key that may be stuck."""
    draw = random.Random(keys).randrange
    batch = min(peer.batch, count)
    payloads, stuck = chunk(peer.place.size, batch), 0
    with queue.pusher() as pusher:
        for _ in range(count // batch):
            drawn = [b"key %d" % draw(keys) for _ in range(batch)]
            stuck += drawn.count(STUCK)
            pusher.push_many(payloads, keys=drawn)
    return stuck


def take(popper: cassq.Popper, count: int, most: int, *, stuck: bool = False) -> float:
    """Pop and commit so many messages, `most` at once; the seconds it took. stuck: the first
    message of one key is kept in hand."""
    done, started = 0, perf_counter()
    kept = False
    while done < count:
        messages = popper.pop(most, wait=5.0)
        if not messages:
            raise LostMessagesError(f"{count - done} messages did not come")
        found = list(messages) if stuck and not kept else messages
        if stuck and not kept and any(message.key == STUCK for message in found):
            found, kept = [message for message in found if message.key != STUCK], True
        popper.commit(found)
        done += len(found)
    return perf_counter() - started


def pass_through(_gate: Gate, seat: Seat, case: str, count: int) -> Figures:
    """The same messages through groups of one queue, one after another. even: without order, in
    pops as large as those of the group that can have no more than one of each key."""
    keys, with_stuck = CASES[case]
    peer, queue = opened(seat)
    pop = POP if peer.traits.server is None else POP_THERE
    names = ["plain", *(["even"] if keys < POP else []), "keyed", *(["stuck"] * with_stuck)]
    for name in names:
        queue.create_group(name, order="any" if name in ("plain", "even") else "key")
    behind = fill(queue, peer, count, keys)
    rates: dict[str, float] = {}
    for name in names:
        stuck = name == "stuck"
        with queue.popper(name) as popper:
            wanted = count - (behind if stuck else 0)
            most = keys if name == "even" else pop
            rates[name] = rate(wanted, take(popper, wanted, most, stuck=stuck))
    peer.close()
    peer.drop()
    ratios = {"kept": rates["keyed"] / rates["plain"]}
    if "even" in rates:
        ratios["kept_even"] = rates["keyed"] / rates["even"]
    if with_stuck:
        ratios["beside"] = rates["stuck"] / rates["keyed"]
    return {**rates, **ratios}


def pop_first(_gate: Gate, seat: Seat, count: int) -> Figures:
    """How long a new popper takes to its first message, of many with few keys."""
    peer, queue = opened(seat)
    names = [f"keyed-{number}" for number in range(FIRST_GROUPS)]
    for name in names:
        queue.create_group(name, order="key")
    fill(queue, peer, count, FIRST_KEYS)
    spent: list[float] = []
    for name in names:
        started = perf_counter()
        with queue.popper(name) as popper:
            if not popper.pop(1, wait=5.0):
                raise LostMessagesError("no message came")
            spent.append(perf_counter() - started)
    peer.close()
    peer.drop()
    return {"first_ms": 1000 * percentile(spent, 0.5)}


class Keys(Scenario):
    name = "keys"
    title = (
        f"Keys: messages of a key one after another, in pops of {POP:,}, on servers {POP_THERE:,}"
    )
    headline = "kept"
    compared = False
    peers: ClassVar[tuple[str, ...]] = ("cassq-cassandra", "cassq-sidecars")

    def cases(self, plan: Plan) -> list[Case]:
        titles = {
            "10,000 keys": "10,000 keys",
            "100 keys": "100 keys, so that a pop gets 100 at most",
            "one of 1,000": "1,000 keys, one of which is stuck",
            FIRST: f"{FIRST_TIMES * plan.keys_messages:,} of them, {FIRST_KEYS} keys",
        }
        return [Case(key, f"messages of 100 B, {title}") for key, title in titles.items()]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("plain", "popped and committed/s without order", "rate"),
            Column("keyed", "in the order of keys", "rate"),
            Column("kept", "kept", "ratio"),
            Column("even", "without order in pops of 100", "rate"),
            Column("kept_even", "of that kept", "ratio"),
            Column("stuck", "while one key is stuck", "rate"),
            Column("beside", "of that without", "ratio"),
            Column("first_ms", "ms to the first message", "ms"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        if case.key == FIRST:
            job = Job(pop_first, (seat, FIRST_TIMES * plan.keys_messages))
        else:
            job = Job(pass_through, (seat, case.key, plan.keys_messages))
        return run([job], SECONDS_MAX)[0]
