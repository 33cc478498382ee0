"""Listings of pipes in Cassandra: what a row says for good is not read again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from cassq.base.clock import ManualClock

pytest.importorskip("cassandra")

from cassq.catalog.cassandra import CassandraCatalog
from cassq.catalog.cassandra.partition import known_pipes
from cassq.catalog.cassandra.partition.pipe_rows import BEATS, PIPE
from tests.contract.cassandra_place import CassandraPlace
from tests.contract.catalog_cassandra.counting import CountingCql
from tests.contract.rows import (
    DUE_MS,
    Consumer,
    groups_version,
    make_queue,
    pipe_row,
    place,
)

Q = "id of q"
READ_CLAIMS = "FROM claims WHERE"


@pytest.fixture
def counting(cassandra_place: CassandraPlace) -> CountingCql:
    return CountingCql(cassandra_place.keyspace)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def catalog(
    counting: CountingCql, cassandra_place: CassandraPlace, clock: ManualClock
) -> CassandraCatalog:
    return CassandraCatalog(counting, clock, time=cassandra_place.time.of(clock))


@pytest.fixture
def other(cassandra_place: CassandraPlace, clock: ManualClock) -> CassandraCatalog:
    """The catalog of another client."""
    mine = CountingCql(cassandra_place.keyspace)
    return CassandraCatalog(mine, clock, time=cassandra_place.time.of(clock))


def reads(counting: CountingCql, act: Callable[[], object]) -> Counter[str]:
    """How often an act reads rows of pipes, beats, and claims."""
    counting.texts.clear()
    act()
    kinds = {PIPE: "rows", BEATS: "beats"}
    return Counter(
        "claims" if READ_CLAIMS in text else kinds[text]
        for text in counting.texts
        if text in kinds or READ_CLAIMS in text
    )


def two_sealed_of_three(catalog: CassandraCatalog, other: CassandraCatalog) -> None:
    """Pipes a, b and c, of which another client sealed a and b."""
    make_queue(catalog)
    for pipe_id in ("a", "b", "c"):
        assert catalog.pipes.add(pipe_row(pipe_id))
    for pipe_id in ("a", "b"):
        assert other.pipes.record_end(pipe_id, place(3)) == place(3)


def unsealed(catalog: CassandraCatalog) -> list[str]:
    return [row.id for row in catalog.pipes.unsealed([Q])]


def test_a_search_for_open_pipes_reads_the_rows_of_sealed_ones_once(
    catalog: CassandraCatalog, other: CassandraCatalog, counting: CountingCql
) -> None:
    two_sealed_of_three(catalog, other)
    assert reads(counting, lambda: unsealed(catalog)) == {"rows": 3, "beats": 3}
    assert reads(counting, lambda: unsealed(catalog)) == {"rows": 1, "beats": 1}
    assert unsealed(catalog) == ["c"]
    assert other.pipes.record_end("c", place(1)) == place(1)
    assert unsealed(catalog) == [], "what another client seals is seen"
    assert reads(counting, lambda: catalog.pipes.live(Q)) == {"rows": 3}
    assert [row.id for row in catalog.pipes.live(Q)] == ["a", "b", "c"]
    assert other.pipes.add(pipe_row("d"))
    assert unsealed(catalog) == ["d"]


def test_a_sealed_pipe_that_went_is_in_no_listing(
    catalog: CassandraCatalog, other: CassandraCatalog
) -> None:
    make_queue(catalog)
    assert catalog.pipes.add(pipe_row("a"))
    consumer = Consumer(other, "q/default", "a")
    assert consumer.finish(consumer.claim(3))
    assert other.pipes.record_end("a", place(3)) == place(3)
    assert [row.id for row in catalog.pipes.live(Q)] == ["a"]
    assert other.pipes.retire(["a"], groups_version(other))
    assert catalog.pipes.live(Q) == []
    assert unsealed(catalog) == []


def test_a_search_for_timer_pipes_reads_the_rows_of_others_once(
    catalog: CassandraCatalog, counting: CountingCql
) -> None:
    make_queue(catalog)
    (group,) = catalog.queues.groups(Q)
    for pipe_id in ("a", "b"):
        assert catalog.pipes.add(pipe_row(pipe_id))
    assert catalog.pipes.add(pipe_row("t", timer_ms=7))

    def timers() -> list[str]:
        return [row.id for row in catalog.pipes.timers(group, DUE_MS, 10)]

    assert reads(counting, timers)["rows"] == 3
    assert reads(counting, timers)["rows"] == 1
    assert timers() == ["t"]
    assert catalog.pipes.add(pipe_row("u", timer_ms=8))
    assert timers() == ["t", "u"]


def test_a_search_for_finished_pipes_reads_only_rows_that_may_have_changed(
    catalog: CassandraCatalog, other: CassandraCatalog, counting: CountingCql
) -> None:
    two_sealed_of_three(catalog, other)

    def finished() -> list[str]:
        return [row.id for row in catalog.pipes.finished([Q])]

    def rows_read() -> Counter[str]:
        found = reads(counting, finished)
        del found["claims"]
        return found

    assert rows_read() == {"rows": 3}
    assert rows_read() == {"rows": 1}, "one is open"
    consumer = Consumer(other, "q/default", "b")
    assert consumer.finish(consumer.claim(3))
    assert finished() == ["b"]
    assert other.pipes.record_end("c", place(0)) == place(0)
    assert finished() == ["b", "c"]
    assert other.pipes.retire(["b"], groups_version(other))
    assert finished() == ["c"], "what another client retires is seen"


def test_a_search_for_queues_with_pipes_reads_the_row_of_the_newest(
    catalog: CassandraCatalog, counting: CountingCql
) -> None:
    for name, pipe_ids in (("q", ("a", "b", "c")), ("r", ("d",)), ("s", ())):
        make_queue(catalog, name)
        for pipe_id in pipe_ids:
            assert catalog.pipes.add(pipe_row(pipe_id, name))
    assert reads(counting, catalog.queues.live) == {"rows": 2}
    assert catalog.queues.live() == [Q, "id of r"]
    for pipe_id, name in (("c", "q"), ("d", "r")):
        counting.apply(
            "UPDATE pipes SET state = 3 WHERE pipe_id = ? IF queue_id = ?",
            (pipe_id, f"id of {name}"),
        )
    assert catalog.queues.live() == [Q], "its others are live"


def test_claims_of_a_sealed_pipe_that_is_acked_whole_are_not_read_again(
    catalog: CassandraCatalog, counting: CountingCql, clock: ManualClock
) -> None:
    make_queue(catalog)
    for pipe_id, acked in (("a", 3), ("b", 2)):
        assert catalog.pipes.add(pipe_row(pipe_id))
        consumer = Consumer(catalog, "q/default", pipe_id)
        assert consumer.finish(consumer.claim(acked))
        assert catalog.pipes.record_end(pipe_id, place(3)) == place(3)

    def due() -> object:
        clock.advance(3600)
        return catalog.claims.due("q/default", 1 << 62, 10)

    assert reads(counting, due)["claims"] == 2
    assert len(catalog.pipes.live(Q)) == 2, "so their ends are known"
    assert reads(counting, due)["claims"] == 1, "something of b is left"


def test_a_pipe_with_two_entries_is_listed_once_whatever_is_known_of_it(
    catalog: CassandraCatalog, other: CassandraCatalog, counting: CountingCql
) -> None:
    """A client that died while it added a pipe leaves an entry that the row does not agree with."""
    make_queue(catalog)
    for pipe_id in ("a", "b"):
        assert catalog.pipes.add(pipe_row(pipe_id))
    assert other.pipes.record_end("a", place(3)) == place(3)
    assert [row.id for row in catalog.pipes.live(Q)] == ["a", "b"]
    (slice_, at), *_ = counting.read("SELECT slice, position FROM queue_pipes")
    counting.write(
        "INSERT INTO queue_pipes (queue_id, slice, position, pipe_id) VALUES (?, ?, ?, ?)",
        (Q, slice_, at + 1, "a"),
    )
    for _ in range(2):
        assert [row.id for row in catalog.pipes.live(Q)] == ["a", "b"]
        assert unsealed(catalog) == ["b"]


def test_what_is_remembered_of_queues_is_bounded(
    catalog: CassandraCatalog, counting: CountingCql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_pipes, "QUEUES_MOST", 1)
    for name in ("q", "r"):
        make_queue(catalog, name)
        assert catalog.pipes.add(pipe_row(name, name))
        assert catalog.pipes.record_end(name, place(3)) == place(3)
    both = [Q, "id of r"]
    assert reads(counting, lambda: catalog.pipes.unsealed(both))["rows"] == 2
    for _ in range(2):
        assert reads(counting, lambda: catalog.pipes.unsealed(both))["rows"] == 1
    assert catalog.pipes.unsealed(both) == []
