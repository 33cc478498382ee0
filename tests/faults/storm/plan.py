"""The nemesis's plan: what it does when, and for how long; decided by a seed and nothing else.

There are two tracks, side by side: troubles of servers, one at a time, and troubles of clients.
Each track shuffles the kinds it may do like a deck of cards and goes through all before it
shuffles again, so that a run of some minutes has each of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

HOUR = 3600.0

Span = tuple[float, float]

# What is done to servers → least and most seconds that it lasts. "keeper" is a ZooKeeper server.
SERVER_TROUBLES: Mapping[str, Span] = {
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
# Longer than anything that waits: leases, requests, the catalog's lock, repairs, and what nobody
# knows of on a sidecar (see OPTIONS of `on_sidecars`).
LONG: Span = (45.0, 55.0)
# Over sidecars. Those that stand still or are cut off do so for longer than any client, lease or
# other sidecar has patience with them.
SIDECAR_TROUBLES: Mapping[str, Span] = {
    "kill sidecar": (3.0, 15.0),
    "kill sidecar for long": LONG,
    "stop sidecar": (13.0, 20.0),
    "stop sidecar for long": LONG,
    "hide sidecar from clients": (5.0, 20.0),
    "hide sidecar from a pusher": (5.0, 20.0),
    "cut sidecar": (5.0, 20.0),
    "fill disk of sidecar": (4.0, 12.0),
    "flip bits of sidecar": (1.0, 4.0),
    "lose data of sidecar": (1.0, 4.0),
    "kill all sidecars": (1.0, 3.0),
    "restart all sidecars": (0.0, 1.0),
}
# Besides, where their catalog is embedded: somebody holds its lock for longer than others wait, so
# it is as if everybody was cut off from it.
EMBEDDED_TROUBLES: Mapping[str, Span] = {"lock catalog": (18.0, 25.0)}
# Besides, where it is on Cassandra.
CATALOG_TROUBLES: Mapping[str, Span] = {
    "cut sidecar from catalog": (12.0, 20.0),
    "cut all sidecars from catalog": (12.0, 20.0),
    "kill node": (5.0, 20.0),
    "stop node": (3.0, 15.0),
    "cut node": (5.0, 20.0),
    "hide node from clients": (5.0, 20.0),
    "kill all nodes": (1.0, 3.0),
}
# What cannot be had again from the replica that it befalls: the others must be whole before it.
HARMFUL = frozenset({"flip bits of sidecar", "lose data of sidecar"})
SIDECAR_CUTS = frozenset(
    {
        "hide sidecar from clients",
        "hide sidecar from a pusher",
        "cut sidecar",
        "cut sidecar from catalog",
        "cut all sidecars from catalog",
        "cut node",
        "hide node from clients",
    }
)
CLIENT_TROUBLES: Mapping[str, Span] = {
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


def make_plan(seed: int, seconds: float, troubles: Mapping[str, Span], servers: int) -> Plan:
    """The plan of a seed. troubles: what can be done to servers. servers: how many there are."""

    def server_step(chance: random.Random, what: str, at: float, number: int) -> Step:
        """Servers take turns, so that each is hit."""
        return Step(at, what, 1 + number % servers, round(chance.uniform(*troubles[what]), 1))

    of_servers = _track(
        random.Random(f"servers {seed}"), troubles, seconds, (2.0, 8.0), server_step
    )
    of_clients = _track(
        random.Random(f"clients {seed}"), CLIENT_TROUBLES, seconds, (2.0, 6.0), _client_step
    )
    return Plan(seed, seconds, of_servers, of_clients)


Draw = Callable[[random.Random, str, float, int], Step]


def _track(
    chance: random.Random,
    kinds: Mapping[str, Span],
    seconds: float,
    rest: Span,
    draw: Draw,
) -> tuple[Step, ...]:
    steps: list[Step] = []
    at, deck = 3.0, list[str]()
    while True:
        if not deck:
            deck = chance.sample(list(kinds), len(kinds))
        step = draw(chance, deck.pop(), at, len(steps))
        if step.until > seconds:
            return tuple(steps)
        steps.append(step)
        at = round(step.until + chance.uniform(*rest), 1)


def _client_step(chance: random.Random, what: str, at: float, _number: int) -> Step:
    seconds = round(chance.uniform(*CLIENT_TROUBLES[what]), 1)
    amount = chance.choice([HOUR, -HOUR]) if what == "jump clock" else 0.0
    return Step(at, what, chance.randrange(1 << 16), seconds, amount)
