"""Sidecars as servers of tests: they keep their data, lose them, fill their disks, are cut off."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

import cassq
from tests.integration.deadlines import eventually
from tests.servers.kinds import sidecar, zookeeper
from tests.servers.kinds.sidecar import PORT, SidecarCluster, SidecarNode
from tests.servers.kinds.zookeeper import CLIENT_PORT
from tests.servers.parts import disk
from tests.servers.parts.addresses import answers
from tests.servers.parts.errors import ServerFailedError
from tests.servers.parts.network import can_partition, obstacle
from tests.servers.parts.node import Node

pytestmark = pytest.mark.servers

DISK_BYTES = 64 << 20


@pytest.mark.long(reason="servers that are killed and start anew")
@pytest.mark.waits(reason="what was killed starts anew, and is heard of by the others")
def test_a_sidecar_keeps_its_data_over_a_kill_and_may_lose_or_damage_them(
    sidecars4: SidecarCluster,
) -> None:
    with cassq.connect(sidecars4.url()) as client:
        before = generations(client)
        with client.create_queue("kept").pusher() as pusher:
            pusher.push_many([b"%d" % number * 100 for number in range(100)])
        # Others that use these sidecars may have left pipes that wait to be removed.
        placements = client.ports.catalog.sidecars.placements()
        (placement,) = [each for each in placements if each.queue_name == "kept"]
        held = placement.replicas[0].sidecar
        node = next(node for node in sidecars4.nodes if node.told_name == held)
        with pytest.raises(ServerFailedError, match="runs"):
            node.lose_data()
        node.kill()
        assert node.places_of(b"99" * 50)
        contents = bytes_of(node)
        assert len(node.flip_bits(random.Random(1), 3)) == 3
        assert bytes_of(node) != contents
        node.lose_data()
        assert not node.data.exists()
        node.start()
        sidecars4.await_ready()
        after = generations(client)
    assert {name for name in before if before[name] != after[name]} == {node.told_name}


def bytes_of(node: SidecarNode) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in node.data.rglob("*") if path.is_file()}


def generations(client: cassq.Client) -> dict[str, str]:
    return {row.name: row.generation for row in client.ports.catalog.sidecars.listed()}


@pytest.mark.long(reason="servers with disks or a network of their own")
@pytest.mark.may_skip("small disks need root")
def test_a_small_disk_belongs_to_one_sidecar_and_outlives_it() -> None:
    if why := disk.obstacle():
        pytest.skip(why)
    with sidecar.cluster(nodes=2, replicas=2, disk_bytes=DISK_BYTES) as sidecars:
        first, second = sidecars.nodes
        assert first.disk is not None
        assert second.disk is not None
        generation = first.fact("generation")
        assert generation
        assert list(first.data.iterdir())
        assert list(first.disk.mounted.iterdir()) == []  # seen from outside
        full = first.disk

        def filled() -> bool:  # what it still removes of its files is taken as well
            full.fill()
            return full.free_bytes() == 0

        eventually("it is full", filled)
        assert 0 < second.disk.free_bytes() < DISK_BYTES
        first.disk.free()
        assert first.disk.free_bytes() > 0
        first.kill()
        assert list(first.data.iterdir())
        first.start()
        assert first.fact("generation") == generation, "it found its data"
        home, place = sidecars.home, first.disk.place
    eventually("it is gone", lambda: not place.exists())
    assert not home.exists()


@pytest.mark.long(reason="servers with disks or a network of their own")
@pytest.mark.may_skip("network namespaces need root")
def test_sidecars_beside_another_cluster_are_cut_off_from_it_and_from_clients() -> None:
    if not can_partition():
        pytest.skip(obstacle())
    with (
        zookeeper.cluster(nodes=1, partitions=True) as keepers,
        sidecar.cluster(nodes=2, replicas=2, beside=keepers) as sidecars,
    ):
        first, second = sidecars.nodes
        keeper = keepers.contact_points[0]
        assert reaches(first, keeper, CLIENT_PORT)
        sidecars.part(1, keepers)
        assert not reaches(first, keeper, CLIENT_PORT)
        assert reaches(second, keeper, CLIENT_PORT)
        assert reaches(first, second.address, PORT)
        sidecars.partition(1)
        assert not reaches(first, second.address, PORT)
        assert answers(first.address, PORT)
        sidecars.hide(1)
        assert not answers(first.address, PORT)
        assert answers(second.address, PORT)
        guest = sidecars.guest()
        inside = ["nsenter", f"--net={guest.space}", "--"]
        assert from_there(inside, first.address, PORT)
        sidecars.hide_from(guest, 1)
        assert not from_there(inside, first.address, PORT)
        assert from_there(inside, second.address, PORT)
        sidecars.heal()
        assert answers(first.address, PORT)
        assert from_there(inside, first.address, PORT)
        assert reaches(first, keeper, CLIENT_PORT)


def reaches(node: Node, address: str, port: int) -> bool:
    """Whether a connection is accepted that comes from where a node runs."""
    return from_there(node.entry, address, port)


def from_there(entry: list[str], address: str, port: int) -> bool:
    """Whether one is accepted that comes from a place that is entered so."""
    code = f"import socket; socket.create_connection(({address!r}, {port}), 1.0)"
    done = subprocess.run(
        [*entry, sys.executable, "-c", code], capture_output=True, check=False, cwd=Path("/")
    )
    return done.returncode == 0
