"""The audit of what a client left that was killed before it told anybody what is acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cassq.base.clock import ManualClock
from cassq.message.frames import Place
from tests.contract.audits import Scene, untold


@pytest.fixture
def scene(tmp_path: Path, clock: ManualClock) -> Iterator[Scene]:
    with untold(tmp_path, clock) as made:
        yield made


def test_claimed_and_moved_messages_count_although_their_end_was_not_published(
    scene: Scene,
) -> None:
    audit = scene.queue.audit()
    assert audit.findings == []
    mine = audit.groups["default"]
    assert (audit.pushed, mine.committed, mine.dead, mine.waiting) == (2, 1, 1, 0)
    scene.auditor.ports.catalog.pipes.record_end(
        scene.pipe, scene.auditor.ports.store.seal(scene.pipe)
    )
    audit = scene.queue.audit()
    assert (audit.findings, audit.pushed) == ([], 5)


def test_unreadable_claimed_messages_of_an_open_pipe_are_reported(scene: Scene) -> None:
    scene.lose(scene.pipe)
    findings = scene.queue.audit().findings
    assert f"group default has claimed 2 messages of pipe {scene.pipe}, which holds 0" in findings
    assert any(each.startswith(f"pipe {scene.pipe} is damaged after seq 0") for each in findings)


def test_claims_past_the_end_of_a_sealed_pipe_are_reported(scene: Scene) -> None:
    """Its frames are there, but count no more."""
    assert scene.auditor.ports.catalog.pipes.record_end(scene.pipe, Place(0, 0)) == Place(0, 0)
    findings = scene.queue.audit().findings
    assert f"group default has claimed 2 messages of pipe {scene.pipe}, which holds 0" in findings


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
def test_missing_dead_letters_are_reported(scene: Scene, sealed: bool) -> None:
    if sealed:
        assert scene.auditor.ports.catalog.pipes.record_end(scene.letters, Place(0, 0)) == Place(
            0, 0
        )
    else:
        scene.lose(scene.letters)
    assert scene.queue.audit().findings == [
        f"message {scene.pipe}:1 is not in the dead letters, where it should be {scene.letters}:0"
    ]
