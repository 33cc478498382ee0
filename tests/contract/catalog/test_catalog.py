"""The Catalog port: its time, its schema, and many connections at once.

What it says of queues, pipes and claims is in the suites beside this one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from cassq.base.clock import ManualClock, SystemClock
from cassq.catalog.port import Catalog
from cassq.errors import ClosedError, ConfigError
from cassq.model import claims
from cassq.model.queues import QueuePolicy
from tests.contract.backends import CatalogPlace
from tests.contract.conftest import OpenCatalog
from tests.contract.rows import Consumer, make_queue, pipe_row, place, version
from tests.integration.deadlines import DEADLINE_SECONDS


def at_once(works: Sequence[Callable[[], object]]) -> None:
    """Run these in a thread each, begun together; what one raises is raised here."""
    start = threading.Barrier(len(works))
    failures: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            start.wait(DEADLINE_SECONDS)
            work()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


# --- time -------------------------------------------------------------------------------------


def test_a_new_catalog_begins_at_the_wall_s_time(catalog: Catalog, clock: ManualClock) -> None:
    assert catalog.now_ms() == clock.wall_ms()


def test_catalog_time_passes_as_time_does(catalog: Catalog, clock: ManualClock) -> None:
    before = catalog.now_ms()
    clock.advance(2.5)
    assert catalog.now_ms() == before + 2500


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 1e9, -1e9])
def test_a_jump_of_the_wall_clock_moves_no_deadline(
    catalog: Catalog, open_catalog: OpenCatalog, clock: ManualClock, jump: float
) -> None:
    before = catalog.now_ms()
    clock.jump_wall(jump)
    assert catalog.now_ms() == before
    assert open_catalog().now_ms() == before, "nor for one who comes later"
    clock.advance(1)
    assert catalog.now_ms() == before + 1000


def test_all_connections_have_one_time(catalog: Catalog, other: Catalog) -> None:
    assert catalog.now_ms() == other.now_ms()


@pytest.mark.parametrize("jump", [0.0, -86400.0])
def test_time_does_not_go_back_over_a_restart_of_the_machine(
    catalog: Catalog, open_catalog: OpenCatalog, clock: ManualClock, jump: float
) -> None:
    make_queue(catalog)
    clock.advance(100)
    reached = catalog.now_ms()
    assert catalog.pipes.add(pipe_row("p", created_ms=reached))
    catalog.close()
    clock.jump_wall(jump)
    clock.reboot()
    again = open_catalog()
    assert again.now_ms() >= reached
    clock.advance(1)
    assert again.now_ms() >= reached + 1000


def test_time_begins_ahead_by_no_more_than_a_lease_after_a_power_cut(
    catalog: Catalog, open_catalog: OpenCatalog, clock: ManualClock
) -> None:
    assert catalog.leases.take("reaper:passing", "me", 5000) is not None
    before = catalog.now_ms()
    catalog.close()
    clock.reboot()
    assert before <= open_catalog().now_ms() <= before + 5000


# --- opening and closing ----------------------------------------------------------------------


def test_what_was_written_is_there_after_opening_again(
    catalog: Catalog, open_catalog: OpenCatalog
) -> None:
    make_queue(catalog, claim_timeout=7)
    catalog.close()
    row = open_catalog().queues.named("q")
    assert row is not None
    assert row.policy == QueuePolicy(claim_timeout=7)


def test_a_closed_catalog_says_so_and_may_be_closed_again(catalog: Catalog) -> None:
    catalog.close()
    catalog.close()
    for call in (
        catalog.queues.listed,
        lambda: make_queue(catalog),
        lambda: catalog.leases.take("l", "me", 5),
    ):
        with pytest.raises(ClosedError):
            call()


def test_many_may_open_a_new_catalog_at_once(catalog_place: CatalogPlace) -> None:
    opened: list[Catalog] = []
    clock = SystemClock()
    try:
        at_once([lambda: opened.append(catalog_place.open(clock)) for _ in range(8)])
        assert len(opened) == 8
        make_queue(opened[0])
        assert all(catalog.queues.named("q") for catalog in opened)
        assert len({catalog.now_ms() // 60_000 for catalog in opened}) <= 2
    finally:
        for catalog in opened:
            catalog.close()


# --- schema -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [1, 1000])
def test_a_catalog_of_a_newer_cassq_is_refused_and_left_as_it_is(
    catalog_place: CatalogPlace, open_catalog: OpenCatalog, ahead: int
) -> None:
    make_queue(open_catalog())
    known = catalog_place.schema_version()
    catalog_place.set_schema_version(known + ahead)
    with pytest.raises(ConfigError, match=f"version {known + ahead}.* supports {known}") as caught:
        open_catalog()
    assert "newer cassq" in caught.value.hint
    assert catalog_place.schema_version() == known + ahead
    catalog_place.set_schema_version(known)
    assert open_catalog().queues.named("q") is not None


def test_another_program_s_data_is_refused_and_left_as_it_is(
    catalog_place: CatalogPlace, open_catalog: OpenCatalog
) -> None:
    catalog_place.occupy()
    before = catalog_place.schema_version()
    with pytest.raises(ConfigError, match="another program") as caught:
        open_catalog()
    assert "of its own" in caught.value.hint
    assert catalog_place.schema_version() == before


# --- many connections at once -----------------------------------------------------------------


def test_a_conditional_write_is_won_by_one_of_many(open_catalog: OpenCatalog) -> None:
    clock = SystemClock()
    catalogs = [open_catalog(clock) for _ in range(6)]
    make_queue(catalogs[0])
    won: list[bool] = []

    def change(catalog: Catalog) -> None:
        for turn in range(1, 11):
            while (row := catalog.queues.named("q")) is None or row.version < turn:
                continue  # until the others are here too
            won.append(catalog.queues.update(row.id, turn, QueuePolicy(max_pop_width=turn)))

    at_once([lambda catalog=catalog: change(catalog) for catalog in catalogs])
    assert won.count(True) == 10
    row = catalogs[0].queues.named("q")
    assert row is not None
    assert (row.version, row.policy.max_pop_width) == (11, 10)


def test_the_chains_of_many_poppers_never_overlap_and_leave_no_gap(
    open_catalog: OpenCatalog,
) -> None:
    clock = SystemClock()
    catalogs = [open_catalog(clock) for _ in range(4)]
    make_queue(catalogs[0])
    assert catalogs[0].pipes.add(pipe_row("p"))
    claimed: list[tuple[int, int]] = []

    def pop(number: int, catalog: Catalog) -> None:
        consumer = Consumer(catalog)
        while (cursor := consumer.cursor).chain.seq < 300:
            chain = place(cursor.chain.seq + 1 + number)
            row = claims.first(cursor, chain, f"popper {number}", 10**15, version)
            if catalog.claims.claim(cursor, chain, [row]):
                claimed.append((row.start, row.end))
                if row.start % 3:
                    assert consumer.finish(row)

    at_once([lambda n=n, c=c: pop(n, c) for n, c in enumerate(catalogs)])
    claimed.sort()
    assert claimed[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(claimed))
    consumer = Consumer(catalogs[0])
    done = consumer.assert_covered()
    assert set(done) == {s for start, end in claimed if start % 3 for s in range(start, end)}
