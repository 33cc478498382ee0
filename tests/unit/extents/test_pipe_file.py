"""The pipe file: the test vector and the tables of docs/pipe_file.md against what is written."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from cassq.base.clock import ManualClock
from cassq.errors import ConfigError, CorruptionError
from cassq.extents.files import pipe_file
from cassq.extents.files.disk import PAGE, Disk
from cassq.extents.files.store import FilesStore
from cassq.message.frames import HEADER_SIZE, Extras, Place, encode, pipe_key

FENCED_JSON = re.compile(r"^```json\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TEXT = (Path(__file__).resolve().parents[3] / "docs" / "pipe_file.md").read_text()
VECTOR: dict[str, Any] = json.loads(FENCED_JSON.findall(TEXT)[0])
PIPE = VECTOR["pipe_id"]
CHECK = 0x9E37_79B9_7F4A_7C15


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A directory with the pipe of the vector, as it is after one append."""
    store = FilesStore(tmp_path, ManualClock(VECTOR["boot_ms"]), durability="disk", disk=Disk())
    writer = store.create(PIPE, VECTOR["queue"])
    frame = encode(0, [b"hello"], Extras(1_700_000_000_000), pipe_key=pipe_key(PIPE))
    writer.append([frame], 1)
    writer.close()
    return tmp_path


def shared_words(directory: Path) -> tuple[int, ...]:
    return struct.unpack("=512Q", (directory / f"{PIPE}.page").read_bytes())


def test_a_pipe_file_has_the_bytes_of_the_vector(written: Path) -> None:
    data = (written / f"{PIPE}.pipe").read_bytes()
    expected = bytearray(len(data))
    for offset, run in VECTOR["pipe"].items():
        found = bytes.fromhex(run)
        expected[int(offset) : int(offset) + len(found)] = found
    assert data == bytes(expected)


def test_the_shared_words_are_those_of_the_vector(written: Path) -> None:
    found = {str(index): word for index, word in enumerate(shared_words(written)) if word}
    assert found == VECTOR["page"]
    assert (written / f"{PIPE}.page").stat().st_size == PAGE


def test_the_check_of_the_end_is_the_formula_of_the_page(written: Path) -> None:
    words = shared_words(written)
    for at in (0, 8):
        seq, position, check = words[at : at + 3]
        assert check == seq ^ position * CHECK % 2**64
    assert "0x9E3779B97F4A7C15" in TEXT


WORDS = {
    "end seq": pipe_file.END_A,
    "end position": pipe_file.END_A + 1,
    "end check": pipe_file.END_A + 2,
    "sealed": pipe_file.SEALED,
    "turn wanted": pipe_file.TURN_WANTED,
    "last append": pipe_file.LAST_APPEND_MS,
    "boot": pipe_file.BOOT,
    "unsynced": pipe_file.UNSYNCED,
    "failed": pipe_file.FAILED,
}


def test_the_table_of_words_is_the_one_the_code_uses() -> None:
    rows = re.findall(r"^\| (\d+) \| ([a-z ]+) \|", TEXT, re.MULTILINE)
    assert {name: int(number) for number, name in rows} == WORDS
    second = ", ".join(str(pipe_file.END_B + offset) for offset in range(3))
    assert f"| {second} |" in TEXT


@pytest.mark.parametrize(
    "end", [Place(0, PAGE), Place(7, 9999), Place((1 << 63) - 1, (1 << 63) - 1)]
)
def test_an_end_is_read_as_it_was_published(end: Place) -> None:
    words = [0] * 512
    pipe_file.publish(words, end)
    assert pipe_file.published_end(words) == end


@pytest.mark.parametrize("torn", [0, 1, 2, 8, 9, 10])
def test_an_end_with_one_torn_copy_is_read_from_the_other(torn: int) -> None:
    words = [0] * 512
    pipe_file.publish(words, Place(7, 9999))
    words[torn] ^= 1 << 13
    assert pipe_file.published_end(words) == Place(7, 9999)


@pytest.mark.parametrize("torn", [(0, 8), (1, 10), (2, 9)])
def test_an_end_with_two_torn_copies_is_none(torn: tuple[int, int]) -> None:
    words = [0] * 512
    pipe_file.publish(words, Place(7, 9999))
    for at in torn:
        words[at] ^= 1 << 13
    assert pipe_file.published_end(words) is None


def test_a_page_of_zeroes_is_not_an_end() -> None:
    assert pipe_file.published_end([0] * 512) is None


def test_between_any_two_stores_of_a_writer_a_reader_finds_the_old_end_or_the_new() -> None:
    """Replayed store by store, as a reader in another process may see them."""
    old, new = Place(5, 5000), Place(9, 7000)
    words = [0] * 512
    pipe_file.publish(words, old)
    recorded: list[tuple[int, int]] = []

    class Recording(list[int]):
        def __setitem__(self, index: Any, value: Any) -> None:
            recorded.append((index, value))
            super().__setitem__(index, value)

    pipe_file.publish(Recording(words), new)
    assert len(recorded) == 6
    for index, value in recorded:
        words[index] = value
        assert pipe_file.published_end(words) in (old, new)
    assert pipe_file.published_end(words) == new


# --- the identity page ------------------------------------------------------------------------


def test_the_longest_name_of_a_queue_of_dead_letters_fits() -> None:
    name = f"{'q' * 200}~{'g' * 200}~dead"
    assert pipe_file.read_identity(pipe_file.identity_page(PIPE, name), PIPE) == name


@pytest.mark.parametrize("byte", [0, 8, 12, 16, 39, 48, 60, 495, 504, 511])
def test_a_damaged_identity_is_refused(byte: int) -> None:
    page = bytearray(pipe_file.identity_page(PIPE, "queue"))
    page[byte] ^= 1
    with pytest.raises(CorruptionError, match="damaged"):
        pipe_file.read_identity(bytes(page), PIPE)


def test_an_identity_cut_short_is_refused() -> None:
    page = pipe_file.identity_page(PIPE, "queue")
    for size in (0, 100, PAGE - 1):
        with pytest.raises(CorruptionError, match="cut short"):
            pipe_file.read_identity(page[:size], PIPE)


def test_the_identity_of_another_pipe_is_refused() -> None:
    other = PIPE[:-1] + "0"
    with pytest.raises(CorruptionError, match="another pipe"):
        pipe_file.read_identity(pipe_file.identity_page(other, "queue"), PIPE)


def test_a_file_of_a_later_version_is_refused_with_what_to_do() -> None:
    page = bytearray(pipe_file.identity_page(PIPE, "queue"))
    page[8] = 2
    struct.pack_into("<Q", page, 504, xxh3_64_intdigest(bytes(page[:496])))
    with pytest.raises(ConfigError, match="version 2") as caught:
        pipe_file.read_identity(bytes(page), PIPE)
    assert "newer cassq" in caught.value.hint


def test_frames_begin_where_the_page_says() -> None:
    assert PAGE == 4096
    assert {"4096", str(4096 + HEADER_SIZE)} <= set(VECTOR["pipe"])
