"""What the Cassandra store promises besides its port: buckets, lost answers, late writes."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cassq.base.clock import ManualClock
from cassq.cassandra.errors import OverloadedError
from cassq.cassandra.session import Cql
from cassq.errors import (
    BackendError,
    BackendTimeoutError,
    BackendUnavailableError,
    ConfigError,
    CorruptionError,
    PipeSealedError,
)
from cassq.extents.cassandra import CassandraStore, published, statements
from cassq.extents.cassandra import reader as reading
from cassq.extents.cassandra.places import bucket_and_seq, position
from cassq.extents.cassandra.published import PolledEnd
from cassq.extents.cassandra.writer import RECENT_BYTES_MAX, CassandraWriter, Sizes
from cassq.extents.port import ExtentMissingError
from cassq.message.frames import Place
from tests.contract.backends import CassandraExtents
from tests.contract.extents.test_extents import (
    MUCH,
    OTHER,
    PIPE,
    START,
    append,
    expected,
    frame,
    read_all,
    said,
)
from tests.contract.shaky_cql import ShakyCql
from tests.integration.deadlines import eventually

pytestmark = pytest.mark.servers
SMALL = Sizes(bucket_bytes=2000, bucket_frames=4, part_bytes=700, flight_bytes=1500)
BOTH = pytest.mark.parametrize("strict", [False, True], ids=["ap", "cp"])


@pytest.fixture
def cql(keyspace: Cql, clock: ManualClock) -> Iterator[ShakyCql]:
    CassandraExtents(keyspace, strict=False)  # empties it
    session = ShakyCql(keyspace.contact, clock, keyspace.contact.keyspace)
    yield session
    session.close()


@pytest.fixture
def store(cql: ShakyCql, clock: ManualClock) -> CassandraStore:
    """The store as its writer has it; with small buckets and parts."""
    return CassandraStore(cql, clock, SMALL)


@pytest.fixture
def other(keyspace: Cql, clock: ManualClock) -> CassandraStore:
    """The store as another process has it."""
    return CassandraStore(keyspace, clock)


def extent_of(cql: Cql, pipe_id: str = PIPE) -> str:
    ((name,),) = cql.read("SELECT extent FROM extents WHERE pipe_id = ?", (pipe_id,))
    return str(name)


def put_behind(
    cql: Cql, extent: str, bucket: int, start: int, base: int, count: int, parts: int = 1
) -> None:
    """Write a frame as a writer that died before it looked at the mark."""
    data = b"".join(frame(base, count))
    values = (extent, bucket, base, start, base + count, count, parts, data, base + count + 1)
    cql.write(statements.PUT, values)


# --- buckets and parts ------------------------------------------------------------------------


@BOTH
def test_frames_go_on_in_the_next_bucket(store: CassandraStore, strict: bool) -> None:
    writer = store.create(PIPE, "q", strict=strict)
    buckets = set()
    for number in range(30):
        end = append(writer, 1 + number % 3, size=(number % 5) * 150)
        buckets.add(bucket_and_seq(end.pos)[0])
    assert buckets == set(range(max(buckets) + 1))
    assert len(buckets) > 7
    reader = store.reader(PIPE)
    assert len(read_all(reader, end.seq)) == end.seq
    assert store.seal(PIPE) == end


@BOTH
def test_a_seq_is_found_whatever_bucket_it_is_in(
    store: CassandraStore, other: CassandraStore, strict: bool
) -> None:
    writer = store.create(PIPE, "q", strict=strict)
    append(writer, *[3] * 30)
    for seq in (0, 1, 5, 11, 12, 40, 88, 89):
        reader = other.reader(PIPE)
        slices = reader.read(Place(seq, 0), 90, 7, MUCH)
        assert said(slices) == expected(seq, min(90, seq + 7))
        after = reader.place_after(Place(seq, 0), slices)
        following = expected(after.seq, min(90, after.seq + 2))
        assert said(other.reader(PIPE).read(after, 90, 2, MUCH)) == following


@BOTH
def test_the_end_is_found_when_a_bucket_was_begun_and_nothing_written(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql, strict: bool
) -> None:
    writer = store.create(PIPE, "q", strict=strict)
    end = append(writer, *[1] * 4)
    cql.apply(statements.BEGIN_BUCKET, (2, PIPE, extent_of(cql), 1))
    assert other.seal(PIPE) == end
    with pytest.raises(PipeSealedError):
        append(writer, 1)


def test_a_bucket_begins_when_all_before_it_is_written(
    store: CassandraStore, cql: ShakyCql
) -> None:
    """Else a gap in an older bucket would be passed over by a seal."""
    writer = store.create(PIPE, "q")
    under_way = []
    cql.before_apply = lambda: under_way.append(cql.texts[statements.PUT] - cql.landed)
    append(writer, *[1] * 13)
    assert under_way == [0, 0, 0]


@BOTH
def test_no_bucket_begins_after_a_seal(
    store: CassandraStore, other: CassandraStore, strict: bool
) -> None:
    writer = store.create(PIPE, "q", strict=strict)
    end = append(writer, *[1] * 4)  # the bucket is full
    assert other.seal(PIPE) == end
    with pytest.raises(PipeSealedError):
        append(writer, 1)
    assert other.seal(PIPE) == end


@BOTH
def test_a_large_frame_is_there_with_its_first_part_only(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql, strict: bool
) -> None:
    writer = store.create(PIPE, "q", strict=strict)
    append(writer, 1, size=10)
    end = append(writer, 2, size=2500)
    assert read_all(other.reader(PIPE), end.seq)[1:] == expected(1, 3, 2500)
    extent = extent_of(cql)
    cql.write(statements.PUT_PART, (extent, *_where(end), 1, b"a part", 9))
    assert other.seal(PIPE) == end


def test_a_first_part_without_the_others_counts_for_nothing(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql
) -> None:
    end = append(store.create(PIPE, "q"), 1)
    put_behind(cql, extent_of(cql), 0, 0, 1, 1, parts=2)
    assert other.seal(PIPE) == end


def _where(end: Place) -> tuple[int, int]:
    return bucket_and_seq(end.pos)


# --- what a seal finds ------------------------------------------------------------------------


def test_a_seal_counts_what_was_written_and_not_acknowledged(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql
) -> None:
    append(store.create(PIPE, "q"), 2)
    put_behind(cql, extent_of(cql), 0, 0, 2, 3)
    end = other.seal(PIPE)
    assert end == Place(5, position(0, 5))
    assert read_all(other.reader(PIPE), 5) == expected(0, 5)


def test_a_seal_ends_at_the_first_gap(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql
) -> None:
    end = append(store.create(PIPE, "q"), 2)
    put_behind(cql, extent_of(cql), 0, 0, 3, 3)
    assert other.seal(PIPE) == end
    assert other.reader(PIPE).published() == end


def test_a_bucket_whose_first_frame_is_missing_adds_nothing(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql
) -> None:
    append(store.create(PIPE, "q"), *[1] * 4)
    extent = extent_of(cql)
    cql.apply(statements.BEGIN_BUCKET, (2, PIPE, extent, 1))
    put_behind(cql, extent, 1, 4, 5, 1)
    assert other.seal(PIPE).seq == 4
    put_behind(cql, extent, 1, 4, 4, 1)
    assert other.seal(PIPE).seq == 6, "found without the count that is kept beside the frames"


def test_a_writer_stopped_before_its_seal_check_acknowledges_nothing_past_the_end(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql
) -> None:
    """Sealed between the write and the look: the frame counts, and the writer is told."""
    writer = store.create(PIPE, "q")
    append(writer, 1)
    ends = []
    cql.before_result = lambda: ends.append(other.seal(PIPE))
    with pytest.raises(PipeSealedError):
        append(writer, 1)
    assert [end.seq for end in ends] == [2]
    assert writer.end.seq == 1


def test_an_extent_of_another_data_centre_is_not_sealed_from_here(
    store: CassandraStore, cql: ShakyCql, keyspace: Cql, clock: ManualClock
) -> None:
    writer = store.create(PIPE, "q")
    cql.contact = replace(keyspace.contact, data_centre="far")
    with pytest.raises(BackendUnavailableError, match="'dc1'.*'far'") as caught:
        CassandraStore(cql, clock).seal(PIPE)
    assert not caught.value.retryable
    assert append(writer, 1).seq == 1, "nothing was fenced"


@pytest.mark.parametrize("level", ["one", "local_one"])
def test_a_consistency_without_a_quorum_is_refused(
    cql: ShakyCql, clock: ManualClock, level: str
) -> None:
    cql.contact = replace(cql.contact, consistency=level)
    with pytest.raises(ConfigError, match=level):
        CassandraStore(cql, clock)


# --- lost answers -----------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("arrived", [True, False], ids=["applied", "not applied"])
def test_answers_that_get_lost_change_nothing(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql, strict: bool, arrived: bool
) -> None:
    def lose() -> None:
        cql.lost, cql.unsent = (1, 0) if arrived else (0, 1)

    lose()
    writer = store.create(PIPE, "q", strict=strict)
    assert cql.lost + cql.unsent == 0
    total = 0
    for _ in range(3):  # buckets
        lose()
        total += sum(counts := (1, 2, 1, 1))
        assert append(writer, *counts).seq == total
    lose()
    assert store.seal(PIPE) == writer.end
    assert read_all(other.reader(PIPE), total) == expected(0, total)
    lose()
    store.drop([PIPE])
    assert cql.lost + cql.unsent == 0
    assert list(other.extents()) == []


@BOTH
def test_a_writer_without_any_answer_gives_up_and_is_dead(
    cql: ShakyCql, other: CassandraStore, clock: ManualClock, strict: bool
) -> None:
    writer = CassandraStore(cql, clock, SMALL).create(PIPE, "q", strict=strict)
    end = append(writer, 1)
    cql.unsent = 1000
    cql.failing = [BackendTimeoutError("no answer") for _ in range(1000)]
    with pytest.raises(BackendTimeoutError):
        append(writer, 1)
    with pytest.raises(PipeSealedError):
        append(writer, 1)
    assert writer.end == end
    assert end.seq <= other.seal(PIPE).seq <= end.seq + 1


def test_an_overloaded_node_slows_the_writer_and_fails_nothing(
    store: CassandraStore, cql: ShakyCql, clock: ManualClock
) -> None:
    writer = store.create(PIPE, "q")
    cql.failing = [OverloadedError("too much to do") for _ in range(12)]
    flying: list[int] = []
    cql.before_result = lambda: flying.append(writer._flying_bytes)  # type: ignore[attr-defined]
    before_ms = clock.boot_ms()
    assert append(writer, *[1] * 6, size=300).seq == 6
    assert clock.boot_ms() - before_ms > 100
    assert 0 < max(flying) <= SMALL.flight_bytes, "what is under way is bounded"
    assert read_all(store.reader(PIPE), 6) == expected(0, 6, 300)


# --- what is told -----------------------------------------------------------------------------


@BOTH
def test_another_process_learns_of_every_append_and_of_none_before(
    store: CassandraStore, other: CassandraStore, strict: bool
) -> None:
    writer = store.create(PIPE, "q", strict=strict)
    reader = other.reader(PIPE)
    for _ in range(20):
        before = writer.end
        assert reader.published() <= before
        end = append(writer, 3)
        while reader.published() < end:
            assert reader.published() in (START, before, end)
        assert reader.published() == end


@BOTH
def test_nothing_is_reported_before_all_of_it_is_acknowledged(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql, strict: bool
) -> None:
    writer = store.create(PIPE, "q", strict=strict)
    end = append(writer, 1)
    reader = other.reader(PIPE)
    while reader.published() != end:
        pass  # until it is told
    before = cql.texts[statements.TELL_ACKED]
    meanwhile = set()
    cql.before_apply = cql.before_result = lambda: meanwhile.add(cql.texts[statements.TELL_ACKED])
    append(writer, 1, 1)
    assert meanwhile == {before}
    assert cql.texts[statements.TELL_ACKED] > before


def test_the_driver_s_thread_prepares_nothing(store: CassandraStore, cql: ShakyCql) -> None:
    """It would wait for an answer that only it can read."""
    writer = store.create(PIPE, "q")
    reader = CassandraStore(cql, ManualClock()).reader(PIPE)
    for _ in range(20):
        end = append(writer, 1)
        writer.sealed()
        reader.published()
    writer.close()
    while reader.published() != end:
        pass  # until it is told
    assert cql.binders == {threading.current_thread()}


def test_a_turn_is_asked_for_from_another_process(
    store: CassandraStore, other: CassandraStore, clock: ManualClock
) -> None:
    writer = store.create(PIPE, "q", strict=True)
    append(writer, 1)
    reader = other.reader(PIPE)
    while reader.published() != writer.end:
        pass  # until it is told
    asked_ms = clock.boot_ms()
    assert reader.ask_turn() == asked_ms
    clock.advance(5)
    assert other.reader(PIPE).ask_turn() == asked_ms, "nothing was appended since"
    while not writer.turn_wanted():
        pass  # until it is told
    append(writer, 1)
    while reader.published() != writer.end:
        pass
    assert reader.ask_turn() == clock.boot_ms()


# --- damage and drops -------------------------------------------------------------------------


def test_damage_is_found_before_a_payload_is_handed_out(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql
) -> None:
    append(store.create(PIPE, "q"), 2, 2, 2)
    extent = extent_of(cql)
    damaged = bytearray(b"".join(frame(2, 2)))
    damaged[-1] ^= 1
    spoil = "UPDATE frames SET frame = ? WHERE extent = ? AND bucket = 0 AND base_seq = 2"
    cql.write(f"{spoil} AND part = 0", (bytes(damaged), extent))
    reader = other.reader(PIPE)
    assert said(reader.read(START, 6, 9, MUCH)) == expected(0, 2)
    with pytest.raises(CorruptionError, match=PIPE):
        reader.read(Place(2, position(0, 2)), 6, 9, MUCH)
    cql.write("DELETE FROM frames WHERE extent = ? AND bucket = 0 AND base_seq = 2", (extent,))
    with pytest.raises(CorruptionError, match="missing"):
        other.reader(PIPE).read(Place(2, position(0, 2)), 6, 9, MUCH)
    assert said(other.reader(PIPE).read(Place(4, position(0, 4)), 6, 9, MUCH)) == expected(4, 6)


def test_the_next_whole_frame_behind_damage_is_found(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql
) -> None:
    """Behind a frame that is damaged, one that is missing, and one that is another pipe's."""
    append(store.create(PIPE, "q"), *[2] * 6)
    extent = extent_of(cql)
    damaged = bytearray(b"".join(frame(2, 2)))
    damaged[-1] ^= 1
    spoil = "UPDATE frames SET frame = ? WHERE extent = ? AND bucket = ? AND base_seq = ?"
    cql.write(f"{spoil} AND part = 0", (bytes(damaged), extent, 0, 2))
    cql.write("DELETE FROM frames WHERE extent = ? AND bucket = 0 AND base_seq = 4", (extent,))
    cql.write(f"{spoil} AND part = 0", (b"".join(frame(6, 2, OTHER)), extent, 0, 6))
    reader = other.reader(PIPE)
    after = reader.after_damage(Place(2, position(0, 2)), 12)
    assert after == Place(8, position(1, 8))  # a bucket takes four frames here
    assert said(reader.read(after, 12, 9, MUCH)) == expected(8, 12)
    assert reader.after_damage(Place(2, position(0, 2)), 8) is None
    cql.write(f"{spoil} AND part = 0", (b"rubbish", extent, 1, 10))
    assert other.reader(PIPE).after_damage(Place(10, position(1, 10)), 12) is None


def test_a_frame_of_another_pipe_is_not_taken_for_one_of_this(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql
) -> None:
    append(store.create(PIPE, "q"), 2)
    spoil = "UPDATE frames SET frame = ? WHERE extent = ? AND bucket = 0 AND base_seq = 0"
    cql.write(f"{spoil} AND part = 0", (b"".join(frame(0, 2, OTHER)), extent_of(cql)))
    with pytest.raises(CorruptionError):
        other.reader(PIPE).read(START, 2, 9, MUCH)


# --- what the writer's own process reads --------------------------------------------------------


@BOTH
def test_what_was_written_lately_is_not_read_from_the_servers(
    store: CassandraStore, cql: ShakyCql, strict: bool
) -> None:
    writer = store.create(PIPE, "q", strict=strict)
    reader = store.reader(PIPE)
    place = START
    for number in range(12):  # over several buckets
        end = append(writer, 2)
        cql.texts.clear()
        before = cql.sent
        slices = reader.read(place, end.seq, 9, MUCH)
        assert said(slices) == expected(2 * number, end.seq)
        place = reader.place_after(place, slices)
        assert cql.sent == before
    assert place == end
    again = store.reader(PIPE)
    assert said(again.read(Place(7, position(0, 6)), 11, 9, MUCH)) == expected(7, 11)
    assert cql.sent == before + 1, "only its head"


def test_frames_that_its_writer_has_dropped_are_read(store: CassandraStore, cql: ShakyCql) -> None:
    """Small ones are kept up to a size in all, larger ones not at all."""
    writer = store.create(PIPE, "q")
    count = 3 * RECENT_BYTES_MAX // 30_000
    end = append(writer, *[1] * count, size=30_000)
    assert 1 < sum(writer.wrote(seq) is not None for seq in range(count)) < count
    assert read_all(store.reader(PIPE), end.seq) == expected(0, end.seq, 30_000)
    append(writer, 1, size=2 * RECENT_BYTES_MAX)
    assert writer.wrote(count) is None
    assert writer.wrote(count - 1) is not None


@BOTH
def test_a_drop_leaves_nothing_and_takes_what_comes_late(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql, strict: bool
) -> None:
    writer = store.create(PIPE, "q", strict=strict)
    append(writer, *[1] * 9, size=900)
    extent = extent_of(cql)
    reader = other.reader(PIPE)
    other.drop([PIPE])
    put_behind(cql, extent, 0, 0, 0, 5)
    assert cql.read("SELECT base_seq FROM frames") == []
    with pytest.raises(PipeSealedError):
        append(writer, 1)
    writer.close()
    assert cql.read("SELECT base_seq FROM frames") == []
    with pytest.raises(ExtentMissingError):
        reader.read(START, 9, 9, MUCH)


@BOTH
def test_a_first_frame_that_comes_after_the_drop_is_not_acknowledged(
    store: CassandraStore, other: CassandraStore, strict: bool
) -> None:
    """Nothing is there any more that could refuse it."""
    writer = store.create(PIPE, "q", strict=strict)
    other.drop([PIPE])
    with pytest.raises(PipeSealedError):
        append(writer, 1)


# --- what it costs ----------------------------------------------------------------------------


def cost(cql: ShakyCql, writer: CassandraWriter, *counts: int) -> int:
    """Statements that an append waits for; telling of it is another one, now and then."""
    before = cql.waited
    append(writer, *counts)
    return cql.waited - before


def test_an_ap_append_costs_a_write_a_frame_and_one_read(
    store: CassandraStore, cql: ShakyCql
) -> None:
    writer = store.create(PIPE, "q")
    assert [cost(cql, writer, *[1] * n) for n in (1, 2, 1)] == [2, 3, 2]


def test_a_cp_append_costs_a_write_and_a_read_where_a_bucket_begins(
    store: CassandraStore, cql: ShakyCql
) -> None:
    writer = store.create(PIPE, "q", strict=True)
    assert [cost(cql, writer, 1) for _ in range(6)] == [2, 1, 1, 1, 3, 1]


@BOTH
def test_reading_in_order_costs_far_less_than_a_read_a_frame(
    cql: ShakyCql, clock: ManualClock, strict: bool
) -> None:
    store = CassandraStore(cql, clock)
    append(store.create(PIPE, "q", strict=strict), *[2] * 1000)
    reader = store.reader(PIPE)
    before = cql.waited
    assert read_all(reader, 2000) == expected(0, 2000)
    assert cql.waited - before < 30


def test_readers_of_one_process_that_share_a_frame_read_it_once(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql
) -> None:
    append(other.create(PIPE, "q"), 100, 100)
    at, cost = Place(0, 0), 0
    for seq in range(0, 100, 10):
        reader = store.reader(PIPE)
        before = cql.waited
        slices = reader.read(at, 200, 10, MUCH)
        assert said(slices) == expected(seq, seq + 10)
        at = reader.place_after(at, slices)
        cost += cql.waited - before
    assert cost <= 2  # the frame, and the next one in passing


def test_the_ends_of_several_pipes_are_asked_for_at_once_and_by_all_readers_together(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql
) -> None:
    pipes = ["a", "b", "c"]
    for pipe_id in pipes:
        append(other.create(pipe_id, "q"), 3)
    readers = [store.reader(pipe_id) for pipe_id in pipes for _ in range(4)]
    marks = cql.texts[statements.READ_MARKS]
    for reader in readers:
        reader.ask_published()
    assert cql.texts[statements.READ_MARKS] - marks == len(pipes)
    eventually("all are told", lambda: all(each.published().seq == 3 for each in readers))


def test_an_end_that_was_asked_for_is_waited_for(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql
) -> None:
    append(other.create(PIPE, "q"), 3)
    reader = store.reader(PIPE)
    eventually("it is told", lambda: reader.published().seq == 3)
    published = PolledEnd(cql, extent_of(cql))
    published.ask()
    assert published.newest().seq == 3


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast or slow the machine is: for readers, messages come all the time, and what they
    know of the end is old."""
    monkeypatch.setattr(reading, "IDLE_SECONDS", math.inf)
    monkeypatch.setattr(published, "STALE_SECONDS", 0.0)


@BOTH
def test_frames_that_are_asked_for_with_the_end_are_whole(
    keyspace: Cql, cql: ShakyCql, clock: ManualClock, busy: None, strict: bool
) -> None:
    """Also those of several parts, and the first of a bucket, which have to be read again."""
    writer = CassandraStore(keyspace, clock, SMALL).create(PIPE, "q", strict=strict)
    reader = CassandraStore(cql, clock).reader(PIPE)
    at = START
    for number in range(20):
        end = append(writer, 1, size=number % 5 * 300)
        reader.ask_published()
        while reader.published() != end:
            reader.ask_published()
        slices = reader.read(at, end.seq, 10, MUCH)
        assert said(slices) == expected(number, number + 1, number % 5 * 300)
        at = reader.place_after(at, slices)
    assert cql.texts[statements.NEXT_FRAME] > 0
    assert cql.texts[statements.READ_FRAMES] < 20


def test_a_frame_that_is_asked_for_with_the_end_is_not_read_unless_it_counts(
    store: CassandraStore, cql: ShakyCql, clock: ManualClock, busy: None
) -> None:
    """A writer that died before it looked at the mark had written it; a seal ends before it."""
    writer = store.create(PIPE, "q")
    end = append(writer, 1, 1)
    reader = CassandraStore(cql, clock).reader(PIPE)
    while reader.published() != end:
        reader.ask_published()
    assert len(read_all(reader, end.seq)) == 2
    put_behind(cql, extent_of(cql), 0, 0, 3, 1)  # after a gap
    put_behind(cql, extent_of(cql), 0, 0, 2, 1, parts=2)
    asked = cql.texts[statements.NEXT_FRAME]
    while cql.texts[statements.NEXT_FRAME] == asked:
        reader.ask_published()
        assert reader.published() == end
    assert store.seal(PIPE) == end
    assert reader.read(end, end.seq, 10, MUCH) == []


def test_an_extent_that_is_there_keeps_its_name_and_writer(
    store: CassandraStore, other: CassandraStore, cql: ShakyCql
) -> None:
    store.create(PIPE, "q")
    name = extent_of(cql)
    with pytest.raises(BackendError) as caught:
        other.create(PIPE, "q")
    assert not caught.value.retryable
    assert extent_of(cql) == name
