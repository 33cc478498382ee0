"""Dead letters as lines of JSON, and what is said to mean them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from cassq.dead_letters.letters import Filter, Letter, batches_of, letter_from_json
from cassq.errors import UsageError
from cassq.message.frames import Extras, decode, encode
from cassq.message.ranges import RangeSet

NOW_MS = 2_000_000
LETTER = Letter(
    "0123456789abcdef01234567:7",
    b"payload",
    {"kind": "invoice"},
    b"key",
    datetime(2026, 1, 2, 3, 4, 5, 678000, UTC),
    {"reason": "rejected", "error": "no such customer", "at_ms": NOW_MS - 60_000},
)


@pytest.mark.parametrize(
    "letter",
    [
        LETTER,
        replace(LETTER, priority=7),
        replace(LETTER, payload=b"", key=None, headers={}, death={}),
        replace(LETTER, payload=bytes(range(256)), key=b"\xff\x00"),
        replace(LETTER, payload="käse\n\u2028".encode(), key=b""),
    ],
    ids=["whole", "urgent", "bare", "bytes", "text"],
)
def test_a_letter_comes_back_from_its_line_as_it_was(letter: Letter) -> None:
    line = letter.to_json()
    assert "\n" not in line
    assert letter_from_json(line) == letter
    assert letter_from_json(line.encode()) == letter


def test_letters_are_pushed_again_by_priority() -> None:
    letters = [replace(LETTER, id=f"p:{n}", priority=n % 2 * 5) for n in range(4)]
    found = [(batch.priority, batch.ids) for batch in batches_of(letters)]
    assert found == [(5, [b"p:1", b"p:3"]), (0, [b"p:0", b"p:2"])]


@pytest.mark.parametrize("priority", [10, -1, "5", True, None])
def test_a_letter_of_no_priority_is_refused(priority: Any) -> None:
    printed = {**json.loads(LETTER.to_json()), "priority": priority}
    with pytest.raises(UsageError, match="priority must be a whole number from 0 to 9"):
        letter_from_json(json.dumps(printed))


DEATH = {
    "reason": "expired",
    "count": 2,
    "first_ms": 1_000_000_000_001,
    "last_ms": 1_000_000_000_999,
    "at_ms": 1_767_323_045_678,
    "earlier": [{"reason": "rejected", "first_ms": 5, "at_ms": 6, "count": 1}],
}


def test_the_times_of_a_death_are_in_iso_8601_in_json_and_come_back() -> None:
    letter = replace(LETTER, death=DEATH)
    printed = json.loads(letter.to_json())["death"]
    assert printed["at"] == "2026-01-02T03:04:05.678+00:00"
    assert printed["first_at"] == "2001-09-09T01:46:40.001+00:00"
    assert printed["last_at"] == "2001-09-09T01:46:40.999+00:00"
    assert printed["earlier"][0]["at"] == "1970-01-01T00:00:00.006+00:00"
    assert not [name for name in printed if name.endswith("_ms")]
    assert letter_from_json(letter.to_json()) == letter


def test_a_death_that_an_older_cassq_exported_is_read() -> None:
    printed = {**json.loads(LETTER.to_json()), "death": DEATH}
    assert letter_from_json(json.dumps(printed)).death == DEATH


@pytest.mark.parametrize("at", ["noon", 5, None, "2026-01-01T00:00:00"])
def test_a_death_at_no_time_is_refused(at: Any) -> None:
    printed = {**json.loads(LETTER.to_json()), "death": {"at": at}}
    with pytest.raises(UsageError, match="'at' in the death of a dead letter"):
        letter_from_json(json.dumps(printed))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": 7}, "id"),
        ({"id": ""}, "id"),
        ({"id": "x" * 201}, "id"),
        ({"payload": None}, "payload"),
        ({"payload": 5}, "payload"),
        ({"payload_base64": "?"}, "payload"),
        ({"payload": "\ud800"}, "payload"),
        ({"headers": []}, "headers"),
        ({"headers": {"a": 1}}, "header"),
        ({"death": "yesterday"}, "death"),
        ({"pushed_at": "noon"}, "pushed_at"),
        ({"pushed_at": "2026-01-01T00:00:00"}, "zone"),
        ({"pushed_at": None}, "pushed_at"),
        ({"key": 7}, "key"),
    ],
)
def test_what_is_wrong_with_a_line_is_reported(changes: dict[str, Any], message: str) -> None:
    line = json.dumps(json.loads(LETTER.to_json()) | changes)
    with pytest.raises(UsageError, match=message):
        letter_from_json(line)


@pytest.mark.parametrize("line", ["", "no json", "[1]", "7", b"\xff"])
def test_only_an_object_is_a_letter(line: str | bytes) -> None:
    with pytest.raises(UsageError):
        letter_from_json(line)


@pytest.mark.parametrize(
    ("where", "meant"),
    [
        ({}, True),
        ({"reason": "rejected"}, True),
        ({"reason": "delivery_limit"}, False),
        ({"older_than": 60}, True),
        ({"older_than": 60.001}, False),
        ({"newer_than": 60}, True),
        ({"newer_than": 59.999}, False),
        ({"headers": {"kind": "invoice"}}, True),
        ({"headers": {"kind": "invoice", "other": ""}}, False),
        ({"headers": {"cassq-death": "x"}}, False),
        ({"text": "load"}, True),
        ({"text": "such customer"}, True),
        ({"text": "customers"}, False),
        ({"ids": [LETTER.id, "x"]}, True),
        ({"ids": ["x"]}, False),
        ({"ids": []}, False),
        ({"ids": [LETTER.id], "reason": "delivery_limit"}, False),
    ],
)
def test_a_filter_means_what_it_says(where: dict[str, Any], meant: bool) -> None:
    (batch,) = batches_of([LETTER])
    header, body = encode(0, *batch.cut(0, 1))
    frame = decode(header + body)
    picked = Filter(**where).picked(frame, 0, 1, "p", NOW_MS)
    assert picked == (RangeSet([(0, 1)]) if meant else RangeSet())


def test_a_message_that_did_not_die_here_is_as_old_as_its_push() -> None:
    header, body = encode(0, [b"x"], Extras(NOW_MS - 5_000, [b'{"cassq-death":"no json"}']))
    frame = decode(header + body)
    assert Filter(older_than=5).picked(frame, 0, 1, "p", NOW_MS)
    assert not Filter(older_than=6).picked(frame, 0, 1, "p", NOW_MS)
    assert not Filter(reason="rejected").picked(frame, 0, 1, "p", NOW_MS)
    assert Filter(ids=["p:0"]).picked(frame, 0, 1, "p", NOW_MS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"reason": ""},
        {"reason": 5},
        {"text": ""},
        {"older_than": -1},
        {"newer_than": "1h"},
        {"ids": "an id"},
        {"ids": [7]},
        {"ids": [""]},
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Filter(**wrong)


def test_only_an_empty_filter_means_all() -> None:
    assert Filter().is_empty
    assert not Filter(older_than=0).is_empty
    assert not Filter(newer_than=0).is_empty
    assert not Filter(ids=[]).is_empty
    assert not Filter(headers={"a": ""}).is_empty
