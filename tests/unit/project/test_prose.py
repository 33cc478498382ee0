"""Plain English in what users read: messages, help, and the docstrings of public names.

A few turns that a native reader stumbles over are kept out. Judgement does the rest.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cassq

SOURCES = sorted(Path(cassq.__file__).parent.rglob("*.py"))
WORST = re.compile(
    r"\b(whoever|(?:is|are) told|told of|so many|(?:is|are) to be|the same again"
    r"|of late|(?:for )?want of|if need be|be (?:it|they)|bears?|(?:stands?|stood) still"
    r"|throw[ns]? (?:\w+ ){0,3}away|again and again|tells? of|nobody (?:answers|knows)"
    r"|(?<!there )is no (?!longer|more\b))\b",
    re.IGNORECASE,
)


def docstrings(tree: ast.Module) -> Iterator[tuple[ast.Constant, bool]]:
    """Each docstring, and whether it is of a public class, function or module."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value, not getattr(node, "name", "").startswith("_")


def stumbles(source: str, *, in_docstrings: bool = False) -> list[str]:
    """The worst turns in the strings of a module, or in its public docstrings."""
    tree = ast.parse(source)
    docs = {id(each): public for each, public in docstrings(tree)}
    return [
        f"line {node.lineno}: {found[0]!r}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (docs.get(id(node), False) if in_docstrings else id(node) not in docs)
        for found in WORST.finditer(node.value)
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_what_users_are_shown_is_plain_english(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert stumbles(source) == []
    assert stumbles(source, in_docstrings=True) == []


@pytest.mark.parametrize(
    "text",
    [
        "x is no rate",
        "show so many",
        "whoever comes",
        "it is to be made",
        "the sidecar is told",
        "a pipe that bears a mark",
        "throws dead letters away",
        "it is tried again and again",
        "for want of space",
        "it tells of damage",
        "nobody answers",
    ],
)
def test_the_worst_turns_are_seen(text: str) -> None:
    assert len(stumbles(f"print({text!r})")) == 1
    assert len(stumbles(f'"""{text}"""', in_docstrings=True)) == 1
    assert stumbles(f'def _f():\n    """{text}"""', in_docstrings=True) == []


@pytest.mark.parametrize("text", ["there is no queue", "it is no longer open", "not so much"])
def test_what_is_plain_passes(text: str) -> None:
    assert stumbles(f"print({text!r})") == []
