"""Scenarios: what a seed's run is made of, and which mishaps it meets."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any


@dataclass
class Scenario:
    """What a seed's run is made of."""

    queues: list[str]
    policy: dict[str, dict[str, Any]]
    groups: dict[str, list[tuple[str, bool]]]  # queue → further groups and whether exclusive
    roles: dict[str, int]
    switches: int
    messages: int
    cuts: int
    crash_rate: float = 0.0
    pause_rate: float = 0.0
    fault_rate: float = 0.0
    delayed: float = 0.0  # share of the pushes, on ap queues
    delays: tuple[float, ...] = (0.01, 0.3, 2.0)
    jump_rate: float = 0.0
    poison: float = 0.0
    clumsiness: float = 0.5  # how often poppers do something else than commit
    pause_ms: tuple[int, int] = (10, 5000)
    fuel: tuple[int, int] = (1, 40)
    catalog_lost: bool = False  # at the end, before healing
    dedup: float = 0.0  # share of the turns of pushers
    purging: float = 0.0  # how often a clerk that might purge does
    purging_held: float = 0.0  # how often such a purge takes from poppers what they hold
    doom: float = 0.0  # how often a clerk, or who pushes under a dedup id, crashes in the middle
    audits: int = 0  # in the middle of it all
    writers: int = 0  # of staged pipes, for each ap queue
    threads: int = 0  # that push, of each pusher, beside the one that it is
    popping_threads: int = 0  # that share its popper, of each that pops, beside the one it is
    waiting: float = 0.0  # how often a pop waits for messages
    frame_messages: int = 0  # of a frame at most; 0: as many as there are
    append_bytes: int = 0  # after which an append has had enough; 0: as it is
    receipts: float = 0.0  # share of what is out that is settled by receipt, by whoever comes
    keys: int = 0  # of the messages, for a group in their order; 0: there is none
    unordered: bool = False  # whether that group has limits of each key instead, or fairness
    limit_per_key: int | None = None  # of that group
    rate_per_key: str | None = None
    fair: bool = False  # whether that group is fair
    holding: bool = False  # whether its dead letters hold their keys
    priorities: float = 0.0  # share of the pushes to ap queues that have one
    turns: bool = False  # poppers keep their locks, as on Cassandra; not where threads share them
    reserving: bool = False  # poppers reserve what comes next, as on Cassandra
    singly: bool = False  # each push is of one message

    @property
    def keyed_group(self) -> dict[str, Any]:
        """The policy of the group that looks at keys."""
        return {
            "order": "any" if self.unordered else "key",
            "on_dead": "hold" if self.holding else "continue",
            "limit_per_key": self.limit_per_key,
            "rate_per_key": self.rate_per_key,
            "fair": self.fair,
        }

    def age_limit(self, queue: str) -> float | None:
        """How many seconds old a message of a queue may become."""
        policy = self.policy.get(queue, {})
        limits = [policy.get(name) for name in ("message_ttl", "retain_unconsumed")]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def threaded(self) -> bool:
        """Whether several threads of a process use one client."""
        return bool(self.threads or self.popping_threads)

    @property
    def prompt(self) -> bool:
        """Whether all that is delivered is committed at once, so that nothing has to be late."""
        return self.calm and not (self.clumsiness or self.poison or self.doom or self.jump_rate)

    @property
    def calm(self) -> bool:
        """Whether nothing happens to anybody."""
        return not (self.cuts or self.crash_rate or self.pause_rate or self.fault_rate)


def draw_scenario(rng: random.Random, queues: list[str] | None = None) -> Scenario:
    """A scenario of this seed, with these queues if any are given."""
    drawn = rng.choice((["ap"], ["ap"], ["cp"], ["cp"], ["ap", "cp"]))
    queues = queues or drawn
    policy = {
        name: {
            "consistency": name,
            "claim_timeout": rng.choice((0.3, 1.0, 2.0)),
            "max_deliveries": rng.randint(2, 6),
            "sick_check": False,
            "max_pop_width": rng.choice((1, 2, 4, 8)),
            "max_claim_messages": rng.choice((1, 3, 10, 100)),
            "max_pushes_per_pipe": rng.choice((1, 3, 7, 20)),
            "max_push_time_of_pipe": rng.choice((0.2, 2.0, 600.0)),
            "lease": rng.choice((0.5, 2.0)),
            "idle_seal": rng.choice((0.1, 1.0, 60.0)),
        }
        for name in queues
    }
    groups: dict[str, list[tuple[str, bool]]] = {name: [] for name in queues}
    for name in queues:
        if rng.random() < 0.5:
            groups[name].append(("second", False))
        if rng.random() < 0.4:
            groups[name].append(("single", True))
    wild = rng.random() > 0.08
    scenario = Scenario(
        queues=queues,
        policy=policy,
        groups=groups,
        roles={
            "pusher": rng.randint(1, 3),
            "popper": rng.randint(1, 3),
            "reaper": rng.randint(0, 2),
            "founder": rng.randint(0, 1),
            "visitor": rng.randint(0, 1),
        },
        switches=rng.choice((400, 1000, 2000)),
        messages=rng.choice((30, 80, 200)),
        cuts=rng.choice((0, 0, 1, 1, 2, 3)) if wild else 0,
        crash_rate=rng.choice((0.0, 0.002, 0.01)) if wild else 0.0,
        pause_rate=rng.choice((0.0, 0.005, 0.02)) if wild else 0.0,
        fault_rate=rng.choice((0.0, 0.0, 0.002, 0.01)) if wild else 0.0,
        jump_rate=rng.choice((0.0, 0.01)),
        poison=rng.choice((0.0, 0.0, 0.1, 0.3)),
        clumsiness=rng.choice((0.1, 0.5, 0.9)),
        pause_ms=rng.choice(((10, 400), (100, 5000))),
        fuel=rng.choice(((1, 20), (1, 80), (40, 300))),
        catalog_lost=wild and rng.random() < 0.05,
    )
    delayed = rng.choice((0.0, 0.2, 0.6))
    # A new catalog has a time of its own: what was due by the old one may be far away.
    return scenario if scenario.catalog_lost else replace(scenario, delayed=delayed)


def with_breadth(scenario: Scenario, rng: random.Random) -> Scenario:
    """The scenario with pushes of several frames, full queues that refuse, sick groups,
    retention, and threads that share pushers and poppers; or as it was."""
    if rng.random() < 0.3:
        return scenario
    policy = {
        name: settings | _breadth(settings, rng, lost=scenario.catalog_lost)
        for name, settings in scenario.policy.items()
    }
    return replace(
        scenario,
        policy=policy,
        frame_messages=rng.choice((0, 1, 2, 4)),
        append_bytes=rng.choice((0, 0, 1, 2000)),
        threads=rng.choice((0, 0, 1, 3)),
        waiting=rng.choice((0.0, 0.0, 0.5)),
        popping_threads=rng.choice((0, 0, 1, 3)),
    )


def draw_calm(rng: random.Random) -> Scenario:
    """A scenario in which nothing fails and everybody is well: all comes as soon as it may."""
    drawn = draw_scenario(rng, ["ap"])
    settings = drawn.policy["ap"] | {"claim_timeout": 30.0, "max_deliveries": 10}
    wanted: dict[str, Any] = dict.fromkeys(
        ("crash_rate", "pause_rate", "fault_rate", "jump_rate", "poison", "clumsiness"), 0.0
    )
    wanted |= {"switches": 2000, "messages": 60, "cuts": 0, "delayed": 0.9, "catalog_lost": False}
    wanted["delays"] = (0.01, 0.3, 8.0)
    roles = {"pusher": 2, "popper": rng.randint(1, 2), "reaper": 1, "founder": 0, "visitor": 0}
    wanted |= {"roles": roles, "threads": rng.randint(1, 4), "waiting": 0.8}
    return replace(drawn, policy={"ap": settings}, groups={"ap": [("second", False)]}, **wanted)


def _breadth(settings: dict[str, Any], rng: random.Random, *, lost: bool) -> dict[str, Any]:
    """Changes of a policy. lost: the catalog will be, so that nothing may expire."""
    found: dict[str, Any] = {}
    if rng.random() < 0.4:
        found["sick_check"] = True
    if rng.random() < 0.4 and not lost:
        found |= {"max_length": rng.choice((3, 10, 30)), "overflow": "reject"}
    if rng.random() < 0.25:
        # What is consumed is kept for two times of a pipe more.
        found["retain_consumed"] = rng.choice((0.5, 3.0))
        found["max_push_time_of_pipe"] = rng.choice((0.2, 2.0))
    if rng.random() < 0.15 and not lost:
        found["retain_unconsumed"] = rng.choice((0.5, 3.0, 10.0))
    if rng.random() < 0.5:
        found["max_pushes_per_pipe"] = rng.choice((7, 20, 100))
    return found


def with_writers(scenario: Scenario, rng: random.Random) -> Scenario:
    """The scenario with writers of staged pipes on its ap queue. With a catalog that is lost it is
    lost what was published and what was not."""
    return replace(scenario, writers=rng.randint(1, 3), catalog_lost=False)


def with_receipts(scenario: Scenario, rng: random.Random) -> Scenario:
    """The scenario with much that is settled by receipt, in groups that are not exclusive."""
    return replace(
        scenario,
        receipts=rng.choice((0.3, 0.7)),
        clumsiness=rng.choice((0.5, 0.9)),
        catalog_lost=False,
    )


def with_receivers(scenario: Scenario, rng: random.Random) -> Scenario:
    """The scenario with receivers beside the poppers of each queue, or in their place."""
    roles = {**scenario.roles, "receiver": rng.randint(1, 3)}
    if rng.random() < 0.5:
        roles["popper"] = 0
    return replace(with_receipts(scenario, rng), roles=roles)


def with_keys(scenario: Scenario, rng: random.Random) -> Scenario:
    """The scenario with a group in the order of few keys, beside the others."""
    return replace(
        scenario,
        keys=rng.choice((1, 3, 8)),
        popping_threads=rng.choice((0, 0, 1, 3)),
        clumsiness=rng.choice((0.1, 0.5, 0.9)),
        catalog_lost=False,
        fair=rng.random() < 0.4,
    )


def with_key_lanes(scenario: Scenario, rng: random.Random) -> Scenario:
    """The scenario, of ap queues with keys, with several lanes and poppers that share them."""
    lanes = {"key_lanes": rng.choice((2, 3, 5))}
    return replace(
        scenario,
        policy={name: settings | lanes for name, settings in scenario.policy.items()},
        roles=scenario.roles | {"popper": rng.choice((1, 2, 2, 3))},
        keys=rng.choice((3, 8)),
    )


def with_key_limits(scenario: Scenario, rng: random.Random) -> Scenario:
    """The scenario, with keys, with limits of each key, in a group in their order or not. With a
    rate there is no power cut: time begins anew then."""
    rate = rng.choice((None, "3/s", "20/s", "90/m"))
    unordered = rate is None or rng.random() < 0.7
    limits = (1, 2, 3) if rate is None else (None, 1, 2, 3)
    return replace(
        scenario,
        unordered=unordered,
        holding=scenario.holding and not unordered,
        limit_per_key=rng.choice(limits) if unordered else None,
        rate_per_key=rate,
        cuts=0 if rate else scenario.cuts,
    )


def with_reserving(scenario: Scenario, rng: random.Random) -> Scenario:
    """The scenario with messages that come one by one, so that poppers often reserve the next."""
    longer: dict[str, Any] = {"max_pushes_per_pipe": rng.choice((7, 20, 100))}
    if scenario.calm:
        longer["claim_timeout"] = 30.0  # no process gives back in time what it has reserved
    return replace(
        scenario,
        policy={name: settings | longer for name, settings in scenario.policy.items()},
        roles=scenario.roles | {"pusher": 1, "popper": rng.choice((1, 1, 2, 3))},
        reserving=True,
        singly=True,
        frame_messages=0,
        threads=0,
        waiting=0.9,
        delayed=0.0,
        popping_threads=0,
        clumsiness=rng.choice((0.0, 0.1, 0.5)),
    )


def unlimited(scenario: Scenario) -> Scenario:
    """The scenario with queues in which nothing expires or is dropped."""
    limits = {"max_length": None, "overflow": "reject", "message_ttl": None}
    policy = {name: settings | limits for name, settings in scenario.policy.items()}
    return replace(scenario, policy=policy)


def with_holding(scenario: Scenario, rng: random.Random) -> Scenario:
    """The scenario with a group in the order of few keys, which its dead letters hold. Nothing is
    dropped or expires: that holds no key."""
    scenario = unlimited(scenario)
    policy = {name: settings | {"max_deliveries": 1} for name, settings in scenario.policy.items()}
    roles = {**scenario.roles, "clerk": 1}
    keyed = with_keys(replace(scenario, policy=policy, roles=roles), rng)
    return replace(keyed, holding=True, poison=0.2, delayed=0.0, dedup=0.0)


def with_limits(scenario: Scenario, rng: random.Random) -> Scenario:
    """The scenario with limits of each group. No process is stopped where there is a rate: what it
    claimed in time may come late."""
    limits = {"concurrency": rng.choice((None, 1, 2, 5)), "rate": rng.choice((None, "8/s", "90/m"))}
    return replace(
        scenario,
        policy={name: settings | limits for name, settings in scenario.policy.items()},
        keys=rng.choice((0, 0, 3)),
        popping_threads=rng.choice((0, 0, 2)),
        clumsiness=rng.choice((0.1, 0.5, 0.9)),
        pause_rate=0.0 if limits["rate"] else scenario.pause_rate,
        cuts=0,
        catalog_lost=False,
    )


def with_priorities(scenario: Scenario, rng: random.Random) -> Scenario:
    """The scenario with messages of different priorities. With a catalog that is lost, what is
    adopted without a row has none."""
    share = rng.choice((0, 0, 2, 16))
    policy = {
        name: settings | {"priority_share": share} for name, settings in scenario.policy.items()
    }
    return replace(scenario, policy=policy, priorities=rng.choice((0.3, 0.8)), catalog_lost=False)


def broad(drawn: Scenario, seed: int) -> Scenario:
    """A scenario of a seed with whatever else there may be in it, or not."""
    at_desks = with_desk(drawn, random.Random(f"desk {seed}"))
    found = with_breadth(at_desks, random.Random(f"breadth {seed}"))
    turns = random.Random(f"turns {seed}").random() < 0.5
    # A process that is busy has no thread that gives back in time what it has reserved.
    reserving = random.Random(f"reserving {seed}").random() < 0.5 and not found.calm
    return replace(found, turns=turns and not found.threaded, reserving=reserving)


def with_desk(scenario: Scenario, rng: random.Random) -> Scenario:
    """The scenario with clerks at the desks of dead letters, dedup ids, limits; or as it was."""
    if scenario.catalog_lost or rng.random() < 0.3:
        return scenario
    policy = {
        name: {
            **settings,
            "dedup_window": rng.choice((2.0, 600.0, 600.0)),
            "message_ttl": rng.choice((None, None, None, 0.5, 3.0)),
            "max_length": rng.choice((None, None, None, 4, 15)),
            "overflow": "drop-oldest",
        }
        for name, settings in scenario.policy.items()
    }
    wild = not scenario.calm
    return replace(
        scenario,
        policy=policy,
        roles=scenario.roles | {"clerk": rng.choice((0, 1, 1, 2))},
        dedup=rng.choice((0.0, 0.1, 0.4)),
        purging=rng.choice((0.0, 0.2, 1.0)),
        doom=rng.choice((0.0, 0.2, 0.5)) if wild else 0.0,
        audits=rng.choice((0, 1, 2)),
    )
