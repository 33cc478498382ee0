"""What the command writes and reads, without a queue: tables, JSON, lines, times, signals."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.cli.queues.push import lines
from cassq.cli.ui import output
from cassq.cli.verb import seconds
from cassq.errors import MessageTooLargeError
from cassq.message.frames import MESSAGE_BYTES_MAX

# --- tables ---------------------------------------------------------------------------------


def test_columns_of_numbers_are_aligned_to_the_right_and_texts_to_the_left() -> None:
    assert output.table_lines(
        ("NAME", "COUNT", "AGE"), [("a", 1234, "0.5 s"), ("bcdef", 7, None)]
    ) == [
        "NAME   COUNT    AGE",
        "a      1,234  0.5 s",
        "bcdef      7      -",
    ]


def test_a_table_without_rows_is_its_headers() -> None:
    assert output.table_lines(("A", "B"), []) == ["A  B"]


def test_wide_characters_take_two_places_and_accents_none() -> None:
    rows = [("日本", "x"), ("e\u0301e", "x"), ("four", "x")]
    assert output.table_lines(("NAME", "X"), rows)[1:] == ["日本  x", "e\u0301e    x", "four  x"]


def test_nothing_in_a_cell_moves_the_cursor() -> None:
    assert output.table_lines(("A",), [("\x1b[2J\n\t",)])[1] == r"\x1b[2J\n\t"


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"plain", "plain"),
        (b"\xff\n", r"\xff\n"),
        (b"x" * 60, "x" * 60),
        (b"x" * 61, "x" * 59 + "…"),
        (b"x" * 1_000_000, "x" * 59 + "…"),
    ],
)
def test_the_beginning_of_a_payload_is_shown(payload: bytes, shown: str) -> None:
    assert output.preview(payload) == shown


@pytest.mark.parametrize(
    ("age", "shown"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (119.9, "119.9 s"),
        (120.0, "2 min"),
        (7199.0, "120 min"),
        (7200.0, "2 h"),
        (172_800.0, "2 d"),
    ],
)
def test_ages_are_in_the_unit_that_suits_them(age: float | None, shown: str) -> None:
    assert output.age(age) == shown


# --- messages -------------------------------------------------------------------------------


class Shown:
    """A message with this payload and key."""

    def __init__(self, payload: bytes, key: bytes | None = None) -> None:
        self.id = "p:0"
        self.payload = payload
        self.key = key
        self.headers = {"ä": "ö"}
        self.attempts = 2
        self.priority = 7
        self.pushed_at = datetime(2026, 1, 31, 12, 0, 0, 5000, UTC)


def test_a_message_in_json_says_how_its_bytes_are_written() -> None:
    assert output.message_fields(Shown("é".encode(), b"\xff")) == {
        "id": "p:0",
        "attempts": 2,
        "priority": 7,
        "pushed_at": "2026-01-31T12:00:00.005+00:00",
        "headers": {"ä": "ö"},
        "key_base64": "/w==",
        "payload": "é",
    }


def test_payloads_are_written_as_they_are_with_a_newline_each() -> None:
    found = [Shown(b"\xff\r"), Shown(b"")]
    assert output.message_lines(found, as_json=False) == b"\xff\r\n\n"
    assert output.message_lines(found, as_json=True).count(b"\n") == 2


# --- lines ----------------------------------------------------------------------------------


@given(st.binary(max_size=60), st.lists(st.integers(1, 9), min_size=1))
def test_lines_are_the_same_however_they_come(data: bytes, sizes: list[int]) -> None:
    data = data.replace(b"\x01", b"\n").replace(b"\x02", b"\n\n")
    stream, turn = io.BytesIO(data), iter(sizes * 100)
    chunks = list(lines(lambda _: stream.read(next(turn))))
    found = [payload for chunk in chunks for payload in chunk.payloads]
    expected = data.split(b"\n")
    assert found == (expected if expected[-1] else expected[:-1])
    assert sum(chunk.size for chunk in chunks) == len(data)


def test_a_line_without_an_end_is_refused_before_it_is_all_read() -> None:
    reads = 0

    def endless(size: int) -> bytes:
        nonlocal reads
        reads += 1
        return b"x" * size

    with pytest.raises(MessageTooLargeError):
        list(lines(endless))
    assert reads <= MESSAGE_BYTES_MAX // 2**20 + 1


# --- times and signals ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10", 10),
        ("0.5", 0.5),
        ("500ms", 0.5),
        ("10s", 10),
        ("5m", 300),
        ("1h", 3600),
        ("7d", 604800),
    ],
)
def test_a_time_may_have_a_unit(text: str, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "soon", "-1", "1w", "1e3", "nan", "1 2"])
def test_anything_but_a_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        seconds(text)


@pytest.mark.parametrize(
    ("done", "total", "begins"),
    [
        (0, 1000, "[------------------------]   0%  7 messages"),
        (500, 1000, "[############------------]  50%  7 messages"),
        (1500, 1000, "[########################] 100%  7 messages"),
        (500, None, "7 messages, 0.0 MB"),
    ],
)
def test_progress_has_a_bar_where_the_total_is_known(
    done: int, total: int | None, begins: str
) -> None:
    assert output.progress_line(done, 7, total, 0.5).startswith(begins)
    assert output.progress_line(done, 7, total, 2.0).endswith(", 4 a second")
