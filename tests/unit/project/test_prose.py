"""Plain English in what users read: messages, help, the docstrings of public names, and pages. Also
in the comments of the package.

A few turns that a native reader stumbles over are kept out. Judgement does the rest.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import cassq

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted(Path(cassq.__file__).parent.rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
WORST = re.compile(
    r"\b(whoever|(?:is|are) told|told of|so many|(?:is|are) to be|the same again"
    r"|of late|(?:for )?want of|if need be|be (?:it|they)|bears?|(?:stands?|stood) still"
    r"|throw[ns]? (?:\w+ ){0,3}away|again and again|tells? of|nobody (?:answers|knows)"
    r"|(?<!there )is no (?!longer|more\b))\b",
    re.IGNORECASE,
)
# The same where a line may end within a turn.
WORST_IN_TEXT = re.compile(
    WORST.pattern.replace("(?<!there )", r"(?<!there\s)").replace(" ", r"\s+"), re.IGNORECASE
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


def stumbles_of_comments(source: str) -> list[str]:
    """The worst turns in the comments of a module; those of adjacent lines are read together."""
    blocks: list[tuple[int, str]] = []
    last = (-1, -1)  # the line and column of the comment before
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("#: ")
            if last == (token.start[0] - 1, token.start[1]):
                first, before = blocks.pop()
                blocks.append((first, f"{before}\n{text}"))
            else:
                blocks.append((token.start[0], text))
            last = token.start
    return [found for first, text in blocks for found in stumbles_of_page(text, first)]


def stumbles_of_page(text: str, first: int = 1) -> list[str]:
    """The worst turns in a text, also where a line ends. first: the number of its first line."""
    return [
        f"line {first + text.count(chr(10), 0, found.start())}: {found[0]!r}"
        for found in WORST_IN_TEXT.finditer(text)
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_are_plain_english(path: Path) -> None:
    assert stumbles_of_page(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_comments_are_plain_english(path: Path) -> None:
    assert stumbles_of_comments(path.read_text(encoding="utf-8")) == []


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
    assert len(stumbles_of_page(f"Here {text}.")) == 1
    assert len(stumbles_of_comments(f"x = 1  # {text}\n")) == 1


def test_a_turn_is_seen_where_a_line_ends() -> None:
    (found,) = stumbles_of_page("One\nis tried again\n  and again.")
    assert found == r"line 2: 'again\n  and again'"
    assert len(stumbles_of_comments("def f():\n    # It is\n    # told.\n    pass\n")) == 1
    assert stumbles_of_comments("x = 1  # it is\n# told so\n") == []


@pytest.mark.parametrize("text", ["there is no queue", "it is no longer open", "not so much"])
def test_what_is_plain_passes(text: str) -> None:
    assert stumbles(f"print({text!r})") == []
    assert stumbles_of_page(text) == []
