"""The pages of guarantees: every sentence names a check, and every check it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.simulation.plants import PLANTS
from tests.simulation.sidecar_plants import SIDECAR_PLANTS

ROOT = Path(__file__).resolve().parents[2]
# What is asked of each page begins at a heading.
PAGES = {"guarantees.md": "# Guarantees", "spark.md": "## Guarantees"}
CHECK = re.compile(r"\[`([^`]+)`\]")


def sentences() -> list[str]:
    """The items of the pages' lists."""
    items: list[str] = []
    for page, heading in PAGES.items():
        _, _, text = (ROOT / "docs" / page).read_text().partition(f"{heading}")
        items += re.split(r"^- ", text, flags=re.MULTILINE)[1:]
    return [re.split(r"^\n|^#", item, maxsplit=1, flags=re.MULTILINE)[0] for item in items]


def checks() -> list[str]:
    return sorted({check for sentence in sentences() for check in CHECK.findall(sentence)})


def test_every_sentence_ends_with_what_checks_it() -> None:
    assert len(sentences()) > 50
    unchecked = [s for s in sentences() if not s.rstrip().endswith("`]")]
    assert unchecked == []


@pytest.mark.parametrize("check", checks())
def test_every_check_that_is_named_exists(check: str) -> None:
    kind, colon, name = check.partition(":")
    if kind == "plant" and colon:
        assert name in {plant.name for plant in (*PLANTS, *SIDECAR_PLANTS)}
        return
    path, _, function = check.partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
