"""RocksDB below a sidecar: what is damaged is told as damaged, never as merely shorter."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rocksdict import AccessType, Options, Rdict

from cassq.base.clock import Stopwatch
from cassq.errors import BackendError, CorruptionError
from cassq.sidecar.engine.port import Replica
from cassq.sidecar.engine.rocksdb.engine import RocksEngine
from cassq.sidecar.engine.rocksdb.marks import _SEGMENT_SLOTS as SLOTS
from cassq.sidecar.engine.rocksdb.mending import Table, any_table_named, set_aside
from cassq.sidecar.engine.rocksdb.opening import REAPPEARED
from cassq.sidecar.engine.rocksdb.rows import ROWS, name_of, seq_bytes
from tests.contract.engines import (
    FRAMES,
    ODD,
    OTHER,
    PIPE,
    SIZE,
    RocksPlace,
    a_frame,
    append,
    fill,
    look,
)

pytestmark = pytest.mark.needs("module:rocksdict")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[RocksPlace]:
    place = RocksPlace(tmp_path)
    yield place
    place.engine.close()


# --- the log ----------------------------------------------------------------------------------


def test_a_log_torn_behind_what_was_synced_is_not_damage(place: RocksPlace) -> None:
    fill(place, PIPE, OTHER)
    append(place, PIPE, 10 * FRAMES)
    place.halt()
    [log] = place.logs()
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 100)
    place.open()
    assert look(place.engine, PIPE, OTHER) == {PIPE: False, OTHER: False}


def test_a_log_cut_before_synced_bytes_damages_the_replicas_that_lost_them(
    place: RocksPlace,
) -> None:
    fill(place, PIPE)
    place.sync()
    fill(place, OTHER, ODD)
    place.engine.append(ODD, 10 * FRAMES, 10, a_frame(10 * FRAMES, pipe_id=ODD), 0)
    place.engine.sync()
    place.halt()
    [log] = place.logs()
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 50)
    place.open()
    assert look(place.engine, PIPE, OTHER, ODD) == {PIPE: False, OTHER: False, ODD: True}
    damage = place.engine.replicas()[ODD].damage
    assert damage == f"it ends at {10 * FRAMES}, but was synced up to {10 * FRAMES + 10}"
    # It stays so, whatever comes.
    place.reopen()
    place.engine.sync()
    place.reopen()
    assert place.engine.replicas()[ODD].damage == damage


def test_a_log_that_is_removed_damages_all_that_was_in_it(place: RocksPlace) -> None:
    fill(place, PIPE)
    place.reopen()  # which flushes it
    fill(place, OTHER)
    place.halt()
    for log in place.logs():
        log.unlink()
    place.open()
    assert look(place.engine, PIPE, OTHER) == {PIPE: False, OTHER: True}
    lost = place.engine.replicas()[OTHER]
    assert lost.fenced
    assert lost.damage == f"all of it is lost; it was synced up to {10 * FRAMES}"
    place.engine.drop([OTHER])
    place.reopen()
    assert list(place.engine.replicas()) == [PIPE]


@pytest.mark.parametrize(
    "change", [{"fenced": True}, {"final": 10}, {"epoch": 2}, {"copying": True}, {"damage": "x"}]
)
def test_a_change_that_was_synced_and_is_lost_is_damage(
    place: RocksPlace, change: dict[str, int]
) -> None:
    fill(place, PIPE)
    [log] = place.logs()
    size = log.stat().st_size
    place.engine.note(PIPE, **change)
    place.engine.sync()
    place.halt()
    with log_of(place).open("r+b") as file:
        file.truncate(size)
    place.open()
    assert place.engine.replicas()[PIPE].damage == "synced changes of it are lost"


def log_of(place: RocksPlace) -> Path:
    [log] = place.logs()
    return log


def test_an_extent_that_comes_back_after_its_removal_is_damaged(place: RocksPlace) -> None:
    fill(place, PIPE)
    size = log_of(place).stat().st_size
    place.engine.drop([PIPE])
    place.engine.sync()
    place.engine.create(Replica(OTHER, "orders", False, 1_700, 1))
    place.engine.sync()
    place.halt()
    with log_of(place).open("r+b") as file:
        file.truncate(size)
    place.open()
    assert place.engine.replicas()[PIPE].damage == REAPPEARED


@pytest.mark.parametrize("others", [0, SLOTS - 1], ids=["with free slots", "without"])
def test_the_extent_that_had_the_slot_of_one_that_came_back_is_known_to_be_lost(
    place: RocksPlace, others: int
) -> None:
    fill(place, PIPE)
    for number in range(others):
        place.engine.create(Replica(f"{number:024x}", "orders", False, 1_700, 1))
    place.engine.sync()
    size = log_of(place).stat().st_size
    place.engine.drop([PIPE])
    place.engine.sync()
    fill(place, OTHER)  # it gets the slot of the other, which is the first that is free
    place.halt()
    with log_of(place).open("r+b") as file:
        file.truncate(size)
    place.open()
    there = place.engine.replicas()
    assert there[PIPE].damage == REAPPEARED
    assert there[OTHER].damage == f"all of it is lost; it was synced up to {10 * FRAMES}"
    before = {pipe_id: each.damage for pipe_id, each in there.items()}
    place.reopen()
    assert {pipe_id: each.damage for pipe_id, each in place.engine.replicas().items()} == before
    place.engine.drop([PIPE, OTHER])
    fill(place, ODD, "third", "fourth")
    place.reopen()
    assert look(place.engine, ODD, "third", "fourth") == dict.fromkeys(
        [ODD, "third", "fourth"], False
    )


def test_one_that_comes_back_does_not_share_its_slot(place: RocksPlace) -> None:
    fill(place, PIPE)
    rows = place.engine._db.get_column_family(ROWS)
    row = rows.get(name_of(PIPE))
    place.engine.drop([PIPE])
    place.engine.sync()
    fill(place, OTHER)
    # As if the table that has the removal was damaged, and left.
    rows.put(name_of(PIPE), row)
    del rows  # the directory would stay open
    place.reopen()
    there = place.engine.replicas()
    assert (there[PIPE].damage, there[OTHER].damage) == (REAPPEARED, "")
    place.engine.drop([PIPE])
    place.engine.sync()  # which clears its mark, and not that of the other
    place.engine.note(OTHER, epoch=5)
    size = log_of(place).stat().st_size
    place.engine.note(OTHER, fenced=True)
    place.engine.sync()
    place.halt()
    with log_of(place).open("r+b") as file:
        file.truncate(size)
    place.open()
    assert place.engine.replicas()[OTHER].damage == "synced changes of it are lost"


def test_no_flipped_bit_in_the_log_makes_a_replica_merely_shorter(place: RocksPlace) -> None:
    rng = random.Random(5)
    fill(place, PIPE, OTHER)
    place.halt()
    [log] = place.logs()
    raw = log.read_bytes()
    outcomes = set()
    for at in sorted(rng.sample(range(len(raw)), 40)):
        place.again()
        flipped = bytearray(raw)
        flipped[at] ^= 1 << rng.randrange(8)
        log_of(place).write_bytes(flipped)
        place.open()
        found = look(place.engine, PIPE, OTHER)
        outcomes.add((found[PIPE], found[OTHER]))
        place.engine.close()
    assert (True, True) in outcomes
    place.open()


# --- tables, marks, and other files -------------------------------------------------------------


def test_no_flipped_bit_in_a_table_is_given_out(place: RocksPlace) -> None:
    rng = random.Random(6)
    fill(place, PIPE, OTHER)
    place.engine._db.flush(True)
    place.halt()
    damaged = 0
    for number in range(12):
        place.again()
        table = rng.choice(sorted(place.place.glob("rocksdb/*.sst")))
        raw = bytearray(table.read_bytes())
        # Every other one where tables tell of themselves.
        first = len(raw) - 1500 if number % 2 and len(raw) > 1500 else 0
        raw[rng.randrange(first, len(raw))] ^= 1 << rng.randrange(8)
        table.write_bytes(raw)
        place.open()
        assert place.engine.failure == ""
        damaged += any(look(place.engine, PIPE, OTHER).values())
        place.engine.close()
    assert damaged
    place.again()
    place.open()
    assert look(place.engine, PIPE, OTHER) == {PIPE: False, OTHER: False}


KINDS = ["*.sst", "*.log", "MANIFEST-*", "CURRENT", "OPTIONS-*", "marks"]


@pytest.mark.long(reason="an engine is opened for each bit")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flushed", [False, True])
def test_with_any_flipped_bit_it_starts_and_reports_damage_or_says_what_to_do(
    place: RocksPlace, kind: str, flushed: bool
) -> None:
    """flushed: frames are in tables, and their rows still in the log, which RocksDB then needs."""
    rng = random.Random(7)
    sixth, seventh = "6" * 24, "7" * 24
    fill(place, PIPE, OTHER)
    place.reopen()
    fill(place, sixth)
    if flushed:
        place.engine._db.flush(True)
    fill(place, seventh)
    place.halt()
    damaged = refused = 0
    for _ in range(40):
        place.again()
        path = rng.choice(sorted(place.place.rglob(kind)))
        raw = bytearray(path.read_bytes())
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        path.write_bytes(raw)
        try:
            place.open()
        except CorruptionError as exc:
            assert kind in ("MANIFEST-*", "CURRENT", "marks")
            assert "the same --name and an empty directory" in exc.hint
            refused += 1
            continue
        assert place.engine.failure == ""
        damaged += any(look(place.engine, PIPE, OTHER, sixth, seventh).values())
        place.engine.close()
    assert bool(damaged) == (kind in ("*.sst", "*.log")) or kind == "MANIFEST-*"
    assert bool(refused) == (kind in ("MANIFEST-*", "CURRENT")) or kind == "marks"
    place.again()
    place.open()


@pytest.mark.long(reason="an engine is opened for each bit")
def test_no_flipped_bit_in_the_marks_makes_a_replica_merely_shorter(place: RocksPlace) -> None:
    fill(place, PIPE, OTHER)
    place.halt()
    with log_of(place).open("r+b") as file:
        file.truncate(log_of(place).stat().st_size // 2)
    place.keep()
    marks = place.place / "marks"
    raw = marks.read_bytes()
    slots = range(65536, 65536 + 2 * 128)
    for at in slots:
        place.again()
        flipped = bytearray(raw)
        flipped[at] ^= 0x40
        (place.place / "marks").write_bytes(flipped)
        place.open()
        assert look(place.engine, PIPE, OTHER) == {PIPE: True, OTHER: True}
        place.engine.close()
    place.again()
    place.open()


def test_an_unreadable_mark_is_damage(place: RocksPlace) -> None:
    fill(place, PIPE)
    place.engine.close()
    with (place.place / "marks").open("r+b") as file:
        file.seek(65536)
        file.write(b"\xff" * 128)
    place.open()
    assert place.engine.replicas()[PIPE].damage == "its synced mark cannot be read"
    place.engine.drop([PIPE])
    fill(place, PIPE)
    place.reopen()
    assert place.engine.replicas()[PIPE].damage == ""


def test_marks_that_are_cut_off_are_damage(place: RocksPlace) -> None:
    fill(place, PIPE)
    place.engine.close()
    with (place.place / "marks").open("r+b") as file:
        file.truncate(65536)
    place.open()
    missing = "its synced mark is missing"
    assert place.engine.replicas()[PIPE].damage == missing
    fill(place, OTHER)
    place.reopen()
    assert place.engine.replicas()[OTHER].damage == ""
    assert place.engine.replicas()[PIPE].damage == missing


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def scrawled(path: Path) -> None:
    path.write_bytes(b"{\xff")


@pytest.mark.parametrize("harm", [Path.unlink, emptied, scrawled])
@pytest.mark.parametrize("name", ["marks", "CURRENT", "MANIFEST-*"])
def test_a_directory_that_cannot_be_vouched_for_is_refused_with_what_to_do(
    place: RocksPlace, name: str, harm: Callable[[Path], None]
) -> None:
    fill(place, PIPE)
    place.reopen()
    place.engine.close()
    path = next(place.place.rglob(name))
    kept = path.read_bytes()
    harm(path)
    with pytest.raises(CorruptionError) as caught:
        place.open()
    assert "the same --name and an empty directory" in caught.value.hint
    assert "may be corrupted" not in caught.value.message, "RocksDB blames its manifest for all"
    path.write_bytes(kept)
    place.open()
    assert look(place.engine, PIPE) == {PIPE: False}


def table_of(place: RocksPlace, family: str) -> Path:
    """The oldest table with "rows" or "frames" of PIPE; the directory is closed."""
    database, options = place.place / "rocksdb", Options(raw_mode=True)
    families = {"rows": Options(raw_mode=True)}
    access = AccessType.read_only()
    db = Rdict(str(database), options, column_families=families, access_type=access)
    key = name_of(PIPE) if family == "rows" else name_of(PIPE) + seq_bytes(0)
    names = {each["name"] for each in db.live_files() if each["start_key"] == key}
    db.close()
    return min(database / name.strip("/") for name in names)


def table_at(place: RocksPlace, path: Path) -> Table:
    """What the list of tables says of one; the directory is closed."""
    options, access = Options(raw_mode=True), AccessType.read_only()
    families = {"rows": Options(raw_mode=True)}
    database = str(place.place / "rocksdb")
    db = Rdict(database, options, column_families=families, access_type=access)
    table = any_table_named(db, path.name)
    db.close()
    assert table is not None
    return table


def cut_off(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 5)


def index_flipped(path: Path) -> None:
    flip(path, path.stat().st_size - 500)


def footer_flipped(path: Path) -> None:
    flip(path, path.stat().st_size - 30)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def one_table_closed(place: RocksPlace) -> Path:
    """PIPE is in this table, and ODD in another one; the directory is closed."""
    fill(place, PIPE)
    place.reopen()
    place.engine.close()
    path = table_of(place, "frames")
    place.open()
    fill(place, ODD)
    place.reopen()
    place.engine.close()
    return path


@pytest.mark.parametrize(
    ("harm", "lost"),
    [
        (Path.unlink, True),
        (emptied, True),
        (cut_off, False),
        (index_flipped, False),
        (footer_flipped, False),
    ],
)
@pytest.mark.parametrize("killed", [False, True])
def test_a_table_that_cannot_be_opened_is_mended_at_the_start(
    place: RocksPlace, harm: Callable[[Path], None], lost: bool, killed: bool
) -> None:
    """The frames in it are found without its index."""
    path = one_table_closed(place)
    table = table_at(place, path)
    harm(path)
    if killed:  # after the first step
        set_aside(place.place, place.place / "rocksdb", table, 0)
    place.open()
    engine = place.engine
    assert (engine.failure, engine.starved, engine.read_only) == ("", "", False)
    assert bool(engine.replicas()[PIPE].damage) == lost
    assert look(engine, PIPE, ODD) == {PIPE: lost, ODD: False}
    append(place, ODD, 10 * FRAMES)
    place.sync()
    assert not path.exists()
    assert list((place.place / "aside").iterdir()) == []
    place.halt()
    place.open()
    assert bool(place.engine.replicas()[PIPE].damage) == lost, "it was noted"
    assert place.engine.replicas()[ODD].end == 10 * FRAMES + 10
    if lost:  # it is copied again, as repairs do
        place.engine.cut(PIPE, 0)
        for number in range(FRAMES):
            append(place, PIPE, 10 * number)
        place.engine.note(PIPE, damage="")
    place.reopen()
    assert not place.engine.replicas()[PIPE].damage
    assert place.engine.read(PIPE, 0, 10 * FRAMES, 1 << 30, 1000)


def test_what_a_table_hid_stays_hidden_when_it_is_mended_at_the_start(place: RocksPlace) -> None:
    fill(place, PIPE, OTHER, ODD)
    place.reopen()
    place.engine.drop([OTHER])
    place.engine.cut(PIPE, 50)
    append(place, ODD, 10 * FRAMES)
    place.reopen()
    place.engine.close()
    paths = sorted(place.place.glob("rocksdb/*.sst"))
    footer_flipped([path for path in paths if table_at(place, path).has_frames][-1])
    place.open()
    assert place.engine.failure == ""
    assert set(place.engine.replicas()) == {PIPE, ODD}
    keys = place.engine._db.iter()
    keys.seek_to_first()
    found = set()
    while keys.valid():
        found.add(keys.key())
        keys.next()
    cut = {name_of(PIPE) + seq_bytes(10 * number) for number in range(5)}
    assert found == cut | {name_of(ODD) + seq_bytes(10 * each) for each in range(FRAMES + 1)}
    assert place.engine.replicas()[PIPE].end == 50


@pytest.mark.parametrize("harm", [Path.unlink, emptied, scrawled, index_flipped, footer_flipped])
def test_a_damaged_table_with_rows_leaves_and_its_replicas_are_damaged(
    place: RocksPlace, harm: Callable[[Path], None]
) -> None:
    fill(place, PIPE)
    place.reopen()
    place.engine.close()
    path = table_of(place, "rows")
    place.open()
    fill(place, OTHER)
    place.engine.close()
    harm(path)
    place.open()
    assert place.engine.failure == ""
    damage = {each.pipe_id: each.damage for each in place.engine.replicas().values()}
    assert damage == {PIPE: f"all of it is lost; it was synced up to {10 * FRAMES}", OTHER: ""}
    assert look(place.engine, OTHER) == {OTHER: False}
    append(place, OTHER, 10 * FRAMES)


@pytest.mark.parametrize("harm", [Path.unlink, emptied, cut_off, index_flipped, footer_flipped])
def test_without_room_to_mend_a_damaged_table_the_directory_is_read_and_takes_nothing_more(
    place: RocksPlace, harm: Callable[[Path], None]
) -> None:
    path = one_table_closed(place)
    kept = path.read_bytes()
    harm(path)
    before = contents(place)
    place.free_min = 1 << 60
    place.open()
    assert "opening the database" in place.engine.failure
    assert "may be corrupted" not in place.engine.failure
    assert place.engine.read_only
    assert look(place.engine, PIPE, ODD) == {PIPE: True, ODD: False}
    assert place.engine.read(ODD, 0, 10 * FRAMES, 1 << 30, 1000)
    for change in (
        lambda: append(place, ODD, 10 * FRAMES),
        lambda: place.engine.note(ODD, fenced=True),
        lambda: place.engine.drop([ODD]),
        place.engine.sync,
    ):
        with pytest.raises(BackendError, match="data are damaged, so no more writes are accepted"):
            change()
    with pytest.raises(BackendError):
        place.engine.note(PIPE, damage="a frame is bad")
    assert place.engine.replicas()[PIPE].damage == "a frame is bad", "it is reported"
    place.engine.close()
    assert contents(place) == before
    path.write_bytes(kept)
    place.free_min = 1000
    place.open()
    assert (place.engine.failure, place.engine.replicas()[PIPE].damage) == ("", "")
    assert look(place.engine, PIPE, ODD) == {PIPE: False, ODD: False}
    append(place, ODD, 10 * FRAMES)


def contents(place: RocksPlace) -> dict[str, bytes]:
    """The files of the database, but for its own log."""
    files = place.place.glob("rocksdb/*")
    return {each.name: each.read_bytes() for each in files if not each.name.startswith("LOG")}


# --- space --------------------------------------------------------------------------------------


def usage(path: Path) -> int:
    """Bytes on the disk; RocksDB may remove a file between the listing and a look at it."""
    blocks = 0
    for each in path.rglob("*"):
        with suppress(FileNotFoundError):
            blocks += each.stat().st_blocks if each.is_file() else 0
    return blocks * 512


def test_the_space_of_dropped_extents_is_given_back(place: RocksPlace) -> None:
    ids = [f"{number:024x}" for number in range(8)]
    fill(place, *ids)
    for number in range(FRAMES, 9 * FRAMES):
        for pipe_id in ids:
            append(place, pipe_id, 10 * number)
    place.sync()
    before = usage(place.place)
    assert before > 20 << 20
    place.engine.drop([*ids[:3], *ids[4:]])
    assert place.engine.reclaim() == 7
    after = usage(place.place)
    assert after < before / 8 + (4 << 20)
    for base_seq in range(0, 90 * FRAMES, 10):
        frame = a_frame(base_seq, pipe_id=ids[3], size=SIZE)
        assert place.engine.read(ids[3], base_seq, base_seq + 1, 1, 1) == [frame]


def test_much_that_was_dropped_is_given_back_unasked(place: RocksPlace) -> None:
    place.engine.create(Replica(PIPE, "orders", False, 1_700, 1))
    frame_bytes = len(a_frame(0, size=SIZE))
    for number in range((33 << 20) // frame_bytes + 1):
        append(place, PIPE, 10 * number)
    place.engine.sync()
    before = usage(place.place)
    place.engine.drop([PIPE])
    watch = Stopwatch()
    while usage(place.place) > before / 4:
        assert watch.seconds() < 100, "the space is not given back"


# --- syncs ------------------------------------------------------------------------------------


def syncs(engine: RocksEngine) -> int:
    """How often RocksDB says that it synced its log."""
    synced = re.search(r"rocksdb\.wal\.synced COUNT : (\d+)", engine.statistics())
    assert synced is not None
    return int(synced[1])


def test_a_sync_syncs_the_log_once_and_only_when_something_changed(place: RocksPlace) -> None:
    engine = place.engine
    engine.create(Replica(PIPE, "orders", False, 1_700, 1))
    engine.create(Replica(OTHER, "orders", False, 1_700, 1))
    engine.sync()
    before = syncs(engine)
    engine.sync()
    assert syncs(engine) == before
    for change in (
        lambda: append(place, PIPE, 0),
        lambda: engine.note(PIPE, fenced=True),
        lambda: engine.cut(PIPE, 0),
        lambda: engine.drop([OTHER]),
    ):
        change()
        assert syncs(engine) == before
        engine.sync()
        before += 1
        assert syncs(engine) == before
