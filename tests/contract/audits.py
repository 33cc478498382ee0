"""What suites about audits have in common: a client that is killed, and who looks afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import cassq
from cassq.base.clock import Clock, ManualClock
from cassq.base.ids import Ids
from cassq.catalog.port import Catalog
from cassq.catalog.sqlite import SqliteCatalog
from cassq.client.backends.embedded import Embedded
from cassq.doorbell import PollingDoorbell
from cassq.extents.port import ExtentStore
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.locks.lease import LeaseLocker
from tests.contract.backends import SidecarPlace


def client_on(catalog: Catalog, store: ExtentStore, clock: Clock) -> cassq.Client:
    """A client as a process of its own has it, of which nothing outlives the test, and nothing is
    done in passing."""
    ids = Ids()
    ports = Ports(catalog, store, LeaseLocker(catalog, ids.client), clock, ids, Lifecycle())
    embedded = Embedded(ports, lambda _: PollingDoorbell(), lambda: None)
    client = cassq.Client("audits", embedded, clock)
    client.runtime.housekeeper.stop()
    return client


def worked(client: cassq.Client) -> tuple[str, str]:
    """Push a frame of five messages, commit one and give up another; its pipe, and that of the dead
    letter. The client has not ended: if it is killed now it tells nobody anything any more."""
    queue = client.create_queue("q")
    pipe_id = queue.pusher().push_many([b"%d" % at for at in range(5)])[0].partition(":")[0]
    popper = queue.popper()
    found = popper.pop(2)
    popper.commit(found[:1])
    popper.dead(found[1:])
    popper.flush()
    (letters,) = client.ports.catalog.pipes.live(client.queue("q~default~dead").row.id)
    return pipe_id, letters.id


def published_ends(auditor: cassq.Client, *pipe_ids: str) -> list[int]:
    """How far pipes go, as far as a client is told."""
    found = []
    for pipe_id in pipe_ids:
        reader = auditor.ports.store.reader(pipe_id)
        found.append(reader.published().seq)
        reader.close()
    return found


class Scene(NamedTuple):
    """auditor: another process than the one that was killed. pipe, letters: where messages are."""

    place: SidecarPlace
    auditor: cassq.Client
    pipe: str
    letters: str

    @property
    def queue(self) -> cassq.Queue:
        return self.auditor.queue("q")

    def lose(self, pipe_id: str) -> None:
        """No replica has anything of it any more, and none knows that."""
        for sidecar in self.place.sidecars:
            if sidecar.replica(pipe_id) is not None:
                sidecar.engine.cut(pipe_id, 0)


@contextmanager
def untold(directory: Path, clock: ManualClock) -> Iterator[Scene]:
    """A client on sidecars was killed, and of what it told in passing nothing came."""
    place = SidecarPlace(directory)
    for sidecar in place.sidecars:
        sidecar.deaf = True

    def client() -> cassq.Client:
        catalog = SqliteCatalog(directory / "catalog.sqlite", clock, durable=False)
        return client_on(catalog, place.open(clock), clock)

    with client() as killed, client() as auditor:
        scene = Scene(place, auditor, *worked(killed))
        assert published_ends(auditor, scene.pipe, scene.letters) == [0, 0]
        yield scene
