"""The actors: what simulated processes do with a queue, well and badly, until they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from cassq.errors import (
    BackendError,
    ClaimLostError,
    GroupNotFoundError,
    OwnershipError,
)
from cassq.model.queues import is_dead_letter_name
from cassq.popper import Popper
from tests.simulation.actors.clerks import keep_desk
from tests.simulation.actors.client import SteppedClient, close_client, met, open_client
from tests.simulation.actors.pushers import push_all
from tests.simulation.actors.receivers import leave, receive_all, settle_some
from tests.simulation.actors.threads import SimLock, Thread
from tests.simulation.actors.writers import write_all
from tests.simulation.checks.model import NEVER, Delivery
from tests.simulation.worlds.scheduler import Process
from tests.simulation.worlds.world import World

Role = Callable[[Process], None]
KEEP_ALIVE_SECONDS = 5.0


def cast(world: World) -> Iterator[tuple[str, Role]]:
    """The processes of a scenario: name and role."""
    roles = world.scenario.roles
    for name in world.scenario.queues:
        for i in range(roles["pusher"]):
            yield f"pusher{i}:{name}", partial(push_all, world, name)
        groups = ["default", *(group for group, _ in world.scenario.groups[name])]
        groups += ["keyed"] if world.scenario.keys else []
        for group in groups:
            for i in range(roles["popper"]):
                yield f"popper{i}:{name}", partial(pop_all, world, name, group)
        for i in range(roles.get("receiver", 0)):
            group = "keyed" if world.scenario.keys else "default"
            yield f"receiver{i}:{name}", partial(receive_all, world, name, group)
        for i in range(roles["founder"]):
            yield f"founder{i}:{name}", partial(found_groups, world, name)
        strict = world.scenario.policy[name]["consistency"] == "cp"
        for i in range(0 if strict else world.scenario.writers):
            yield f"writer{i}:{name}", partial(write_all, world, name)
    for i in range(roles["reaper"]):
        yield f"reaper{i}", partial(reap_all, world)
    for i in range(roles["visitor"]):
        yield f"visitor{i}", partial(visit, world)
    for name in world.scenario.queues:
        for i in range(roles.get("clerk", 0)):
            yield f"clerk{i}:{name}", partial(keep_desk, world, name)


# --- popping --------------------------------------------------------------------------------


def pop_all(world: World, name: str, group: str, process: Process) -> None:
    """Pop for a group for ever."""
    client = open_client(world, process)
    hand = Hand(world, process, client, name, group)
    for number in range(world.scenario.popping_threads):
        Thread(process, number, partial(_pop_along, world, client, hand))
    while True:
        try:
            hand.turn()
            client.maintain()
        except (BackendError, OwnershipError) as exc:
            met(process, "popping", exc)
        except GroupNotFoundError:
            return
        process.sleep(process.rng.choice((0.0, 0.0, 0.01, 0.1, 0.3)))


def _pop_along(world: World, client: SteppedClient, other: Hand, thread: Process) -> None:
    """Pop with the popper of another thread, at the same time if it so falls."""
    hand = other.beside(thread)
    while True:
        try:
            if hand.has_popper:
                hand.turn()
        except (BackendError, OwnershipError) as exc:
            met(thread, "popping along", exc)
        except GroupNotFoundError:
            return
        thread.owner.sleep(thread.rng.choice((0.0, 0.0, 0.01, 0.1, 0.3)))


class Hand:
    """A popper, which the hands of several threads may share, and what this hand has out."""

    def __init__(
        self, world: World, process: Process, client: SteppedClient, name: str, group: str
    ) -> None:
        self._world = world
        self._process = process
        self._client = client
        self._name = name
        self._group = group
        self._shared: list[Popper] = []  # one, once it was made
        self._alone = not world.scenario.popping_threads
        self._out: list[Delivery] = []

    def beside(self, thread: Process) -> Hand:
        """The hand of another thread, which has the same popper."""
        other = Hand(self._world, thread, self._client, self._name, self._group)
        other._shared = self._shared
        return other

    @property
    def has_popper(self) -> bool:
        return bool(self._shared)

    def turn(self) -> None:
        """One thing a popper may do."""
        rng, process = self._process.rng, self._process
        if not self._shared or self._shared[0].closed:
            self._out = []
            # Some keep their claims alive; not for long, as they forget what they have out.
            keep = KEEP_ALIVE_SECONDS if self._process.name.startswith("popper1") else 0
            queue = self._client.queue(self._name)
            popper = queue.popper(self._group, keep_alive=keep)
            if not self._alone:
                popper._lock = SimLock(process.owner)  # type: ignore[assignment]
            self._shared[:] = [popper]
        popper = self._shared[0]
        if self._out and rng.random() < 0.6:
            self._go_on(popper)
            return
        started_ms = process.scheduler.clock.boot_ms()
        most, wait = rng.choice((1, 1, 3, 10)), 0.0
        if self._world.scenario.waiting and rng.random() < self._world.scenario.waiting:
            wait = rng.choice((0.5, 3.0))
        messages = popper.pop(most, wait=wait)
        if wait:
            self._world.checker.waited(popper, started_ms)
        if not messages:
            self._world.checker.limits_of_keys.found_nothing(popper, started_ms)
            if not self._out and rng.random() < 0.03 and self._alone:
                self._close(popper)
            return
        batch = self._world.checker.delivered(popper, process, messages, started_ms)
        process.scheduler.note(
            process, f"{self._group} got {[(d.message.id, d.attempts) for d in batch]}"
        )
        poison = [d for d in batch if d.sent.payload.startswith(b"poison")]
        if poison:
            self._reject(popper, batch, poison)
        elif rng.random() > self._world.scenario.clumsiness:
            self._commit(popper, batch)
        else:
            self._out += batch

    def _go_on(self, popper: Popper) -> None:
        """Something with what is out."""
        rng = self._process.rng
        mine = self._out
        if self._world.scenario.receipts and rng.random() < self._world.scenario.receipts:
            some = rng.sample(mine, rng.randint(1, len(mine)))
            if not some[0].group.exclusive:
                leave(self._world, self._name, some)
                if some[0].group.keyed and rng.random() < 0.7:
                    self._out = [delivery for delivery in self._out if delivery not in some]
                    for delivery in some if rng.random() < 0.3 else []:
                        self._give([delivery], delivery.message.release, uncounted=True)
            settle_some(self._world, self._process, self._client, self._name)
            return
        if rng.random() < 0.3:
            rng.shuffle(mine)
        some, self._out = mine[: (cut := rng.randint(1, len(mine)))], mine[cut:]
        verb = rng.choice(
            ("commit", "commit", "acks", "rollback", "nack", "release", "extend", "sleep",
             "transaction", "close" if self._alone else "commit", "forget")
        )  # fmt: skip
        match verb:
            case "commit":
                self._commit(popper, some)
            case "acks" | "transaction":
                self._ack(popper, some)
            case "rollback":
                self._give(some, lambda: popper.rollback(
                    [d.message for d in some], rng.choice((None, 0.1, 1.0))))  # fmt: skip
            case "nack":
                for delivery in some:
                    self._give([delivery], partial(delivery.message.nack, rng.choice((None, 0.2))))
            case "release":
                for delivery in some:
                    self._give([delivery], delivery.message.release, uncounted=True)
            case "extend":
                self._extend(some)
            case "sleep":
                self._out = some + self._out
                self._process.owner.sleep(rng.choice((0.5, 3.0)))
            case "close":
                self._out = some + self._out
                self._close(popper)
            case _:
                self._process.scheduler.note(self._process, f"forgets {len(some)}")

    def _commit(self, popper: Popper, batch: list[Delivery]) -> None:
        checker = self._world.checker
        checker.settling(batch)
        try:
            popper.commit([delivery.message for delivery in batch])
        except ClaimLostError:
            self._process.scheduler.note(self._process, "commit: claim lost")
        else:
            checker.committed(batch)
            self._process.scheduler.note(
                self._process, f"{self._group} committed {[d.message.id for d in batch]}"
            )

    def _ack(self, popper: Popper, batch: list[Delivery]) -> None:
        """One by one, made durable now, at some time, or never."""
        self._world.checker.settling(batch)
        try:
            for delivery in batch:
                delivery.message.ack()
        except ClaimLostError:
            self._process.scheduler.note(self._process, "ack: claim lost")
            return
        if self._process.rng.random() < 0.5:
            self._commit(popper, batch)

    def _reject(self, popper: Popper, batch: list[Delivery], poison: list[Delivery]) -> None:
        """Poisonous messages fail, the others of the batch are done first."""
        exclusive = poison[0].group.exclusive
        seq = poison[0].place[1] if exclusive else 1 << 60
        rest = [d for d in batch if d not in poison and d.place[1] < seq]
        if rest:
            self._commit(popper, rest)
        if self._process.rng.random() < 0.1:
            return  # as if the message had felled its popper
        for delivery in poison[:1] if exclusive else poison:
            self._give([delivery], partial(delivery.message.nack, None, "poison"))

    def _give(
        self, batch: list[Delivery], give: Callable[[], None], *, uncounted: bool = False
    ) -> None:
        checker = self._world.checker
        checker.giving(batch, uncounted=uncounted)
        if batch[0].group.exclusive:
            # In order: what was out together comes back together, later ones as untried.
            last = {d.batch: d.place[1] for d in sorted(batch, key=lambda d: d.place[1])}
            everything = batch[0].group.deliveries.values()
            later = [
                d
                for deliveries in everything
                for d in deliveries
                if d.place[1] > last.get(d.batch, NEVER)
            ]
            checker.giving(later, uncounted=True)
        with suppress(ClaimLostError):
            give()

    def _extend(self, batch: list[Delivery]) -> None:
        """A longer or a shorter deadline, for all of the claim."""
        seconds = self._process.rng.choice((0.2, 2.0))
        delivery = batch[0]
        together = [
            d
            for deliveries in delivery.group.deliveries.values()
            for d in deliveries
            if d.batch == delivery.batch and not d.dated
        ]
        if delivery.group.keyed:
            together = [delivery]
        due_ms = self._process.scheduler.clock.boot_ms() + round(seconds * 1000)
        for d in together:
            d.due_ms = min(d.due_ms, due_ms)
        self._out = batch + self._out
        with suppress(ClaimLostError):
            delivery.message.extend(seconds)
            # In a keyed group it holds only while the popper keeps the lane, which it may lose.
            for d in [] if delivery.group.keyed else together:
                # Claims of other pipes are others, and so are those delivered more, or less, often.
                same = d.message._delivery is delivery.message._delivery
                if same and d.settling > d.claimed and d.given > d.claimed:
                    d.due_ms = due_ms

    def _close(self, popper: Popper) -> None:
        self._process.scheduler.note(self._process, "closes its popper")
        self._world.checker.closing([popper])
        self._out = []
        popper.close()


# --- the others -----------------------------------------------------------------------------


def reap_all(world: World, process: Process) -> None:
    """A reaper that runs for a while, as a daemon, then ends."""
    client = open_client(world, process)
    for _ in range(process.rng.randint(1, 30)):
        try:
            whole = process.rng.random() < 0.5  # under leases, which others may hold
            rows = None if whole else [queue._row for queue in client.queues()]
            actions = client.reaper.reap(rows)
            for action in actions:
                if action.outcome != "void":
                    process.scheduler.note(
                        process, f"{action.verb} {action.subject}: {action.outcome} {action.detail}"
                    )
        except (BackendError, OwnershipError) as exc:
            met(process, "reaping", exc)
        process.sleep(process.rng.choice((0.05, 0.3, 1.0)))
    close_client(world, process, client)


def found_groups(world: World, name: str, process: Process) -> None:
    """Make groups that start somewhere, pop a little, delete some of them."""
    client = open_client(world, process)
    rng, checker = process.rng, world.checker
    for _ in range(2):
        group = f"g{checker.tick()}"
        kind = rng.choice(("beginning", "now", "time"))
        wall_ms = process.scheduler.clock.wall_ms()
        since_ms = wall_ms - rng.choice((0, 50, 500))
        checker.founding[name, group] = (kind, checker.tick(), since_ms)
        start = datetime.fromtimestamp(since_ms / 1000, UTC) if kind == "time" else kind
        hand = Hand(world, process, client, name, group)
        try:
            queue = client.queue(name)
            queue.create_group(group, start=start, exclusive=rng.random() < 0.3)
            process.scheduler.note(process, f"made group {group} from {kind}")
            for _ in range(rng.randint(0, 10)):
                hand.turn()
                process.sleep(0.1)
            if rng.random() < 0.6:
                queue.delete_group(group)
                process.scheduler.note(process, f"deleted group {group}")
        except (BackendError, OwnershipError) as exc:
            met(process, "founding", exc)
        except GroupNotFoundError:
            process.scheduler.note(process, f"group {group} is not there")
        process.sleep(rng.choice((0.5, 2.0)))
    close_client(world, process, client)


def visit(world: World, process: Process) -> None:
    """A short-lived process: opens the directory, empties some dead letters, ends."""
    client = open_client(world, process)
    try:
        for queue in client.queues():
            if is_dead_letter_name(queue.name):
                hand = Hand(world, process, client, queue.name, "default")
                for _ in range(4):
                    hand.turn()
            process.sleep(0.05)
    except (BackendError, OwnershipError) as exc:
        met(process, "visiting", exc)
    process.sleep(process.rng.choice((0.0, 0.5, 2.0)))
    close_client(world, process, client)
