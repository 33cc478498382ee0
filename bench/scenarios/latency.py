"""Latency: from the push in one process to the delivery in another; and what idling costs."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import STALL_SECONDS_MAX, LostMessagesError
from bench.measuring.meter import Meter
from bench.measuring.payloads import chunk
from bench.plan import Plan
from bench.results.figures import percentile
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 120.0
STAMP = struct.Struct("<q")
POP_MESSAGES_MAX = 100
POP_WAIT_SECONDS = 1.0
# The first messages find caches cold and connections new.
WARMUP_SHARE = 0.1


def push_steadily(gate: Gate, seat: Seat, count: int, rate_per_s: int, threads: int = 1) -> Figures:
    """Push single messages on schedule, each carrying the time it was due or sent; from so many
    threads, for those where one cannot wait for each and keep up."""
    peer = seat.peer()
    peer.create()
    gate.meet()  # The queue is there.
    lanes = [peer.lane(wakes=True) for _ in range(threads)]
    padding = chunk(seat.place.size - STAMP.size, 1)[0]
    gate.meet()  # The popper waits.
    start_ns = time.monotonic_ns()
    numbers = iter(range(count))

    def send(lane: Callable[[bytes], None]) -> int:
        return push_on_time(lane, numbers, start_ns, rate_per_s, padding)

    with ThreadPoolExecutor(threads) as pool:
        late_ns = max(pool.map(send, lanes)) if threads > 1 else send(lanes[0])
    gate.meet()  # All is popped.
    peer.close()
    peer.drop()
    return {"late_ms": late_ns / 1e6}


def push_on_time(
    lane: Callable[[bytes], None],
    numbers: Iterator[int],
    start_ns: int,
    rate_per_s: int,
    padding: bytes,
) -> int:
    """Push the messages of these numbers, each when it is due; by how much one was late at most."""
    late_ns = 0
    for number in numbers:
        due_ns = start_ns + number * 10**9 // rate_per_s
        now_ns = time.monotonic_ns()
        if now_ns < due_ns:
            time.sleep((due_ns - now_ns) / 1e9)
            stamp_ns = time.monotonic_ns()
        else:
            # The push before took too long: this message waited for it, and that counts.
            stamp_ns = due_ns
            late_ns = max(late_ns, now_ns - due_ns)
        lane(STAMP.pack(stamp_ns) + padding)
    return late_ns


def pop_promptly(gate: Gate, seat: Seat, count: int) -> Figures:
    """Wait for messages, note when each arrives, acknowledge."""
    gate.meet()
    peer = seat.peer()
    peer.pop(1, 0.01)
    gate.meet()
    delays_ms: list[float] = []
    last_seen = time.monotonic()
    while len(delays_ms) < count:
        found = peer.pop(POP_MESSAGES_MAX, POP_WAIT_SECONDS)
        now_ns = time.monotonic_ns()
        if found:
            delays_ms += [(now_ns - STAMP.unpack_from(one)[0]) / 1e6 for one in found]
            peer.ack()
            last_seen = time.monotonic()
        elif time.monotonic() - last_seen > STALL_SECONDS_MAX:
            raise LostMessagesError(f"{count - len(delays_ms)} of {count} messages did not come")
    peer.close()
    gate.meet()
    counted = delays_ms[int(count * WARMUP_SHARE) :]
    return {"p50_ms": percentile(counted, 0.50), "p99_ms": percentile(counted, 0.99)}


def wait_idly(_gate: Gate, seat: Seat, seconds: float) -> Figures:
    """Wait for a message that never comes; which share of a core does it take?"""
    peer = seat.peer()
    peer.create()
    peer.pop(1, 0.05)
    meter = Meter(seat.place.server_pid)
    with meter:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            peer.pop(1, left)
    peer.close()
    peer.drop()
    shares = {"idle_share": meter.cpu_s / meter.wall_s}
    if seat.place.server_pid:
        shares["idle_server_share"] = meter.server_cpu_s / meter.wall_s
    return shares


class Latency(Scenario):
    name = "latency"
    title = "Push to delivery between two processes, and idling"
    headline = "p99_ms"
    higher_is_better = False

    def cases(self, plan: Plan) -> list[Case]:
        return [Case("latency", f"{plan.latency_rate} messages of 100 B a second")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("p50_ms", "p50 ms", "ms"),
            Column("p99_ms", "p99 ms", "ms"),
            Column("late_ms", "most behind schedule, ms", "ms"),
            Column("idle_share", "idle popper, % of a core", "share"),
            Column("idle_server_share", "its server, % of a core", "share"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        count = int(plan.latency_rate * plan.latency_s)
        flow = seat.part("flow")
        pushed, popped = run(
            [
                Job(push_steadily, (flow, count, plan.latency_rate)),
                Job(pop_promptly, (flow, count)),
            ],
            SECONDS_MAX,
        )
        (idle,) = run([Job(wait_idly, (seat.part("idle"), plan.idle_s))], SECONDS_MAX)
        return {**pushed, **popped, **idle}
