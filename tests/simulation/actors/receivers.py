"""Receivers: take messages for whoever has their receipts; and what is done by receipt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from cassq.catalog.port import Catalog
from cassq.client.receiving import open_receiver
from cassq.consumer.claiming.claimer import Claimer
from cassq.consumer.receiving import Receiver
from cassq.errors import BackendError, ClaimLostError, OwnershipError, ReceiptError, UsageError
from cassq.gateway.lane_receiver import LaneReceiver
from cassq.model.rows import GroupRow
from tests.simulation.actors.client import SteppedClient, met, open_client
from tests.simulation.checks.model import NEVER, Delivery
from tests.simulation.worlds.scheduler import Process
from tests.simulation.worlds.world import World

RECEIPTS_KEPT = 30


@dataclass(frozen=True, eq=False)
class Hands:
    """A receiver as the checker sees it: as if it were a popper."""

    _claimer: Claimer
    _group: Callable[[], GroupRow]
    _catalog: Catalog


def receive_all(world: World, name: str, group: str, process: Process) -> None:
    """Receive for a group for ever, and settle by receipt; from the group `keyed` as a gateway does
    from a FIFO queue."""
    client, rng = open_client(world, process), process.rng
    receiver: Receiver | LaneReceiver | None = None
    while True:
        try:
            if receiver is None:
                receiver = _opened(client, name, group)
            started_ms = process.scheduler.clock.boot_ms()
            most, ms = rng.choice((1, 1, 3, 10)), rng.choice((0, 200, 2000))
            messages = receiver.receive(most, ms)
            if messages:
                hands = _hands(client, receiver)
                batch = world.checker.delivered(hands, process, messages, started_ms)
                for delivery in batch:
                    delivery.dated = True
                    if group == "keyed":
                        delivery.due_ms = started_ms + ms
                process.scheduler.note(
                    process, f"received {[(d.place, d.attempts) for d in batch]}"
                )
                leave(world, name, batch)
            receiver.settled(settle_some(world, process, client, name))
            client.maintain()
            if rng.random() < 0.03:
                receiver.close()
                receiver = None
        except (BackendError, OwnershipError) as exc:
            met(process, "receiving", exc)
        process.sleep(rng.choice((0.0, 0.0, 0.01, 0.1, 0.3)))


def _opened(client: SteppedClient, name: str, group: str) -> Receiver | LaneReceiver:
    queue = client.queue(name)
    if group == "default":
        return open_receiver(client.runtime, queue, group)
    rows = client.ports.catalog.queues.groups(queue.row.id)
    row = next(each for each in rows if each.name == group)
    return LaneReceiver(client.runtime, queue, row, lambda: 0)


def _hands(client: SteppedClient, receiver: Receiver | LaneReceiver) -> Hands:
    """Of a receiver that has just received."""
    if isinstance(receiver, LaneReceiver):
        assert receiver._popper is not None
        claimer = receiver._popper._claimer
    else:
        claimer = receiver._claimer
    return Hands(claimer, claimer._group, client.ports.catalog)


def leave(world: World, name: str, deliveries: Sequence[Delivery]) -> None:
    """Leave the receipts of deliveries to whoever comes."""
    left = world.receipts[name]
    for delivery in deliveries:
        with suppress(ClaimLostError):
            left.append((delivery.message.receipt, delivery))
    del left[:-RECEIPTS_KEPT]


def settle_some(world: World, process: Process, client: SteppedClient, name: str) -> list[str]:
    """Do something with some receipts that were left, of this process and others, of late and long
    ago. Returns those by which something was acked."""
    acked: list[str] = []
    left, rng, settle = world.receipts[name], process.rng, client.queue(name).settle
    for receipt, delivery in rng.sample(left, min(len(left), rng.randint(0, 3))):
        verb = rng.choice(("ack", "ack", "nack", "release", "extend", "extend"))
        try:
            match verb:
                case "ack":
                    world.checker.settling([delivery], anew=True)
                    settle(receipt).ack()
                    world.checker.committed([delivery])
                    acked.append(receipt)
                case "extend":
                    _date(process, delivery, partial(settle(receipt).extend))
                case _:
                    world.checker.giving([delivery], uncounted=verb == "release")
                    getattr(settle(receipt), verb)()
        except ReceiptError:
            verb += ": not valid"
        except UsageError:
            if delivery.group.alive:
                raise
            verb += ": its group is gone"
        process.scheduler.note(process, f"{verb} by receipt: {delivery.place} {delivery.attempts}")
    return acked


def _date(process: Process, delivery: Delivery, extend: Callable[[float], None]) -> None:
    """A deadline of its own."""
    seconds = process.rng.choice((0.0, 0.2, 2.0, 20.0))
    due_ms = process.scheduler.clock.boot_ms() + round(seconds * 1000)
    before_ms = delivery.due_ms
    delivery.due_ms = min(before_ms, due_ms)
    extend(seconds)
    delivery.dated = True
    if delivery.settling == NEVER and delivery.given == NEVER:
        delivery.due_ms = due_ms
