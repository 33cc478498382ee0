"""Key lanes: what processes that share a group in the order of keys gain by them, and what pushes
pay for them."""

from __future__ import annotations

from threading import Thread
from time import perf_counter, process_time

import cassq
from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import LostMessagesError
from bench.measuring.payloads import chunk
from bench.plan import Plan
from bench.results.figures import rate
from bench.scenarios.scenario import Case, Column, Scenario

SECONDS_MAX = 300.0
LANES = 8
PROCESSES = 2
THREADS = 16
KEYS = 1_000
BATCH = 10_000
WORK_SECONDS = 0.002  # of a processor, for each message
WARM_SECONDS = 3.0  # until the lanes are shared
PER_SECOND_MOST = 1_000  # more than all processes take
PUSHES, WORK = "pushes", "work"


def opened(seat: Seat, lanes: int) -> tuple[cassq.Client, cassq.Queue]:
    client = cassq.connect(f"file://{seat.place.directory.resolve()}")
    queue = client.create_queue(f"lanes-{lanes}", key_lanes=lanes)
    queue.create_group("keyed", order="key")
    return client, queue


def key_of(number: int) -> bytes:
    return b"key %d" % (number % KEYS)


def push_both(_gate: Gate, seat: Seat, count: int) -> Figures:
    """The same pushes to a queue with one lane, and to one with several, in turn."""
    payloads, keys = chunk(seat.place.size, BATCH), [key_of(n) for n in range(BATCH)]
    (client, one), (other, many) = opened(seat, 1), opened(seat, LANES)
    pushers = {"one": one.pusher(), "several": many.pusher()}
    many_seconds, single_seconds = dict.fromkeys(pushers, 0.0), dict.fromkeys(pushers, 0.0)
    batches = max(2, count // BATCH)
    for number in range(batches + 1):
        for name, pusher in pushers.items():
            started = perf_counter()
            pusher.push_many(payloads, keys=keys)
            many_seconds[name] += perf_counter() - started if number else 0.0
    singles = max(5, count // 2_000)
    for name, pusher in pushers.items():
        single_seconds[name] = push_singly(pusher, payloads[0], singles)
    client.close()
    other.close()
    return {
        "many": rate(batches * BATCH, many_seconds["several"]),
        "many_kept": many_seconds["one"] / many_seconds["several"],
        "single": rate(THREADS * singles, single_seconds["several"]),
        "single_kept": single_seconds["one"] / single_seconds["several"],
    }


def push_singly(pusher: cassq.Pusher, payload: bytes, count: int) -> float:
    """Push from many threads, `count` messages each; the seconds it took."""

    def push(thread: int) -> None:
        for number in range(count):
            pusher.push(payload, key=key_of(thread * count + number))

    threads = [Thread(target=push, args=(number,)) for number in range(THREADS)]
    started = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return perf_counter() - started


def fill(_gate: Gate, seat: Seat, lanes: int, count: int) -> Figures:
    client, queue = opened(seat, lanes)
    with queue.pusher() as pusher:
        for first in range(0, count, BATCH):
            keys = [key_of(n) for n in range(first, first + BATCH)]
            pusher.push_many(chunk(seat.place.size, BATCH), keys=keys)
    client.close()
    return {}


def work(gate: Gate, seat: Seat, lanes: int, seconds: float) -> Figures:
    """Pop one, work for it, and commit it: how many in a second, once the lanes are shared."""
    client, queue = opened(seat, lanes)
    done = 0
    with queue.popper("keyed") as popper:
        gate.meet()
        begin = perf_counter() + WARM_SECONDS
        while (now := perf_counter()) < begin + seconds:
            message = popper.pop(1, wait=0.1)
            if message:
                started = process_time()
                while process_time() - started < WORK_SECONDS:
                    pass
                popper.commit(message)
                done += now >= begin
    client.close()
    return {"rate": rate(done, seconds)}


class KeyLanes(Scenario):
    name = "key-lanes"
    title = f"Key lanes: {LANES} of them, beside one"
    headline = "gained"
    alone = True

    def cases(self, plan: Plan) -> list[Case]:
        titles = {
            WORK: f"{PROCESSES} processes, {1000 * WORK_SECONDS:g} ms of a processor a message",
            PUSHES: f"pushes, {BATCH:,} at a time, and single ones of {THREADS} threads",
        }
        return [Case(key, f"messages of 100 B, {title}") for key, title in titles.items()]

    def columns(self, plan: Plan) -> list[Column]:
        return [
            Column("one", "worked for/s with one lane", "rate"),
            Column("several", f"with {LANES}", "rate"),
            Column("gained", "of that with one", "ratio"),
            Column("many", f"pushed/s, {BATCH:,} at a time", "rate"),
            Column("many_kept", "of that with one", "ratio"),
            Column("single", "single pushes/s", "rate"),
            Column("single_kept", "of that with one", "ratio"),
        ]

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        if case.key == PUSHES:
            return run([Job(push_both, (seat, plan.keys_messages))], SECONDS_MAX)[0]
        seconds = plan.workers_s
        count = round(PER_SECOND_MOST * (seconds + WARM_SECONDS))
        found: dict[str, float] = {}
        for name, lanes in (("one", 1), ("several", LANES)):
            run([Job(fill, (seat, lanes, count))], SECONDS_MAX)
            jobs = [Job(work, (seat, lanes, seconds))] * PROCESSES
            found[name] = sum(each["rate"] for each in run(jobs, SECONDS_MAX))
        if not found["one"]:
            raise LostMessagesError("no message came")
        return {**found, "gained": found["several"] / found["one"]}
