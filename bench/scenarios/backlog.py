"""Backlog: how fast messages are popped while few, many and very many others wait behind them.

A queue is filled to each backlog first. Then, round by round and queue by queue, a window is popped
and timed and as much is pushed again, so that every backlog stays what it is, every queue does the
same work in the same batches, and whatever happens to the machine happens to all of them.
"""

from __future__ import annotations

import os
from statistics import median

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import drain
from bench.measuring.meter import Meter
from bench.measuring.payloads import chunks
from bench.peers.peer import Peer
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 900.0


def shown(backlog: int) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if backlog >= size:
            return f"{backlog // size} {letter}"
    return str(backlog)


def window_rate(peer: Peer, window: int, seconds: float) -> float:
    """Pop windows, and put back as much untimed, until enough time was spent on popping."""
    load = chunks(peer.place.size, window)
    popping, windows = Meter(), 0
    while popping.wall_s < seconds:
        with popping:
            drain(peer, window)
        peer.push(load)
        windows += 1
    return rate(windows * window, popping.wall_s)


def pop_at_backlogs(
    _gate: Gate, seat: Seat, backlogs: tuple[int, ...], window: int, seconds: float, rounds: int
) -> Figures:
    filling = Meter(seat.place.server_pid)
    peers: dict[int, Peer] = {}
    for backlog in backlogs:
        peers[backlog] = peer = seat.part(str(backlog)).peer()
        peer.batch = min(peer.batch, window)
        peer.create()
        load = chunks(seat.place.size, backlog)
        with filling:
            peer.push(load)
        peer.settle()
    os.sync()
    rates: dict[int, list[float]] = {backlog: [] for backlog in backlogs}
    for number in range(rounds + 1):
        for backlog, peer in peers.items():
            measured = window_rate(peer, window, seconds)
            if number > 0:  # The first round warms up.
                rates[backlog].append(measured)
    deepest, shallowest = rates[max(backlogs)], rates[min(backlogs)]
    for peer in peers.values():
        peer.close()
        peer.drop()
    return {
        "fill": rate(sum(backlogs), filling.wall_s),
        **{f"pop@{backlog}": median(rates[backlog]) for backlog in backlogs},
        "held": median(a / b for a, b in zip(deepest, shallowest, strict=True)),
        **filling.costs(),
    }


class Backlog(Scenario):
    name = "backlog"
    title = "Pop and acknowledge at growing backlogs, 100 B"
    headline = "held"
    compared = False  # Every peer with itself: that is what the figure is.

    def cases(self, plan: Plan) -> list[Case]:
        return [Case("backlog", "pop + ack a second, by messages waiting")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            *(Column(f"pop@{count}", f"{shown(count)} wait", "rate") for count in plan.backlogs),
            Column("held", "deepest over shallowest", "ratio"),
            Column("fill", "filled at, push/s", "rate"),
            Column("rss_bytes", "client peak MB", "MB"),
            Column("server_rss_bytes", "server MB", "MB"),
        ]

    def rounds(self, plan: Plan) -> int:
        return 1  # Rounds are inside: filling is what takes long.

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        traits = seat.peer_class().traits
        backlogs = plan.backlogs if traits.deep else plan.backlogs[:1]
        window = plan.backlog_window
        if not traits.batches:
            backlogs = (window,)
            window //= 10
        arguments = (seat, backlogs, window, plan.backlog_s, plan.backlog_rounds)
        return run([Job(pop_at_backlogs, arguments)], SECONDS_MAX)[0]
