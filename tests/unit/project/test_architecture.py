"""The page about the architecture, and the contracts that keep it true."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FLOORS_MAX = 12
READ_MAX = 40


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def contracts() -> ConfigParser:
    found = ConfigParser()
    found.read(ROOT / "setup.cfg")
    return found


def floors() -> list[list[str]]:
    """The rooms of each floor, from the top."""
    lines = contracts()["importlinter:contract:floors"]["layers"].split("\n")
    return [re.findall(r"\w+", line) for line in lines if line.strip()]


def test_there_are_few_floors() -> None:
    assert len(floors()) <= FLOORS_MAX


def test_the_page_has_the_floors_of_the_contract() -> None:
    rows = [line.split("|")[2] for line in section("Rooms").splitlines() if line.startswith("| ")]
    told = [[room.removesuffix(".py") for room in re.findall(r"`([\w.]+)`", row)] for row in rows]
    assert [sorted(rooms) for rooms in told if rooms] == [sorted(rooms) for rooms in floors()]


def test_every_room_is_above_the_ground() -> None:
    ground = contracts()["importlinter:contract:ground"]
    rooms = {f"cassq.{room}" for floor in floors() for room in floor}
    assert set(ground["forbidden_modules"].split()) == rooms
    ignored = contracts()["importlinter:contract:floors"]["exhaustive_ignores"].split()
    assert {f"cassq.{name}" for name in ignored} - {"cassq.__main__"} == set(
        ground["source_modules"].split()
    )


def files_to_read() -> list[str]:
    return re.findall(r"`([a-z_/]+\.py)`", section("Where to start reading"))


def test_the_files_to_read_first_are_few_and_there() -> None:
    files = files_to_read()
    assert len(files) == len({*files}) <= READ_MAX
    for name in files:
        assert (ROOT / "cassq" / name).is_file(), name


@pytest.mark.parametrize("page", ["README.md", "docs/development.md"])
def test_a_newcomer_finds_the_page(page: str) -> None:
    assert "architecture.md" in (ROOT / page).read_text()
