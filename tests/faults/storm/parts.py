"""The clients of a storm: pushers, poppers, reapers, and who drains the queues when it is over.

Each is a process with a client of its own, and writes down what it is about to do and what came
of it. Errors that servers in trouble cause are written down and lived with; any other ends the
process, which fails the run.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import cassq
from cassq.base.clock import Stopwatch
from cassq.errors import BackendError, CassqError, ClaimLostError, OwnershipError
from tests.faults.parts import Stage
from tests.faults.storm.ground import KEYED_GROUPS, SCHEDULES, STRICT, WORK
from tests.faults.storm.journal import (
    Journal,
    is_poison,
    key_of,
    now_ns,
    order_key_of,
    payload_of,
    priority_of,
)

OPEN_AGAIN_SECONDS = 0.5
POP_AGAIN_SECONDS = 0.1
# Who drains a group pauses for so long when nothing comes; and who looks how far they are, for so
# many times as long as that takes, up to the last: on servers that are busy, looking slows down the
# others.
IDLE_SECONDS, LOOKS_SHARE, LOOKS_REST_MAX = 3.0, 2.0, 20.0
_CLONE_NEWNET = 0x40000000
# How many messages it pops at once, and for how long it waits for them: where a group has a rate,
# the next ones may come only after a moment.
DRAINED_AT_ONCE, DRAIN_WAIT_SECONDS = 500, 1.0
# At the end: for how long no tick of a schedule may be pushed while one is due; and how long a pass
# goes on with ticks that were missed.
TICKS_SECONDS, PASS_SECONDS = 120.0, 5.0


def inside(stage: Stage, space: str, part: str, *args: Any) -> None:
    """Play another part in another network namespace. Only root may."""
    descriptor = os.open(space, os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):  # for this thread, and those that it starts
        raise OSError(ctypes.get_errno(), f"no way into {space}")
    os.close(descriptor)
    globals()[part](stage, *args)


class Ears:
    """Hears what is said to a client, whatever it is at: `enough`, and jumps of its clock."""

    def __init__(self, stage: Stage, journal: Journal) -> None:
        self._stage = stage
        self._journal = journal
        self._over = threading.Event()
        self._offset_ns = 0
        self._told = False
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def rest(self, seconds: float) -> None:
        """Do nothing for a while, or until it is over."""
        self._over.wait(seconds)

    def _listen(self) -> None:
        while True:
            try:
                word = self._stage.word()
            except EOFError:  # who started this client is gone
                os._exit(1)
            match word:
                case "enough":
                    self._over.set()
                case ("jump", seconds):
                    self._jump(seconds)

    def _jump(self, seconds: float) -> None:
        """Set this process's wall clock, for all that asks Python for the time: cassq and drivers.

        The clocks that run evenly stay, as they do when an administrator sets the time.
        """
        if not self._told:
            real_ns = time.time_ns
            time.time_ns = lambda: real_ns() + self._offset_ns
            time.time = lambda: (real_ns() + self._offset_ns) / 1e9
            self._told = True
        self._offset_ns = round(seconds * 1e9)
        self._journal.write("jumped", seconds)


def _begun(path: str, role: str, queue: str = "", group: str = "") -> Journal:
    """The journal of this process; what cassq and its drivers log goes beside it."""
    logging.basicConfig(
        filename=Path(path).with_suffix(".log"),
        level=logging.WARNING,
        format="%(asctime)s %(threadName)s %(name)s %(levelname)s %(message)s",
    )
    logging.getLogger("cassq").setLevel(logging.INFO)
    return Journal(Path(path), role, queue, group)


def _opened(url: str, ears: Ears, journal: Journal) -> cassq.Client | None:
    """A client, as soon as there can be one; None when it is over before."""
    while not ears.over:
        try:
            return cassq.connect(url)
        except BackendError as exc:
            journal.write("trouble", "connect", error_line(exc))
            ears.rest(OPEN_AGAIN_SECONDS)
    return None


def _close(journal: Journal, client: cassq.Client) -> None:
    try:
        client.close()
    except (BackendError, OwnershipError) as exc:
        journal.write("trouble", "close", error_line(exc))


def error_line(exc: CassqError) -> str:
    unknown = " (outcome unknown)" if getattr(exc, "outcome_unknown", False) else ""
    return f"{type(exc).__name__}{unknown}: {exc.message}"


# --- pushing ----------------------------------------------------------------------------------


def push(stage: Stage, url: str, path: str, queue: str, seed: int, pause: float) -> None:
    """Push until told to stop: one message, some at once, or some one after the other."""
    journal = _begun(path, "pusher", queue)
    ears, chance, numbers = Ears(stage, journal), random.Random(seed), itertools.count()
    client = _opened(url, ears, journal)
    if client is not None:
        pusher: cassq.Pusher | None = None
        for op in itertools.count():
            if ears.over:
                break
            if pusher is None:
                pusher = _try(journal, "pusher", lambda: client.queue(queue).pusher())
                journal.write("opened")
                ears.rest(0.0 if pusher else OPEN_AGAIN_SECONDS)
                continue
            _push_once(journal, pusher, op, chance, numbers, strict=queue in STRICT)
            if chance.random() < 0.01:  # as a program that is restarted politely
                _try(journal, "close pusher", pusher.close)
                pusher = None
            ears.rest(pause * 2 * chance.random())
        _close(journal, client)
    journal.write("end")


def _try(journal: Journal, where: str, act: Callable[[], Any]) -> Any:
    try:
        return act()
    except (BackendError, OwnershipError) as exc:
        journal.write("trouble", where, error_line(exc))
        return None


def _push_once(
    journal: Journal,
    pusher: cassq.Pusher,
    op: int,
    chance: random.Random,
    numbers: itertools.count[int],
    *,
    strict: bool,
) -> None:
    count = chance.choice([1, 1, 1, 3, 20])
    keys = [f"{journal.name}:{n}" for n in itertools.islice(numbers, count)]
    lines = [order_key_of(key).encode() for key in keys]
    levels = [priority_of(key, strict=strict) for key in keys]
    journal.write("push", op, keys)
    try:
        if count == 1:
            ids = [pusher.push(payload_of(keys[0]), key=lines[0], priority=levels[0])]
        else:
            payloads = [payload_of(key) for key in keys]
            ids = list(pusher.push_many(payloads, keys=lines, priority=levels))
    except (BackendError, OwnershipError) as exc:
        how = "refused" if not getattr(exc, "outcome_unknown", False) else "unknown"
        journal.write("failed", op, how, exc.fields.get("pushed", 0), error_line(exc))
    else:
        journal.write("pushed", op, ids)


# --- popping ----------------------------------------------------------------------------------


def pop(
    stage: Stage, url: str, path: str, queue: str, group: str, seed: int, timeout: float
) -> None:
    """Pop, and do any of the things that can be done with messages, until told to stop.

    timeout: the queue's claim timeout; now and then messages are kept for longer.
    """
    journal = _begun(path, "popper", queue, group)
    ears = Ears(stage, journal)
    client = _opened(url, ears, journal)
    if client is not None:
        eater = Eater(journal, random.Random(seed), ears, timeout)
        eater.work = WORK.get((queue, group), 0.0)
        if group in KEYED_GROUPS or queue not in STRICT:
            eater.ack_by_receipt = lambda receipts: client.queue(queue).settle(receipts).ack()
        popper: cassq.Popper | None = None
        while not ears.over:
            if popper is None:
                popper = _try(journal, "popper", lambda: client.queue(queue).popper(group))
                ears.rest(0.0 if popper else OPEN_AGAIN_SECONDS)
            elif not eater.eat(popper):
                _try(journal, "close popper", popper.close)
                popper = None
        _close(journal, client)
    journal.write("end")


class Eater:
    """What a popper does with what it gets. work: for how many seconds, on average, it keeps that
    before it settles it. ack_by_receipt: where that is possible."""

    work: float = 0.0
    ack_by_receipt: Callable[[list[str]], None] | None = None

    def __init__(self, journal: Journal, chance: random.Random, ears: Ears, timeout: float) -> None:
        self._journal = journal
        self._chance = chance
        self._ears = ears
        self._timeout = timeout
        self._batches = itertools.count()

    def eat(self, popper: cassq.Popper) -> bool:
        """Pop once and settle that; False when this popper is to be closed, with what it holds."""
        called_ns = now_ns()
        at_most = self._chance.choice([1, 5, 50])
        messages = _try(self._journal, "pop", lambda: popper.pop(at_most, wait=0.5))
        if messages is None:  # the next try would fail as soon
            self._ears.rest(POP_AGAIN_SECONDS)
        if not messages:
            return True
        batch, found = next(self._batches), list(messages)
        note_got(self._journal, batch, called_ns, found)
        poisoned = [m for m in found if is_poison(_key_of(m))]
        healthy = [m for m in found if not is_poison(_key_of(m))]
        draw = self._chance.random()
        if draw < 0.01:
            return False
        if draw < 0.02:
            self._ears.rest(self._timeout * 1.5)
        elif self.work:
            self._ears.rest(self.work * 2 * self._chance.random())
        if draw > 0.95:
            self._settle(batch, "rollback", healthy, lambda: popper.rollback(healthy, delay=0.1))
        elif draw > 0.92:
            self._settle(batch, "release", healthy, lambda: popper.release(healthy))
        elif draw > 0.90:
            self._settle(batch, "dead", healthy[:1], lambda: popper.dead(healthy[:1], "for a test"))
            self._settle(batch, "commit", healthy[1:], lambda: popper.commit(healthy[1:]))
        elif draw > 0.80 and (ack := self.ack_by_receipt) is not None:
            self._settle(batch, "commit", healthy, lambda: ack([m.receipt for m in healthy]))
        else:
            self._settle(batch, "commit", healthy, lambda: popper.commit(healthy))
        self._settle(batch, "rollback", poisoned, lambda: popper.rollback(poisoned))
        return True

    def _settle(
        self, batch: int, how: str, messages: list[cassq.Message], act: Callable[[], None]
    ) -> None:
        if messages:
            settle(self._journal, batch, how, messages, act)


def note_got(journal: Journal, batch: int, called_ns: int, messages: list[cassq.Message]) -> None:
    popped = [[_key_of(m), m.pipe_id, m.seq, m.attempts, m.id, m.priority] for m in messages]
    journal.write("got", batch, called_ns, popped)


def _key_of(message: cassq.Message) -> str:
    return key_of(message.payload, message.headers)


def settle(
    journal: Journal,
    batch: int,
    how: str,
    messages: list[cassq.Message],
    act: Callable[[], None],
) -> None:
    """Do something with messages, telling of it before and after."""
    keys = [_key_of(message) for message in messages]
    journal.write("settle", batch, how, keys)
    try:
        act()
    except ClaimLostError:
        result = "lost"  # some of them; the others were settled
    except (BackendError, OwnershipError) as exc:
        journal.write("trouble", how, error_line(exc))
        result = "unknown"
    else:
        result = "ok"
    journal.write("settled", batch, how, keys, result)


# --- passes -----------------------------------------------------------------------------------


def reap(stage: Stage, url: str, path: str, pause: float) -> None:
    """Run every pass over every queue until told to stop."""
    journal = _begun(path, "reaper")
    ears = Ears(stage, journal)
    client = _opened(url, ears, journal)
    if client is not None:
        client.reaper.stopping = lambda: ears.over
        while not ears.over:
            _try(journal, "reap", client.reap)
            ears.rest(pause)
        _close(journal, client)
    journal.write("end")


# --- when it is over --------------------------------------------------------------------------


def drain(stage: Stage, url: str, path: str, queues: dict[str, list[str]], limit: float) -> None:
    """Commit all that is left in each group of these queues, side by side, until none of them gets
    any further for `limit` seconds, then tell what became of it."""
    journal = _begun(path, "drainer")
    ears = Ears(stage, journal)
    client = _opened(url, ears, journal)
    if client is None:
        return
    drainers = [
        _surely(journal, ears, lambda q=q, g=g: Drainer(client, Path(path), q, g))
        for q, gs in queues.items()
        for g in gs
    ]
    enough = threading.Event()
    with ThreadPoolExecutor(len(drainers)) as pool:
        for drainer in drainers:
            pool.submit(drainer.drain_until, enough, journal)
        try:
            watch, count = Stopwatch(), 0
            while watch.seconds() < limit and not ears.over:
                took = Stopwatch()
                _try(journal, "reap", client.reap)
                quiet = [
                    _try(journal, "stats", lambda q=q: _is_quiet(client.queue(q))) for q in queues
                ]
                if all(quiet):
                    break
                before, count = count, sum(each.count for each in drainers)
                if count > before:
                    watch = Stopwatch()
                ears.rest(min(max(0.2, LOOKS_SHARE * took.seconds()), LOOKS_REST_MAX))
        finally:
            enough.set()
    for drainer in drainers:
        drainer.close()
    for name in queues:
        _surely(journal, ears, lambda name=name: tell_fates(journal, client.queue(name)))
    _close(journal, client)
    journal.write("end")


def _surely(journal: Journal, ears: Ears, act: Callable[[], Any]) -> Any:
    """What it answers, however often it has to be asked."""
    while not ears.over:
        try:
            return act()
        except BackendError as exc:
            journal.write("trouble", "drain", error_line(exc))
            ears.rest(OPEN_AGAIN_SECONDS)
    raise TimeoutError("it is over")


def end_schedule(journal: Journal, client: cassq.Client, name: str) -> None:
    """Push what is due of a schedule, as every pass does, then no more; tell which ticks there
    were. Nobody else may be at it any more. Raises BackendError."""
    queue, every = SCHEDULES[name]
    schedule, watch, before_ms = client.schedule(name), Stopwatch(), 0
    client.reaper.patience = PASS_SECONDS
    while True:
        now_ms, info = time.time_ns() // 1_000_000, schedule.info()
        pushing, next_ms = info.pushing is not None, _wall_ms(info.next_at)
        if next_ms > before_ms:
            watch, before_ms = Stopwatch(), next_ms
        if (next_ms > now_ms and not pushing) or watch.seconds() > TICKS_SECONDS:
            break
        client.reaper.reap(only=("schedule",))
    schedule.pause()
    created_ms, every_ms = _wall_ms(info.created_at), round(every * 1000)
    journal.write("schedule", name, queue, created_ms, every_ms, next_ms, now_ms, pushing)


def _wall_ms(when: datetime | None) -> int:
    """0 of None: the next tick of a schedule that was paused, and will not come."""
    return 0 if when is None else round(when.timestamp() * 1000)


class Drainer:
    """Commits what is left for a group, in a journal of its own, as a popper has. count: how many
    messages so far."""

    def __init__(self, client: cassq.Client, path: Path, queue: str, group: str) -> None:
        self._popper = client.queue(queue).popper(group)
        name = f"{path.stem}.{queue}.{group}"
        self._journal = Journal(path.with_name(f"{name}.jsonl"), "popper", queue, group)
        self._batches = itertools.count()
        self.count = 0

    def drain_until(self, enough: threading.Event, journal: Journal) -> None:
        """Go on until it is enough, whatever goes wrong, which is told."""
        pause = POP_AGAIN_SECONDS
        while not enough.is_set():
            before = self.count
            _try(journal, "drain", lambda: self._drain(enough))
            pause = min(2 * pause, IDLE_SECONDS) if self.count == before else POP_AGAIN_SECONDS
            enough.wait(pause)

    def _drain(self, enough: threading.Event) -> None:
        """Pop and commit until nothing is waiting at this moment."""
        while not enough.is_set():
            called_ns = now_ns()
            messages = list(self._popper.pop(DRAINED_AT_ONCE, DRAIN_WAIT_SECONDS))
            if not messages:
                return
            batch = next(self._batches)
            note_got(self._journal, batch, called_ns, messages)
            settle(
                self._journal, batch, "commit", messages, lambda m=messages: self._popper.commit(m)
            )
            self.count += len(messages)

    def close(self) -> None:
        _try(self._journal, "close popper", self._popper.close)
        self._journal.write("end")


def _is_quiet(queue: cassq.Queue) -> bool:
    stats = queue.stats()
    left = sum(each.waiting + each.pending for each in stats.groups.values())
    return not left and not stats.pipes["open"] + stats.pipes["ready"]


def tell_fates(journal: Journal, queue: cassq.Queue) -> None:
    """The dead letters of each group, and the ledger."""
    dead = {
        group.name: [
            key_of(each.payload, each.headers) for each in queue.dead_letters(group.name).export()
        ]
        for group in queue.groups()
    }
    audit = queue.audit()
    parts = {
        name: [stats.waiting, stats.pending, stats.committed, stats.dead, stats.pushed]
        for name, stats in audit.groups.items()
    }
    for name, keys in dead.items():
        journal.write("dead", queue.name, name, keys)
    journal.write("audit", queue.name, parts, audit.pushed, audit.findings)
