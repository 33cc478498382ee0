"""The synced marks: a torn store leaves the one before, and anything else is seen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cassq.errors import CorruptionError
from cassq.sidecar.engine.rocksdb.marks import SyncMark, SyncMarks, UnreadableMarkError

HEADER, SLOT, HALF = 65536, 128, 64
NAME = b"\0" + bytes(range(12))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "marks"


def begun(path: Path) -> SyncMarks:
    marks = SyncMarks(path, "g1", create=True)
    marks.grow()
    return marks


def reopened(path: Path) -> SyncMarks:
    return SyncMarks(path, "g1", create=False)


def test_a_mark_is_read_back_by_the_next_process_that_opens_the_file(path: Path) -> None:
    marks = begun(path)
    stored = {3: SyncMark(1, 2, 3, NAME), 0: SyncMark(9, 2**63, 2**63, b"n" * 22, going=True)}
    for slot, mark in stored.items():
        marks.store(slot, mark)
    for again in (marks, reopened(path)):  # not closed yet, nor synced, as after a kill
        assert {slot: again.read(slot) for slot in stored} == stored
        assert again.read(1) is None
        assert again.read(again.slots) is None
        again.close()


def test_the_newest_of_many_marks_counts_however_often_it_is_opened(path: Path) -> None:
    begun(path).close()
    for version in range(1, 30):
        marks = reopened(path)
        marks.read(0)
        for end in range(version % 3 + 1):
            marks.store(0, SyncMark(1, version, end, NAME))
        marks.close()
        marks = reopened(path)
        assert marks.read(0) == SyncMark(1, version, version % 3, NAME)
        marks.close()


def test_a_store_torn_anywhere_leaves_the_mark_before_it(path: Path) -> None:
    marks = begun(path)
    first, second, third = (SyncMark(1, number, 10 * number, NAME) for number in (1, 2, 3))
    marks.store(0, first)
    marks.store(0, second)
    before = path.read_bytes()
    marks.store(0, third)
    after = path.read_bytes()
    marks.close()
    changed = [at for at in range(len(before)) if before[at] != after[at]]
    assert changed[-1] - changed[0] < HALF
    for at in range(changed[0], changed[-1] + 2):
        path.write_bytes(after[:at] + before[at:])
        marks = reopened(path)
        assert marks.read(0) == (third if at > changed[-1] else second)
        marks.store(0, third)
        assert marks.read(0) == third
        marks.close()


def test_a_first_store_that_was_torn_is_not_a_mark(path: Path) -> None:
    marks = begun(path)
    before = path.read_bytes()
    marks.store(0, SyncMark(1, 1, 10, NAME))
    after = path.read_bytes()
    marks.close()
    for at in range(HEADER + HALF + 1, HEADER + SLOT):
        path.write_bytes(before[:HEADER] + bytes(HALF) + after[HEADER + HALF : at])
        with path.open("ab") as file:
            file.truncate(len(after))
        marks = reopened(path)
        assert marks.read(0) in (None, SyncMark(1, 1, 10, NAME))
        marks.close()


def test_a_flipped_bit_is_seen_or_outdone_by_the_other_half(path: Path) -> None:
    marks = begun(path)
    mark = SyncMark(1, 1, 10, NAME)
    marks.store(0, mark)
    marks.store(0, mark)
    raw = path.read_bytes()
    marks.close()
    for at in range(HEADER, HEADER + SLOT):
        flipped = bytearray(raw)
        flipped[at] ^= 1
        path.write_bytes(flipped)
        marks = reopened(path)
        assert marks.read(0) == mark
        marks.close()
        flipped[at ^ HALF] ^= 1
        path.write_bytes(flipped)
        marks = reopened(path)
        with pytest.raises(UnreadableMarkError):
            marks.read(0)
        marks.close()


def test_a_mark_in_another_slot_is_not_a_mark_of_it(path: Path) -> None:
    marks = begun(path)
    marks.store(0, SyncMark(1, 1, 10, NAME))
    raw = bytearray(path.read_bytes())
    marks.close()
    raw[HEADER + SLOT : HEADER + 2 * SLOT] = raw[HEADER : HEADER + SLOT]
    path.write_bytes(raw)
    marks = reopened(path)
    with pytest.raises(UnreadableMarkError):
        marks.read(1)
    marks.close()


def test_a_cleared_slot_has_no_mark(path: Path) -> None:
    marks = begun(path)
    marks.store(0, SyncMark(1, 1, 10, NAME))
    marks.clear(0)
    assert marks.read(0) is None
    marks.close()
    marks = reopened(path)
    assert marks.read(0) is None
    marks.close()


def test_what_is_going_keeps_what_was_synced_of_it(path: Path) -> None:
    marks = begun(path)
    marks.store(0, SyncMark(5, 1, 10, NAME))
    marks.store_going(0, 4)
    assert marks.read(0) == SyncMark(5, 1, 10, NAME)
    marks.store_going(0, 5)
    assert marks.read(0) == SyncMark(5, 1, 10, NAME, going=True)
    marks.store_going(1, 5)
    assert marks.read(1) is None
    marks.close()


def test_many_slots_do_not_touch_one_another(path: Path) -> None:
    chance, marks = random.Random(4), begun(path)
    marks.grow()
    expected: dict[int, SyncMark] = {}
    for number in range(1, 3000):
        slot = chance.randrange(marks.slots)
        expected[slot] = SyncMark(number, chance.randrange(9), chance.randrange(1 << 40), NAME)
        marks.store(slot, expected[slot])
    marks.close()
    marks = reopened(path)
    assert {slot: mark for slot in range(marks.slots) if (mark := marks.read(slot))} == expected
    marks.close()


def test_a_name_too_long_to_stand_there_is_left_out(path: Path) -> None:
    marks = begun(path)
    marks.store(0, SyncMark(1, 1, 1, b"n" * 23))
    assert marks.read(0) == SyncMark(1, 1, 1, b"")
    marks.close()


@pytest.mark.parametrize("harm", ["missing", "other", "header"])
def test_marks_that_are_not_those_of_the_directory_are_refused(path: Path, harm: str) -> None:
    begun(path).close()
    if harm == "missing":
        path.unlink()
    elif harm == "header":
        path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(CorruptionError, match="marks"):
        SyncMarks(path, "g2" if harm == "other" else "g1", create=False)
