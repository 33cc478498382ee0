"""A crash loop: actors that are killed and stopped at random, and the oracle that knows the truth.

The oracle hears every pusher before and after each push and every popper before and after each
commit, by pipes that outlive them. At the end it demands, for each group: what was acknowledged
was committed, by a commit that returned, or by one that was under way when its popper was killed;
nothing was delivered that nobody tried to push; and the audit balances.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable

import cassq
from cassq.base.clock import Stopwatch
from tests.faults.actors import Act, Actor, Report, listen_to
from tests.integration.deadlines import eventually
from tests.integration.stage import drain, payloads, reap

STOP_SECONDS_MAX = 1.0


class Oracle:
    """What was tried, what was acknowledged, and what each group was handed and has committed.

    committed: group → payload → how many commits of it returned. unsure: likewise, how many were
    begun and have not been answered, or not for each of their messages.
    """

    def __init__(self) -> None:
        self.tried: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.got: dict[str, set[bytes]] = defaultdict(set)
        self.committed: dict[str, Counter[bytes]] = defaultdict(Counter)
        self.unsure: dict[str, Counter[bytes]] = defaultdict(Counter)
        self.deliveries = 0

    def hear(self, report: Report) -> None:
        match report:
            case ("try", name, first, last):
                self.tried |= _payloads(name, first, last)
            case ("ok", name, first, last):
                self.acked |= _payloads(name, first, last)
            case ("got", group, list() as found):
                self.got[group] |= set(found)
                self.deliveries += len(found)
            case ("commit", group, list() as found):
                self.unsure[group].update(found)
            case ("committed", group, list() as found):
                self.committed[group].update(found)
                self.unsure[group].subtract(found)
            case ("lost", group, [payload]):  # of several some may be committed
                self.unsure[group].subtract([payload])

    def judge(self, groups: list[str], *, once: bool = False) -> None:
        """once: no message may have been committed by two, since none can lie at two places."""
        assert self.acked, "nothing was pushed: the loop proved nothing"
        for group in groups:
            committed = self.committed[group]
            unsure = {payload for payload, count in self.unsure[group].items() if count > 0}
            lost = self.acked - committed.keys() - unsure
            invented = self.got[group] - self.tried
            twice = [payload for payload, count in committed.items() if count > 1]
            assert not lost, f"{group} has not committed {len(lost)}, such as {sorted(lost)[:3]}"
            assert not invented, f"{group} was handed {sorted(invented)[:3]}"
            assert not (once and twice), f"{group} has committed {sorted(twice)[:3]} twice"


def _payloads(name: str, first: int, last: int) -> set[bytes]:
    return {b"%s:%d" % (name.encode(), n) for n in range(first, last)}


class Cast:
    """The actors of a crash loop; one that is killed is replaced by another of its kind."""

    def __init__(self, act: Act, oracle: Oracle, chance: random.Random) -> None:
        self._act = act
        self._oracle = oracle
        self._chance = chance
        self._recipes: list[Callable[[int], tuple[object, ...]]] = []
        self.actors: list[Actor] = []
        self._started = 0

    def add(self, recipe: Callable[[int], tuple[object, ...]]) -> None:
        """recipe: the part and its arguments, from a number that is new each time."""
        self._recipes.append(recipe)
        self.actors.append(self._start(recipe))

    def _start(self, recipe: Callable[[int], tuple[object, ...]]) -> Actor:
        self._started += 1
        part, *rest = recipe(self._started)
        return self._act(part, *rest)

    def listen(self, reports: int, seconds: float = 20.0) -> None:
        """Pass on to the oracle until so many reports came (or none come)."""
        watch = Stopwatch()
        while reports > 0 and watch.seconds() < seconds:
            found = listen_to(self.actors, 0.5)
            for report in found:
                self._oracle.hear(report)
            reports -= len(found)

    def kill_one(self) -> None:
        at = self._chance.randrange(len(self.actors))
        known = len(self.actors[at].heard)
        self.actors[at].kill()
        for report in self.actors[at].heard[known:]:
            self._oracle.hear(report)
        self.actors[at] = self._start(self._recipes[at])

    def stop_one(self) -> None:
        """Stop one for as long as others go on, past every lease; then let it go on."""
        victim = self._chance.choice(self.actors)
        victim.stop()
        watch = Stopwatch()
        while watch.seconds() < STOP_SECONDS_MAX:
            self.listen(1, 0.2)
        victim.go_on()

    def end(self) -> None:
        """Ask all to stop, and wait for it."""
        for actor in self.actors:
            actor.say("enough")
        for actor in self.actors:
            known = len(actor.heard)
            code = actor.join(seconds=60)
            for report in actor.heard[known:]:
                self._oracle.hear(report)
            assert code == 0, f"the {actor.part} ended with {code}"


def settle(client: cassq.Client, queue: cassq.Queue, oracle: Oracle, groups: list[str]) -> None:
    """Drain what is left, as a client that comes later would; then audit."""
    finish(client, queue, oracle, groups)
    assert queue.audit().pushed >= len(oracle.acked)


def finish(client: cassq.Client, queue: cassq.Queue, oracle: Oracle, groups: list[str]) -> None:
    """The same of one of the queues that an oracle hears of."""
    queue.update(claim_timeout=60)  # nobody is to lose what he drains
    poppers = {group: queue.popper(group) for group in groups}

    def quiet() -> bool:
        reap(client)
        for group, popper in poppers.items():
            found = payloads(drain(popper))
            oracle.hear(("got", group, found))
            oracle.hear(("committed", group, found))
        stats = queue.stats()
        sums = [s.waiting + s.pending for s in stats.groups.values()]
        return not any(sums) and not stats.pipes["open"] + stats.pipes["ready"]

    eventually("everything is delivered, committed and sealed", quiet, seconds=60)
    findings = queue.audit().findings
    assert not findings, findings
