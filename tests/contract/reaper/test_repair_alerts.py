"""Alerts about sidecars in memory: told once, and once more when it is over."""

from __future__ import annotations

from pathlib import Path

from cassq.alerts.targets import AlertTarget
from cassq.reaper.actions import Scope
from cassq.reaper.alert import Alert
from tests.contract.reaper.repair_place import AFTER_SECONDS, RepairPlace

ONE = "0" * 23 + "1"


def test_alerts_report_a_lost_sidecar_and_extents_that_cannot_be_copied(tmp_path: Path) -> None:
    place = RepairPlace(tmp_path, sidecars=3)
    place.pushed(ONE, "s1", "s2", "s3")
    reaper = place.reaper()
    targets = [AlertTarget("log")]
    alert = Alert(reaper.ports, lambda: targets, lambda: 1.0)

    def sent() -> list[tuple[str, str]]:
        actions = alert.run(Scope(reaper.ports), dry_run=False)
        return [(action.subject, action.outcome) for action in actions]

    assert sent() == []
    place.away_for("s3", 60)
    assert sent() == []
    place.away_for("s3", 15)
    assert sent() == [("sidecar_unreachable raised", "done")]
    assert sent() == []
    place.away_for("s3", AFTER_SECONDS)
    reaper.until_done()
    assert sent() == [("under_replicated raised", "done")]
    place["s3"].down = False
    place.pass_time(1)
    place.pass_time(11)
    reaper.until_done()
    assert sorted(sent()) == [
        ("sidecar_unreachable recovered", "done"),
        ("under_replicated recovered", "done"),
    ]
    assert reaper.catalog.records.incidents() == []
    targets.clear()
    assert sent() == []
