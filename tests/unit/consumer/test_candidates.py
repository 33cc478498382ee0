"""The window's readers: a bounded number stays open."""

from __future__ import annotations

from typing import Any

from cassq.consumer.claiming.candidates import READERS_MAX, Readers


class FakeReader:
    """A reader that only knows whether it is closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_the_reader_that_was_used_longest_ago_is_closed_for_a_new_one() -> None:
    made: dict[str, Any] = {}

    def open_extent(pipe_id: str) -> Any:
        made[pipe_id] = FakeReader()
        return made[pipe_id]

    readers = Readers(open_extent)
    for number in range(READERS_MAX):
        readers.get(f"p{number}")
    assert readers.get("p0") is made["p0"], "it is used again"
    readers.get("new")
    assert [name for name, reader in made.items() if reader.closed] == ["p1"]
    readers.forget("p2")
    assert made["p2"].closed == 1
    readers.close()
    assert all(reader.closed == 1 for reader in made.values())
