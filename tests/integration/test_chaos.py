"""Chaos: threads that do anything at any time are told what is gone or lost at worst, and end."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress

import pytest

import cassq
from cassq.errors import (
    CassqError,
    ClaimLostError,
    ClosedError,
    GroupNotFoundError,
    QueueNotFoundError,
)
from tests.integration.deadlines import in_threads
from tests.integration.stage import Connect, alone, numbers, reap

THREADS, STEPS = 5, 150
GROUPS = ("default", "one", "two")


class Vandal:
    """One thread's random deeds on shared clients, queues, pushers and poppers."""

    def __init__(self, seed: int, clients: list[cassq.Client]) -> None:
        self._chance = random.Random(seed)
        self._clients = clients
        self._pushers: list[cassq.Pusher] = []
        self._poppers: list[cassq.Popper] = []
        self._out: list[tuple[cassq.Popper, list[cassq.Message]]] = []
        self.errors: Counter[type[CassqError]] = Counter()

    def run(self) -> None:
        deeds = [
            (self._make, 2), (self._delete, 0.3), (self._group, 1), (self._open, 6),
            (self._push, 12), (self._pop, 12), (self._settle, 12), (self._look, 4),
            (self._close, 2), (self._reap, 2),
        ]  # fmt: skip
        for _ in range(STEPS):
            (deed,) = self._chance.choices(*zip(*deeds, strict=True))
            try:
                deed()
            except (QueueNotFoundError, GroupNotFoundError) as exc:
                self.errors[type(exc)] += 1
                self._start_anew()
            except (ClaimLostError, ClosedError) as exc:
                self.errors[type(exc)] += 1

    def _start_anew(self) -> None:
        """What is gone is gone: make it again, and drop what belonged to it."""
        for things in (self._pushers, self._poppers, self._out):
            del things[: self._chance.randint(0, len(things))]
        self._make()

    def _client(self) -> cassq.Client:
        return self._chance.choice(self._clients)

    def _queue(self) -> cassq.Queue:
        return self._client().queue(self._name())

    def _name(self) -> str:
        return self._chance.choice(["ap", "cp"])

    def _make(self) -> None:
        name = self._name()
        self._client().create_queue(
            name, consistency=name, max_pushes_per_pipe=20, claim_timeout=0.1, max_deliveries=3
        )

    def _delete(self) -> None:
        self._client().delete_queue(self._name())

    def _group(self) -> None:
        queue, name = self._queue(), self._chance.choice(GROUPS)
        if self._chance.random() < 0.6:
            queue.create_group(name, start=self._chance.choice(["now", "beginning"]))
        else:
            queue.delete_group(name)

    def _open(self) -> None:
        if self._chance.random() < 0.5:
            self._pushers.append(self._queue().pusher())
        else:
            self._poppers.append(self._queue().popper(self._chance.choice(GROUPS), keep_alive=0))

    def _push(self) -> None:
        if self._pushers:
            pusher = self._chance.choice(self._pushers)
            match self._chance.randrange(3):
                case 0:
                    pusher.push(b"x")
                case 1:
                    pusher.push_many(numbers(self._chance.randint(1, 50)))
                case 2:
                    pusher.push_soon(b"y").exception(30)

    def _pop(self) -> None:
        if self._poppers:
            popper = self._chance.choice(self._poppers)
            self._out.append((popper, popper.pop(self._chance.randint(1, 40))))

    def _settle(self) -> None:
        if not self._out:
            return
        popper, messages = self._out.pop(self._chance.randrange(len(self._out)))
        match self._chance.randrange(5):
            case 0 | 1:
                popper.commit(messages)
            case 2:
                popper.rollback(messages, delay=self._chance.choice([None, 0.01]))
            case 3:
                for message in messages:
                    self._chance.choice([message.ack, message.nack, message.release])()
            case 4:
                for message in messages[:1]:
                    message.extend(0.2)

    def _look(self) -> None:
        queue = self._queue()
        self._chance.choice([queue.stats, queue.peek, queue.groups, lambda: queue.policy])()

    def _close(self) -> None:
        for things in (self._pushers, self._poppers):
            if things and self._chance.random() < 0.5:
                things.pop(0).close()

    def _reap(self) -> None:
        reap(self._client())


@pytest.mark.parametrize("seed", range(4))
def test_concurrent_threads_get_at_worst_an_error_that_names_what_is_gone(
    connect: Connect, seed: int
) -> None:
    clients = [connect(), connect()]
    vandals = [Vandal(100 * seed + number, clients) for number in range(THREADS)]
    in_threads(THREADS, lambda number: vandals[number].run())
    for client in clients:
        client.close()
    last = connect()
    alone(last)
    reap(last)
    for queue in last.queues():
        for group in queue.groups():
            with queue.popper(group.name) as popper:
                while messages := popper.pop(1000):
                    # A claim lasts 0.1 seconds here, and this thread may stand still for longer.
                    with suppress(ClaimLostError):
                        popper.commit(messages)
        assert queue.audit().findings == []
    assert sum((vandal.errors for vandal in vandals), Counter())
