"""Messages of kombu as payloads and headers, and when tasks are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cassq.kombu.envelopes import due_of, packed, unpacked

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("body", ['{"a": 1}', b"\x80\x00pickle", "", "ä"])
def test_a_message_comes_out_as_it_went_in(body: str | bytes) -> None:
    message: dict[str, Any] = {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"id": "x", "stamps": {}, "at": NOW},
        "properties": {"priority": 3, "delivery_info": {"routing_key": "k"}, "delivery_tag": "old"},
    }
    found = unpacked(*packed(message), 7, True)
    assert found["body"] == body
    assert type(found["body"]) is type(body)
    assert found["headers"] == message["headers"]
    assert found["properties"] == {
        "priority": 3,
        "delivery_info": {"routing_key": "k", "redelivered": True},
        "delivery_tag": 7,
    }


def test_what_another_program_pushed_is_a_json_text() -> None:
    found = unpacked(b"[1]", {}, 1, False)
    assert (found["body"], found["content-type"]) == ("[1]", "application/json")


def test_a_task_is_due_at_its_eta_if_that_is_to_come() -> None:
    later = NOW + timedelta(hours=1)
    assert due_of({"headers": {"eta": later.isoformat()}}, NOW) == later
    assert due_of({"headers": {"eta": later.replace(tzinfo=None).isoformat()}}, NOW) == later
    assert due_of({"headers": {"eta": NOW.isoformat()}}, NOW) is None
    assert due_of({"headers": {"eta": None}}, NOW) is None
    assert due_of({"headers": {}}, NOW) is None
    far = NOW + timedelta(days=365 * 900)
    assert due_of({"headers": {"eta": far.isoformat()}}, NOW) is None
    with pytest.raises(ValueError):
        due_of({"headers": {"eta": "soon"}}, NOW)
