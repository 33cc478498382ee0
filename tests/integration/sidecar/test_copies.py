"""Sidecars among themselves: extents are copied from one to another, scrubbed, and walked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from cassq.base.clock import ManualClock
from cassq.errors import BackendUnavailableError
from cassq.extents.protocol.messages import (
    Code,
    Done,
    Drop,
    Fence,
    List,
    Open,
    Read,
    RefusedError,
    Replicate,
    Replicated,
    Scrub,
    Scrubbed,
    Settle,
)
from cassq.extents.sidecar.net.connection_pool import ConnectionPool
from cassq.model.sidecar_rows import Placement, ReplicaAt
from cassq.sidecar.care.orphan_collector import OrphanCollector, ScrubPass
from cassq.sidecar.care.orphans import OrphanStep, OrphanVerb
from cassq.sidecar.care.replicating import CopySteps
from cassq.sidecar.catalog_thread import CatalogThread
from cassq.sidecar.engine.port import Replica
from tests.integration.sidecars import CLUSTER, Running, append, call, links_to, reply

FRAMES = 40
END = FRAMES * 10


def patient(name: str) -> Running:
    """One whose steps are cut by bytes alone, also where it stands still for a while."""
    running = Running(name)
    running.sidecar.replicating.steps = CopySteps(seconds=60.0)
    return running


@pytest.fixture
def a() -> Iterator[Running]:
    running = patient("a")
    yield running
    running.stop()


@pytest.fixture
def b() -> Iterator[Running]:
    running = patient("b")
    yield running
    running.stop()


@pytest.fixture
def links(a: Running, b: Running) -> Iterator[ConnectionPool]:
    with closing(links_to(a, b)) as links:
        fill(links, "a")
        yield links


def fill(links: ConnectionPool, sidecar: str, *, settled: bool = True) -> None:
    reply(links, sidecar, Open("p", 1, "q", False))
    frames = [append("p", n * 10, [b"%d" % n * 1000] * 10) for n in range(FRAMES)]
    assert call(links, sidecar, *frames).error is None
    if settled:
        reply(links, sidecar, Fence("p", 2))
        reply(links, sidecar, Settle("p", END))


def copy(of: Running, **changes: Any) -> Replicate:
    whole = Replicate("p", "q", False, of.address, END, 1 << 30)
    return structs.replace(whole, **changes)


def refused(links: ConnectionPool, sidecar: str, request: Any) -> RefusedError:
    answer = call(links, sidecar, request)
    assert isinstance(answer.error, RefusedError), answer
    return answer.error


# --- copying ------------------------------------------------------------------------------------


def test_an_extent_is_copied_in_steps_and_counts_when_it_is_whole(
    a: Running, b: Running, links: ConnectionPool
) -> None:
    step = 3 * 20_000
    seq = reply(links, "b", copy(a, bytes_max=step)).seq
    assert 0 < seq < END
    there = b.engine.replicas()["p"]
    assert (there.copying, there.fenced, there.final, there.end) == (True, True, None, seq)
    assert reply(links, "b", Fence("p", 3)).copying
    assert refused(links, "b", append("p", seq, [b"x"], epoch=9)).code is Code.FENCED
    steps = 1
    while seq < END:
        following = reply(links, "b", copy(a, bytes_max=step)).seq
        assert following > seq
        seq, steps = following, steps + 1
    assert steps > 5
    there = b.engine.replicas()["p"]
    assert (there.copying, there.final, there.end, there.damage) == (False, END, END, "")
    whole = Read("p", 0, END, 1 << 22, 1000, 0)
    assert reply(links, "b", whole) == reply(links, "a", whole)
    assert reply(links, "a", Scrub("p", 0)) == reply(links, "b", Scrub("p", 0))
    assert reply(links, "b", copy(a, source="127.0.0.1:1")) == Replicated(END), "it is whole"
    assert refused(links, "b", copy(a, end=END - 10)).code is Code.CONFLICT
    assert refused(links, "b", copy(a, queue_name="other")).code is Code.CONFLICT


def test_a_copy_is_durable_before_it_is_reported(
    a: Running, b: Running, links: ConnectionPool
) -> None:
    reply(links, "b", copy(a))
    assert b.engine._unsynced == {}  # type: ignore[attr-defined]


def test_a_damaged_extent_is_copied_again_and_reported_as_damaged_until_it_is_whole(
    a: Running, b: Running, links: ConnectionPool
) -> None:
    fill(links, "b")
    b.engine.flip("p", 100)  # type: ignore[attr-defined]
    assert "100" in reply(links, "b", Scrub("p", 0)).damage
    seq = reply(links, "b", copy(a, bytes_max=100_000)).seq
    assert seq < END
    (extent,) = reply(links, "b", List("", 10, "damaged")).extents
    assert extent.damage.startswith("it is being copied anew")
    assert extent.copying
    assert refused(links, "b", Fence("p", 5)).code is Code.DAMAGED
    assert reply(links, "b", copy(a)) == Replicated(END)
    assert reply(links, "b", List("", 10, "damaged")).extents == []
    assert reply(links, "b", Scrub("p", 0)) == reply(links, "a", Scrub("p", 0))


def test_an_extent_whose_row_was_lost_is_copied_and_is_of_its_queue_again(
    a: Running, b: Running, links: ConnectionPool
) -> None:
    """Its queue was lost with it, as with a part of the log."""
    b.engine.create(Replica("p", "", False, 0, 1, fenced=True, damage="all of it is lost"))
    assert reply(links, "b", copy(a)) == Replicated(END)
    there = b.engine.replicas()["p"]
    assert (there.queue_name, there.strict, there.damage) == ("q", False, "")
    assert refused(links, "b", copy(a, queue_name="other")).code is Code.CONFLICT
    assert reply(links, "b", Scrub("p", 0)) == reply(links, "a", Scrub("p", 0))


def test_an_extent_that_only_missed_its_end_is_settled_and_a_shorter_one_copied(
    a: Running, b: Running, links: ConnectionPool
) -> None:
    fill(links, "b", settled=False)
    reply(links, "b", append("p", END, [b"past the end"]))
    assert reply(links, "b", copy(a, source="127.0.0.1:1")) == Replicated(END)
    assert b.engine.replicas()["p"].end == END
    reply(links, "b", Drop(["p"]))
    reply(links, "b", Open("p", 1, "q", False))
    reply(links, "b", append("p", 0, [b"0" * 1000] * 10))
    assert reply(links, "b", copy(a)) == Replicated(END)


def test_a_source_that_is_away_damaged_or_lacks_it_is_named_and_the_copy_stays(
    a: Running, b: Running, links: ConnectionPool
) -> None:
    done = reply(links, "b", copy(a, bytes_max=100_000)).seq
    error = refused(links, "b", copy(a, source="127.0.0.1:1"))
    assert error.code is Code.FAILED
    assert "127.0.0.1:1" in error.message
    assert refused(links, "b", copy(b)).code is Code.FAILED, "it has no more than itself"
    a.engine.flip("p", END - 10)  # type: ignore[attr-defined]
    error = refused(links, "b", copy(a))
    assert error.code is Code.DAMAGED
    assert a.address in error.message
    assert b.engine.replicas()["p"].end == END - 10, "as far as it was good"
    assert done < END - 10
    reply(links, "a", Drop(["p"]))
    assert refused(links, "b", copy(a)).code is Code.UNKNOWN
    assert b.engine.replicas()["p"].copying


def test_what_a_source_gives_is_verified(
    a: Running, b: Running, links: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = a.engine.read

    def damaged(*args: Any) -> list[bytes]:
        frames = read(*args)
        return [frames[0], frames[1][:-1] + b"?", *frames[2:]]

    def skipping(*args: Any) -> list[bytes]:
        return read(*args)[1:]

    monkeypatch.setattr(a.engine, "read", damaged)
    error = refused(links, "b", copy(a))
    assert error.code is Code.DAMAGED
    assert "gave a damaged frame" in error.message
    assert b.engine.replicas()["p"].end == 10
    monkeypatch.setattr(a.engine, "read", skipping)
    assert "gave a frame at 20, not 10" in refused(links, "b", copy(a)).message
    monkeypatch.setattr(a.engine, "read", read)
    assert "gave a frame at" in refused(links, "b", copy(a, end=END - 5)).message
    assert reply(links, "b", copy(a)) == Replicated(END)


def test_two_copies_at_once_are_one(
    a: Running, b: Running, links: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, waits, begun = a.engine.read, threading.Event(), threading.Event()

    def slow_read(*args: Any) -> list[bytes]:
        begun.set()
        assert waits.wait(20)
        return read(*args)

    monkeypatch.setattr(a.engine, "read", slow_read)
    answers: list[Any] = []
    other = threading.Thread(target=lambda: answers.append(reply(links, "b", copy(a))))
    other.start()
    assert begun.wait(20)
    assert refused(links, "b", copy(a)).code is Code.BUSY
    waits.set()
    other.join(20)
    assert answers == [Replicated(END)]


def test_a_copy_takes_no_longer_than_its_limit(
    a: Running, b: Running, links: ConnectionPool
) -> None:
    b.sidecar.replicating.steps = CopySteps(seconds=0.0, frames=1)
    assert reply(links, "b", copy(a)) == Replicated(10)
    assert reply(links, "b", copy(a)) == Replicated(20)


def test_a_sidecar_that_drains_takes_no_copies(
    a: Running, b: Running, links: ConnectionPool
) -> None:
    b.sidecar.replica_state.draining = True
    assert refused(links, "b", copy(a)).code is Code.DRAINING
    assert not b.engine.replicas()


# --- scrubbing ----------------------------------------------------------------------------------


def test_a_scrub_ends_at_the_same_seq_on_every_replica(
    a: Running, b: Running, links: ConnectionPool
) -> None:
    fill(links, "b")
    for each in (a, b):
        each.sidecar.scrubbing.stretch_bytes = 150_000
    b.sidecar.scrubbing.step_frames = 3  # however the frames are read, the stretch is the same
    seq, stretches = 0, 0
    while seq < END:
        there: Scrubbed = reply(links, "a", Scrub("p", seq))
        assert reply(links, "b", Scrub("p", seq)) == there
        assert there.damage == ""
        assert there.seq > seq
        seq, stretches = there.seq, stretches + 1
    assert stretches > 1
    assert seq == END
    assert refused(links, "b", Scrub("none", 0)).code is Code.UNKNOWN


def test_damage_that_a_scrub_finds_is_noted(a: Running, links: ConnectionPool) -> None:
    a.engine.flip("p", 50)  # type: ignore[attr-defined]
    found = reply(links, "a", Scrub("p", 0))
    assert found.seq == 50
    assert "50" in found.damage
    assert a.engine.replicas()["p"].damage == found.damage
    assert reply(links, "a", Scrub("p", 60)).damage, "and told from then on"


def test_a_scrub_pass_reads_all_and_finds_what_is_damaged(
    a: Running, links: ConnectionPool
) -> None:
    for pipe_id in ("o", "r"):
        reply(links, "a", Open(pipe_id, 1, "q", False))
        reply(links, "a", append(pipe_id, 0, [b"x"]))
    a.engine.flip("r", 0)  # type: ignore[attr-defined]
    scrubs = ScrubPass(a.engine, a.sidecar.scrubbing)
    assert a.run(lambda: scrubs.once(1e9)) == 1
    assert a.engine.replicas()["r"].damage
    assert not a.engine.replicas()["p"].damage
    assert a.sidecar.scrubbing.frames == FRAMES + 1


# --- the steward --------------------------------------------------------------------------------


class Rows:
    """Placements, as far as a steward asks for them. It is its own roles."""

    def __init__(self) -> None:
        self.sidecars = self.records = self
        self.placements: dict[str, Placement] = {}
        self.away = False

    def placements_of(self, pipe_ids: list[str]) -> list[Placement | None]:
        if self.away:
            raise BackendUnavailableError("it is away")
        return [self.placements.get(pipe_id) for pipe_id in pipe_ids]

    def identity(self) -> str:
        return CLUSTER

    def close(self) -> None:
        pass


def placement(replica: ReplicaAt, end: int | None) -> Placement:
    return Placement("p", "q", False, (replica,), 1, "v1", 0, end)


SAFE_MS = 1000


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def walk(a: Running, rows: Rows, clock: ManualClock) -> Iterator[Callable[[], list[OrphanStep]]]:
    catalog = CatalogThread(CLUSTER, lambda: rows)  # type: ignore[arg-type,return-value]
    me = ReplicaAt("a", a.engine.generation)
    steward = OrphanCollector(
        a.engine, a.sidecar.dispatcher, catalog, me, clock, {"copied": 5000}, SAFE_MS
    )
    yield lambda: a.run(steward.walk)
    catalog.close()


def test_the_steward_settles_what_missed_its_end(
    a: Running, walk: Callable[[], list[OrphanStep]], rows: Rows
) -> None:
    with closing(links_to(a)) as links:
        fill(links, "a", settled=False)
    me = ReplicaAt("a", a.engine.generation)
    rows.placements["p"] = placement(me, None)
    assert walk() == []
    rows.placements["p"] = placement(me, END - 20)
    assert walk() == [OrphanStep(OrphanVerb.SETTLE, "p", END - 20)]
    assert a.engine.replicas()["p"].final == END - 20
    assert a.engine.replicas()["p"].end == END - 20
    assert walk() == []
    rows.placements["p"] = placement(me, END)
    (step,) = walk()
    assert step.verb is OrphanVerb.DAMAGE
    assert str(END) in a.engine.replicas()["p"].damage
    assert walk() == [], "whoever repairs sees to it"


def test_a_copy_that_is_not_whole_and_has_its_row_is_damaged(
    a: Running, walk: Callable[[], list[OrphanStep]], rows: Rows
) -> None:
    """It was begun in the place of one that was missing, and whoever did so may have ended."""
    a.engine.create(Replica("p", "q", False, 0, 2, fenced=True, copying=True))
    me = ReplicaAt("a", a.engine.generation)
    rows.placements["p"] = placement(ReplicaAt("b", "1"), END)
    assert walk() == [], "of a copy elsewhere it is not known yet whether it will count"
    rows.placements["p"] = placement(me, END)
    (step,) = walk()
    assert step == OrphanStep(OrphanVerb.DAMAGE, "p", damage="it is a copy that is not whole")
    assert a.engine.replicas()["p"].damage == step.damage
    assert walk() == []


def test_an_extent_that_is_shorter_than_its_end_is_damaged(
    a: Running, links: ConnectionPool, walk: Callable[[], list[OrphanStep]], rows: Rows
) -> None:
    reply(links, "a", Open("q", 1, "q", False))
    me = ReplicaAt("a", a.engine.generation)
    rows.placements["p"] = placement(me, END)
    rows.placements["q"] = replace(placement(me, 5), pipe_id="q")
    (step,) = walk()
    assert (step.pipe_id, step.verb) == ("q", OrphanVerb.DAMAGE)
    assert reply(links, "a", List("", 5, "damaged")).extents[0].pipe_id == "q"


@pytest.mark.parametrize("others", [None, ReplicaAt("b", "b-1"), ReplicaAt("a", "a-older")])
def test_an_orphan_is_removed_only_after_the_safe_time(
    others: ReplicaAt | None,
    a: Running,
    links: ConnectionPool,
    walk: Callable[[], list[OrphanStep]],
    rows: Rows,
    clock: ManualClock,
) -> None:
    if others is not None:
        rows.placements["p"] = placement(others, END)
    assert walk() == []
    clock.advance((SAFE_MS - 1) / 1000)
    assert walk() == []
    rows.placements["p"] = placement(ReplicaAt("a", a.engine.generation), END)
    assert walk() == [], "it got its row"
    rows.placements.pop("p")
    assert walk() == []
    clock.advance((SAFE_MS - 1) / 1000)
    assert walk() == [], "its time began anew"
    rows.away = True
    with pytest.raises(BackendUnavailableError):
        walk()
    rows.away = False
    clock.advance(0.001)
    assert walk() == [OrphanStep(OrphanVerb.DROP, "p")]
    assert "p" not in a.engine.replicas()
    assert reply(links, "a", Drop(["p"])) == Done()


def test_a_copy_in_progress_is_not_an_orphan(
    a: Running, links: ConnectionPool, walk: Callable[[], list[OrphanStep]], clock: ManualClock
) -> None:
    reply(links, "a", Drop(["p"]))
    reply(links, "a", Open("copied", 1, "q", False))  # copied to at 5000 ms, on a clock at 1000
    assert walk() == []
    clock.advance(4 + (SAFE_MS - 1) / 1000)
    assert walk() == []
    clock.advance(0.001)
    assert walk() == [OrphanStep(OrphanVerb.DROP, "copied")]


def test_the_steward_walks_all_of_many_extents_in_bounded_reads(
    a: Running, links: ConnectionPool, walk: Callable[[], list[OrphanStep]], rows: Rows
) -> None:
    ids = [f"x{number:03}" for number in range(250)]
    for pipe_id in ids:
        reply(links, "a", Open(pipe_id, 1, "q", False))
    me = ReplicaAt("a", a.engine.generation)
    rows.placements = {i: replace(placement(me, 0), pipe_id=i) for i in ids}
    steps = walk()
    assert [step.pipe_id for step in steps] == ids
    assert {step.verb for step in steps} == {OrphanVerb.SETTLE}
    assert reply(links, "a", List("x", 9, "unsealed")).extents == []
