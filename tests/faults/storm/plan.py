"""The nemesis's plan: what it does when, and for how long; decided by a seed and nothing else.

There are two tracks, side by side: troubles of servers, one at a time, and troubles of clients.
Each track shuffles the kinds it may do like a deck of cards and goes through all before it
shuffles again, so that a run of some minutes has each of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

HOUR = 3600.0

# What is done to servers → least and most seconds that it lasts. "keeper" is a ZooKeeper server.
SERVER_TROUBLES = {
    "kill node": (5.0, 20.0),
    "stop node": (3.0, 15.0),
    "cut node": (5.0, 25.0),
    "cut node from clients": (5.0, 20.0),
    "kill keeper": (3.0, 12.0),
    "stop leading keeper": (3.0, 12.0),
    "cut keeper": (5.0, 15.0),
    "kill all keepers": (1.0, 5.0),
    "kill all nodes": (1.0, 3.0),
    "restart all nodes": (0.0, 1.0),
}
CUTS = frozenset({"cut node", "cut node from clients", "cut keeper"})
CLIENT_TROUBLES = {
    "kill client": (0.0, 2.0),
    "stop client": (2.0, 12.0),
    "jump clock": (4.0, 12.0),
}


@dataclass(frozen=True, slots=True)
class Step:
    """A trouble. at, seconds: since the start, and how long. target: a number; for servers from 1
    on, for clients any, to be taken modulo how many there are. amount: seconds of a clock's jump.
    """

    at: float
    what: str
    target: int
    seconds: float
    amount: float = 0.0

    @property
    def until(self) -> float:
        return self.at + self.seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to happen within `seconds`. whole: every step is to be made, however late."""

    seed: int
    seconds: float
    servers: tuple[Step, ...]
    clients: tuple[Step, ...]
    whole: bool = False


def make_plan(seed: int, seconds: float, *, cuts: bool) -> Plan:
    """The plan of a seed. cuts: whether networks can be cut here."""
    kinds = [kind for kind in SERVER_TROUBLES if cuts or kind not in CUTS]
    servers = _track(random.Random(f"servers {seed}"), kinds, seconds, (2.0, 8.0), _server_step)
    clients = _track(
        random.Random(f"clients {seed}"), list(CLIENT_TROUBLES), seconds, (2.0, 6.0), _client_step
    )
    return Plan(seed, seconds, servers, clients)


Draw = Callable[[random.Random, str, float, int], Step]


def _track(
    chance: random.Random,
    kinds: Sequence[str],
    seconds: float,
    rest: tuple[float, float],
    draw: Draw,
) -> tuple[Step, ...]:
    steps: list[Step] = []
    at, deck = 3.0, list[str]()
    while True:
        if not deck:
            deck = chance.sample(kinds, len(kinds))
        step = draw(chance, deck.pop(), at, len(steps))
        if step.until > seconds:
            return tuple(steps)
        steps.append(step)
        at = round(step.until + chance.uniform(*rest), 1)


def _server_step(chance: random.Random, what: str, at: float, number: int) -> Step:
    """Servers take turns, so that each is hit."""
    return Step(at, what, 1 + number % 3, round(chance.uniform(*SERVER_TROUBLES[what]), 1))


def _client_step(chance: random.Random, what: str, at: float, _number: int) -> Step:
    seconds = round(chance.uniform(*CLIENT_TROUBLES[what]), 1)
    amount = chance.choice([HOUR, -HOUR]) if what == "jump clock" else 0.0
    return Step(at, what, chance.randrange(1 << 16), seconds, amount)
