"""Want of space below the engine: what is told of it, and when there is room again."""

from __future__ import annotations

from pathlib import Path

import pytest

from cassq.errors import BackendUnavailableError, StorageFullError
from cassq.sidecar.engine.port import Space
from cassq.sidecar.engine.rocksdb.room import Room
from cassq.sidecar.engine.rocksdb.trouble import Trouble

pytestmark = pytest.mark.needs("module:rocksdict")

FULL = Exception("IO error: No space left on device: While appending to file: 1.log")
BEFORE = Exception("IO error: Writer has previous error.")
SICK = Exception("IO error: Input/output error: While fsync: 1.log")
BAD = Exception("Corruption: block checksum mismatch: stored = 1, computed = 2")
FREE_MIN = 8 << 20


def met(*errors: Exception) -> Trouble:
    trouble = Trouble()
    for error in errors:
        trouble.met(error, "syncing the log")
    return trouble


def test_nothing_failed() -> None:
    trouble = Trouble()
    trouble.check()
    assert not trouble
    assert (trouble.failure, trouble.starved) == ("", "")


@pytest.mark.parametrize("errors", [(FULL,), (FULL, FULL), (FULL, BEFORE), (FULL, BEFORE, FULL)])
def test_failures_that_follow_a_full_disk_count_as_a_full_disk(
    errors: tuple[Exception, ...],
) -> None:
    trouble = met(*errors)
    assert "No space left" in trouble.starved
    assert trouble.failure == ""
    with pytest.raises(BackendUnavailableError, match="no more writes are accepted") as caught:
        trouble.check()
    assert "once there is room" in caught.value.hint


@pytest.mark.parametrize("cause", [SICK, BAD])
@pytest.mark.parametrize("at", [0, 1])
def test_any_other_failure_is_reported_whatever_came_before_and_after(
    cause: Exception, at: int
) -> None:
    errors = [FULL, BEFORE]
    errors.insert(at, cause)
    trouble = met(*errors)
    assert str(cause) in trouble.failure
    assert trouble.starved == ""
    with pytest.raises(BackendUnavailableError) as caught:
        trouble.check()
    assert "restart the sidecar" in caught.value.hint


def test_an_earlier_failure_without_a_reason_is_not_a_full_disk() -> None:
    assert met(BEFORE).failure
    assert met(BEFORE, FULL).failure


def test_an_error_about_a_full_disk_leaves_the_outcome_unknown() -> None:
    error = Trouble().met(FULL, "appending")
    assert isinstance(error, StorageFullError)
    assert error.outcome_unknown


# --- room ---------------------------------------------------------------------------------------


class Disk:
    """Says what it is told to."""

    def __init__(self, free: int) -> None:
        self.free = free

    def __call__(self) -> Space:
        return Space(self.free, 1 << 40)


def test_a_disk_that_refused_a_write_has_room_with_a_quarter_more_than_the_limit(
    tmp_path: Path,
) -> None:
    disk = Disk(10 * FREE_MIN)
    room = Room(disk, FREE_MIN)
    assert not room.short()
    assert room.is_back(tmp_path)
    disk.free = FREE_MIN  # nobody looked while it was below
    room.exhausted()
    assert room.short()
    disk.free = FREE_MIN + FREE_MIN // 4 - 1
    assert not room.is_back(tmp_path)
    disk.free += 1
    assert room.is_back(tmp_path)
    disk.free = FREE_MIN
    assert not room.short()


def test_without_a_limit_it_is_the_disk_that_says_whether_there_is_room(tmp_path: Path) -> None:
    disk = Disk(1 << 20)
    room = Room(disk, 0)
    room.exhausted()
    assert not room.short()
    assert room.is_back(tmp_path)
    assert not room.is_back(tmp_path / "nowhere"), "no file can be made there"
    disk.free -= 1
    assert not room.is_back(tmp_path)


def test_room_is_as_much_as_the_log_takes_as_tables_and_nothing_is_left_of_the_look(
    tmp_path: Path,
) -> None:
    (tmp_path / "rocksdb").mkdir()
    log = tmp_path / "rocksdb" / "000001.log"
    log.write_bytes(bytes(3 << 20))
    (tmp_path / "rocksdb" / "000002.sst").write_bytes(bytes(9 << 20))
    disk = Disk(4 << 20)
    room = Room(disk, 1000)
    assert room.is_back(tmp_path)
    disk.free -= 1
    assert not room.is_back(tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rocksdb"]
