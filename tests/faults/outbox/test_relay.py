"""Relays that are killed, or stand still, at each step: nothing is lost, and nothing is doubled."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

import cassq
from cassq.outbox.relay import LEASE_MS, Relay
from tests.faults.actors import Act
from tests.integration.outbox.databases import connection, file, left, outbox
from tests.integration.places import Place
from tests.integration.stage import LaterClock, client_on, drain, numbers, payloads

__all__ = ["connection", "file", "outbox"]

PART = "tests.faults.outbox.parts:relay"
# Where a relay may die while it forwards messages to two queues, and how many were pushed then.
STEPS = [
    ("led", 1),
    ("noting", 1),
    ("noted", 1),
    ("noting", 2),
    ("noted", 2),
    ("pushed", 1),
    ("deleted", 1),
]


def fill(connection: sqlite3.Connection, outbox: cassq.Outbox) -> None:
    for number in numbers(10):
        outbox.push("odd" if int(number) % 2 else "even", number)
    connection.commit()


def later(directory: Path) -> cassq.Client:
    """A client for which the lease of whoever led is over."""
    return client_on(directory, clock=LaterClock(LEASE_MS + 1))


def check_all_arrived(client: cassq.Client, file: Path) -> None:
    found = [payloads(drain(client.queue(name).popper())) for name in ("even", "odd")]
    assert found == [numbers(10)[::2], numbers(10)[1::2]]
    assert left(file) == (0, 0)
    for name in ("even", "odd"):
        assert client.queue(name).audit().balanced


@pytest.fixture
def queues(place: Place) -> None:
    with cassq.connect(place.url) as client:
        client.create_queue("even")
        client.create_queue("odd")


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0]}-{step[1]}")
def test_a_relay_killed_at_any_step_loses_and_doubles_nothing(
    act: Act,
    directory: Path,
    file: Path,
    connection: sqlite3.Connection,
    outbox: cassq.Outbox,
    step: tuple[str, int],
) -> None:
    fill(connection, outbox)
    actor = act(PART, f"file://{directory}", str(file), step)
    actor.expect("reached")
    actor.kill()
    with later(directory) as client:
        with Relay(client, str(file)) as relay:
            relay.forward()
        check_all_arrived(client, file)


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize("step", ["noting", "noted", "pushed"])
def test_a_relay_that_stood_still_while_another_took_over_does_nothing_more(
    act: Act,
    directory: Path,
    file: Path,
    connection: sqlite3.Connection,
    outbox: cassq.Outbox,
    step: str,
) -> None:
    fill(connection, outbox)
    actor = act(PART, f"file://{directory}", str(file), (step, 1))
    actor.expect("reached")
    with later(directory) as client:
        with Relay(client, str(file)) as relay:
            relay.forward()
            actor.go_on()
            assert actor.expect("done")[2] is False
            assert actor.join() == 0
        check_all_arrived(client, file)


@pytest.mark.usefixtures("queues")
@pytest.mark.long(reason="some hundred relays are started and killed")
@pytest.mark.parametrize("seed", range(20))
def test_relays_killed_again_and_again(
    act: Act,
    directory: Path,
    file: Path,
    connection: sqlite3.Connection,
    outbox: cassq.Outbox,
    seed: int,
) -> None:
    chance = random.Random(seed)
    fill(connection, outbox)
    ((name,),) = connection.execute("SELECT outbox FROM cassq_outbox_state")
    for _ in range(5):
        actor = act(PART, f"file://{directory}", str(file), chance.choice(STEPS))
        actor.listen(0.5)
        actor.kill()
        with later(directory) as client:  # the next one may lead at once
            leases = client.ports.catalog.leases
            assert leases.take(f"outbox:{name}", "test", 1) is not None
            leases.drop(f"outbox:{name}", "test")
    with later(directory) as client:
        with Relay(client, str(file)) as relay:
            relay.forward()
        check_all_arrived(client, file)
