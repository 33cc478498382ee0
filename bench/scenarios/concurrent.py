"""Concurrent: one process pushes while another pops and acknowledges."""

from __future__ import annotations

import os
import time

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import follow
from bench.measuring.meter import Meter
from bench.measuring.payloads import chunks
from bench.plan import SIZES, Plan
from bench.results.figures import rate
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 300.0


def push_side(gate: Gate, seat: Seat, count: int) -> Figures:
    peer = seat.peer()
    peer.create()
    gate.meet()  # The queue is there.
    peer.push(chunks(seat.place.size, min(peer.batch, count)))
    load = chunks(seat.place.size, count)
    os.sync()
    meter = Meter()
    gate.meet()  # Both have warmed up.
    start = time.monotonic()
    with meter:
        peer.push(load)
    end = time.monotonic()
    gate.meet()  # All is popped.
    peer.close()
    peer.drop()
    return {"start": start, "end": end, **meter.costs()}


def pop_side(gate: Gate, seat: Seat, count: int) -> Figures:
    gate.meet()
    peer = seat.peer()
    follow(peer, min(peer.batch, count))
    meter = Meter(seat.place.server_pid)
    gate.meet()
    start = time.monotonic()
    with meter:
        follow(peer, count)
    end = time.monotonic()
    peer.close()
    gate.meet()
    return {"start": start, "end": end, **meter.costs()}


class Concurrent(Scenario):
    name = "concurrent"
    title = "Concurrent: one process pushes, another pops and acknowledges"
    headline = "rate"

    def cases(self, plan: Plan) -> list[Case]:
        return [Case(f"concurrent/{size}", f"messages of {size:,} B", size) for size in SIZES]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("rate", "messages/s", "rate"),
            Column("cpu_s", "client CPU s", "s"),
            Column("server_cpu_s", "server CPU s", "s"),
            Column("rss_bytes", "clients' peak MB", "MB"),
            Column("server_rss_bytes", "server MB", "MB"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        count = plan.messages_for(case.size, seat.peer_class().traits.batches) // 2
        pushed, popped = run(
            [Job(push_side, (seat, count)), Job(pop_side, (seat, count))], SECONDS_MAX
        )
        elapsed = max(pushed["end"], popped["end"]) - min(pushed["start"], popped["start"])
        # The server's costs are seen from one side; the clients' are those of both.
        clients = {name: pushed[name] + popped[name] for name in ("cpu_s", "rss_bytes")}
        return {**popped, **clients, "rate": rate(count, elapsed)}
