"""What executors of an audit find of a client that was killed before it told of its last append."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cassq.base.clock import ManualClock
from cassq.inspect.audit import cursors_of, standing
from cassq.message.frames import Place
from tests.contract.audits import Scene, untold


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with untold(tmp_path, ManualClock()) as made:
        yield made


def stood(scene: Scene) -> Any:
    ports = scene.auditor.ports
    groups = ports.catalog.queues.groups(scene.queue.id)
    pipe = ports.catalog.pipes.by_id(scene.pipe)
    assert pipe is not None
    return standing(ports, groups, {group.id: cursors_of(ports, group) for group in groups}, pipe)


def test_many_pipes_are_few_tasks() -> None:
    pytest.importorskip("pyspark")
    from cassq.spark.jobs.audit import task_count

    assert [task_count(pipes, 2) for pipes in (1, 100, 101, 6736)] == [1, 1, 2, 8]


def walked(scene: Scene, messages: int) -> Any:
    from cassq.spark.jobs.audit_tasks import walk
    from cassq.spark.reading import PipeRange

    return walk(scene.auditor.ports, 1, PipeRange(scene.pipe, Place(0, 0), messages))


def test_claimed_and_moved_messages_count_although_their_end_was_not_published(
    scene: Scene,
) -> None:
    found = stood(scene)
    assert (found.end, found.findings) == (2, [])
    read = walked(scene, found.end)
    assert (read.messages, read.finding) == (2, "")
    assert read.size_bytes > 0


def test_unreadable_claimed_messages_of_an_open_pipe_are_reported(scene: Scene) -> None:
    scene.lose(scene.pipe)
    read = walked(scene, stood(scene).end)
    assert read.messages == 0
    assert read.finding.startswith(f"pipe {scene.pipe} is damaged after seq 0")


def test_a_sealed_pipe_ends_where_it_ends_whatever_was_claimed(scene: Scene) -> None:
    """Then more is claimed than can be read."""
    scene.auditor.ports.catalog.pipes.record_end(scene.pipe, Place(0, 0))
    found = stood(scene)
    (mine,) = found.groups.values()
    assert (found.end, mine.claimed) == (0, 2)


def test_missing_dead_letters_are_reported(scene: Scene) -> None:
    scene.lose(scene.letters)
    where = f"where it should be {scene.letters}:0"
    astray = f"message {scene.pipe}:1 is not in the dead letters, {where}"
    assert stood(scene).astray == {"default": [astray]}
