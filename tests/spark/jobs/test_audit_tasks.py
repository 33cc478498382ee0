"""What executors of an audit find: of pipes that change meanwhile, and of a client that was killed
before it told of its last append."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.inspect.audit import standing
from cassq.message.frames import Place
from tests.contract.audits import Scene, untold
from tests.integration.deadlines import eventually
from tests.integration.stage import numbers, push


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with untold(tmp_path, ManualClock()) as made:
        yield made


def stood(scene: Scene) -> Any:
    ports = scene.auditor.ports
    groups = ports.catalog.queues.groups(scene.queue.id)
    pipe = ports.catalog.pipes.by_id(scene.pipe)
    assert pipe is not None
    cursors = {group.id: ports.catalog.claims.cursor(group.id, pipe.id) for group in groups}
    return standing(ports, groups, {each: found for each, found in cursors.items() if found}, pipe)


def test_a_pipe_that_changed_since_the_driver_looked_is_as_it_is_now(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    """Of a cursor that is older than the rows, nothing is a finding, and nothing counts twice."""
    pytest.importorskip("pyspark")
    from cassq.spark.clients import located
    from cassq.spark.jobs.audit_tasks import standings

    ports = client.ports
    groups = ports.catalog.queues.groups(queue.id)
    push(queue, *numbers(20))
    (pipe,) = ports.catalog.pipes.live(queue.id)

    def cursor() -> Any:
        return ports.catalog.claims.cursor(groups[0].id, pipe.id)

    old = cursor()
    with queue.popper() as popper:
        found = popper.pop(10)
        popper.commit(found[2:5])
        popper.dead(found[6:8])
        eventually("they are there", lambda: len(list(queue.dead_letters().export())) == 2)
        location = located(client.url)
        (then,) = standings(location, groups, [(pipe, [old])])
        (now,) = standings(location, groups, [(pipe, [cursor()])])
    assert (then.findings, then.end) == ([], 20)
    assert then.groups == now.groups


def test_many_pipes_are_few_tasks() -> None:
    pytest.importorskip("pyspark")
    from cassq.spark.jobs.audit import task_count

    assert [task_count(pipes, 2) for pipes in (1, 100, 101, 6736)] == [1, 1, 2, 8]


def walked(scene: Scene, messages: int) -> Any:
    from cassq.spark.jobs.audit_tasks import walk
    from cassq.spark.reading import PipeRange

    return walk(scene.auditor.ports, PipeRange(scene.pipe, Place(0, 0), messages))


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
