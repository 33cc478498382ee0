"""What may have felled the machine is counted for certain before it is handed out again."""

from __future__ import annotations

from pathlib import Path

import pytest

from cassq.base.clock import ManualClock
from tests.integration.stage import client_on, numbers, push
from tests.integration.timed import clock

__all__ = ["clock"]

pytestmark = pytest.mark.embedded_only(reason="a boot, and syncs, are a directory's")


@pytest.mark.parametrize("rebooted", [True, False])
def test_a_first_claim_of_what_was_there_before_the_boot_is_synced(
    tmp_path: Path, clock: ManualClock, rebooted: bool
) -> None:
    """Else, after the next power cut, it would be delivered for the first time once more. Without
    a boot in between it is not: that would cost a sync for each first claim."""
    with client_on(tmp_path, clock=clock) as client:
        client.runtime.housekeeper.stop()
        push(client.create_queue("jobs"), *numbers(3))
    if rebooted:
        clock.reboot()
    commits: list[bool] = []
    with client_on(tmp_path, clock=clock, committed=commits.append) as client:
        client.runtime.housekeeper.stop()
        popper = client.queue("jobs").popper()
        commits.clear()
        assert len(popper.pop(2)) == 2
        assert any(commits) is rebooted
