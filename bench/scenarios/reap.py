"""Reap: what the reaper's passes cost where there is much, and nothing to do."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter, process_time

import cassq
from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import LostMessagesError
from bench.measuring.payloads import chunk
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.scenario import Case, Column, Scenario
from cassq.cli.ops.reap import PATIENCE_SECONDS
from cassq.client.runtime import PASSING_LEASE
from cassq.settings import Durability

SECONDS_MAX = 900.0
WAITING = 10  # messages in each pipe
PASSES = 8  # of the reaper by itself
COMMANDS = 5
BYSTANDER = "bench"
LEASE_MS = 3_600_000
QUEUES, PIPES = "reap/queues", "reap/pipes"
# In turn: nobody reaps, a daemon does, one that never rests, or the pusher itself in passing.
ALONE, DAEMON, FLAT_OUT, PASSING = "alone", "daemon", "flat_out", "passing"


def connect(seat: Seat, durability: Durability = "disk") -> cassq.Client:
    return cassq.connect(f"file://{seat.place.directory.resolve()}", durability=durability)


def keep_from_passing(client: cassq.Client) -> None:
    """Let no client reap in passing: somebody else is said to be at it."""
    catalog = client.ports.catalog
    catalog.leases.drop(PASSING_LEASE, client.ports.ids.client)
    catalog.leases.take(PASSING_LEASE, BYSTANDER, LEASE_MS)


def fill(_gate: Gate, seat: Seat, kind: str, count: int) -> Figures:
    """Push to as many queues, or pipes of one queue, and seal each: with the library as anybody
    would, only that nothing is synced."""
    client = connect(seat, "os")
    keep_from_passing(client)
    load = chunk(seat.place.size, WAITING)
    queue = client.create_queue("q0")
    started = perf_counter()
    for number in range(count):
        if kind == QUEUES:
            queue = client.create_queue(f"q{number}")
        with queue.pusher() as pusher:
            pusher.push_many(load)
    client.close()
    return {"fill_s": perf_counter() - started}


def reap_alone(_gate: Gate, seat: Seat, count: int) -> Figures:
    """Whole passes, one after another, beside nobody, as the daemon runs them."""
    client = connect(seat)
    client.reaper.patience = PATIENCE_SECONDS
    waiting = client.ports.catalog.queues.live()
    live = sum(len(client.ports.catalog.pipes.live(queue_id)) for queue_id in waiting)
    if live != count:
        raise LostMessagesError(f"{live} pipes are live, not {count}")
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(PASSES):
        wall, cpu = perf_counter(), process_time()
        found = [action for action in client.reap() if action.verb != "rollup"]
        walls.append(perf_counter() - wall)
        cpus.append(process_time() - cpu)
        if found:
            raise LostMessagesError(f"there was something to reap: {found[0]}")
    client.close()
    return {"pass_s": max(walls), "pass_least_s": min(walls), "pass_cpu_s": max(cpus)}


def timed(*arguments: str) -> tuple[float, float]:
    """Wall and CPU seconds of a process `cassq ...`, from its start to its end."""
    started = perf_counter()
    command = [sys.executable, "-m", "cassq", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise LostMessagesError(f"{' '.join(arguments)} ended with {process.returncode}")
    return perf_counter() - started, used.ru_utime + used.ru_stime


def command(_gate: Gate, seat: Seat) -> Figures:
    """`cassq reap` as a process, and how long the command takes to do nothing at all."""
    url = f"file://{seat.place.directory.resolve()}"
    reaping = [timed("--url", url, "reap") for _ in range(COMMANDS)]
    nothing = [timed("--version") for _ in range(COMMANDS)]
    return {
        "command_s": max(wall for wall, _ in reaping),
        "command_cpu_s": max(cpu for _, cpu in reaping),
        "start_s": median(wall for wall, _ in nothing),
    }


def deviation(values: Sequence[float]) -> float:
    """How far off the median a value is: the median of that."""
    middle = median(values)
    return median(abs(value - middle) for value in values)


# --- a pusher beside the passes ---------------------------------------------------------------

Phase = tuple[str, float]


def phases(plan: Plan) -> list[list[Phase]]:
    """What is measured in turn, and for how long, in another order each time: many short windows
    with passes all the time beside such without any, then some whole periods."""
    chance = random.Random(1)
    window_s, period_s = plan.reap_window_s, plan.reap_every_s
    windows = [(ALONE, window_s), (FLAT_OUT, window_s)]
    periods = [(ALONE, period_s), (DAEMON, period_s), (PASSING, period_s)]
    turns = [windows] * plan.reap_windows + [periods] * plan.reap_periods
    return [chance.sample(turn, len(turn)) for turn in turns]


def kept_beside_daemon(kept_meanwhile: float, pass_s: float, every_s: float) -> float:
    """What share of its rate a pusher keeps beside a daemon that passes, each time for so long,
    with such a pause, when it keeps `kept_meanwhile` during a pass."""
    return 1 - (1 - kept_meanwhile) * pass_s / (pass_s + every_s)


def push_beside(gate: Gate, seat: Seat, rounds: list[list[Phase]]) -> Figures:
    """Push single messages, each durable before the next, through all phases."""
    client = connect(seat)
    keep_from_passing(client)
    push = client.queue("q0").pusher().push
    payload = chunk(seat.place.size, 1)[0]
    rates: list[dict[str, float]] = []
    for turns in rounds:
        rates.append({})
        for mode, seconds in turns:
            if mode == PASSING:
                client.ports.catalog.leases.drop(PASSING_LEASE, BYSTANDER)
            push(payload)
            gate.meet()
            pushed, started = 0, perf_counter()
            while perf_counter() - started < seconds:
                push(payload)
                pushed += 1
            rates[-1][mode] = rate(pushed, perf_counter() - started)
            keep_from_passing(client)
    client.close()
    kept = {
        f"kept_{mode}": median(found[mode] / found[ALONE] for found in rates if mode in found)
        for mode in (DAEMON, FLAT_OUT, PASSING)
    }
    alone = [found[ALONE] for found in rates]
    return {"push": median(alone), "noise": deviation(alone) / median(alone), **kept}


def reap_beside(gate: Gate, seat: Seat, rounds: list[list[Phase]]) -> Figures:
    """Run the passes that each phase asks for: the daemon's one, or one after another."""
    client = connect(seat)
    client.reaper.patience = PATIENCE_SECONDS
    client.reap()
    used: list[float] = []
    longest = 0.0
    for mode, seconds in (phase for turns in rounds for phase in turns):
        gate.meet()
        started, cpu = perf_counter(), process_time()
        if mode in (DAEMON, FLAT_OUT):
            client.reap()
            longest = max(longest, perf_counter() - started)
        while mode == FLAT_OUT and perf_counter() - started < seconds:
            client.reap()
        if mode == DAEMON:
            used.append((process_time() - cpu) / seconds)
        time.sleep(max(0.0, started + seconds - perf_counter()))
    client.close()
    return {"pass_beside_s": longest, "daemon_cpu": median(used)}


class Reap(Scenario):
    name = "reap"
    title = "Reap: the reaper's passes over much in which there is nothing to do"
    headline = "pass_s"
    alone = True

    def rounds(self, plan: Plan) -> int:
        return 1  # it takes turns within

    def cases(self, plan: Plan) -> list[Case]:
        count, every = plan.reap_count, plan.reap_every_s
        beside = f"{WAITING} messages waiting in each; the daemon passes every {every:g} s"
        return [
            Case(QUEUES, f"{count:,} queues of a pipe each, {beside}"),
            Case(PIPES, f"{count:,} pipes of one queue, {beside}"),
        ]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("pass_s", "a pass, longest, s", "s"),
            Column("pass_least_s", "shortest, s", "s"),
            Column("pass_cpu_s", "CPU s", "s"),
            Column("pass_beside_s", "beside a pusher, longest, s", "s"),
            Column("command_s", "`cassq reap`, longest, s", "s"),
            Column("command_cpu_s", "CPU s", "s"),
            Column("start_s", "`cassq --version`, s", "s"),
            Column("push", "single pushes/s, no passes", "rate"),
            Column("noise", "half of them are off by, %", "share"),
            Column("kept_flat_out", "kept beside passes without a pause", "ratio"),
            Column("kept", "so beside the daemon", "ratio"),
            Column("kept_daemon", "in whole periods", "ratio"),
            Column("kept_passing", "reaping in passing", "ratio"),
            Column("daemon_cpu", "the daemon's share of a core, %", "share"),
            Column("fill_s", "made in, s", "s"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        count, rounds = plan.reap_count, phases(plan)
        steps: list[list[tuple[Callable[..., Figures], tuple[object, ...]]]] = [
            [(fill, (seat, case.key, count))],
            [(reap_alone, (seat, count))],
            [(command, (seat,))],
            [(push_beside, (seat, rounds)), (reap_beside, (seat, rounds))],
        ]
        figures: Figures = {}
        for step in steps:
            for found in run([Job(*job) for job in step], SECONDS_MAX):
                figures |= found
        meanwhile, longest = figures["kept_flat_out"], figures["pass_beside_s"]
        kept = kept_beside_daemon(meanwhile, longest, plan.reap_every_s)
        return {**figures, "kept": kept}
