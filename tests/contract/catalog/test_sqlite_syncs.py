"""Which verbs of the SQLite catalog a power cut cannot undo: their commits are synced, or the log
is synced after them."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cassq.base.clock import ManualClock
from cassq.catalog.sqlite import SqliteCatalog
from cassq.catalog.sqlite.log import Log
from cassq.errors import BackendError, BackendUnavailableError
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.queues import GroupPolicy, QueuePolicy
from cassq.model.rows import Claim, ClaimState, Dedup, PipeState, WriteRow, WriteState
from tests.contract.rows import (
    Consumer,
    group_row,
    groups_version,
    make_queue,
    move_row,
    pipe_row,
    place,
    queue_row,
    version,
)
from tests.integration.deadlines import DEADLINE_SECONDS, eventually


class WatchedLog(Log):
    """The real log. during: called before each sync. synced: how often it was."""

    during: Callable[[], object] = staticmethod(lambda: None)
    synced = 0

    def sync(self) -> None:
        self.during()
        super().sync()
        self.synced += 1


class Syncs:
    """A catalog with a queue and a pipe, and whether each of its commits was synced. log: its."""

    def __init__(self, path: Path) -> None:
        self.commits: list[bool] = []

        def log() -> Log | None:
            self.log = WatchedLog.of(path)
            return self.log

        self.log: WatchedLog | None = None
        self.catalog = SqliteCatalog(path, ManualClock(), committed=self.commits.append, log=log)
        make_queue(self.catalog)
        assert self.catalog.pipes.add(pipe_row("p"))
        self.consumer = Consumer(self.catalog)

    def by(self, verb: Callable[[], object]) -> list[bool]:
        """Whether each commit that a verb makes is synced; it has to do something."""
        self.commits.clear()
        assert verb() not in (False, None)
        return list(self.commits)


@pytest.fixture
def syncs(tmp_path: Path) -> Iterator[Syncs]:
    syncs = Syncs(tmp_path / "catalog.sqlite")
    yield syncs
    syncs.catalog.close()


def test_queues_and_groups(syncs: Syncs) -> None:
    catalog = syncs.catalog
    row = queue_row("r")
    assert syncs.by(lambda: catalog.queues.create(row, group_row("default", "r"))) == [True]
    assert syncs.by(lambda: catalog.queues.update(row.id, 1, QueuePolicy(lease=7))) == [True]
    more = group_row("more", "r")
    assert syncs.by(
        lambda: catalog.queues.create_group(more, {}, groups_version(catalog, "r"))
    ) == [True]
    assert syncs.by(lambda: catalog.queues.update_group(more.id, GroupPolicy())) == [True]
    assert syncs.by(lambda: catalog.queues.delete_group(more.id)) == [True]
    assert syncs.by(lambda: [catalog.queues.delete(row.id)]) == [True]


def test_the_life_of_a_pipe(syncs: Syncs) -> None:
    catalog = syncs.catalog
    assert syncs.by(lambda: catalog.pipes.add(pipe_row("new"))) == [True]
    assert syncs.by(lambda: catalog.pipes.record_end("new", place(5))) == [True]
    assert syncs.by(lambda: catalog.pipes.record_end("p", place(3))) == [True]
    assert syncs.consumer.finish(syncs.consumer.claim(3))
    assert syncs.by(lambda: catalog.pipes.retire(["p"], groups_version(catalog))) == [True]
    make_queue(catalog, "r")
    assert syncs.by(lambda: catalog.pipes.repoint("new", "id of r", "r/default")) == [True]


def test_acks_take_overs_and_moves(syncs: Syncs) -> None:
    catalog, consumer = syncs.catalog, syncs.consumer
    row = consumer.claim(4)
    freed = consumer.freed(row)
    assert syncs.by(lambda: catalog.claims.replace_many([(row, freed)])) == [False, True]
    held, rows = claims.taken(freed[0], place(4), "me", 9_999, version)
    assert syncs.by(lambda: catalog.claims.replace(freed[0], rows)) == [True]
    assert syncs.by(lambda: catalog.claims.intend(move_row(0, 7), held=held)) == [True]
    assert syncs.by(lambda: catalog.claims.intend_many([move_row(1, 8)], held)) == [True]
    done = claims.as_dead(held, version)
    assert syncs.by(lambda: catalog.claims.replace(held, done, settle=[move_row(0, 7)])) == [True]
    assert syncs.by(lambda: catalog.claims.fence(consumer.cursor, "other")) == [True]


def test_a_first_claim_is_synced_if_that_is_asked_for(syncs: Syncs) -> None:
    consumer = syncs.consumer
    for synced in (False, True, False):
        cursor = consumer.cursor
        chain = place(cursor.chain.seq + 2)
        row = claims.first(cursor, chain, "me", 9_999, version)

        def claim(synced: bool = synced) -> bool:
            return consumer.catalog.claims.claim(cursor, chain, [row], synced=synced)  # noqa: B023

        assert syncs.by(claim) == [synced]


def test_dedup_ids(syncs: Syncs) -> None:
    row = Dedup("id of q", "a", "p", 0, at_ms=5)
    others = [replace(row, dedup_id=name) for name in "bc"]
    assert syncs.by(lambda: syncs.catalog.records.dedup(row)) == [True]
    assert syncs.by(lambda: [syncs.catalog.records.dedup_many(others, {})]) == [True]


def test_writes_that_are_published_or_given_up(syncs: Syncs) -> None:
    catalog = syncs.catalog
    wanted = WriteRow("id of q", "w", 0, 0, WriteState.OPEN, "driver", begun_ms=3)
    assert syncs.by(lambda: catalog.writes.begin(wanted)) == [True]
    write = catalog.writes.by_id("id of q", "w")
    assert write is not None
    staged = pipe_row("staged", state=PipeState.STAGED, stage=write.stage)
    assert syncs.by(lambda: catalog.pipes.add(staged)) == [True]
    assert syncs.by(lambda: catalog.pipes.record_end("staged", place(2))) == [True]
    assert syncs.by(lambda: catalog.writes.publish(write, ["staged"])) == [True]
    assert syncs.by(lambda: catalog.writes.begin(replace(wanted, id="w2"))) == [True]
    other = catalog.writes.by_id("id of q", "w2")
    assert other is not None
    assert syncs.by(lambda: catalog.writes.abort(other)) == [True]


# --- syncs beside other writers -----------------------------------------------------------------


@pytest.fixture
def log(syncs: Syncs) -> WatchedLog:
    if syncs.log is None:
        pytest.skip("without fdatasync the log is left to SQLite")
    return syncs.log


def test_others_write_while_an_ack_is_being_synced(
    syncs: Syncs, log: WatchedLog, tmp_path: Path
) -> None:
    with closing(SqliteCatalog(tmp_path / "catalog.sqlite", ManualClock(), lock_wait=0)) as other:
        theirs = Consumer(other)
        row = syncs.consumer.claim(4)
        seen: list[tuple[int, int, ClaimState]] = []

        def write_beside() -> None:
            theirs.claim(2, holder="other")
            seen.extend(theirs.states)

        log.during = write_beside
        assert syncs.consumer.catalog.claims.replace_many(
            [(row, syncs.consumer.acked(row, 1, 2))]
        ) == [True]
        assert seen == [(0, 4, ClaimState.HELD), (4, 6, ClaimState.HELD)]
        assert theirs.rows[0].acked == RangeSet.run(1, 2)
    assert log.synced == 1


def test_an_ack_of_an_exclusive_group_is_durable_before_others_see_it(
    syncs: Syncs, log: WatchedLog
) -> None:
    mine = syncs.catalog.claims.fence(syncs.consumer.cursor, "me")
    assert mine is not None
    row = syncs.consumer.claim(4)
    changes = [(row, syncs.consumer.acked(row, 0, 4))]
    verb = lambda: syncs.catalog.claims.replace_many(changes, epochs=[mine.epoch])  # noqa: E731
    assert syncs.by(verb) == [True]
    assert log.synced == 0


def test_an_ack_of_a_keyed_group_is_durable_before_another_popper_has_its_pipe(
    syncs: Syncs, log: WatchedLog
) -> None:
    mine = syncs.catalog.claims.fence(syncs.consumer.cursor, "me")
    assert mine is not None
    row = claims.first(mine, place(4), "me", 9_999, version, tried=RangeSet.run(0, 2))
    assert syncs.catalog.claims.claim(mine, place(4), [row])
    changes = [(row, [replace(row, acked=RangeSet.run(0, 1), version=version())])]
    verb = lambda: syncs.catalog.claims.replace_many(changes, epochs=[mine.epoch])  # noqa: E731
    assert syncs.by(verb) == [False, True]
    assert log.synced == 1
    assert syncs.by(lambda: syncs.catalog.claims.fence(mine, "other")) == [True]


def test_threads_that_commit_during_a_sync_share_the_next_one(
    syncs: Syncs, log: WatchedLog, tmp_path: Path
) -> None:
    rows = [syncs.consumer.claim(2) for _ in range(4)]
    syncing, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        syncing.set()
        assert go_on.wait(DEADLINE_SECONDS)

    def ack(row: Claim) -> None:
        assert syncs.catalog.claims.replace_many([(row, syncs.consumer.acked(row, 0, 8))]) == [True]

    log.during = hold
    threads = [threading.Thread(target=ack, args=(row,), daemon=True) for row in rows]
    threads[0].start()
    assert syncing.wait(DEADLINE_SECONDS)
    for thread in threads[1:]:
        thread.start()
    try:
        with closing(SqliteCatalog(tmp_path / "catalog.sqlite", ManualClock())) as other:
            eventually("all acks are seen", lambda: Consumer(other).cursor.ack.seq == 8)
    finally:
        go_on.set()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()
    assert log.synced == 2


def test_after_a_sync_that_failed_nothing_passes_for_durable(
    syncs: Syncs, log: WatchedLog, tmp_path: Path
) -> None:
    row = syncs.consumer.claim(4)
    acked = syncs.consumer.acked(row, 0, 4)

    def fail() -> None:
        raise OSError(errno.EIO, "the disk failed")

    log.during = fail
    with pytest.raises(BackendError, match="the disk failed") as caught:
        syncs.catalog.claims.replace_many([(row, acked)])
    assert caught.value.outcome_unknown
    log.during = lambda: None
    for look in (lambda: syncs.consumer.rows, syncs.catalog.claims.ensure_durable):
        with pytest.raises(BackendUnavailableError, match="a sync of its log failed"):
            look()
    alone = tmp_path / "alone.sqlite"
    shutil.copy(tmp_path / "catalog.sqlite", alone)
    with closing(SqliteCatalog(alone, ManualClock())) as copy:
        assert Consumer(copy).cursor.ack.seq == 4, "the main file has it without the log"


def test_what_has_an_unknown_outcome_is_synced_when_it_is_read_back(
    syncs: Syncs, log: WatchedLog
) -> None:
    syncs.consumer.claim(1)
    syncs.catalog.claims.ensure_durable()
    syncs.catalog.claims.ensure_durable()
    assert log.synced == 2
