"""The pushers among the actors: what is pushed, at once, delayed, or under a dedup id.

A message with a dedup id is an *order* that any pusher may push, any number of times: again after
it was answered, beside another, or after who pushed it crashed in the middle.
"""

from __future__ import annotations

from functools import partial

from cassq.errors import BackendError, OwnershipError
from cassq.producer.dedup import DEDUP_HEADER
from cassq.producer.pusher import Pusher
from tests.simulation.actors.client import SteppedClient, met, open_client
from tests.simulation.actors.threads import Thread
from tests.simulation.checks.model import Sent
from tests.simulation.worlds.scheduler import Process
from tests.simulation.worlds.world import World

ORDERS_AT_HAND = 6
TRIES_MAX = 5
PRIORITIES = (1, 5, 9)
PAUSES = (0.0, 0.0, 0.005, 0.05, 0.3)  # between pushes, in seconds
SLOWLY = (0.02, 0.1, 0.2)  # the same, where poppers keep up
SEVERAL_FRAMES = 0.4  # of the pushes, where frames are small


def push_all(world: World, name: str, process: Process) -> None:
    """Push until the scenario has had its messages; then stay idle."""
    client = open_client(world, process)
    rng = process.rng
    pusher: Pusher | None = None
    shared: list[Pusher] = []
    alone = not world.scenario.threads
    for number in range(world.scenario.threads):
        Thread(process, number, partial(_push_along, world, client, name, shared))
    while True:
        try:
            if pusher is None or pusher.closed:
                pusher = client.queue(name).pusher()
                shared[:] = [pusher]
            if world.scenario.dedup and rng.random() < world.scenario.dedup:
                _push_once(world, process, client, name, pusher)
            elif world.pushed < world.scenario.messages and rng.random() < 0.8:
                _push(world, process, client, name, pusher)
            elif rng.random() < 0.15 and alone:  # another thread may push at the moment
                process.scheduler.note(process, "closes its pusher")
                pusher.close()
            client.maintain()
        except (BackendError, OwnershipError) as exc:
            met(process, "pushing", exc)
            if rng.random() < 0.1:
                pusher = None
        process.sleep(rng.choice(SLOWLY if world.scenario.singly else PAUSES))


def _push_along(
    world: World, client: SteppedClient, name: str, shared: list[Pusher], thread: Process
) -> None:
    """Push what another thread pushes as well, at the same time if it so falls."""
    rng = thread.rng
    while True:
        try:
            if shared and world.pushed < world.scenario.messages and rng.random() < 0.8:
                _push(world, thread, client, name, shared[0])
        except (BackendError, OwnershipError) as exc:
            met(thread, "pushing", exc)
        thread.owner.sleep(rng.choice(PAUSES))


def _push(world: World, process: Process, client: SteppedClient, name: str, pusher: Pusher) -> None:
    rng, checker = process.rng, world.checker
    count = rng.choice((1, 1, 1, 2, 5, 12))
    if world.scenario.frame_messages and rng.random() < SEVERAL_FRAMES:
        count = world.scenario.frame_messages * rng.choice((2, 3, 8))
    count = 1 if world.scenario.singly else count
    batch = []
    begun = checker.tick()
    wall_ms = process.scheduler.clock.wall_ms()
    since_ms = checker.catalog_ms()
    delay, due_ms = None, 0
    strict = world.scenario.policy[name]["consistency"] == "cp"
    if world.scenario.delayed and not strict and rng.random() < world.scenario.delayed:
        delay = rng.choice(world.scenario.delays)
        due_ms = client.ports.catalog.now_ms() + round(delay * 1000)
    for _ in range(count):
        world.pushed += 1
        poisonous = rng.random() < world.scenario.poison
        text = f"{'poison' if poisonous else 'plain'}:{world.pushed}:{process.name}:"
        payload = text.encode() + rng.randbytes(rng.choice((0, 5, 40, 400, 900)))
        headers = {"number": str(world.pushed)} if rng.random() < 0.2 else {}
        key = b"k%d" % world.pushed if rng.random() < 0.2 else None
        if world.scenario.keys and rng.random() < 0.9:
            key = b"key %d" % rng.randrange(world.scenario.keys)
        batch.append(Sent(payload, name, begun, headers, key, wall_ms, since_ms, due_ms=due_ms))
        batch[-1].pusher = pusher
    priority = _priorities(world, process, batch, strict=strict)
    for sent in batch:
        checker.push(sent)
    faults = process.faults
    process.pushing = batch
    try:
        if count == 1:
            sent = batch[0]
            ids = [
                pusher.push(
                    sent.payload,
                    headers=sent.headers,
                    key=sent.key,
                    delay=delay,
                    priority=sent.priority,
                )
            ]
        else:
            ids = list(
                pusher.push_many(
                    [sent.payload for sent in batch],
                    headers=[sent.headers for sent in batch],
                    keys=[sent.key for sent in batch],
                    delay=delay,
                    priority=priority,
                )
            )
    except BackendError as exc:
        _push_failed(world, process, batch, exc)
    else:
        process.scheduler.note(process, f"pushed {ids}")
        for sent in batch:
            sent.troubled = process.faults > faults
        for sent in batch:
            sent.acked_ms = process.scheduler.clock.boot_ms()
        checker.pushed(batch, ids)
        world.delayed[name] += [sent for sent in batch if sent.id] if delay else []
    finally:
        process.pushing = []


def _priorities(
    world: World, process: Process, batch: list[Sent], *, strict: bool
) -> int | list[int]:
    """Give messages priorities, or not: one for all, or each its own."""
    rng, share = process.rng, world.scenario.priorities
    if not share or strict or rng.random() > share:
        return 0
    if rng.random() < 0.5:
        batch[0].priority = rng.choice(PRIORITIES)
        for sent in batch:
            sent.priority = batch[0].priority
        return batch[0].priority
    for sent in batch:
        sent.priority = rng.choice((0, *PRIORITIES))
    return [sent.priority for sent in batch]


def _push_failed(world: World, process: Process, batch: list[Sent], exc: BackendError) -> None:
    """The error says how many are pushed all the same, and whether the others may be."""
    for sent in batch:
        sent.troubled = True
    done = exc.fields.get("pushed", 0)
    process.scheduler.note(
        process, f"push of {len(batch)} failed, {done} done, unknown={exc.outcome_unknown}: {exc}"
    )
    for sent in batch[done:]:
        sent.refused = not exc.outcome_unknown


def _push_once(
    world: World, process: Process, client: SteppedClient, name: str, pusher: Pusher
) -> None:
    """Push an order, often one that somebody has pushed, or tried to push, before."""
    rng, checker = process.rng, world.checker
    orders = [sent for sent in world.orders[name][-ORDERS_AT_HAND:] if sent.tries < TRIES_MAX]
    if orders and (rng.random() < 0.7 or world.pushed >= world.scenario.messages):
        sent = rng.choice(orders)
    elif world.pushed < world.scenario.messages:
        sent = _new_order(world, process, client, name)
    else:
        return
    headers = {name: value for name, value in sent.headers.items() if name != DEDUP_HEADER}
    checker.push_again(sent, process.scheduler.clock.wall_ms(), client.ports.catalog.now_ms())
    if rng.random() < world.scenario.doom:
        process.doom(rng.randint(1, 60))
    try:
        id = pusher.push(
            sent.payload, headers=headers, key=sent.key, delay=sent.delay, dedup_id=sent.dedup_id
        )
    except BackendError as exc:
        _push_failed(world, process, [sent], exc)
        sent.refused &= sent.tries == 1  # of two, the other may be there
    else:
        process.scheduler.note(process, f"pushed {sent.dedup_id}, try {sent.tries}: {id}")
        checker.pushed([sent], [id])
        if sent.delay and sent.id and sent not in world.delayed[name]:
            world.delayed[name].append(sent)
        process.spare()
        world.tempt(process)
    finally:
        process.spare()


def _new_order(world: World, process: Process, client: SteppedClient, name: str) -> Sent:
    rng, scenario = process.rng, world.scenario
    world.pushed += 1
    number = world.pushed
    poisonous = rng.random() < scenario.poison
    payload = f"{'poison' if poisonous else 'plain'}:{number}:{process.name}:once".encode()
    headers = {"number": str(number)} if rng.random() < 0.2 else {}
    delay, due_ms = None, 0
    strict = scenario.policy[name]["consistency"] == "cp"
    if not strict and rng.random() < scenario.delayed:
        delay = rng.choice(scenario.delays)
        due_ms = client.ports.catalog.now_ms() + round(delay * 1000)
    order = Sent(
        payload, name, world.checker.tick(), headers | {DEDUP_HEADER: f"order-{number}"}, None,
        process.scheduler.clock.wall_ms(), due_ms=due_ms, dedup_id=f"order-{number}", delay=delay,
    )  # fmt: skip
    world.orders[name].append(order)
    return order
