"""Through: all messages are pushed, then all are popped and acknowledged, in one process."""

from __future__ import annotations

import os

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import LostMessagesError, drain
from bench.measuring.meter import Meter
from bench.measuring.payloads import chunks
from bench.peers.peer import Peer
from bench.plan import SIZES, Plan
from bench.results.figures import rate
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 300.0
LEFTOVER_SECONDS = 0.05


def pass_through(_gate: Gate, seat: Seat, count: int, varied: bool = False) -> Figures:
    """varied: the messages have lengths that differ, and a consumer reads them one by one."""
    peer = seat.peer()
    peer.create()
    warmup = chunks(seat.place.size, min(peer.batch, count), varied=varied)
    peer.push(warmup)
    drain(peer, sum(map(len, warmup)), singly=varied)
    load = chunks(seat.place.size, count, varied=varied)
    # What others left to be written goes to the disk before the clock starts, not after.
    os.sync()
    whole, pushing, popping = Meter(seat.place.server_pid), Meter(), Meter()
    with whole:
        with pushing:
            peer.push(load)
        with popping:
            drain(peer, count, singly=varied)
    if peer.pop(1, LEFTOVER_SECONDS):
        raise LostMessagesError(f"more than {count} messages came")
    peer.close()
    peer.drop()
    return {
        "push": rate(count, pushing.wall_s),
        "pop": rate(count, popping.wall_s),
        "through": rate(count, pushing.wall_s + popping.wall_s),
        "messages": count,
        **whole.costs(),
    }


class Through(Scenario):
    name = "through"
    title = "Through: push all, then pop and acknowledge all, one process, batches"
    headline = "through"

    def cases(self, plan: Plan) -> list[Case]:
        return [
            Case("through/varied", "messages of 20 B to 1 KB, read one by one", varied=True),
            *(Case(f"through/{size}", f"messages of {size:,} B", size) for size in SIZES),
            Case("through/100/one-core", "messages of 100 B, on one core", 100, one_core=True),
        ]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("through", "through/s", "rate"),
            Column("push", "push/s", "rate"),
            Column("pop", "pop + ack/s", "rate"),
            Column("messages", "messages", "rate"),
            Column("cpu_s", "client CPU s", "s"),
            Column("server_cpu_s", "server CPU s", "s"),
            Column("rss_bytes", "client peak MB", "MB"),
            Column("server_rss_bytes", "server MB", "MB"),
        ]

    def takes_part(self, case: Case, peer: type[Peer]) -> bool:
        # A server and its client cannot both have the one core.
        embedded_in_batches = peer.traits.server is None and peer.traits.batches
        return super().takes_part(case, peer) and (not case.one_core or embedded_in_batches)

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        count = plan.messages_for(case.size, seat.peer_class().traits.batches)
        core = max(os.sched_getaffinity(0)) if case.one_core else None
        return run([Job(pass_through, (seat, count, case.varied), core)], SECONDS_MAX)[0]
