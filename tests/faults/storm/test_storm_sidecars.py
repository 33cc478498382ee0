"""A short storm over sidecars, with one of each kind of trouble that this machine allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.storm.on_sidecars import DISK_BYTES, OPTIONS, SIDECARS, OnSidecars
from tests.faults.storm.plan import HOUR, Plan, Step
from tests.faults.storm.run import Size, Storm
from tests.servers.kinds import sidecar
from tests.servers.parts import disk, network

pytestmark = pytest.mark.long(reason="a storm")

SHORT = Plan(
    seed=1,
    seconds=36.0,
    servers=(
        Step(2.0, "kill sidecar", 1, 2.0),
        Step(5.0, "fill disk of sidecar", 2, 3.0),
        Step(9.0, "hide sidecar from clients", 3, 3.0),
        Step(13.0, "lose data of sidecar", 4, 1.0),
        Step(17.0, "stop sidecar", 1, 5.0),
        Step(24.0, "flip bits of sidecar", 3, 1.0),
        Step(28.0, "restart all sidecars", 0, 0.0),
    ),
    clients=(
        Step(3.0, "kill client", 1, 1.0),
        Step(6.0, "jump clock", 5, 4.0, HOUR),
        Step(12.0, "stop client", 6, 7.0),  # for longer than it may keep messages
        Step(20.0, "kill client", 7, 1.0),
        Step(25.0, "kill client", 11, 1.0),
    ),
    whole=True,
)


@pytest.mark.servers
def test_a_short_storm_over_sidecars_breaks_no_promise(tmp_path: Path) -> None:
    disk_bytes = 0 if disk.obstacle() else DISK_BYTES
    cut = network.can_partition()
    with sidecar.cluster(
        nodes=SIDECARS, partitions=cut, disk_bytes=disk_bytes, options=OPTIONS
    ) as sidecars:
        ground = OnSidecars(sidecars, None, waits_for_orphans=False)
        servers = tuple(step for step in SHORT.servers if step.what in ground.troubles)
        plan = Plan(SHORT.seed, SHORT.seconds, servers, SHORT.clients, whole=True)
        report = Storm(ground, tmp_path, Size(pushers=1, poppers=1, calm=2.0)).rage(plan)
    report.write(tmp_path)
    assert report.good, report.as_text()
    deeds = [what for _, what in report.nemesis]
    assert deeds.count("all is mended") == 1
    hurt = {"kill -9 sidecar 1", "the data of sidecar 4 are gone", "SIGSTOP sidecar 1"}
    hurt.add("kill -9 pop-lanes-keyed-1")
    hurt |= {"SIGTERM sidecar 1, sidecar 2, sidecar 3, sidecar 4"}
    hurt |= {"the disk of sidecar 2 is full"} if disk_bytes else set()
    hurt |= {"cut sidecar 3 from clients"} if cut else set()
    assert hurt <= set(deeds), deeds
    assert any(deed.startswith("bits of sidecar 3 are flipped") for deed in deeds)
    assert any(deed.endswith("sealed pipes are compared") for deed in deeds)
