"""Counts in sentences: one of a thing is in the singular."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cassq.plurals import counted

ROOT = Path(__file__).resolve().parents[2]
NOUNS = "messages|pipes|extents|letters|queues|groups"
BY_HAND = re.compile(rf"\{{[^{{}}]*\}} ({NOUNS})\b")

# What is never one, is a range or a bound, or counts what is within the format.
RIGHT = {
    "cassq/cli/ops/history.py": "the name of a chart",
    "cassq/cli/spark/commands.py": "of how many in all",
    "cassq/cli/spark/audit.py": "of how many in all",
    "cassq/cli/spark/rollup.py": "of how many in all",
    "cassq/sidecar/engine/checks.py": "what a request of the protocol announced",
    "cassq/sidecar/engine/rocksdb/engine.py": "the name of a write",
    "cassq/sidecar/engine/replica_state.py": "a bug's own message",
    "cassq/extents/sidecar/repair/copying.py": "of how many in all",
    "cassq/message/frames.py": "a frame's own numbers",
    "cassq/producer/quota.py": "more than a limit of one at least",
}


@pytest.mark.parametrize(
    ("count", "message"),
    [(0, "0 messages"), (1, "1 message"), (2, "2 messages"), (1000, "1,000 messages")],
)
def test_one_is_in_the_singular(count: int, message: str) -> None:
    assert counted(count, "message") == message


def test_no_message_of_the_package_makes_a_plural_by_hand() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "cassq").rglob("*.py")
        if BY_HAND.search(path.read_text(encoding="utf-8"))
    }
    assert found == set(RIGHT)
