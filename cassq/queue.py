"""A queue as its user holds it: makes pushers and poppers, changes policies, tells its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from cassq.arguments import check_count
from cassq.audit import Audit, audit_queue
from cassq.catalog.port import GroupRow, QueueRow
from cassq.clock import Clock
from cassq.compression import check_compression
from cassq.doorbell import Doorbell
from cassq.errors import (
    BackendTimeoutError,
    ConfigError,
    GroupExistsError,
    GroupNotFoundError,
    QueueNotFoundError,
)
from cassq.groups import group_starts
from cassq.housekeeper import Tend
from cassq.peeking import Peeked, peek_group
from cassq.pipes import Appender
from cassq.popper import Popper
from cassq.ports import Ports
from cassq.pusher import Pusher
from cassq.queues import GroupPolicy, QueuePolicy, as_dict, changed, check_group_name, differences
from cassq.retries import Bury
from cassq.stats import QueueStats, queue_stats

CHANGE_TRIES = 50
PEEK_MAX = 100_000

R = TypeVar("R", QueueRow, GroupRow)


class Owner(Protocol):
    """The client, as its queues see it."""

    ports: Ports

    def doorbell(self, queue_id: str) -> Doorbell: ...
    def bury(self) -> Bury: ...
    def look_after(self, tend: Tend, first: float) -> None: ...
    def hurry(self, tend: Tend, seconds: float) -> None: ...
    def opened(self, thing: Pusher | Popper, queue: Queue) -> None: ...


class Watched(Generic[R]):
    """A row as it was at most half a lease ago: how policies are taken up by running clients."""

    def __init__(self, row: R, load: Callable[[], R], clock: Clock, age_ms: int) -> None:
        self._row: R = row
        self._load: Callable[[], R] = load
        self._clock = clock
        self._age_ms = age_ms
        self._loaded_ms = clock.boot_ms()

    def __call__(self) -> R:
        now_ms = self._clock.boot_ms()
        if now_ms - self._loaded_ms >= self._age_ms:
            self._row = self._load()
            self._loaded_ms = now_ms
        return self._row


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: its name and policy."""

    name: str
    policy: GroupPolicy

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, **as_dict(self.policy)}


class Queue:
    """A named stream of messages; made by `Client.create_queue` and `Client.queue`."""

    def __init__(self, owner: Owner, row: QueueRow) -> None:
        self._owner = owner
        self._ports = owner.ports
        self._row = row
        half_lease_ms = min(round(row.policy.lease * 500), 2000)
        self._watched = Watched(row, self._load, owner.ports.clock, half_lease_ms)

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def policy(self) -> QueuePolicy:
        """The policy as it is now. Cost: one read."""
        return self._load().policy

    @property
    def row(self) -> QueueRow:
        """The queue as the catalog has it, which is what a reaper takes. Cost: one read."""
        return self._load()

    def _load(self) -> QueueRow:
        self._ports.life.check()
        row = self._ports.catalog.queue_by_id(self._row.id)
        if row is None or row.deleted:
            raise QueueNotFoundError(f"queue {self._row.name!r} was deleted")
        return row

    # --- pushing and popping --------------------------------------------------------------------

    def pusher(self) -> Pusher:
        """A pusher with a pipe of its own. Cost: none until the first push."""
        row = self._load()
        check_compression(row.policy.compression)
        appender = Appender(self._ports, self._watched)
        bell = self._owner.doorbell(row.id)
        pusher = Pusher(appender, self._ports.clock, self._ports.life, bell)
        self._owner.look_after(pusher.tend, 0.25)
        self._owner.opened(pusher, self)
        return pusher

    def popper(self, group: str = "default", *, keep_alive: float | None = None) -> Popper:
        """A member of a consumer group.

        keep_alive: claims of messages being worked on are extended by themselves, up to so many
        seconds from the claim. Raises GroupNotFoundError.
        """
        row = self._group(group)
        clock = self._ports.clock
        watched = Watched(row, lambda: self._same(row), clock, 1000)
        popper = Popper(
            self._ports,
            self._watched,
            watched,
            bury=self._owner.bury(),
            doorbell=self._owner.doorbell(row.queue_id),
            hurry=lambda seconds: self._owner.hurry(popper.tend, seconds),
            keep_alive=keep_alive,
        )
        self._owner.look_after(popper.tend, 3600.0)
        self._owner.opened(popper, self)
        return popper

    # --- policies and groups --------------------------------------------------------------------

    def update(self, **policy: Any) -> QueuePolicy:
        """Change settings; running clients take them up within one lease. The new policy.

        Raises ConfigError for a setting that does not exist or cannot be changed.
        """
        for _ in range(CHANGE_TRIES):
            row = self._load()
            new = changed(row.policy, policy)
            if new.consistency != row.policy.consistency:
                raise ConfigError(
                    "consistency cannot be changed", hint="create another queue and move over"
                )
            check_compression(new.compression)
            if new == row.policy:
                return new
            if self._ports.catalog.update_queue(row.id, row.version, new):
                return new
        raise BackendTimeoutError(f"queue {self.name!r} is being changed by others all the time")

    def create_group(
        self, name: str, *, start: str | datetime = "beginning", **policy: Any
    ) -> Group:
        """Make a consumer group, which gets every message from `start` on.

        start: "beginning" (all that is not yet retired), "now", or the push time of the first
        message. The same group again is no error; with another policy it is GroupExistsError.
        Cost: for a datetime, one look into each live pipe.
        """
        check_group_name(name)
        new = changed(GroupPolicy(), policy)
        ports = self._ports
        for _ in range(CHANGE_TRIES):
            row = self._load()
            existing = next((g for g in ports.catalog.groups(row.id) if g.name == name), None)
            if existing is not None:
                return self._same_group(existing, new)
            starts = group_starts(ports, row, start)
            now_ms = ports.catalog.now_ms()
            group = GroupRow(ports.ids.new(now_ms), row.id, name, new, now_ms)
            if ports.catalog.create_group(group, starts, row.groups_version):
                return Group(name, new)
        raise BackendTimeoutError(f"the groups of {self.name!r} are changing all the time")

    def _same_group(self, existing: GroupRow, new: GroupPolicy) -> Group:
        if existing.policy != new:
            found = differences(existing.policy, new)
            told = ", ".join(f"{k} is {old!r}, not {new!r}" for k, (old, new) in found.items())
            raise GroupExistsError(
                f"group {existing.name!r} of {self.name!r} exists: {told}", differences=found
            )
        return Group(existing.name, existing.policy)

    def update_group(self, name: str, **policy: Any) -> Group:
        """Change a group's settings; running poppers take them up within a second."""
        row = self._group(name)
        new = changed(row.policy, policy)
        if new.exclusive != row.policy.exclusive:
            raise ConfigError("exclusive cannot be changed", hint="create another group")
        if not self._ports.catalog.update_group(row.id, new):
            raise GroupNotFoundError(f"group {name!r} of {self.name!r} was deleted")
        return Group(name, new)

    def groups(self) -> list[Group]:
        """The consumer groups by name."""
        return [Group(g.name, g.policy) for g in self._ports.catalog.groups(self._load().id)]

    def delete_group(self, name: str) -> None:
        """Remove a group and its claims; its dead letters stay, as a queue of their own."""
        if not self._ports.catalog.delete_group(self._group(name).id):
            raise GroupNotFoundError(f"group {name!r} of {self.name!r} was deleted")

    def _group(self, name: str) -> GroupRow:
        check_group_name(name)
        for row in self._ports.catalog.groups(self._load().id):
            if row.name == name:
                return row
        raise GroupNotFoundError(f"queue {self.name!r} has no group {name!r}")

    def _same(self, row: GroupRow) -> GroupRow:
        """The row as it is now, unless the group was deleted, if only to be made anew."""
        now = self._group(row.name)
        if now.id != row.id:
            raise GroupNotFoundError(f"group {row.name!r} of {self.name!r} was deleted")
        return now

    # --- looking --------------------------------------------------------------------------------

    def peek(self, max_messages: int = 10, *, group: str = "default") -> list[Peeked]:
        """The next messages a group has not committed, oldest pipe first, with no effect on them.

        Cost: reads the frames they are in.
        """
        check_count("max_messages", max_messages, PEEK_MAX)
        return peek_group(self._ports, self._group(group), max_messages)

    def stats(self) -> QueueStats:
        """Depths for each group, pipes, age of the oldest message."""
        return queue_stats(self._ports, self._load())

    def audit(self) -> Audit:
        """Prove from the data that nothing is lost. Cost: every live pipe is read."""
        return audit_queue(self._ports, self._load())

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a queue is not iterable: iterate over queue.popper()")

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"
