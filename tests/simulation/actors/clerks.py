"""The clerks among the actors: they merge and purge dead letters, purge queues and cancel what is
delayed, several at once, and crash in the middle of it."""

from __future__ import annotations

from typing import Any

from cassq.client.queue import Queue
from cassq.errors import BackendError, GroupNotFoundError, OwnershipError
from tests.simulation.actors.client import met, open_client
from tests.simulation.checks.model import NEVER, Errand, place_of
from tests.simulation.worlds.scheduler import Process
from tests.simulation.worlds.world import World

ERRANDS = ("merge", "merge", "merge", "cancel", "cancel", "purge letters", "purge")


def keep_desk(world: World, name: str, process: Process) -> None:
    """One errand after another, for ever."""
    client = open_client(world, process)
    rng, scenario = process.rng, world.scenario
    groups = ["default", *(group for group, _ in scenario.groups[name])]
    while True:
        if rng.random() < scenario.doom:
            process.doom(rng.randint(1, 150))
        clerk = Clerk(world, process, client.queue, name)
        try:
            match rng.choice(ERRANDS):
                case "merge":
                    clerk.merge(rng.choice(groups))
                case "cancel" if scenario.holding:
                    clerk.release_key()
                case "cancel":
                    clerk.cancel()
                case "purge letters" if rng.random() < scenario.purging:
                    clerk.purge_letters(rng.choice(groups))
                case "purge" if rng.random() < scenario.purging:
                    clerk.purge(rng.choice([None, *groups]))
            process.spare()
            if process.errand is not None and process.errand.confirmed:
                world.tempt(process)
            client.maintain()
        except (BackendError, OwnershipError, GroupNotFoundError) as exc:
            met(process, "at the desk", exc)
        finally:
            process.errand = None
            process.spare()
        process.sleep(rng.choice((0.01, 0.1, 0.5, 2.0)))


class Clerk:
    """What a clerk is asked to do with one queue."""

    def __init__(self, world: World, process: Process, queue_of: Any, name: str) -> None:
        self._world = world
        self._process = process
        self._checker = world.checker
        self._queue_of = queue_of
        self._name = name

    def _note(self, what: str) -> None:
        self._process.scheduler.note(self._process, what)

    def _asked(self, errand: Errand) -> Errand:
        self._process.errand = errand
        return errand

    def _groups(self, *names: str) -> frozenset[str]:
        """The ids of groups, as queue and group in one name."""
        views = self._checker.groups.values()
        return frozenset(v.id for v in views if f"{v.queue}/{v.name}" in names)

    def merge(self, group: str) -> None:
        """Bring dead letters back, all or some."""
        rng = self._process.rng
        letters = self._queue_of(self._name).dead_letters(group)
        self._checker.merging.add(letters.name)
        how: dict[str, Any] = {}
        text = b""
        if rng.random() < 0.4:
            text = rng.choice((b"poison", b"plain", b"1"))
            how["text"] = text.decode()
        if rng.random() < 0.2:
            how["limit"] = rng.randint(1, 5)
        if rng.random() < 0.1:
            how["rate"] = rng.choice((1.0, 20.0))
        errand = self._asked(Errand("merge", self._groups(f"{letters.name}/default"), text=text))
        self._note(f"merges the dead letters of {group}: {how}")
        outcome = letters.merge(**how)
        errand.confirmed = True
        self._note(f"merged {outcome.messages}, {outcome.pipes} pipes as they are")

    def purge_letters(self, group: str) -> None:
        """Throw dead letters away, all or some."""
        letters = self._queue_of(self._name).dead_letters(group)
        text = self._process.rng.choice((b"", b"", b"poison", b"7"))
        how: dict[str, Any] = {"text": text.decode()} if text else {"everything": True}
        # By its name: the queue of dead letters may be made while it is purged.
        errand = self._asked(Errand("purge", frozenset(), queue=letters.name, text=text))
        self._note(f"purges the dead letters of {group}: {how}")
        outcome = letters.purge(**how)
        self._checker.purged(errand, outcome.messages)
        self._note(f"purged {outcome.messages} dead letters")

    def purge(self, group: str | None) -> None:
        """Throw away what waits in the queue, for a group or for each."""
        queue: Queue = self._queue_of(self._name)
        groups = self._groups(f"{self._name}/{group}")
        share = self._world.scenario.purging_held
        held = share > 0 and self._process.rng.random() < share
        errand = Errand("purge", groups, queue="" if group else self._name, held=held)
        self._asked(errand)
        self._note(f"purges the queue for {group or 'all'}{', what is held too' if held else ''}")
        counts = queue.purge(group, held=held)
        self._checker.purged(errand, sum(counts.values()))
        self._note(f"purged {counts}")

    def release_key(self) -> None:
        """Let a key go on that dead letters hold."""
        key = b"key %d" % self._process.rng.randrange(self._world.scenario.keys)
        (group,) = self._groups(f"{self._name}/keyed")
        releases = self._checker.releases[group, key]
        releases.append(NEVER)
        at = len(releases) - 1
        self._note(f"releases {key!r}")
        count = self._queue_of(self._name).release_key("keyed", key)
        releases[at] = self._checker.tick()
        self._note(f"released {count} letters of {key!r}")

    def cancel(self) -> None:
        """Take a delayed message back."""
        delayed = self._world.delayed[self._name]
        if not delayed:
            return
        sent = self._process.rng.choice(delayed[-8:])
        if sent.spilled:
            return  # forwarded past its due time, it was not delayed
        queue: Queue = self._queue_of(self._name)
        views = [view for view in self._checker.groups.values() if view.queue == self._name]
        errand = self._asked(
            Errand("cancel", frozenset(), queue=self._name, place=place_of(sent.id))
        )
        done = queue.cancel(sent.id)
        self._note(f"cancelled {sent.id}: {done}")
        if done:
            self._checker.cancelled(errand, views, sent)
