"""One of four sidecars is killed, again and again: how soon does a pusher go on elsewhere?"""

from __future__ import annotations

import itertools
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

import cassq
from bench.measuring.children import Figures, Gate, Job, Seat, run
from bench.measuring.drain import LostMessagesError
from bench.measuring.payloads import chunk
from bench.measuring.sightings import Sightings
from bench.peers.ours.embedded import as_cassq
from bench.plan import Plan
from bench.results.figures import percentile
from bench.scenarios.scenario import Case, Column, Scenario
from bench.scenarios.sidecars.through import OWN
from bench.servers.server import accepts
from bench.servers.sidecars import SidecarFourServer, zone_of
from cassq.model.sidecar_rows import SidecarRow

SECONDS_MAX = 900.0
# Waiting for anything of this takes no longer, or has failed.
PATIENCE_SECONDS = 30.0
LOOK_SECONDS = 0.01
SIDECARS = SidecarFourServer.nodes
PAUSE_SECONDS = 0.002
NUMBER = struct.Struct("<q")
POP_MESSAGES = 5_000
KILLS, TURN, OVER = "kills", "turn", "over"


class Push(NamedTuple):
    """When a push began and when it was acknowledged, on the clock of all processes."""

    began: float
    acked: float


def await_that(happened: Callable[[], bool], what: str) -> None:
    """Wait until it has happened; LostMessagesError when it does not."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        if time.monotonic() > deadline:
            raise LostMessagesError(f"not within {PATIENCE_SECONDS:.0f} s: {what}")
        time.sleep(LOOK_SECONDS)


def recovered_s(pushes: Sequence[Push], killed: float) -> float:
    """From a kill to the acknowledgement that was longest in coming after it: what had been
    answered before the kill, and is only read after it, is no recovery."""
    moments = [killed, *(push.acked for push in pushes if push.acked >= killed)]
    if len(moments) == 1:
        raise LostMessagesError("no push was acknowledged after a kill")
    return max(itertools.pairwise(moments), key=lambda pair: pair[1] - pair[0])[1] - killed


def parted(pushes: Sequence[Push], kills: Sequence[float], watch_s: float) -> Figures:
    """What pushes took that were under way within `watch_s` of a kill, and in as long before."""

    def took_ms(first: float, last: float) -> list[float]:
        return [
            (push.acked - push.began) * 1e3
            for push in pushes
            if any(push.acked >= kill + first and push.began <= kill + last for kill in kills)
        ]

    struck, quiet = took_ms(0.0, watch_s), took_ms(-watch_s, 0.0)
    return {
        "else_worst_ms": max(struck),
        "else_p99_ms": percentile(struck, 0.99),
        "quiet_worst_ms": max(quiet),
        "quiet_p99_ms": percentile(quiet, 0.99),
    }


class Steady:
    """Single pushes, one after another on a thread of its own, each with its number and time."""

    def __init__(self, push: Callable[[bytes], object], size: int, first: int) -> None:
        self.pushes: list[Push] = []
        self.sent = first
        self._push, self._padding = push, chunk(size - NUMBER.size, 1)[0]
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._over.is_set():
                began = time.monotonic()
                self._push(NUMBER.pack(self.sent) + self._padding)
                self.pushes.append(Push(began, time.monotonic()))
                self.sent += 1
                time.sleep(PAUSE_SECONDS)
        except BaseException as error:
            self._failure = error

    def stop(self) -> None:
        """Stop pushing; raise what a push raised."""
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure


class Striker:
    """Pushes to a queue, and kills sidecars that hold its pipe and not the other queue's."""

    def __init__(self, seat: Seat, other: str, watch_s: float) -> None:
        self._peer = as_cassq(seat.peer())
        self._place = seat.place
        self._other = other
        self._watch_s = watch_s
        self._seen = Sightings(self._peer.url)
        self._notes = seat.place.directory
        self.sent = 0

    def strike(self) -> float:
        """Kill a sidecar while messages are pushed; from the kill to the next push in seconds."""
        victim = self._spared()
        with self._pusher_on(victim) as pusher:
            before = self._seen.pipe(self._place.queue)
            steady = Steady(pusher.push, self._place.size, self.sent)
            try:
                time.sleep(self._watch_s)
                killed = time.monotonic()
                self._process(victim.name).kill()
                await_that(
                    lambda: self._seen.pipe(self._place.queue) not in (None, before),
                    f"another pipe after {victim.name} was killed",
                )
                time.sleep(self._watch_s)
            finally:
                steady.stop()
            self.sent = steady.sent
        with (self._notes / KILLS).open("a") as notes:
            notes.write(f"{killed}\n")
        self._revive(victim.name)
        return recovered_s(steady.pushes, killed)

    @contextmanager
    def _pusher_on(self, victim: SidecarRow) -> Iterator[cassq.Pusher]:
        """A pusher whose pipe has a replica there, of a client that knows of no trouble yet.

        An extent has a replica in its client's zone, but a sidecar that makes it too slowly, as on
        a busy machine, is passed over: then it is the turn of another client.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            with cassq.connect(f"{self._peer.url}&zone={victim.zone}") as client:
                with client.queue(self._place.queue).pusher() as pusher:
                    pusher.push(NUMBER.pack(self.sent))
                    self.sent += 1
                    if victim.name in self._seen.holders(self._place.queue):
                        yield pusher
                        return
            if time.monotonic() > deadline:
                raise LostMessagesError(f"no replica on {victim.name}, which lives")

    def _spared(self) -> SidecarRow:
        """A sidecar that the other queue's pipe is not on."""
        holders = self._seen.holders(self._other)
        return next(row for row in self._seen.sidecars() if row.name not in holders)

    def _process(self, sidecar: str) -> psutil.Process:
        """The process of a sidecar, by the name it was given."""
        for process in psutil.Process(self._place.server_pid).children():
            if sidecar in process.cmdline():
                return process
        raise LostMessagesError(f"{sidecar} does not run")

    def _revive(self, victim: str) -> None:
        """Have it started again, and the other queue go on in a pipe that may be on it."""
        asked_ms = self._seen.now_ms()
        os.kill(self._place.server_pid, signal.SIGUSR1)

        def back() -> bool:
            row = self._seen.sidecar(victim)
            return row.seen_ms > asked_ms and accepts(int(row.address.rpartition(":")[2]))

        await_that(back, f"{victim} again after it was killed")
        before = self._seen.pipe(self._other)
        (self._notes / TURN).touch()
        await_that(
            lambda: self._seen.pipe(self._other) not in (None, before), "another pipe elsewhere"
        )

    def prove(self) -> None:
        """Everything acknowledged must be there."""
        popper = self._peer.client.queue(self._place.queue).popper()
        found: set[int] = set()
        while messages := popper.pop(max_messages=POP_MESSAGES, wait=2.0):
            found |= {NUMBER.unpack_from(payload)[0] for payload in messages.payloads}
            popper.commit(messages)
        popper.close()
        if lost := set(range(self.sent)) - found:
            raise LostMessagesError(f"{len(lost)} of {self.sent} messages lost, {min(lost)} first")

    def close(self) -> None:
        self._seen.close()
        self._peer.close()


def strike(gate: Gate, seat: Seat, other: str, kills: int, watch_s: float) -> Figures:
    """Kill one sidecar after another; what a pusher waits each time."""
    peer = as_cassq(seat.peer())
    peer.create()
    peer.close()
    striker = Striker(seat, other, watch_s)
    try:
        gate.meet()  # The other one pushes.
        waited = [striker.strike() for _ in range(kills)]
    finally:
        (seat.place.directory / OVER).touch()
    striker.prove()
    striker.close()
    return {
        "p50_s": percentile(waited, 0.5),
        "p99_s": percentile(waited, 0.99),
        "worst_s": max(waited),
        "kills": float(kills),
        "pushed": float(striker.sent),
    }


def push_elsewhere(gate: Gate, seat: Seat, notes: Path, watch_s: float) -> Figures:
    """Push to pipes that are not on the sidecar that is killed next, until told that it is over."""
    peer = as_cassq(seat.peer())
    peer.create()
    peer.close()
    turn, over = notes / TURN, notes / OVER
    pushes: list[Push] = []
    for number in itertools.count(1):
        # Of each zone in turn, so that it is not always the same sidecar that has no replica.
        zone = zone_of(number % SIDECARS + 1)
        with cassq.connect(f"{peer.url}&zone={zone}") as client:
            pusher = client.queue(seat.place.queue).pusher()
            pusher.push(NUMBER.pack(number))
            if number == 1:
                gate.meet()
            steady = Steady(pusher.push, seat.place.size, number)
            while not turn.exists() and not over.exists():
                time.sleep(LOOK_SECONDS)
            steady.stop()
            pushes += steady.pushes
            pusher.close()
        turn.unlink(missing_ok=True)
        if over.exists():
            break
    kills = [float(line) for line in (notes / KILLS).read_text().splitlines()]
    return parted(pushes, kills, watch_s)


class SidecarFailover(Scenario):
    name = "sidecar-failover"
    title = "On sidecars: one of four is killed (SIGKILL), three of which hold each pipe"
    headline = "p99_s"
    own = OWN
    alone = True

    def cases(self, plan: Plan) -> list[Case]:
        title = f"{plan.kills} kills; two pushers of single messages of 100 B, some 300 a second"
        return [Case("sidecar-failover", title, instead={"sidecars": "sidecars-four"})]

    def columns(self, plan: Plan) -> list[Column]:
        after = f"in the {plan.kill_watch_s:g} s after a kill"
        return [
            Column("p50_s", "from the kill to the next acknowledged push, p50 s", "s"),
            Column("p99_s", "p99 s", "s"),
            Column("worst_s", "worst s", "s"),
            Column("else_worst_ms", f"a push elsewhere, worst ms {after}", "ms"),
            Column("quiet_worst_ms", "in as long before", "ms"),
            Column("else_p99_ms", "p99 ms after", "ms"),
            Column("quiet_p99_ms", "before", "ms"),
            Column("kills", "kills", "rate"),
            Column("pushed", "pushed meanwhile", "rate"),
        ]

    def rounds(self, plan: Plan) -> int:
        return 1

    def measure(self, case: Case, seat: Seat, plan: Plan) -> Figures:
        struck, elsewhere = seat.part("struck"), seat.part("elsewhere")
        jobs = [
            Job(strike, (struck, elsewhere.place.queue, plan.kills, plan.kill_watch_s)),
            Job(push_elsewhere, (elsewhere, struck.place.directory, plan.kill_watch_s)),
        ]
        first, second = run(jobs, SECONDS_MAX)
        for side in (struck, elsewhere):
            run([Job(drop, (side,))], SECONDS_MAX)
        return {**first, **second}


def drop(_gate: Gate, seat: Seat) -> Figures:
    as_cassq(seat.peer()).drop()
    return {}
