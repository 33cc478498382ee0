"""Before anything is timed: a peer must hand out exactly what was pushed, once, and keep acks."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from dataclasses import replace

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import LostMessagesError
from bench.measuring.payloads import chunk
from bench.peers.peer import Peer
from bench.plan import SIZES
from bench.scenarios.single import push_from_threads
from bench.scenarios.through import pass_through

SECONDS_MAX = 300.0
LEFTOVER_SECONDS = 0.2
WAIT_SECONDS = 5.0
MESSAGES_MIN = 200


def take(peer: Peer, count: int) -> list[bytes]:
    taken: list[bytes] = []
    while len(taken) < count:
        found = peer.pop(min(peer.batch, count - len(taken)), WAIT_SECONDS)
        if not found:
            raise LostMessagesError(f"{count - len(taken)} of {count} messages did not come")
        taken += found
        peer.ack()
    return taken


def prove(_gate: Gate, seat: Seat, count: int) -> Figures:
    """Push; pop half; connect anew; pop the rest. All must come once, and nothing else."""
    peer = seat.peer()
    peer.create()
    sent = chunk(seat.place.size, count)
    lane = peer.lane()
    lane(sent[0])
    peer.push([sent[1:]])
    received = take(peer, count // 2)
    peer.close()
    again = seat.peer()
    received += take(again, count - len(received))
    received += again.pop(1, LEFTOVER_SECONDS)
    again.close()
    again.drop()
    wrong = Counter(sent)
    wrong.subtract(received)
    different = sum(abs(times) for times in wrong.values())
    if different:
        raise LostMessagesError(f"{different} of {count} messages lost, doubled or changed")
    return {}


def prove_peer(seat: Seat, count: int) -> None:
    run([Job(prove, (seat, count))], SECONDS_MAX)


def warm_server(seat: Seat, count: int, single_s: float, bulk_s: float) -> None:
    """Messages that nobody counts, of both sizes in bulk, again and again for `bulk_s` seconds, and
    one by one: a Java server goes on compiling itself for long."""
    start = time.monotonic()
    for number in itertools.count():
        for size in SIZES:
            sized = replace(seat, place=replace(seat.place, size=size))
            share = count * SIZES[0] // size
            bulk = sized.part(f"bulk-{number}-{size}")
            run([Job(pass_through, (bulk, max(MESSAGES_MIN, share)))], SECONDS_MAX)
        if time.monotonic() - start >= bulk_s:
            break
    run([Job(push_from_threads, (seat.part("single"), 1, single_s, True))], SECONDS_MAX)
