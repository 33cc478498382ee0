"""The documents: their Python runs, their commands exist, their links lead somewhere."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import cassq
from cassq.cli.main import main
from tests.integration.deadlines import eventually

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
WORKER = ROOT / "examples" / "worker" / "worker.py"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
# Its Python needs a JDK: tests/spark/test_page.py runs it.
SPARK = ROOT / "docs" / "spark.md"

PYTHON = "python"
SHELL = {"", "sh", "bash"}
# What is neither run nor a shell's: it says so, or a block in another language could hide.
DATA = {"text", "json", "toml", "sql"}

RUN_BLOCKS = """
import json, sys
page, blocks = json.load(sys.stdin)
names = {"__name__": "page"}  # a program that a page shows whole does not start
for line, code in blocks:
    exec(compile("\\n" * line + code, page, "exec"), names)
"""
SECONDS_MAX = 120
# Some releases of Python 3.12 take `?1` in a statement for a name (python/cpython#117995).
WARNINGS = ["-W", "error::DeprecationWarning", "-W", "ignore:Binding :DeprecationWarning"]


class Block(NamedTuple):
    """A fenced block: its language, the line of its fence, its text."""

    language: str
    line: int
    text: str


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page; a fence that is not closed, or of tildes, is refused."""
    found: list[Block] = []
    opened: tuple[str, int] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        assert not line.lstrip().startswith("~~~"), f"{page.name}:{number}: fence with backticks"
        if not line.lstrip().startswith("```"):
            lines.append(line)
        elif opened is None:
            opened, lines = (line.strip().lstrip("`"), number), []
        else:
            found.append(Block(*opened, "\n".join(lines) + "\n"))
            opened = None
    assert opened is None, f"{page.name}: a block is not closed"
    return found


def outside_blocks(page: Path) -> str:
    return re.sub(r"^\s*```.*?^\s*```\s*$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@pytest.fixture
def own_shell(tmp_path: Path) -> dict[str, str]:
    """An environment in which `cassq` is this source tree's, and no queue directory is named."""
    command = tmp_path / "bin" / "cassq"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cassq "$@"\n')
    command.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "CASSQ_URL"}
    environment["PATH"] = f"{command.parent}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )
    return environment


# --- the pages --------------------------------------------------------------------------------


def test_the_pages_that_are_promised_are_there() -> None:
    names = {page.name for page in PAGES if page.exists()}
    assert {"README.md", "frame_format.md", "pipe_file.md"} <= names


@each_page
def test_every_block_says_in_which_language_it_is(page: Path) -> None:
    for block in blocks_of(page):
        known = {PYTHON} | SHELL | DATA
        assert block.language in known, f"{page.name}:{block.line}: say one of {sorted(known)}"


def test_the_readme_begins_with_the_two_commands_that_do_it_all() -> None:
    first = blocks_of(README)[0]
    assert first.language in SHELL
    assert first.text == "./dev flights\n./dev test\n"


def addressed(text: str) -> list[str]:
    """Where the links of a text lead, that do not lead out of the project."""
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """The names that a page's headings can be linked by."""
    headings = re.findall(r"^#+ +(.*)$", outside_blocks(page), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@each_page
def test_every_link_inside_the_project_leads_somewhere(page: Path) -> None:
    for link in addressed(outside_blocks(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}: there is no such heading"


# --- Python -----------------------------------------------------------------------------------


def test_the_worker_that_the_readme_shows_is_the_example() -> None:
    assert WORKER.read_text() in [block.text for block in blocks_of(README)]


def _settled(queue: cassq.Queue) -> tuple[int, int]:
    group = queue.stats().groups["default"]
    return group.committed, group.dead


def test_the_example_worker_runs_by_the_commands_that_the_readme_shows(
    tmp_path: Path, own_shell: dict[str, str]
) -> None:
    url = f"file:{tmp_path / 'queues'}"
    (shown,) = (block.text for block in blocks_of(README) if "\ncassq worker" in block.text)
    create, work = shown.splitlines()
    environment = own_shell | {"CASSQ_URL": url}
    subprocess.run(shlex.split(create), env=environment, check=True, stdout=subprocess.DEVNULL)
    with cassq.connect(url) as client:
        queue = client.queue("mails")
        with queue.pusher() as pusher:
            for to in ("ann@example.org", "nobody", "bob@example.org"):
                pusher.push(json.dumps({"to": to}).encode())
        with subprocess.Popen(
            shlex.split(work),
            env=environment,
            cwd=WORKER.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as worker:
            try:
                eventually("all are done", lambda: _settled(queue) == (2, 1))
                worker.send_signal(signal.SIGTERM)
                said, _ = worker.communicate(timeout=100)
            finally:
                worker.kill()  # nothing, once it has ended
            assert worker.returncode == 0
            # Threads share standard output: their lines may run into each other.
            assert said.count("ann@example.org") == said.count("bob@example.org") == 1
        group = queue.stats().groups["default"]
        assert (group.committed, group.dead, group.waiting, group.pending) == (2, 1, 0, 0)
        (letter,) = queue.dead_letters().peek()
        assert json.loads(letter.payload) == {"to": "nobody"}
        assert queue.audit().findings == []


@pytest.mark.parametrize("page", [p for p in PAGES if p != SPARK], ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, own_shell: dict[str, str]) -> None:
    """The blocks of a page run one after another, with the same names, in one directory."""
    python = [(block.line, block.text) for block in blocks_of(page) if block.language == PYTHON]
    done = subprocess.run(
        [sys.executable, *WARNINGS, "-c", RUN_BLOCKS],
        input=json.dumps([str(page), python]),
        cwd=tmp_path,
        env=own_shell,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{page.name}\n{done.stdout}\n{done.stderr}"


def test_the_readme_has_python_to_run() -> None:
    assert any(block.language == PYTHON for block in blocks_of(README))


# --- the command ------------------------------------------------------------------------------


class Call(NamedTuple):
    """A call of the command, as a page shows it. mentioned: in a sentence, maybe its verb alone."""

    where: str
    words: list[str]
    mentioned: bool

    def fault(self) -> str:
        found = fault(self.words)
        return "" if self.mentioned and found.startswith("Missing") else found


def calls_in_line(line: str) -> Iterator[list[str]]:
    """The words after each `cassq` that stands where a shell takes a command from."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    command: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;()<>"):
            while command and re.fullmatch(r"\$|[A-Za-z_]+=.*", command[0]):
                command.pop(0)
            if command and command[0] == "cassq":
                yield command[1:]
            command = []
        else:
            command.append(word)


def calls_of(page: Path) -> list[Call]:
    """Every call that a page shows in a block or in its text."""
    found: list[Call] = []
    for block in blocks_of(page):
        if block.language not in SHELL | {"text"}:
            continue
        text = block.text.replace("\\\n", " ")
        for number, line in enumerate(text.splitlines(), block.line + 1):
            if block.language == "text" and not re.match(r"\$? *cassq ", line):
                continue
            where = f"{page.name}:{number}"
            found += (Call(where, words, False) for words in calls_in_line(line))
    for code in re.findall(r"`(cassq [^`]+)`", outside_blocks(page)):
        where = f"{page.name}: `{code}`"
        found += (Call(where, words, True) for words in calls_in_line(code))
    return found


def calls_in_hints() -> list[Call]:
    """Every call that a message or hint of the package names."""
    found: list[Call] = []
    for path in sorted((ROOT / "cassq").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for code in re.findall(r"`(cassq [^`]+)`", node.value):
                    where = f"{path.relative_to(ROOT)}:{node.lineno}: `{code}`"
                    found += (Call(where, words, True) for words in calls_in_line(code))
    return found


def fault(words: list[str]) -> str:
    """What is wrong with a call's verbs, options and arguments; "" if nothing."""
    synopsis = any("[" in word or "..." in word or "…" in word for word in words)
    command: click.Command = main
    context = click.Context(command, info_name="cassq")
    try:
        while isinstance(command, click.Group):
            _, rest, _ = command.make_parser(context).parse_args(list(words))
            if not rest or rest[0] in ("COMMAND", "[OPTIONS]"):
                return ""
            name, found, words = command.resolve_command(context, rest)
            assert found is not None
            context = click.Context(found, parent=context, info_name=name)
            command = found
        if not synopsis and "--help" not in words:
            command.make_context("verb", list(words), parent=context.parent)
    except click.BadParameter as exc:
        # Nor is there a file of that name here.
        return "" if "does not exist" in exc.message else exc.format_message()
    except click.UsageError as exc:
        return exc.format_message()
    return ""


@each_page
def test_every_call_that_a_page_shows_is_one_the_command_takes(page: Path) -> None:
    for call in calls_of(page):
        assert call.fault() == "", call.where


def test_every_call_that_a_hint_names_is_one_the_command_takes() -> None:
    calls = calls_in_hints()
    assert len(calls) > 3
    for call in calls:
        assert call.fault() == "", call.where


def verbs(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from verbs(found, (*path, name))
    elif not command.hidden:
        yield path


def test_every_command_is_shown_on_a_page() -> None:
    shown = [call.words for page in PAGES for call in calls_of(page)]
    for path in verbs(main):
        assert any(tuple(words[: len(path)]) == path for words in shown), " ".join(path)


def test_the_shell_blocks_of_the_readme_run(tmp_path: Path, own_shell: dict[str, str]) -> None:
    """Those that use the installed command; ./dev is the tests' own caller."""
    blocks = [b for b in blocks_of(README) if b.language in SHELL and "./dev" not in b.text]
    assert blocks
    # `timeout` ends what a block has started in the background as well.
    ends = ["timeout", "--kill-after=10", str(SECONDS_MAX)]
    for block in blocks:
        done = subprocess.run(
            [*ends, "bash", "-euo", "pipefail", "-c", block.text],
            cwd=tmp_path,
            env=own_shell,
            capture_output=True,
            text=True,
            timeout=2 * SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"README.md:{block.line}\n{done.stdout}\n{done.stderr}"


@each_page
def test_every_verb_of_dev_that_a_page_shows_is_one(page: Path) -> None:
    found = subprocess.run(
        [ROOT / "dev", "help"], capture_output=True, text=True, check=True
    ).stdout
    known = set(re.findall(r"^  ([a-z]+)\b", found, re.MULTILINE))
    assert "test" in known
    for verb in re.findall(r"\./dev +([a-z]+)", page.read_text()):
        assert verb in known, f"{page.name}: ./dev {verb}"


# --- the checks see what they forbid ------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "calls"),
    [
        ("cassq stats", [["stats"]]),
        ("$ cassq stats # a comment", [["stats"]]),
        ("seq 9 | cassq push q && cassq pop q > out", [["push", "q"], ["pop", "q"]]),
        ("CASSQ_URL=file:x cassq --json stats 'a b'", [["--json", "stats", "a b"]]),
        ("pip install cassq", []),
        ("echo cassq stats", []),
    ],
)
def test_calls_are_found_where_a_shell_takes_commands_from(
    line: str, calls: list[list[str]]
) -> None:
    assert list(calls_in_line(line)) == calls


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("stats", ""),
        ("--json queue list", ""),
        ("pop q --max 3", ""),
        ("pop [OPTIONS] QUEUE", ""),
        ("--help", ""),
        ("pop --help", ""),
        ("prune", "prune"),
        ("queue prune", "prune"),
        ("stats --no-such", "no-such"),
        ("--no-such stats", "no-such"),
        ("pop", "Missing argument"),
        ("pop q --wait soon", "soon"),
        ("push q no-such-file", ""),
        ("queue show a b", "unexpected extra argument"),
    ],
)
def test_a_call_that_does_not_exist_is_seen(call: str, message: str) -> None:
    found = fault(call.split())
    assert (found == "") == (message == "")
    assert message in found


def test_a_page_s_blocks_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n```python\nx = 1\n```\n- item\n  ```sh\n  ls\n  ```\n")
    assert blocks_of(page) == [Block("python", 2, "x = 1\n"), Block("sh", 6, "  ls\n")]
    assert "x = 1" not in outside_blocks(page)
    page.write_text("```python\nx = 1\n")
    with pytest.raises(AssertionError, match="not closed"):
        blocks_of(page)
