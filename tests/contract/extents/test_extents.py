"""The ExtentStore port: append, read, seal and drop, over every store."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from cassq.base.clock import ManualClock, Stopwatch, SystemClock
from cassq.errors import BackendError, PipeSealedError
from cassq.extents.port import (
    ExtentMissingError,
    ExtentReader,
    ExtentStore,
    ExtentWriter,
    Slice,
)
from cassq.message.frames import Extras, Place, encode, pipe_key
from tests.contract.backends import ExtentPlace
from tests.integration.deadlines import DEADLINE_SECONDS

PIPE = "018bcfe5680001a2b3c4d5e6"
OTHER = "018bcfe5680002a2b3c4d5e6"
START = Place(0, 0)
MUCH = 1 << 30


def payload(seq: int, size: int = 0) -> bytes:
    return b"message %d" % seq + bytes(size)


def frame(base: int, count: int, pipe_id: str = PIPE, size: int = 0) -> tuple[bytes, bytes]:
    payloads = [payload(seq, size) for seq in range(base, base + count)]
    return encode(base, payloads, Extras(1000), pipe_key=pipe_key(pipe_id))


@dataclass
class Stand:
    """A store and what was opened in it, to be closed with the test."""

    place: ExtentPlace
    clock: ManualClock
    store: ExtentStore
    opened: list[ExtentReader | ExtentWriter] = field(default_factory=list)

    def create(self, pipe_id: str = PIPE, queue: str = "q") -> ExtentWriter:
        writer = self.store.create(pipe_id, queue, strict=self.place.strict)
        self.opened.append(writer)
        return writer

    def reader(self, pipe_id: str = PIPE) -> ExtentReader:
        reader = self.store.reader(pipe_id)
        self.opened.append(reader)
        return reader

    def learns(self, has_learned: Callable[[], object]) -> bool:
        """Whether what another process did is known, after no more time than the store needs."""
        waited = Stopwatch()
        while not has_learned():
            if waited.seconds() >= self.place.lag:
                return False
        return True

    def elsewhere(self) -> ExtentStore:
        """The store as another process has it."""
        return self.place.open(self.clock)


@pytest.fixture
def stand(extent_place: ExtentPlace, clock: ManualClock) -> Iterator[Stand]:
    stand = Stand(extent_place, clock, extent_place.open(clock))
    yield stand
    for thing in stand.opened:
        thing.close()
    stand.store.close()


def append(writer: ExtentWriter, *counts: int, size: int = 0) -> Place:
    """Append frames of so many messages each, all at once."""
    base = writer.end.seq
    frames = []
    for count in counts:
        frames.append(frame(base, count, size=size))
        base += count
    return writer.append(frames, base)


def said(slices: Sequence[Slice]) -> list[bytes]:
    return [text for piece, first, last in slices for text in piece.payloads(first, last)]


def expected(start: int, end: int, size: int = 0) -> list[bytes]:
    return [payload(seq, size) for seq in range(start, end)]


def read_all(reader: ExtentReader, end_seq: int) -> list[bytes]:
    """Everything below `end_seq`, a few messages at a time."""
    found: list[bytes] = []
    place = START
    while place.seq < end_seq:
        slices = reader.read(place, end_seq, 7, MUCH)
        found += said(slices)
        place = reader.place_after(place, slices)
    return found


# --- appending and reading --------------------------------------------------------------------


def test_a_new_extent_is_empty(stand: Stand) -> None:
    writer = stand.create()
    assert writer.end.seq == 0
    assert not writer.sealed()
    assert not writer.turn_wanted()
    reader = stand.reader()
    assert reader.published().seq == 0
    assert reader.read(START, 0, 10, MUCH) == []


def test_what_was_appended_is_published_and_read_in_order(stand: Stand) -> None:
    writer, reader = stand.create(), stand.reader()
    total = 0
    for counts in ((1,), (3,), (2, 5, 1), (100,)):
        total += sum(counts)
        end = append(writer, *counts)
        assert end == writer.end == reader.published()
        assert end.seq == total
        assert said(reader.read(START, total, 1000, MUCH)) == expected(0, total)


def test_every_column_comes_back(stand: Stand) -> None:
    writer = stand.create()
    extras = Extras([5, 6], [b'{"a":"b"}', None], [None, b"k"], [b"x:1", None])
    writer.append([encode(0, [b"one", b"two"], extras, pipe_key=pipe_key(PIPE))], 2)
    ((found, first, last),) = stand.reader().read(START, 2, 10, MUCH)
    assert (first, last) == (0, 2)
    assert (found.headers, found.keys, found.ids) == (extras.headers, extras.keys, extras.ids)
    assert [found.time_ms(index) for index in range(2)] == [5, 6]


def test_a_reader_stops_at_the_end_it_is_given(stand: Stand) -> None:
    append(stand.create(), 4, 4, 4)
    reader = stand.reader()
    for end_seq in range(13):
        assert said(reader.read(START, end_seq, 100, MUCH)) == expected(0, end_seq)


def test_a_reader_begins_anywhere_and_takes_no_more_than_asked(stand: Stand) -> None:
    append(stand.create(), 4, 1, 7)
    reader = stand.reader()
    for start in range(12):
        for limit in range(1, 14):
            found = said(reader.read(Place(start, 0), 12, limit, MUCH))
            assert found == expected(start, min(12, start + limit))


def test_a_read_takes_frames_up_to_a_size_but_always_one(stand: Stand) -> None:
    append(stand.create(), 2, 2, 2, 2)
    reader = stand.reader()
    sizes = [piece.frame.size for piece in reader.read(START, 8, 100, MUCH)]
    for taken in range(1, 5):
        exact = sum(sizes[:taken])
        assert said(reader.read(START, 8, 100, exact)) == expected(0, 2 * taken)
        if taken > 1:
            assert said(reader.read(START, 8, 100, exact - 1)) == expected(0, 2 * taken - 2)
    assert said(reader.read(START, 8, 100, 0)) == expected(0, 2)


def test_the_place_after_a_read_is_where_the_next_begins(stand: Stand) -> None:
    append(stand.create(), 4, 1, 7, 3)
    reader, fresh = stand.reader(), stand.reader()
    for step in range(1, 16):
        place = START
        found: list[bytes] = []
        while place.seq < 15:
            slices = reader.read(place, 15, step, MUCH)
            found += said(slices)
            place = reader.place_after(place, slices)
            assert place.seq == len(found)
            again = said(fresh.read(place, 15, 100, MUCH))
            assert again == expected(place.seq, 15)
        assert found == expected(0, 15)
        assert place == reader.published()


def test_the_place_after_a_read_is_found_though_other_frames_were_read_since(
    stand: Stand,
) -> None:
    append(stand.create(), 4, 4, 4, 4)
    reader = stand.reader()
    first = reader.read(START, 16, 6, MUCH)
    reader.read(Place(12, 0), 16, 4, MUCH)
    place = reader.place_after(START, first)
    assert said(reader.read(place, 16, 100, MUCH)) == expected(6, 16)


def test_a_reader_opened_early_sees_what_comes_later(stand: Stand) -> None:
    """What it has read ahead may have been written over meanwhile."""
    writer, reader = stand.create(), stand.reader()
    place = START
    for number in range(60):
        append(writer, 1 + number % 3, size=number * 5)
        end = reader.published()
        assert end == writer.end
        slices = reader.read(place, end.seq, 100, MUCH)
        assert said(slices) == expected(place.seq, end.seq, number * 5)
        place = reader.place_after(place, slices)


@pytest.mark.parametrize("size", [70_000, 300_000, 5_000_000])
def test_frames_of_any_size_are_read(stand: Stand, size: int) -> None:
    writer, reader = stand.create(), stand.reader()
    append(writer, 1)
    append(writer, 1, 1, size=size)
    append(writer, 2)
    assert said(reader.read(Place(1, 0), 3, 10, MUCH)) == expected(1, 3, size)
    assert said(reader.read(Place(3, 0), 5, 10, MUCH)) == expected(3, 5)
    assert said(reader.read(START, 5, 1, MUCH)) == expected(0, 1)


def test_thousands_of_frames_may_be_appended_at_once(stand: Stand) -> None:
    writer = stand.create()
    assert append(writer, *[1] * 3000).seq == 3000
    assert said(stand.reader().read(START, 3000, 3000, MUCH)) == expected(0, 3000)


@pytest.mark.parametrize("seed", range(4))
def test_many_readers_read_anything_while_it_grows(stand: Stand, seed: int) -> None:
    chance = random.Random(seed)
    writer = stand.create()
    readers = [stand.reader() for _ in range(3)]
    for _ in range(60):
        sizes = [chance.randint(1, 9) for _ in range(chance.randint(1, 4))]
        end = append(writer, *sizes, size=chance.choice([0, 0, 10]))
        reader = chance.choice(readers)
        start = chance.randrange(end.seq)
        stop = chance.randint(start + 1, end.seq)
        limit = chance.randint(1, 40)
        found = said(reader.read(Place(start, 0), stop, limit, MUCH))
        numbers = [int(text.split()[1].rstrip(b"\0")) for text in found]
        assert numbers == list(range(start, min(stop, start + limit)))


# --- sealing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 20])
def test_sealing_finds_everything_acknowledged(stand: Stand, count: int) -> None:
    writer = stand.create()
    for _ in range(count):
        append(writer, 3)
    end = stand.elsewhere().seal(PIPE)
    assert end == writer.end
    assert end.seq == 3 * count
    assert read_all(stand.reader(), end.seq) == expected(0, end.seq)


def test_sealing_twice_gives_the_same_end(stand: Stand) -> None:
    writer = stand.create()
    append(writer, 5)
    end = stand.store.seal(PIPE)
    assert stand.store.seal(PIPE) == stand.elsewhere().seal(PIPE) == end
    writer.close()
    assert stand.store.seal(PIPE) == end


def test_a_sealed_extent_takes_no_more(stand: Stand) -> None:
    writer = stand.create()
    append(writer, 5)
    end = stand.elsewhere().seal(PIPE)
    assert stand.learns(writer.sealed)
    for _ in range(2):
        with pytest.raises(PipeSealedError):
            append(writer, 1)
    assert writer.end == end, "nothing more was acknowledged"
    assert stand.reader().published() == end
    again = stand.store.seal(PIPE)
    assert again.seq >= end.seq
    assert read_all(stand.reader(), end.seq) == expected(0, 5)


def test_an_extent_is_sealed_after_its_writer_is_gone(stand: Stand) -> None:
    writer = stand.create()
    append(writer, 5)
    end = append(writer, 5)
    writer.close()
    assert stand.elsewhere().seal(PIPE) == end


def test_a_closed_writer_takes_no_more(stand: Stand) -> None:
    writer = stand.create()
    append(writer, 5)
    writer.close()
    writer.close()
    with pytest.raises(PipeSealedError):
        append(writer, 1)
    assert stand.store.seal(PIPE).seq == 5


def test_a_seal_fences_a_writer_that_is_appending(stand: Stand) -> None:
    """Of every append either the sealer sees it, or the writer is told."""
    other = stand.elsewhere()
    for number in range(12):
        pipe_id = f"{number:024x}"
        writer = stand.create(pipe_id)
        pusher, begun = pushing(writer, pipe_id, number)
        assert begun.wait(DEADLINE_SECONDS)
        end = other.seal(pipe_id)
        pusher.join(DEADLINE_SECONDS)
        assert not pusher.is_alive()
        acknowledged = writer.end.seq
        assert number < acknowledged <= end.seq <= acknowledged + 1
        again = other.seal(pipe_id)
        assert again.seq >= end.seq
        assert said(stand.reader(pipe_id).read(START, end.seq, MUCH, MUCH)) == expected(0, end.seq)


def pushing(
    writer: ExtentWriter, pipe_id: str, head_start: int
) -> tuple[threading.Thread, threading.Event]:
    """A thread that appends until it is fenced, and what it sets after so many appends."""
    begun = threading.Event()

    def push() -> None:
        while True:
            base = writer.end.seq
            try:
                writer.append([frame(base, 1, pipe_id)], base + 1)
            except PipeSealedError:
                return
            if base == head_start:
                begun.set()

    thread = threading.Thread(target=push)
    thread.start()
    return thread, begun


def test_the_writer_of_an_extent_is_gone_when_it_is_closed(stand: Stand) -> None:
    writer = stand.create()
    assert not stand.elsewhere().abandoned(PIPE)
    append(writer, 1)
    assert not stand.elsewhere().abandoned(PIPE)
    writer.close()
    assert stand.learns(lambda: stand.elsewhere().abandoned(PIPE))
    assert stand.elsewhere().abandoned("unknown")


# --- taking turns -----------------------------------------------------------------------------


def test_asking_for_a_turn_returns_the_time_of_the_last_append(stand: Stand) -> None:
    writer = stand.create()
    reader = stand.store.reader(PIPE)
    stand.clock.advance(5)
    append(writer, 1)
    pushed_ms = stand.clock.boot_ms()
    stand.clock.advance(5)
    assert not writer.turn_wanted()
    assert reader.ask_turn() == pushed_ms
    assert writer.turn_wanted()
    reader.close()


# --- coming and going -------------------------------------------------------------------------


def test_the_last_write_is_at_the_last_append_or_later_where_it_is_known(stand: Stand) -> None:
    writer = stand.create()
    before_ms = SystemClock().wall_ms() - 1000  # file systems round times
    append(writer, 3)
    stand.store.seal(PIPE)
    last_ms = stand.store.last_write_ms(PIPE)
    assert last_ms is None or last_ms >= before_ms
    writer.close()
    stand.store.drop([PIPE])
    assert stand.elsewhere().last_write_ms(PIPE) is None


def test_a_dropped_extent_is_gone(stand: Stand) -> None:
    for pipe_id in (PIPE, OTHER):
        stand.create(pipe_id).close()
    other = stand.elsewhere()
    for _ in range(2):
        other.drop([PIPE, "unknown"])
        other.drop([])
    for call in (stand.store.reader, stand.store.seal):
        with pytest.raises(ExtentMissingError) as caught:
            call(PIPE)
        assert isinstance(caught.value, BackendError)
        assert not caught.value.retryable
        assert PIPE in str(caught.value)
        assert caught.value.hint
    assert [info.pipe_id for info in stand.store.extents()] == [OTHER]


def test_an_extent_that_is_dropped_under_its_writer_acknowledges_no_more(stand: Stand) -> None:
    writer = stand.create()
    append(writer, 1)
    stand.elsewhere().drop([PIPE])
    with pytest.raises(PipeSealedError):
        append(writer, 1)


def test_a_reader_may_outlive_what_it_reads(stand: Stand) -> None:
    append(stand.create(), 5)
    reader = stand.reader()
    stand.store.drop([PIPE])
    try:
        found = said(reader.read(START, 5, 10, MUCH))
    except ExtentMissingError:
        return
    assert found == expected(0, 5)


def test_extents_tell_what_they_are_without_a_catalog(stand: Stand) -> None:
    stand.create(OTHER, "/team/queue~group~dead").close()
    stand.create(PIPE, "q")
    known = "018bcfe5680003a2b3c4d5e6"
    stand.create(known, "q")
    assert stand.learns(lambda: stand.elsewhere().abandoned(OTHER))
    found = list(stand.elsewhere().extents([known]))
    assert [(info.pipe_id, info.queue_name, info.abandoned) for info in found] == [
        (PIPE, "q", False),
        (OTHER, "/team/queue~group~dead", True),
    ]
    assert len(list(stand.store.extents())) == 3
    assert list(stand.store.extents({PIPE, OTHER, known})) == []


def test_an_extent_that_is_there_is_not_made_again(stand: Stand) -> None:
    """Whatever the second is told, the first goes on, and can still be fenced."""
    writer = stand.create()
    end = append(writer, 5)
    with pytest.raises(BackendError):
        stand.elsewhere().create(PIPE, "another queue")
    assert [info.queue_name for info in stand.store.extents()] == ["q"]
    assert stand.reader().published() == end
    assert append(writer, 1).seq == 6
    assert stand.elsewhere().seal(PIPE) == writer.end
    with pytest.raises(PipeSealedError):
        append(writer, 1)


def test_an_extent_that_is_gone_can_be_made_again(stand: Stand) -> None:
    append(stand.create(), 5)
    stand.store.drop([PIPE])
    writer = stand.create()
    assert writer.end.seq == 0
    assert append(writer, 2).seq == 2
    assert read_all(stand.reader(), 2) == expected(0, 2)


def test_extents_do_not_get_into_each_other_s_way(stand: Stand) -> None:
    writers = {pipe_id: stand.create(pipe_id) for pipe_id in (PIPE, OTHER)}
    calls: list[Callable[[], object]] = []
    for base in range(10):
        for pipe_id, writer in writers.items():
            calls.append(lambda w=writer, p=pipe_id, b=base: w.append([frame(b, 1, p)], b + 1))
    for call in calls:
        call()
    assert stand.store.seal(PIPE).seq == 10
    assert not writers[OTHER].sealed()
    writers[OTHER].append([frame(10, 1, OTHER)], 11)
    assert read_all(stand.reader(PIPE), 10) == expected(0, 10)
    assert read_all(stand.reader(OTHER), 11) == expected(0, 11)
