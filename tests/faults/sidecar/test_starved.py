"""Sidecars whose disk is full to the last byte: real processes, which go on once there is room."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cassq.catalog.sqlite import SqliteCatalog
from cassq.errors import BackendError
from cassq.extents.protocol.messages import (
    Append,
    Code,
    Fence,
    Fenced,
    Info,
    List,
    ListedExtent,
    Mark,
    Open,
    Read,
    RefusedError,
)
from cassq.extents.sidecar.net.sidecar_connection import SidecarConnection, ask
from cassq.model.sidecar_rows import SidecarState
from tests.faults.mounts import mount, small_disk
from tests.faults.sidecar.scene import PATIENCE, Make, Scene, scene_on
from tests.integration.deadlines import eventually
from tests.integration.served import Served, catalog
from tests.integration.sidecars import append
from tests.servers.fixtures import running
from tests.servers.kinds import sidecar
from tests.servers.kinds.sidecar import SidecarCluster, SidecarNode
from tests.servers.parts import disk
from tests.servers.parts.disk import SmallDisk

__all__ = ["catalog", "mount", "scene_on", "small_disk"]

pytestmark = [
    pytest.mark.servers,
    pytest.mark.may_skip("a file system of its own can be mounted by root alone"),
]
EXTENTS = 120
# One of them is found to be damaged while it cannot be noted.
HURT = EXTENTS - 2
FREE_MIN = 1 << 20


# --- one sidecar, asked directly ------------------------------------------------------------------


@pytest.fixture
def start(
    tmp_path: Path, catalog: SqliteCatalog, small_disk: SmallDisk
) -> Iterator[Callable[[], Served]]:
    """Starts the sidecar whose data are on a small disk."""
    started: list[Served] = []

    def start() -> Served:
        place, url = small_disk.place / "data", f"file:{tmp_path / 'queues'}"
        started.append(Served(place, url, "--free-min", str(FREE_MIN)))
        return started[-1]

    yield start
    for served in started:
        served.kill()


def name_of(number: int) -> str:
    return f"p{number:03d}"


def a_frame(number: int) -> Append:
    return append(name_of(number), 0, [b"%d" % number * 30])


def facts(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.health()[1]
    return found


def begin(served: Served) -> None:
    """Some extents of a frame each."""
    with SidecarConnection(served.address) as connection:
        for number in range(EXTENTS):
            connection(Open(name_of(number), 1, "q", False))
            assert connection(a_frame(number)).end == 1


def fence_until_refused(served: Served) -> list[int]:
    """Fence one after the other until the disk takes no more; those that were answered well."""
    fenced: list[int] = []
    with SidecarConnection(served.address) as connection:
        for number in range(EXTENTS):
            try:
                assert connection(Fence(name_of(number), 2)) == Fenced(1, 0, False)
            except RefusedError as refusal:
                assert refusal.code is Code.FAILED
                assert "No space left" in refusal.message
                return fenced
            fenced.append(number)
    pytest.fail("what was left of the disk was enough")


def listed(served: Served) -> dict[str, ListedExtent]:
    return {each.pipe_id: each for each in ask(served.address, List("", 1000, "")).extents}


def went_on(served: Served, times: int = 1) -> None:
    """Wait until it has opened its engine anew; it does so at the same addresses."""
    eventually("it goes on", lambda: facts(served)["reopened"] == times, seconds=PATIENCE)
    assert served.runs
    eventually("it listens", lambda: listens(served))


def listens(served: Served) -> bool:
    try:
        return bool(ask(served.address, Info()))
    except BackendError:
        return False


def all_is_there(served: Served, fenced: list[int], *damaged: str) -> None:
    with SidecarConnection(served.address) as connection:
        for number in range(EXTENTS):
            frames = connection(Read(name_of(number), 0, 1, 1 << 20, 10, 0)).frames
            assert frames == b"".join(a_frame(number).frame)
    found = listed(served)
    assert len(found) >= EXTENTS
    assert [each.pipe_id for each in found.values() if each.damage] == list(damaged)
    for number in fenced:
        assert found[name_of(number)].fenced, "it was acknowledged"


@pytest.mark.parametrize("asked", [SidecarState.UP, SidecarState.DRAINING])
def test_a_sidecar_resumes_by_itself_and_keeps_its_requested_state(
    start: Callable[[], Served],
    catalog: SqliteCatalog,
    small_disk: SmallDisk,
    asked: SidecarState,
) -> None:
    served = start()
    begin(served)
    small_disk.fill()
    fenced = fence_until_refused(served)
    found = facts(served)
    assert "No space left" in found["starved"]
    assert (found["failure"], found["read_only"], found["healthy"]) == ("", True, False)
    all_is_there(served, fenced)
    with pytest.raises(RefusedError, match="all replicas had 5"):
        ask(served.address, Mark(name_of(HURT), 1, 5, False))
    catalog.sidecars.set_state("a", asked)
    eventually("it beats", lambda: catalog.sidecars.listed()[0].read_only)
    eventually("it learns", lambda: facts(served)["state"] == asked.name.lower())
    small_disk.free()
    went_on(served)
    all_is_there(served, fenced, name_of(HURT))
    assert (facts(served)["starved"], facts(served)["state"]) == ("", asked.name.lower())
    eventually("it beats", lambda: not catalog.sidecars.listed()[0].read_only)
    assert catalog.sidecars.listed()[0].state is asked
    last = EXTENTS - 1
    end = ask(served.address, append(name_of(last), 1, [b"more"])).end
    if asked is SidecarState.DRAINING:
        with pytest.raises(RefusedError) as caught:
            ask(served.address, Open("other", 1, "q", False))
        assert caught.value.code is Code.DRAINING
    else:
        ask(served.address, Open("other", 1, "q", False))
    served.kill()
    again = start()
    all_is_there(again, fenced, name_of(HURT))
    assert listed(again)[name_of(last)].end == end == 2
    again.signal(signal.SIGTERM)
    assert again.ended()[0] == 0


@pytest.mark.long(reason="disks that are filled to the last byte, again and again")
def test_a_disk_that_fills_up_again_is_waited_for_again(
    start: Callable[[], Served], small_disk: SmallDisk
) -> None:
    served = start()
    begin(served)
    for times in (1, 2):
        small_disk.fill()
        fenced = fence_until_refused(served) if times == 1 else settle_nothing(served)
        small_disk.free()
        went_on(served, times)
        all_is_there(served, fenced)
    served.signal(signal.SIGTERM)
    code, errors = served.ended()
    assert code == 0
    assert errors.count("continues by itself once its disk has space") == 2


def settle_nothing(served: Served) -> list[int]:
    """Fence with greater epochs until the disk takes no more."""
    with SidecarConnection(served.address) as connection:
        for epoch in range(3, 1000):
            try:
                connection(Fence(name_of(0), epoch))
            except RefusedError as refusal:
                assert refusal.code is Code.FAILED
                return [0]
    pytest.fail("what was left of the disk was enough")


def test_a_sidecar_stopped_while_its_disk_is_full_ends(
    start: Callable[[], Served], small_disk: SmallDisk
) -> None:
    served = start()
    begin(served)
    small_disk.fill()
    fenced = fence_until_refused(served)
    served.signal(signal.SIGTERM)
    assert served.ended()[0] == 0
    small_disk.free()
    all_is_there(start(), fenced)


# --- a cluster ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def greedy_sidecars() -> Iterator[SidecarCluster]:
    """Sidecars on disks of their own, that write until the disk refuses it."""
    if why := disk.obstacle():
        pytest.skip(why)
    yield from running(sidecar.cluster(nodes=4, disk_bytes=64 << 20, options=["--free-min", "0"]))


def starve(scene: Scene, node: SidecarNode) -> None:
    assert node.disk is not None
    node.disk.fill()
    eventually("it is starved", lambda: node.fact("starved"), seconds=PATIENCE)


@pytest.mark.long(reason="disks that are filled to the last byte, again and again")
def test_pushes_continue_to_a_sidecar_whose_disk_has_room_again(
    greedy_sidecars: SidecarCluster, scene_on: Make
) -> None:
    scene = scene_on(greedy_sidecars)
    queue = scene.queue(max_push_time_of_pipe=600.0)
    actor = scene.pushes(queue, "p", 2000)
    pipe = scene.open_pipe(queue)
    node = scene.node_of(pipe.replicas[0].sidecar)
    assert node.disk is not None
    starve(scene, node)
    scene.goes_on(actor, 50)
    assert scene.end_of(pipe) is not None
    assert not scene.has(scene.open_pipe(queue), node)
    assert not actor.reports("trouble")
    node.disk.free()
    eventually("it goes on", lambda: node.fact("reopened") == 1, seconds=PATIENCE)
    eventually("it is known", lambda: not scene.row(node).read_only, seconds=PATIENCE)
    assert scene.row(node).state is SidecarState.UP
    # Without another one each pipe needs it.
    lost = next(
        each
        for each in scene.sidecars.nodes
        if each is not node and scene.has(scene.open_pipe(queue), each)
    )
    lost.kill()
    scene.goes_on(actor, 50)
    eventually("it is pushed to", lambda: scene.has(scene.open_pipe(queue), node))
    scene.goes_on(actor, 50)
    lost.start()
    scene.end()
    scene.repaired()
    scene.nothing_is_lost()
