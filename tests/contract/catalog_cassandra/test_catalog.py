"""What the Cassandra catalog promises besides its port: answers that get lost, and races."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from cassq.base.clock import SystemClock
from cassq.base.ids import Ids
from cassq.cassandra.session import Cql
from cassq.catalog.cassandra import CassandraCatalog
from cassq.catalog.cassandra.claims.cursor_tables import LIST_PIPES, NOTE_PIPE
from cassq.catalog.cassandra.partition.queue_rows import name_slice
from cassq.catalog.cassandra.queue_tables import MARK_DELETED, NOTE_NAME, ORPHAN_MS
from cassq.model.queues import GroupPolicy, QueuePolicy, to_json
from cassq.model.rows import Dedup, Incident
from cassq.model.schedules import ScheduleRow
from tests.contract.backends import CatalogPlace
from tests.contract.rows import group_row, make_queue, pipe_row, queue_row
from tests.contract.shaky_cql import ShakyCql

ROW = Dedup("id of q", "a", "p", 5, at_ms=100)
INCIDENT = Incident("stalled:q", 10, 20, "{}")
TIDY = ScheduleRow("s1", "tidy", "id of q", "q", "@daily", "UTC", 0, 86_400_000)

Write = Callable[[CassandraCatalog], object]


@pytest.fixture
def shaky(keyspace: Cql, cassandra_place: CatalogPlace) -> Iterator[CassandraCatalog]:
    """A catalog whose session loses what it is told to lose; there is a queue `q`."""
    clock = SystemClock()
    cql = ShakyCql(keyspace.contact, clock, keyspace.contact.keyspace)
    catalog = CassandraCatalog(cql, clock)
    make_queue(catalog)
    yield catalog
    catalog.close()


def session(catalog: CassandraCatalog) -> ShakyCql:
    assert isinstance(catalog._keyspace.cql, ShakyCql)
    return catalog._keyspace.cql


# Each is one conditional write; all of them take effect the first time.
WRITES: dict[str, Write] = {
    "a queue": lambda c: c.queues.create(queue_row("r"), group_row("default", "r")),
    "a policy": lambda c: c.queues.update("id of q", 1, QueuePolicy(claim_timeout=5)),
    "a group's policy": lambda c: c.queues.update_group("q/default", GroupPolicy(claim_timeout=5)),
    "a lease": lambda c: c.leases.take("l", "me", 60_000) == 1,
    "a dedup id": lambda c: c.records.dedup(ROW) == ROW,
    "an incident": lambda c: c.records.put_incident(INCIDENT),
    "a schedule": lambda c: c.records.add_schedule(TIDY),
    "a pipe": lambda c: c.pipes.add(pipe_row("p")),
}


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize("lost", [1, 2])
def test_an_answer_that_gets_lost_is_read_back(
    shaky: CassandraCatalog, what: str, lost: int
) -> None:
    session(shaky).lost = lost
    assert WRITES[what](shaky)
    assert session(shaky).lost in (0, 1)


@pytest.mark.parametrize("what", ["a queue", "a lease", "a dedup id", "a pipe"])
@pytest.mark.parametrize("unsent", [1, 2])
def test_what_did_not_arrive_is_written_again(
    shaky: CassandraCatalog, what: str, unsent: int
) -> None:
    session(shaky).unsent = unsent
    assert WRITES[what](shaky)
    assert session(shaky).unsent == 0
    if what == "a queue":
        assert shaky.queues.named("r") == queue_row("r")
        assert shaky.queues.groups("id of r") == [group_row("default", "r")]


@pytest.mark.parametrize("what", ["a policy", "a group's policy", "an incident", "a schedule"])
def test_what_did_not_arrive_did_not_happen(shaky: CassandraCatalog, what: str) -> None:
    session(shaky).unsent = 1
    assert not WRITES[what](shaky)
    assert WRITES[what](shaky)


@pytest.mark.parametrize(("lost", "unsent"), [(1, 0), (0, 1), (0, 2)])
def test_a_queue_is_deleted_whatever_answer_is_lost(
    shaky: CassandraCatalog, lost: int, unsent: int
) -> None:
    session(shaky).lost, session(shaky).unsent = lost, unsent
    assert shaky.queues.delete("id of q") == []
    assert shaky.queues.named("q") is None
    assert [row.id for row in shaky.queues.listed(deleted=True)] == ["id of q"]


def test_a_lease_of_another_is_not_mistaken_for_ours(
    shaky: CassandraCatalog, cassandra_place: CatalogPlace
) -> None:
    other = cassandra_place.open(SystemClock())
    session(shaky).before_apply = lambda: other.leases.take("l", "you", 60_000)
    session(shaky).unsent = 1
    assert shaky.leases.take("l", "me", 60_000) is None
    other.close()


@pytest.mark.parametrize("lost", [1, 2])
def test_of_a_schedule_it_is_read_back_whether_it_was_changed_or_removed(
    shaky: CassandraCatalog, lost: int
) -> None:
    records = shaky.records
    records.add_schedule(TIDY)
    paused = replace(TIDY, paused=True)
    session(shaky).lost = lost
    assert records.change_schedule(TIDY, paused)
    assert not records.change_schedule(TIDY, replace(TIDY, missed="all")), "it was changed"
    session(shaky).lost = lost
    assert records.drop_schedule(paused)
    assert records.schedule("tidy") is None


def test_a_name_that_points_at_a_deleted_queue_may_be_taken(shaky: CassandraCatalog) -> None:
    """As it is when whoever deleted it crashed in the middle."""
    assert session(shaky).apply(MARK_DELETED, ("id of q",))[0]
    again = queue_row("q", "another id")
    assert shaky.queues.create(again, replace(group_row(), id="g", queue_id="another id"))
    assert shaky.queues.named("q") == again


def test_a_queue_whose_maker_ended_without_its_name_is_swept_when_it_is_old(
    shaky: CassandraCatalog,
) -> None:
    now_ms = shaky.now_ms()
    ids = {Ids().new(now_ms - age_ms): age_ms for age_ms in (2 * ORPHAN_MS, ORPHAN_MS // 2)}
    for queue_id in ids:
        assert not shaky.queues.create(queue_row("q", queue_id), group_row("default", "q"))
        # As it was before its maker took it back.
        values = (queue_id, "q", to_json(QueuePolicy()))
        shaky._keyspace.cql.apply(
            "INSERT INTO queues (queue_id, name, policy, version, groups_version, tail, deleted,"
            " wished_pipes, wished_ms, group_name) VALUES (?, ?, ?, 1, 1, '', false, 1, 0, 'd')"
            " IF NOT EXISTS",
            values,
        )
        shaky._keyspace.cql.write(NOTE_NAME, (name_slice("q"), "q", queue_id))
    assert [row.id for row in shaky.queues.listed()] == ["id of q"]
    deleted = [row.id for row in shaky.queues.listed(deleted=True)]
    assert [ids[queue_id] for queue_id in deleted] == [2 * ORPHAN_MS]
    shaky.queues.forget(deleted[0])
    assert shaky.queues.listed(deleted=True) == []
    assert shaky.queues.named("q") is not None


@pytest.mark.long(reason="many rows on a server")
def test_a_partition_of_many_rows_is_read_page_by_page(shaky: CassandraCatalog) -> None:
    """The driver's pages have 5,000 rows."""
    count = 11_000
    note = [(NOTE_PIPE, ("g", f"p{number:05}")) for number in range(count)]
    shaky._keyspace.cql.write_many(note)
    rows, other = shaky._keyspace.cql.read_many([(LIST_PIPES, ("g",)), (LIST_PIPES, ("other",))])
    assert [pipe_id for (pipe_id,) in rows] == [f"p{number:05}" for number in range(count)]
    assert other == []


def test_of_many_dedup_ids_those_written_are_put_back_when_one_was_taken_meanwhile(
    shaky: CassandraCatalog, cassandra_place: CatalogPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = cassandra_place.open(SystemClock())
    rows = [replace(ROW, dedup_id=name) for name in "abc"]
    old = replace(rows[0], pipe_id="old")
    assert shaky.records.dedup(old) == old
    theirs = replace(rows[2], pipe_id="theirs")
    cql = session(shaky)
    apply_many = cql.apply_many

    def after_another(statements: object) -> list[bool | None]:
        other.records.dedup(theirs)
        return apply_many(statements)  # type: ignore[arg-type]

    monkeypatch.setattr(cql, "apply_many", after_another)
    assert shaky.records.dedup_many(rows, {"a": old}) == [theirs]
    anew = [replace(row, pipe_id="anew") for row in rows]
    assert other.records.dedup(anew[0]) == old, "it stands as it stood"
    assert other.records.dedup(anew[1]) == anew[1], "nothing stands there"
    assert other.records.dedup(anew[2]) == theirs
    other.close()
