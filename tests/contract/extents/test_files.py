"""What the files store promises besides its port: when a disk fails, fills up, or loses power."""

from __future__ import annotations

import gc
import logging
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from cassq.base.clock import ManualClock
from cassq.errors import (
    BackendError,
    BackendUnavailableError,
    ConfigError,
    CorruptionError,
    PipeSealedError,
    StorageFullError,
)
from cassq.extents.files.disk import PAGE, Disk
from cassq.extents.files.store import FilesStore
from cassq.extents.port import ExtentMissingError, ExtentWriter
from cassq.message.frames import FrameError, Place
from tests.contract.disks import ShakyDisk, io_error, no_space
from tests.contract.extents.test_extents import (
    MUCH,
    OTHER,
    PIPE,
    START,
    append,
    expected,
    frame,
    said,
)


@pytest.fixture
def disk() -> ShakyDisk:
    return ShakyDisk()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, disk: ShakyDisk) -> FilesStore:
    """The store as its writer has it."""
    return FilesStore(tmp_path, clock, durability="disk", disk=disk)


@pytest.fixture
def sealer(tmp_path: Path, clock: ManualClock) -> FilesStore:
    """The same store as another process has it, on a disk that works."""
    return FilesStore(tmp_path, clock, durability="disk", disk=Disk())


@pytest.fixture
def writer(store: FilesStore, disk: ShakyDisk) -> Iterator[ExtentWriter]:
    """The writer of a pipe with five messages in it."""
    writer = store.create(PIPE, "q")
    append(writer, 5)
    disk.calls.clear()
    yield writer
    writer.close()


def read_below(store: FilesStore, end_seq: int) -> list[bytes]:
    reader = store.reader(PIPE)
    try:
        return said(reader.read(START, end_seq, MUCH, MUCH))
    finally:
        reader.close()


def put_behind(store: FilesStore, end: Place, data: bytes) -> None:
    """Write past the end, as a writer that died before it published."""
    with store.path(PIPE).open("r+b") as file:
        file.seek(end.pos)
        file.write(data)


def open_files(directory: Path) -> int:
    """How many files of a directory, and how often itself, this process has open: others come and
    go with what else it runs."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own, and others' that are closed by now
            found += os.readlink(f"/proc/self/fd/{number}").startswith(str(directory))
    return found


# --- an append that fails ---------------------------------------------------------------------

NEXT = b"".join(frame(5, 4))  # what is appended to the five messages
Break = Callable[[ShakyDisk], None]
FAILURES: dict[str, tuple[Break, type[BackendError]]] = {
    "the write": (lambda disk: disk.fail("pwritev", io_error()), BackendUnavailableError),
    "the write, when it was done": (
        lambda disk: disk.fail_after("pwritev", io_error()),
        BackendUnavailableError,
    ),
    "the sync": (lambda disk: disk.fail("sync_data", io_error()), BackendUnavailableError),
    "the sync, when it was done": (
        lambda disk: disk.fail_after("sync_data", io_error()),
        BackendUnavailableError,
    ),
    "for want of space": (lambda disk: disk.fail("pwritev", no_space()), StorageFullError),
    "for want of space at the sync": (
        lambda disk: disk.fail("sync_data", no_space()),
        StorageFullError,
    ),
    "in the middle": (lambda disk: setattr(disk, "writes_at_most", 40), StorageFullError),
    "one byte short": (
        lambda disk: setattr(disk, "writes_at_most", len(NEXT) - 1),
        StorageFullError,
    ),
    "at its first byte": (lambda disk: setattr(disk, "writes_at_most", 0), StorageFullError),
}
failures = pytest.mark.parametrize(
    ("break_it", "error"), FAILURES.values(), ids=list(FAILURES.keys())
)


@failures
def test_an_append_that_fails_does_not_count(
    store: FilesStore,
    sealer: FilesStore,
    writer: ExtentWriter,
    disk: ShakyDisk,
    break_it: Break,
    error: type[BackendError],
) -> None:
    before = writer.end
    break_it(disk)
    with pytest.raises(error) as caught:
        append(writer, 4)
    assert PIPE in str(caught.value)
    assert ("no space left" in str(caught.value).lower()) == (error is StorageFullError)
    assert writer.end == before
    assert sealer.seal(PIPE) == before, "it is sealed at the last end that was synced"
    assert sealer.seal(PIPE) == before
    assert read_below(sealer, 5) == expected(0, 5)


@failures
def test_nothing_is_written_to_a_file_once_a_write_has_failed(
    sealer: FilesStore,
    writer: ExtentWriter,
    disk: ShakyDisk,
    break_it: Break,
    error: type[BackendError],
) -> None:
    """After an I/O error the kernel may call lost pages clean: a second sync proves nothing."""
    break_it(disk)
    with pytest.raises(error):
        append(writer, 4)
    disk.calls.clear()
    assert writer.sealed()
    for _ in range(2):
        with pytest.raises(PipeSealedError):
            append(writer, 1)
    assert disk.calls == []
    assert sealer.seal(PIPE).seq == 5


def test_a_write_that_was_short_of_zeroes_only_is_none_that_failed(
    store: FilesStore, disk: ShakyDisk, sealer: FilesStore
) -> None:
    """The space ahead is zeroed with the append: on a disk that fills up the frame may fit."""
    writer = store.create(PIPE, "q")
    disk.writes_at_most = sum(map(len, frame(0, 5))) + 10
    assert append(writer, 5).seq == 5
    assert append(writer, 1).seq == 6
    assert sealer.seal(PIPE) == writer.end
    assert read_below(sealer, 6) == expected(0, 6)
    writer.close()


def test_a_failure_to_seal_is_reported_and_sealing_again_does_it(
    store: FilesStore, writer: ExtentWriter, disk: ShakyDisk
) -> None:
    disk.fail("sync", io_error())
    with pytest.raises(BackendUnavailableError):
        store.seal(PIPE)
    assert writer.sealed(), "the writer is fenced all the same"
    assert store.seal(PIPE) == writer.end


def test_a_file_that_cannot_be_read_is_reported(
    store: FilesStore, writer: ExtentWriter, disk: ShakyDisk
) -> None:
    reader = store.reader(PIPE)
    disk.fail("pread", io_error())
    with pytest.raises(BackendUnavailableError, match=PIPE):
        reader.read(START, 5, 10, MUCH)
    assert said(reader.read(START, 5, 10, MUCH)) == expected(0, 5)
    reader.close()
    disk.fail("pread", io_error())
    with pytest.raises(BackendUnavailableError, match=PIPE):
        store.reader(PIPE)


# --- in which order things become durable -----------------------------------------------------


def test_a_pipe_is_durable_under_its_name_before_anybody_may_write_it(
    store: FilesStore, disk: ShakyDisk
) -> None:
    store.create(PIPE, "q").close()
    kept = [call for call in disk.calls if call != "unlink"]
    assert kept == [
        *("create", "pwritev", "sync"),  # the file, under a draft's name
        *("create", "pwritev", "sync"),  # its page
        *("rename", "sync_directory"),
    ]


def test_an_append_is_synced_before_it_is_published(
    store: FilesStore, sealer: FilesStore, disk: ShakyDisk, writer: ExtentWriter
) -> None:
    reader = sealer.reader(PIPE)
    seen: list[Place] = []
    disk.before["sync_data"] = disk.after["sync_data"] = lambda: seen.append(reader.published())
    before = writer.end
    after = append(writer, 3)
    assert disk.calls == ["pwritev", "sync_data"]
    assert seen == [before, before]
    assert reader.published() == after
    reader.close()


def test_a_seal_is_synced_before_it_is_reported(
    store: FilesStore, writer: ExtentWriter, disk: ShakyDisk
) -> None:
    store.seal(PIPE)
    assert disk.calls == ["sync"]


def test_a_drop_is_synced(store: FilesStore, writer: ExtentWriter, disk: ShakyDisk) -> None:
    store.drop([PIPE])
    assert disk.calls[-1] == "sync_directory"
    assert "unlink" in disk.calls


def test_without_durability_nothing_is_synced_but_seals(
    tmp_path: Path, clock: ManualClock, disk: ShakyDisk
) -> None:
    store = FilesStore(tmp_path, clock, durability="os", disk=disk)
    writer = store.create(PIPE, "q")
    append(writer, 5)
    writer.close()
    store.drop([PIPE])
    assert not [call for call in disk.calls if call.startswith("sync")]


def test_small_appends_go_into_space_zeroed_ahead(
    store: FilesStore, disk: ShakyDisk, tmp_path: Path
) -> None:
    """So most syncs change neither the size nor the blocks of the file."""
    writer = store.create(PIPE, "q")
    sizes = []
    for _ in range(200):
        end = append(writer, 1)
        sizes.append(store.path(PIPE).stat().st_size)
        assert sizes[-1] >= end.pos
    assert len(set(sizes)) < 10
    big = append(writer, 1, size=100_000)
    tail = store.path(PIPE).read_bytes()[big.pos :]
    assert not any(tail), "behind the end are zeroes"
    assert store.seal(PIPE) == big
    writer.close()


# --- sealing between any two steps of an append -------------------------------------------------


@pytest.mark.parametrize("moment", ["before pwritev", "after pwritev", "after sync_data"])
def test_a_seal_in_the_middle_of_an_append_is_exact(
    sealer: FilesStore, writer: ExtentWriter, disk: ShakyDisk, moment: str
) -> None:
    """The writer, however long it was stopped there, is told; nothing it acknowledged is missed."""
    ends: list[Place] = []
    when, call = moment.split()
    (disk.before if when == "before" else disk.after)[call] = lambda: ends.append(sealer.seal(PIPE))
    with pytest.raises(PipeSealedError):
        append(writer, 4)
    (end,) = ends
    assert end.seq == (5 if when == "before" else 9), "the bytes that were there count"
    assert writer.end.seq == 5, "but none of them was acknowledged by the writer"
    assert sealer.seal(PIPE).seq >= end.seq
    assert read_below(sealer, end.seq) == expected(0, end.seq)


# --- what a crash leaves ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, len(NEXT) - 1])
def test_a_torn_tail_does_not_count(store: FilesStore, writer: ExtentWriter, size: int) -> None:
    end = writer.end
    writer.close()
    put_behind(store, end, NEXT[:size])
    assert store.seal(PIPE) == end
    assert read_below(store, 5) == expected(0, 5)


def test_a_whole_frame_that_was_not_published_counts(
    store: FilesStore, writer: ExtentWriter
) -> None:
    """Its writer may have died between the sync and the publishing, so it may be acknowledged."""
    end = writer.end
    writer.close()
    put_behind(store, end, NEXT + NEXT[:20])
    assert store.seal(PIPE) == Place(9, end.pos + len(NEXT))
    assert read_below(store, 9) == expected(0, 9)


@pytest.mark.parametrize(
    "behind",
    [
        b"".join(frame(6, 4)),
        b"".join(frame(4, 4)),
        b"".join(frame(5, 4, OTHER)),
        NEXT[:-1] + bytes([NEXT[-1] ^ 1]),
        bytes(200),
        b"\xff" * 200,
    ],
    ids=["a gap", "an overlap", "another pipe", "damaged", "zeroes", "garbage"],
)
def test_what_does_not_follow_without_a_gap_does_not_count(
    store: FilesStore, writer: ExtentWriter, behind: bytes
) -> None:
    end = writer.end
    writer.close()
    put_behind(store, end, behind)
    assert store.seal(PIPE) == end


def test_a_restarted_machine_finds_all_that_was_acknowledged(
    tmp_path: Path, clock: ManualClock, writer: ExtentWriter
) -> None:
    end = append(writer, 4)
    writer.close()
    clock.reboot()
    store = FilesStore(tmp_path, clock, durability="disk", disk=Disk())
    reader = store.reader(PIPE)
    assert reader.earlier_boot
    reader.close()
    assert store.abandoned(PIPE)
    assert store.seal(PIPE) == end


def test_a_restarted_machine_finds_what_is_left_of_unsynced_frames(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Without durability the power may take bytes below the published end."""
    store = FilesStore(tmp_path, clock, durability="os", disk=Disk())
    writer = store.create(PIPE, "q")
    first = append(writer, 5)
    append(writer, 5)
    append(writer, 5)
    writer.close()
    with store.path(PIPE).open("r+b") as file:
        file.seek(first.pos + 50)
        file.write(bytes(20))
    clock.reboot()
    again = FilesStore(tmp_path, clock, durability="os", disk=Disk())
    assert again.seal(PIPE) == first


@pytest.mark.parametrize("left", [None, b"", b"\0" * 100, b"\0" * PAGE, b"\xff" * PAGE])
def test_a_page_that_a_power_cut_lost_is_made_again(
    tmp_path: Path, clock: ManualClock, writer: ExtentWriter, left: bytes | None
) -> None:
    end = append(writer, 4)
    writer.close()
    page = tmp_path / f"{PIPE}.page"
    if left is None:
        page.unlink()
    else:
        page.write_bytes(left)
    clock.reboot()
    store = FilesStore(tmp_path, clock, durability="disk", disk=Disk())
    assert store.seal(PIPE) == end
    assert read_below(store, 9) == expected(0, 9)
    assert page.stat().st_size == PAGE


# --- creating ---------------------------------------------------------------------------------

STEPS = ["create", "pwritev", "sync", "rename", "sync_directory"]


@pytest.mark.linux_only
@pytest.mark.parametrize("error", [io_error, no_space])
@pytest.mark.parametrize("step", STEPS)
def test_a_creation_that_fails_leaves_nothing_that_is_in_the_way(
    store: FilesStore,
    disk: ShakyDisk,
    tmp_path: Path,
    step: str,
    error: Callable[[], OSError],
) -> None:
    gc.collect()
    files = open_files(tmp_path)
    disk.fail(step, error())
    with pytest.raises(
        StorageFullError if error is no_space else BackendUnavailableError, match=PIPE
    ):
        store.create(PIPE, "q")
    gc.collect()  # the error's traceback holds what the creation had mapped
    assert open_files(tmp_path) == files
    assert {info.pipe_id for info in store.extents()} <= {PIPE}
    store.drop([PIPE])
    assert list(tmp_path.iterdir()) == []
    writer = store.create(PIPE, "q")
    assert append(writer, 1).seq == 1
    writer.close()


def test_a_creation_cut_short_in_its_page_is_a_full_disk(
    store: FilesStore, disk: ShakyDisk, tmp_path: Path
) -> None:
    disk.writes_at_most = 100
    with pytest.raises(StorageFullError):
        store.create(PIPE, "q")
    assert list(tmp_path.iterdir()) == []


def test_a_draft_whose_maker_died_is_removed(store: FilesStore, tmp_path: Path) -> None:
    (tmp_path / f"{PIPE}.draft").write_bytes(b"half a page")
    (tmp_path / f"{PIPE}.page").write_bytes(bytes(PAGE))
    assert list(store.extents()) == []
    assert list(store.extents()) == []
    assert list(tmp_path.iterdir()) == []


def test_a_draft_whose_maker_is_alive_is_left_alone(
    store: FilesStore, sealer: FilesStore, disk: ShakyDisk, tmp_path: Path
) -> None:
    """Somebody looks for pipes just before the draft gets its name."""
    looks: list[list[str]] = []

    def look() -> None:
        assert list(sealer.extents()) == []
        looks.append(sorted(path.suffix for path in tmp_path.iterdir()))

    disk.before["rename"] = look
    writer = store.create(PIPE, "q")
    assert looks == [[".draft", ".page"]]
    assert append(writer, 3).seq == 3
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".page", ".pipe"]
    writer.close()


def test_a_maker_whose_draft_was_taken_for_a_dead_one_s_makes_another(
    store: FilesStore, sealer: FilesStore, disk: ShakyDisk, tmp_path: Path
) -> None:
    """Somebody looks for pipes after the draft was made and before it is locked."""

    def look() -> None:
        del disk.before["lock"]
        assert list(sealer.extents()) == []
        assert list(tmp_path.iterdir()) == []

    disk.before["lock"] = look
    writer = store.create(PIPE, "q")
    assert append(writer, 3).seq == 3
    assert sealer.seal(PIPE) == writer.end
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".page", ".pipe"]
    writer.close()


# --- files that are not what they should be ---------------------------------------------------


def test_a_missing_file_is_named_with_what_to_do(store: FilesStore, writer: ExtentWriter) -> None:
    store.path(PIPE).unlink()
    for call in (store.reader, store.seal):
        with pytest.raises(ExtentMissingError, match=PIPE) as caught:
            call(PIPE)
        assert "backup" in caught.value.hint
    assert store.abandoned(PIPE)


def test_another_pipe_s_file_under_this_name_is_refused(
    store: FilesStore, writer: ExtentWriter, caplog: pytest.LogCaptureFixture
) -> None:
    writer.close()
    store.path(PIPE).rename(store.path(OTHER))
    for call in (store.reader, store.seal):
        with pytest.raises(CorruptionError, match="another pipe"):
            call(OTHER)
    with caplog.at_level(logging.WARNING, logger="cassq"):
        assert list(store.extents()) == []
    assert OTHER in caplog.text
    assert store.path(OTHER).exists(), "it is left where it is"


@pytest.mark.parametrize("size", [0, 100, PAGE - 1])
def test_a_file_without_a_whole_header_is_refused(
    store: FilesStore, writer: ExtentWriter, size: int
) -> None:
    writer.close()
    os.truncate(store.path(PIPE), size)
    for call in (store.reader, store.seal):
        with pytest.raises(CorruptionError, match="cut short"):
            call(PIPE)


def test_a_file_of_a_newer_cassq_is_refused_with_what_to_do(
    store: FilesStore, writer: ExtentWriter
) -> None:
    writer.close()
    data = bytearray(store.path(PIPE).read_bytes())
    data[8] = 9
    struct.pack_into("<Q", data, 504, xxh3_64_intdigest(bytes(data[:496])))
    store.path(PIPE).write_bytes(data)
    with pytest.raises(ConfigError, match="version 9") as caught:
        store.reader(PIPE)
    assert "newer cassq" in caught.value.hint


def test_a_damaged_frame_is_not_handed_out_and_names_its_pipe(
    store: FilesStore, writer: ExtentWriter
) -> None:
    middle = writer.end
    append(writer, 4)
    append(writer, 4)
    put_behind(store, Place(0, middle.pos + 60), b"\xff")
    reader = store.reader(PIPE)
    assert said(reader.read(START, 13, 100, MUCH)) == expected(0, 5), "what is before it is good"
    for start in (middle, Place(5, 0), Place(7, 0)):
        with pytest.raises(FrameError, match=PIPE):
            reader.read(start, 13, 100, MUCH)
    assert said(reader.read(Place(9, 0), 13, 100, MUCH)) == expected(9, 13), "it costs no other"
    reader.close()


def test_a_gap_between_frames_is_damage(store: FilesStore, writer: ExtentWriter) -> None:
    end = writer.end
    put_behind(store, end, b"".join(frame(7, 2)))
    reader = store.reader(PIPE)
    assert said(reader.read(START, 9, 100, MUCH)) == expected(0, 5)
    with pytest.raises(CorruptionError, match="seq 7 where 5"):
        reader.read(end, 9, 100, MUCH)
    reader.close()


# --- what is held -----------------------------------------------------------------------------


@pytest.mark.linux_only
def test_nothing_stays_open(store: FilesStore, sealer: FilesStore, tmp_path: Path) -> None:
    def use() -> None:
        writer = store.create(PIPE, "q")
        append(writer, 3)
        for at in (store, sealer):
            reader = at.reader(PIPE)
            reader.read(START, 3, 10, MUCH)
            reader.close()
            at.abandoned(PIPE)
            assert len(list(at.extents())) == 1
        sealer.seal(PIPE)
        writer.close()
        sealer.drop([PIPE])
        for call in (store.reader, store.seal):
            with pytest.raises(ExtentMissingError):
                call(PIPE)

    use()
    files = open_files(tmp_path)
    for _ in range(20):
        use()
    assert open_files(tmp_path) == files


def test_an_unknown_durability_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(ConfigError, match="'none' is unknown") as caught:
        FilesStore(tmp_path, clock, durability="none", disk=Disk())
    assert "'disk'" in caught.value.hint
