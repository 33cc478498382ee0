"""What tests of the whole stand on: clients that are closed, short verbs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import Clock, SystemClock
from cassq.base.ids import Ids
from cassq.catalog.sqlite import SqliteCatalog
from cassq.client.backends.embedded import BELLS, CATALOG, PIPES, Embedded
from cassq.client.runtime import PASSING_LEASE
from cassq.consumer.delivery import Message
from cassq.doorbell import FifoDoorbell
from cassq.extents.files.disk import Disk
from cassq.extents.files.store import FilesStore
from cassq.inspect.history import HOUR_MS, MINUTE_MS
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.locks.lease import LeaseLocker
from cassq.reaper import Action
from tests.integration.deadlines import DEADLINE_SECONDS, eventually
from tests.integration.places import Place

Connect = Callable[..., cassq.Client]


@pytest.fixture
def url(place: Place) -> str:
    return place.url


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    """Opens clients of this test's place; all are closed at its end."""
    clients: list[cassq.Client] = []

    def open_client(**options: str) -> cassq.Client:
        clients.append(cassq.connect(url, **options))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Connect) -> cassq.Client:
    return connect()


@pytest.fixture
def queue(client: cassq.Client) -> cassq.Queue:
    return client.create_queue("jobs")


class LaterClock(SystemClock):
    """The time in `later_ms`, by default a minute: whatever somebody held is anybody's then."""

    def __init__(self, later_ms: int = MINUTE_MS) -> None:
        super().__init__()
        self.later_ms = later_ms

    def boot_ms(self) -> int:
        return super().boot_ms() + self.later_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self.later_ms


def client_on(
    directory: Path,
    disk: Disk | None = None,
    *,
    lock_wait: float = 15.0,
    clock: Clock | None = None,
    committed: Callable[[bool], None] | None = None,
    store_class: type[FilesStore] = FilesStore,
) -> cassq.Client:
    """A client as `cassq.connect` puts it together, on a disk and a clock of the test's own.

    committed: told of each commit of the catalog. store_class: a store with faults of its own.
    """
    clock, ids, disk = clock or SystemClock(), Ids(), disk or Disk()
    disk.make_directory(directory / PIPES)
    disk.make_directory(directory / BELLS)
    catalog = SqliteCatalog(directory / CATALOG, clock, lock_wait=lock_wait, committed=committed)
    store = store_class(directory / PIPES, clock, durability="disk", disk=disk)
    ports = Ports(
        catalog, store, LeaseLocker(catalog, ids.client), clock, ids, Lifecycle(catalog.entered)
    )
    embedded = Embedded(
        ports,
        lambda queue_id: FifoDoorbell(directory / BELLS, queue_id, clock),
        catalog.abandon,
    )
    return cassq.Client(f"file://{directory}", embedded, clock)


def push(queue: cassq.Queue, *payloads: bytes) -> list[str]:
    """Push in one pipe of its own, sealed at once."""
    with queue.pusher() as pusher:
        return list(pusher.push_many(payloads))


def numbers(count: int, first: int = 0) -> list[bytes]:
    """Payloads that are easy to tell apart."""
    return [b"%d" % number for number in range(first, first + count)]


def payloads(messages: Iterable[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def drain(popper: cassq.Popper, batch: int = 1000) -> list[Message]:
    """Pop and commit until nothing is waiting at this moment."""
    found: list[Message] = []
    while messages := popper.pop(batch):
        popper.commit(messages)
        found += messages
    return found


def last_due_ms(client: cassq.Client, queue: cassq.Queue) -> int:
    """When the last claim of a queue's only group expires, in catalog time; 0 without claims."""
    catalog = client.ports.catalog
    (group,) = catalog.queues.groups(queue.id)
    pipes = catalog.pipes.live(queue.id)
    rows = [row for pipe in pipes for row in catalog.claims.rows(group.id, pipe.id)]
    return max((row.due_ms for row in rows), default=0)


def reap(client: cassq.Client) -> list[Action]:
    """One round of the reaper over every queue."""
    return client.reaper.reap(client.ports.catalog.queues.listed())


def alone(client: cassq.Client) -> None:
    """From now on only the test reaps: another client seems to be at the passes in passing."""
    take = client.ports.catalog.leases.take
    eventually("its lease is over", lambda: take(PASSING_LEASE, "another", HOUR_MS) is not None)
    # A pass may outlive its lease, as on a disk that stands still. One thread does all in passing.
    done = threading.Event()

    def look() -> float:
        done.set()
        return HOUR_MS / 1000

    client.runtime.add_maintenance(look, 0)
    assert done.wait(DEADLINE_SECONDS), "its last pass is not over"


def extents(client: cassq.Client) -> list[str]:
    """The pipes whose messages are still stored, oldest first."""
    return sorted(info.pipe_id for info in client.ports.store.extents())


def pipe_file(client: cassq.Client, pipe_id: str) -> Path:
    """The file of a pipe."""
    return Path(client.url.removeprefix("file://")) / PIPES / f"{pipe_id}.pipe"


def pipe_files(client: cassq.Client) -> list[Path]:
    """The files of all pipes, oldest first."""
    return sorted((Path(client.url.removeprefix("file://")) / PIPES).glob("*.pipe"))
