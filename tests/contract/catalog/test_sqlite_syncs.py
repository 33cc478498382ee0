"""Which verbs of the SQLite catalog a power cut cannot undo: their commits are synced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cassq.base.clock import ManualClock
from cassq.catalog.sqlite import SqliteCatalog
from cassq.model import claims
from cassq.model.queues import GroupPolicy, QueuePolicy
from cassq.model.rows import Dedup, PipeState, WriteRow, WriteState
from tests.contract.rows import (
    Desk,
    group_row,
    groups_version,
    make_queue,
    move_row,
    pipe_row,
    place,
    queue_row,
    version,
)


class Told:
    """A catalog with a queue and a pipe, and whether each of its commits was synced."""

    def __init__(self, path: Path) -> None:
        self.commits: list[bool] = []
        self.catalog = SqliteCatalog(path, ManualClock(), committed=self.commits.append)
        make_queue(self.catalog)
        assert self.catalog.pipes.add(pipe_row("p"))
        self.desk = Desk(self.catalog)

    def by(self, verb: Callable[[], object]) -> list[bool]:
        """Whether each commit that a verb makes is synced; it has to do something."""
        self.commits.clear()
        assert verb() not in (False, None)
        return list(self.commits)


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    told = Told(tmp_path / "catalog.sqlite")
    yield told
    told.catalog.close()


def test_queues_and_groups(told: Told) -> None:
    catalog = told.catalog
    row = queue_row("r")
    assert told.by(lambda: catalog.queues.create(row, group_row("default", "r"))) == [True]
    assert told.by(lambda: catalog.queues.update(row.id, 1, QueuePolicy(lease=7))) == [True]
    more = group_row("more", "r")
    assert told.by(lambda: catalog.queues.create_group(more, {}, groups_version(catalog, "r"))) == [
        True
    ]
    assert told.by(lambda: catalog.queues.update_group(more.id, GroupPolicy())) == [True]
    assert told.by(lambda: catalog.queues.delete_group(more.id)) == [True]
    assert told.by(lambda: [catalog.queues.delete(row.id)]) == [True]


def test_the_life_of_a_pipe(told: Told) -> None:
    catalog = told.catalog
    assert told.by(lambda: catalog.pipes.add(pipe_row("new"))) == [True]
    assert told.by(lambda: catalog.pipes.record_end("new", place(5))) == [True]
    assert told.by(lambda: catalog.pipes.record_end("p", place(3))) == [True]
    assert told.desk.finish(told.desk.claim(3))
    assert told.by(lambda: catalog.pipes.retire("p", groups_version(catalog))) == [True]
    make_queue(catalog, "r")
    assert told.by(lambda: catalog.pipes.repoint("new", "id of r", "r/default")) == [True]


def test_acks_take_overs_and_moves(told: Told) -> None:
    catalog, desk = told.catalog, told.desk
    row = desk.claim(4)
    freed = desk.freed(row)
    assert told.by(lambda: catalog.claims.replace_many([(row, freed)])) == [True]
    held, rows = claims.taken(freed[0], place(4), "me", 9_999, version)
    assert told.by(lambda: catalog.claims.replace(freed[0], rows)) == [True]
    assert told.by(lambda: catalog.claims.intend(move_row(0, 7), held=held)) == [True]
    assert told.by(lambda: catalog.claims.intend_many([move_row(1, 8)], held)) == [True]
    done = claims.buried(held, version)
    assert told.by(lambda: catalog.claims.replace(held, done, settle=[move_row(0, 7)])) == [True]
    assert told.by(lambda: catalog.claims.fence(desk.cursor, "other")) == [True]


def test_a_first_claim_is_synced_if_that_is_asked_for(told: Told) -> None:
    desk = told.desk
    for synced in (False, True, False):
        cursor = desk.cursor
        chain = place(cursor.chain.seq + 2)
        row = claims.first(cursor, chain, "me", 9_999, version)

        def claim(synced: bool = synced) -> bool:
            return desk.catalog.claims.claim(cursor, chain, [row], synced=synced)  # noqa: B023

        assert told.by(claim) == [synced]


def test_dedup_ids(told: Told) -> None:
    row = Dedup("id of q", "a", "p", 0, at_ms=5)
    others = [replace(row, dedup_id=name) for name in "bc"]
    assert told.by(lambda: told.catalog.records.dedup(row)) == [True]
    assert told.by(lambda: [told.catalog.records.dedup_many(others, {})]) == [True]


def test_writes_that_are_published_or_given_up(told: Told) -> None:
    catalog = told.catalog
    wanted = WriteRow("id of q", "w", 0, 0, WriteState.OPEN, "driver", begun_ms=3)
    assert told.by(lambda: catalog.writes.begin(wanted)) == [True]
    write = catalog.writes.by_id("id of q", "w")
    assert write is not None
    staged = pipe_row("staged", state=PipeState.STAGED, stage=write.stage)
    assert told.by(lambda: catalog.pipes.add(staged)) == [True]
    assert told.by(lambda: catalog.pipes.record_end("staged", place(2))) == [True]
    assert told.by(lambda: catalog.writes.publish(write, ["staged"])) == [True]
    assert told.by(lambda: catalog.writes.begin(replace(wanted, id="w2"))) == [True]
    other = catalog.writes.by_id("id of q", "w2")
    assert other is not None
    assert told.by(lambda: catalog.writes.abort(other)) == [True]
