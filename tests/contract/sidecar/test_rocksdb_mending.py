"""A damaged block that a merge meets: the engine is opened without its table, and writes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import CompactOptions

from cassq.errors import BackendError
from cassq.message.frames import FrameError
from cassq.sidecar.engine.port import Replica
from cassq.sidecar.engine.rocksdb import mending
from cassq.sidecar.engine.rocksdb.manifest import (
    crc32c,
    manifest_of,
    record,
    remove_table,
    varint,
)
from cassq.sidecar.engine.rocksdb.rows import ROWS, is_frame_key, name_of, seq_bytes
from tests.contract.engines import FRAMES, ODD, OTHER, PIPE, RocksPlace, append, fill, look

pytestmark = pytest.mark.needs("module:rocksdict")

END = 10 * FRAMES
BETWEEN = "5" * 24  # of PIPE and OTHER


@pytest.fixture
def place(tmp_path: Path) -> Iterator[RocksPlace]:
    place = RocksPlace(tmp_path)
    yield place
    place.engine.close()


def merge(place: RocksPlace) -> None:
    """Have all frames merged. What goes wrong is seen by the next write."""
    if BETWEEN not in place.engine.replicas():
        # Tables that do not overlap are moved without a look into them.
        place.engine.create(Replica(BETWEEN, "orders", False, 1_700, 1))
    append(place, BETWEEN, place.engine.replicas()[BETWEEN].end)
    place.engine._compact(b"", b"\xff")


def frames_of(place: RocksPlace, pipe_id: str) -> list[int]:
    """The first seqs of the frames of a replica that can be read."""
    found = []
    for base_seq in range(0, place.engine.replicas()[pipe_id].end, 10):
        try:
            [frame] = place.engine.read(pipe_id, base_seq, base_seq + 1, 1, 1)
        except FrameError:
            continue
        found.append(base_seq)
        assert len(frame) > 3000
    return found


def is_met(place: RocksPlace, pipe_id: str = ODD) -> None:
    """A merge meets what is damaged, and the engine takes nothing more."""
    merge(place)
    with pytest.raises(BackendError, match="block checksum mismatch"):
        append(place, pipe_id, place.engine.replicas()[pipe_id].end)
    assert place.engine.failure == ""
    assert "block checksum mismatch" in place.engine.starved


def damaged(place: RocksPlace, *base_seqs: int) -> None:
    """PIPE and OTHER share a table, in which these frames of PIPE are damaged; ODD is elsewhere."""
    fill(place, PIPE, OTHER)
    place.reopen()  # which flushes it
    fill(place, ODD)
    place.reopen()
    for base_seq in base_seqs:
        place.flip(PIPE, base_seq)


def test_an_engine_that_met_a_damaged_table_takes_nothing_and_still_reports_and_reads(
    place: RocksPlace,
) -> None:
    damaged(place, 50)
    assert not place.engine.read_only
    is_met(place)
    assert place.engine.read_only
    assert place.engine.has_room(), "nothing keeps it from being opened again"
    with pytest.raises(BackendError, match="no more writes are accepted") as caught:
        place.engine.note(ODD, damage="a frame is bad", fenced=True)
    assert "resumes by itself" in caught.value.hint  # type: ignore[attr-defined]
    assert not place.engine.replicas()[ODD].damage, "with more than damage all of it is undone"
    for _ in range(2):
        with pytest.raises(BackendError, match="no more writes are accepted"):
            place.engine.note(PIPE, damage="a frame is bad")
        assert place.engine.replicas()[PIPE].damage == "a frame is bad"
    assert look(place.engine, PIPE, OTHER, ODD) == {PIPE: True, OTHER: False, ODD: False}


@pytest.mark.parametrize("killed", [False, True])
def test_the_next_opening_mends_the_table_and_only_what_cannot_be_read_is_lost(
    place: RocksPlace, killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="cassq")
    bad = (0, 30, 50, 60, 110)
    damaged(place, *bad)
    is_met(place)
    if killed:
        place.halt()
        place.open()
    else:
        place.reopen()
    engine = place.engine
    assert (engine.failure, engine.starved, engine.read_only) == ("", "", False)
    assert "block checksum mismatch" in engine.replicas()[PIPE].damage
    assert not engine.replicas()[OTHER].damage
    assert "its 3 extents" in caplog.text
    assert "1 of them lack frames" in caplog.text
    assert frames_of(place, PIPE) == [seq for seq in range(0, END, 10) if seq not in bad]
    assert look(engine, OTHER, ODD) == {OTHER: False, ODD: False}
    append(place, ODD, END)
    merge(place)
    append(place, ODD, END + 10)
    place.sync()
    place.halt()
    place.open()
    assert place.engine.replicas()[PIPE].damage, "it was noted"
    assert frames_of(place, ODD) == list(range(0, END + 20, 10))
    # It is copied again, as repairs do.
    place.engine.cut(PIPE, 0)
    for base_seq in range(0, END, 10):
        append(place, PIPE, base_seq)
    place.engine.note(PIPE, damage="")
    merge(place)
    place.reopen()
    assert look(place.engine, PIPE, OTHER) == {PIPE: False, OTHER: False}


def keys(place: RocksPlace) -> set[bytes]:
    found = place.engine._db.iter()
    found.seek_to_first()
    kept = set()
    while found.valid():
        kept.add(bytes(found.key()))
        found.next()
    found.status()
    return kept


def test_what_the_table_had_hidden_does_not_come_back(place: RocksPlace) -> None:
    gone = "f" * 24
    fill(place, PIPE, OTHER, gone)
    place.reopen()
    # The table that will be damaged has frames of PIPE, and hides frames of the other two.
    append(place, PIPE, END)
    append(place, PIPE, END + 10)
    place.engine.cut(OTHER, 40)
    place.engine.drop([gone])
    place.sync()
    place.flip(PIPE, END + 10)
    append(place, OTHER, 40)
    is_met(place, OTHER)
    place.reopen()
    assert place.engine.starved == ""
    assert frames_of(place, PIPE) == list(range(0, END + 10, 10))
    assert frames_of(place, OTHER) == [0, 10, 20, 30, 40]
    kept = {name_of(PIPE) + seq_bytes(seq) for seq in range(0, END + 10, 10)}
    kept.add(name_of(BETWEEN) + seq_bytes(0))
    kept |= {name_of(OTHER) + seq_bytes(seq) for seq in range(0, 50, 10)}
    assert keys(place) == kept


def test_one_table_after_the_other_is_mended(place: RocksPlace) -> None:
    damaged(place, 50)
    place.flip(ODD, 20)
    new = "e" * 24
    place.engine.create(Replica(new, "orders", False, 1_700, 1))
    for _ in range(2):
        is_met(place, new)
        place.reopen()
        append(place, new, place.engine.replicas()[new].end)
    merge(place)
    append(place, new, place.engine.replicas()[new].end)
    expected = {PIPE: True, OTHER: False, ODD: True}
    found = place.engine.replicas()
    assert {each: bool(found[each].damage) for each in expected} == expected
    assert frames_of(place, new) == [0, 10, 20]


def test_without_room_to_mend_it_the_directory_is_read_until_there_is(
    place: RocksPlace,
) -> None:
    damaged(place, 50)
    is_met(place)
    place.engine.close()
    place.free_min = 1 << 60
    place.open()
    assert "cannot be mended" in place.engine.failure
    assert look(place.engine, PIPE, OTHER, ODD) == {PIPE: True, OTHER: False, ODD: False}
    with pytest.raises(BackendError, match="no more writes are accepted"):
        append(place, ODD, END)
    place.engine.close()
    place.free_min = 1000
    place.open()
    assert place.engine.failure == ""
    append(place, ODD, END)
    merge(place)
    append(place, ODD, END + 10)


def test_a_note_of_a_table_that_no_longer_exists_is_dropped(place: RocksPlace) -> None:
    fill(place, PIPE)
    place.engine.close()
    for text in ("7777\n", "nonsense"):
        (place.place / "mend").write_text(text)
        place.open()
        assert look(place.engine, PIPE) == {PIPE: False}
        place.engine.close()
    place.open()


def test_a_damaged_table_with_rows_cannot_be_mended(place: RocksPlace) -> None:
    fill(place, PIPE, OTHER)
    place.reopen()
    # A table whose blocks were never read: the others are in memory.
    fill(place, BETWEEN)
    rows = place.engine._db.get_column_family(ROWS)
    rows.flush(True)
    for each in place.engine._db.live_files():
        if not is_frame_key(each["start_key"]):
            table = place.place / "rocksdb" / each["name"].strip("/")
            content = bytearray(table.read_bytes())
            content[20] ^= 1
            table.write_bytes(content)
    rows.compact_range(b"", b"\xff", CompactOptions())
    with pytest.raises(BackendError, match="block checksum mismatch"):
        append(place, PIPE, END)
    assert "block checksum mismatch" in place.engine.failure
    assert place.engine.starved == ""
    assert not (place.place / "mend").exists()


# --- the manifest -------------------------------------------------------------------------------


def test_the_checksum_is_that_of_rocksdb() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert [varint(number) for number in (0, 127, 128, 300)] == [
        *(b"\0", b"\x7f", b"\x80\x01", b"\xac\x02")
    ]


def table_with(place: RocksPlace, pipe_id: str) -> mending.Table:
    """The one table with frames of a replica; the engine is closed then."""
    found = [
        mending.table_named(place.engine._db, each["name"])
        for each in place.engine._db.live_files()
        if each["start_key"].startswith(name_of(pipe_id)) and is_frame_key(each["start_key"])
    ]
    place.engine.close()
    [table] = found
    assert table is not None
    return table


@pytest.mark.parametrize("left", [0, 6, 7, 9, 500])
def test_a_table_is_taken_off_the_list_wherever_a_block_of_it_ends(
    place: RocksPlace, left: int
) -> None:
    fill(place, PIPE)
    place.reopen()
    fill(place, ODD)
    place.reopen()
    table = table_with(place, ODD)
    path = manifest_of(place.place / "rocksdb")
    ignored = varint((1 << 13) + 1)  # of a field that readers may ignore
    size = path.stat().st_size
    length = 32768 - left - size - 7 - len(ignored) - 3
    with path.open("ab") as file:
        file.write(record(ignored + varint(length) + bytes(length), size))
    assert path.stat().st_size == 32768 - left
    remove_table(place.place / "rocksdb", table.level, table.number)
    place.open()
    assert look(place.engine, PIPE) == {PIPE: False}
    assert frames_of(place, ODD) == []
    assert not (place.place / "rocksdb" / f"{table.number:06d}.sst").exists()


def test_a_record_that_a_power_cut_tore_is_ignored(place: RocksPlace) -> None:
    fill(place, ODD)
    place.reopen()
    table = table_with(place, ODD)
    path = manifest_of(place.place / "rocksdb")
    size = path.stat().st_size
    remove_table(place.place / "rocksdb", table.level, table.number)
    whole = path.read_bytes()
    place.keep()
    for kept in range(size + 1, len(whole)):
        place.again()
        manifest_of(place.place / "rocksdb").write_bytes(whole[:kept])
        place.open()
        assert look(place.engine, ODD) == {ODD: False}
        place.engine.close()


def test_keys_of_frames_differ_from_those_of_rows() -> None:
    for pipe_id in (PIPE, ODD):
        assert is_frame_key(name_of(pipe_id) + seq_bytes(7))
        assert not is_frame_key(name_of(pipe_id))
