"""The crew: the clients of a storm, each a process with a journal; a killed one is replaced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cassq.base.clock import Stopwatch
from tests.faults.actors import Actor

PARTS = "tests.faults.storm.parts"
END_SECONDS = 240.0


@dataclass(slots=True)
class Role:
    """What one member of the crew is to do, again whenever it was killed.

    part: of `tests.faults.storm.parts`; its arguments begin with the URL and the journal's path.
    space: the network namespace that it is played in; "" for that of this process.
    """

    name: str
    part: str
    rest: tuple[Any, ...]
    seeded: bool = False
    space: str = ""
    started: int = 0


class Member(Actor):
    """One life of a role. An error that nobody expects ends it, and is kept in `failures`."""

    def __init__(self, part: str, *args: Any) -> None:
        self.failures: list[str] = []
        super().__init__(part, *args)

    def failed(self, trace: str) -> None:
        self.failures.append(f"{self.part} failed:\n{trace}")

    def ended_within(self, seconds: float) -> bool:
        watch = Stopwatch()
        while self.alive and watch.seconds() < seconds:
            self.listen(0.05)
        self.listen()
        return not self.alive


@dataclass(slots=True)
class Crew:
    """Not thread-safe. journals: the directory of the journals."""

    url: str
    journals: Path
    seed: int
    roles: list[Role] = field(default_factory=list)
    actors: list[Member] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def start(self, roles: Iterable[Role]) -> None:
        for role in roles:
            self.roles.append(role)
            self.actors.append(self._start(role))

    def _start(self, role: Role) -> Member:
        role.started += 1
        path = self.journals / f"{role.name}.{role.started}.jsonl"
        rest = list(role.rest)
        if role.seeded:
            # The seed of a member is that of its name and life, whenever it begins.
            rest[-1:-1] = [f"{self.seed} {role.name} {role.started}"]
        if role.space:
            return Member(f"{PARTS}:inside", role.space, role.part, self.url, str(path), *rest)
        return Member(f"{PARTS}:{role.part}", self.url, str(path), *rest)

    def name(self, target: int) -> str:
        return self.roles[target % len(self.roles)].name

    def kill(self, target: int) -> None:
        self.actors[target % len(self.actors)].kill()

    def replace(self, target: int) -> None:
        """Start a new one in place of one that was killed."""
        at = target % len(self.actors)
        self._dismiss(self.actors[at])
        self.actors[at] = self._start(self.roles[at])

    def stop(self, target: int) -> None:
        actor = self.actors[target % len(self.actors)]
        if actor.alive:
            actor.stop()

    def go_on(self, target: int) -> None:
        actor = self.actors[target % len(self.actors)]
        if actor.alive:
            actor.go_on()

    def say(self, target: int, word: Any) -> None:
        actor = self.actors[target % len(self.actors)]
        with contextlib.suppress(OSError):  # it failed, which its end will tell
            actor.say(word)

    def end(self) -> None:
        """Ask all to stop and wait for it; those that do not, or failed, are `failures`."""
        for role, actor in zip(self.roles, self.actors, strict=True):
            try:
                actor.say("enough")
            except OSError:
                self.failures.append(f"{role.name} was gone before the end")
        for role, actor in zip(self.roles, self.actors, strict=True):
            if not actor.ended_within(END_SECONDS):
                self.failures.append(f"{role.name} did not end within {END_SECONDS:.0f} s")
            self._dismiss(actor)

    def _dismiss(self, actor: Member) -> None:
        self.failures += actor.failures
        actor.end()
