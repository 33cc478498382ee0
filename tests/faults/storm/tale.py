"""Histories in the making, for the tests of the checker."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.faults.storm.checker import Verdict, check
from tests.faults.storm.ground import STRICT
from tests.faults.storm.history import History, Limit, history_of
from tests.faults.storm.journal import Story, priority_of, story_of

GROUPS = {"ap": ["one"], "cp": ["one"]}


class Tale:
    """A history in the making; every deed takes a moment after the one before."""

    def __init__(self) -> None:
        self._lines: dict[str, list[list[object]]] = {}
        self._now = 0
        self._counts: dict[str, int] = {}
        self._seqs: dict[str, int] = {}
        self._done: dict[str, list[str]] = {}
        self.dead: dict[str, list[str]] = {"ap": [], "cp": []}
        self.findings: list[str] = []
        self.ledger: dict[str, list[int]] = {}
        self.places: dict[str, tuple[str, int]] = {}
        self.levels: dict[str, int] = {}  # other priorities than theirs
        self.schedules: list[str] = []

    def wait(self, moments: int) -> None:
        """Let time go on."""
        self._now += moments

    def write(self, who: str, role: str, queue: str, *line: object) -> None:
        group = "one" if role == "popper" else ""
        name = f"{who} {role} {queue}"
        lines = self._lines.setdefault(name, [[0, "role", role, name, queue, group]])
        self._now += 10
        lines.append([self._now, *line])

    def op(self, who: str) -> int:
        self._counts[who] = self._counts.get(who, -1) + 1
        return self._counts[who]

    # --- pushing ------------------------------------------------------------------------------

    def begin(self, queue: str, *keys: str, who: str = "pusher") -> int:
        op = self.op(f"{who} pusher {queue}")
        self.write(who, "pusher", queue, "push", op, list(keys))
        for key in keys:
            self._seqs[queue] = self._seqs.get(queue, -1) + 1
            self.places[key] = f"pipe-{queue}", self._seqs[queue]
        return op

    def acknowledge(self, queue: str, op: int, *keys: str, who: str = "pusher") -> None:
        ids = [self.id(key) for key in keys]
        self.write(who, "pusher", queue, "pushed", op, ids)

    def push(self, queue: str, *keys: str, who: str = "pusher") -> None:
        self.acknowledge(queue, self.begin(queue, *keys, who=who), *keys, who=who)

    def fail(self, queue: str, op: int, how: str, pushed: int = 0) -> None:
        self.write("pusher", "pusher", queue, "failed", op, how, pushed, "Error: no")

    def id(self, key: str) -> str:
        pipe, seq = self.places[key]
        return f"{pipe}:{seq}"

    # --- popping ------------------------------------------------------------------------------

    def level(self, queue: str, key: str) -> int:
        return self.levels.get(key, priority_of(key, strict=queue in STRICT))

    def get(self, queue: str, *keys: str, who: str = "popper", called: int | None = None) -> int:
        batch = self.op(f"{who} popper {queue}")
        items = [[key, *self.places[key], 1, self.id(key), self.level(queue, key)] for key in keys]
        called = self._now + 1 if called is None else called
        self.write(who, "popper", queue, "got", batch, called, items)
        return batch

    def settle(self, queue: str, batch: int, how: str, *keys: str, who: str = "popper") -> None:
        self.write(who, "popper", queue, "settle", batch, how, list(keys))

    def settled(
        self, queue: str, batch: int, how: str, *keys: str, who: str = "popper", result: str = "ok"
    ) -> None:
        found = ("settled", batch, how, list(keys), result)
        self.write(who, "popper", queue, *found)

    def eat(self, queue: str, *keys: str, who: str = "popper", how: str = "commit") -> None:
        batch = self.get(queue, *keys, who=who)
        self.settle(queue, batch, how, *keys, who=who)
        self.settled(queue, batch, how, *keys, who=who)
        self._done.setdefault(queue, []).extend(keys)

    def now(self) -> int:
        return self._now

    # --- schedules ----------------------------------------------------------------------------

    def tick(self, queue: str, *numbers: int) -> list[str]:
        """A schedule of the queue pushes ticks; their keys."""
        keys = [f"tick-{queue}:{number}" for number in numbers]
        for key in keys:
            self._seqs[queue] = self._seqs.get(queue, -1) + 1
            self.places[key] = f"pipe-{queue}", self._seqs[queue]
        return keys

    def schedule(self, queue: str, ticks: int, *, next_in: int = 1, pushing: bool = False) -> None:
        """It says that it pushed so many: 10, 20, ..., and that the next is due so much later."""
        next_ms = 10 * (ticks + 1)
        about = (f"tick-{queue}", queue, 0, 10, next_ms, next_ms - next_in, pushing)
        self.schedules.append(about[0])
        self.write("drain", "drainer", "", "schedule", *about)

    # --- the end ------------------------------------------------------------------------------

    def verdict(
        self, *, ended: bool = True, keyed: bool = False, limit: Limit | None = None
    ) -> Verdict:
        """keyed: whether the groups keep the order of keys instead. limit: of each group."""
        return check(self.history(ended=ended, keyed=keyed, limit=limit))

    def history(self, *, ended: bool, keyed: bool, limit: Limit | None) -> History:
        for queue in GROUPS:
            self.write("drain", "drainer", "", "dead", queue, "one", self.dead[queue])
            count = self._seqs.get(queue, -1) + 1
            dead = len(self.dead[queue])
            parts = self.ledger.get(queue, [0, 0, count - dead, dead, count])
            found = ("audit", queue, {"one": parts}, parts[4], self.findings)
            self.write("drain", "drainer", "", *found)
        if ended:
            self.write("drain", "drainer", "", "end")
        limits = {} if limit is None else {(queue, "one"): limit for queue in GROUPS}
        of_keys = ["one"] if keyed else []
        return history_of(self.stories(), STRICT, GROUPS, of_keys, self.schedules, limits)

    def stories(self) -> Iterator[Story]:
        for lines in self._lines.values():
            yield story_of("".join(json.dumps(line) + "\n" for line in lines).encode())


def right() -> Tale:
    """Something of everything that may happen."""
    tale = Tale()
    for queue in GROUPS:
        tale.push(queue, f"{queue}:0")
        tale.push(queue, f"{queue}:1", f"{queue}:2", f"{queue}:3")
        tale.eat(queue, f"{queue}:0")
        batch = tale.get(queue, f"{queue}:1", f"{queue}:2")
        tale.settle(queue, batch, "rollback", f"{queue}:1")
        tale.settled(queue, batch, "rollback", f"{queue}:1")
        tale.settle(queue, batch, "commit", f"{queue}:2")
        tale.settled(queue, batch, "commit", f"{queue}:2")
        tale.eat(queue, f"{queue}:1", who="another")
        tale.get(queue, f"{queue}:3")  # and dies
        batch = tale.get(queue, f"{queue}:3", who="another")
        tale.settle(queue, batch, "commit", f"{queue}:3", who="another")  # and dies
        tale.fail(queue, tale.begin(queue, f"{queue}:4", f"{queue}:5"), "unknown", 1)
        tale.eat(queue, f"{queue}:4", f"{queue}:5")
        tale.push(queue, f"{queue}:6")
        tale.eat(queue, f"{queue}:6", how="dead")
        tale.dead[queue].append(f"{queue}:6")
    return tale


def right_by_key() -> Tale:
    """Something of what may happen where the order of keys is kept."""
    tale = Tale()
    for queue in GROUPS:
        tale.push(queue, f"{queue}:3")
        tale.push(queue, f"{queue}:4", f"{queue}:9")
        tale.eat(queue, f"{queue}:4", how="rollback")
        tale.eat(queue, f"{queue}:3")
        tale.eat(queue, f"{queue}:4")
        tale.eat(queue, f"{queue}:9")
    return tale
