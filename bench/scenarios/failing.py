"""Failing: what it costs a queue that one message in a hundred fails three times."""

from __future__ import annotations

from time import perf_counter

import cassq
from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import LostMessagesError
from bench.measuring.payloads import chunk
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 300.0
BATCH = 5_000
SCHEDULE = (0.1, 0.2, 0.4)
FAILS, WORKS = b"!", b"."
FAILING_SHARE = 100
BURST = 20  # batches that are pushed before they are worked off


def numbered(size: int, count: int, *, failing: bool) -> list[bytes]:
    """Messages, every hundredth of which is marked to fail."""
    tail = chunk(size - 1, 1)[0]
    bad, good = (FAILS if failing else WORKS) + tail, WORKS + tail
    return [bad if number % FAILING_SHARE == 0 else good for number in range(count)]


def work_off(popper: cassq.Popper) -> int:
    """Take what there is as a consumer does: look at each message, ack it or say that it failed;
    how many succeeded."""
    done = 0
    while True:
        with popper.transaction(BATCH) as messages:
            failed = [
                message
                for message in messages
                if message.payload.startswith(FAILS) and message.attempts <= len(SCHEDULE)
            ]
            for message in failed:
                message.nack(error="not today")
        if not messages:
            return done
        done += len(messages) - len(failed)


def pass_through(_gate: Gate, seat: Seat, seconds: float) -> Figures:
    """The same work on two queues in turn: one with failures, one without."""
    client = cassq.connect(f"file://{seat.place.directory.resolve()}")
    sides = {}
    for name in ("sound", "failing"):
        queue = client.create_queue(name, retry_schedule=SCHEDULE)
        load = numbered(seat.place.size, BATCH, failing=name == "failing")
        sides[name] = (queue.pusher(), queue.popper(), load)
    passed = dict.fromkeys(sides, 0)
    spent = dict.fromkeys(sides, 0.0)
    while min(spent.values()) < seconds:
        for name, (pusher, popper, load) in sides.items():
            started = perf_counter()
            for _ in range(BURST):
                pusher.push_many(load)
            passed[name] += work_off(popper)
            spent[name] += perf_counter() - started
    pusher, popper, _ = sides["failing"]
    stats = client.queue("failing").stats().groups["default"]
    if stats.dead or stats.pending:
        raise LostMessagesError(f"a message that succeeds the fourth time was given up: {stats}")
    client.close()
    rates = {name: rate(passed[name], spent[name]) for name in sides}
    return {**rates, "kept": rates["failing"] / rates["sound"], "retries": float(stats.delayed)}


class Failing(Scenario):
    name = "failing"
    title = "Failing: 1 % of the messages fail three times, on a schedule of three steps"
    headline = "kept"
    alone = True

    def cases(self, plan: Plan) -> list[Case]:
        steps = ", ".join(f"{step:g}" for step in SCHEDULE)
        return [Case("failing", f"messages of 100 B, tried again after {steps} s")]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("sound", "through/s without failures", "rate"),
            Column("failing", "with", "rate"),
            Column("kept", "kept", "ratio"),
            Column("retries", "waiting for their next try at the end", "rate"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        return run([Job(pass_through, (seat, plan.failing_s))], SECONDS_MAX)[0]
