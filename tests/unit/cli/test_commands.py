"""The tree of commands: all of it is explained, documented, and exits as the errors say."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from itertools import takewhile
from pathlib import Path

import click
import pytest

from cassq import errors
from cassq.cli.main import COMMANDS, NAME, main, report
from cassq.cli.queues.policies import GROUP_HELP, QUEUE_HELP
from cassq.cli.verb import Verb
from cassq.extents.protocol.messages import Code, RefusedError
from cassq.model.queues import GroupPolicy, QueuePolicy
from tests.commands_page import PAGE, options, page, verbs

with click.Context(main, info_name=NAME) as _root:
    LEAVES = list(verbs(main, _root))

each_verb = pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.command_path)


def test_every_noun_is_there() -> None:
    expected = """
        audit cancel completion explain gateway peek pop push reap rollback stats version worker
        queue-create queue-list queue-show queue-update queue-delete
        queue-pause queue-resume queue-drain queue-purge
        group-create group-list group-update group-delete group-keys group-release-key
        schema-apply schema-change schema-status sidecar-serve sidecar-list sidecar-show
        sidecar-check sidecar-drain sidecar-forget
        spark-archive spark-audit spark-compact spark-replay spark-rollup spark-dead-letters
        spill-status spill-forward outbox-create outbox-relay outbox-status
        pipe-list pipe-show pipe-skip
        schedule-create schedule-list schedule-show schedule-pause schedule-resume schedule-run
        schedule-update schedule-delete
        task-list task-show task-signal task-retry task-cancel
        dead-list dead-peek dead-merge dead-purge dead-export dead-import
    """
    found = {leaf.command_path.removeprefix("cassq ").replace(" ", "-") for leaf in LEAVES}
    assert found == set(expected.split())


# --- help -----------------------------------------------------------------------------------


@each_verb
def test_every_command_and_option_has_a_help(leaf: click.Context) -> None:
    assert (leaf.command.help or "").strip()
    assert len(leaf.command.get_short_help_str(200)) <= 80
    for option in leaf.command.params:
        if isinstance(option, click.Option):
            assert (option.help or "").strip(), option.name
    help_text = leaf.get_help()
    for option in options(leaf.command):
        assert all(name in help_text for name in [*option.opts, *option.secondary_opts])


@each_verb
def test_every_command_takes_json_and_a_url(leaf: click.Context) -> None:
    names = {name for option in leaf.command.params for name in option.opts}
    assert {"--json", "--url"} <= names


@each_verb
def test_the_examples_of_every_command_can_be_parsed(
    leaf: click.Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("monday.txt", "tuesday.txt", "*.jpg", "letters.jsonl"):
        (tmp_path / name).touch()
    assert isinstance(leaf.command, Verb)
    called = [words for line in leaf.command.examples for words in calls(line)]
    assert called
    for words in called:
        assert parsed(main, words) == leaf.command_path


def calls(line: str) -> Iterator[list[str]]:
    """The words after each `cassq` of a command line."""
    words = shlex.split(line.replace('"$(', " ; ").replace(')"', " ; "))
    for start, word in enumerate(words):
        if word == NAME:
            yield list(takewhile(lambda w: w not in {"|", ">", ">>", ";"}, words[start + 1 :]))


def parsed(command: click.Command, words: list[str], parent: click.Context | None = None) -> str:
    """Parse a call, without running it; the path of the command that it calls."""
    with command.make_context(command.name or NAME, words, parent=parent) as ctx:
        if not isinstance(command, click.Group):
            return ctx.command_path
        rest = [*ctx._protected_args, *ctx.args]
        child = command.get_command(ctx, rest[0])
        assert child is not None, rest
        return parsed(child, rest[1:], ctx)


def test_every_setting_has_an_option_with_a_help_of_its_own() -> None:
    for kind, helps, path in (
        (QueuePolicy, QUEUE_HELP, "cassq queue create"),
        (GroupPolicy, GROUP_HELP, "cassq group create"),
    ):
        (leaf,) = (leaf for leaf in LEAVES if leaf.command_path == path)
        found = {option.name for option in options(leaf.command)}
        settings = {field.name for field in fields(kind)}
        assert settings <= found
        assert settings == set(helps)


# --- the page -------------------------------------------------------------------------------


def test_the_page_of_commands_is_what_their_help_says() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(), "run `python -m tests.commands_page`"


@each_verb
def test_the_page_has_every_command_and_every_option(leaf: click.Context) -> None:
    section = PAGE.read_text(encoding="utf-8").split(f"\n### {leaf.command_path}\n")[1]
    section = section.split("\n### ")[0]
    for option in options(leaf.command):
        for name in [*option.opts, *option.secondary_opts]:
            assert f"`{name}" in section


# --- exit codes -----------------------------------------------------------------------------


def all_errors(kind: type[errors.CassqError]) -> Iterator[type[errors.CassqError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from all_errors(child)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.UsageError, 2),
        (errors.BackendError, 75),
        (errors.OwnershipError, 1),
        (errors.AbandonedTasksError, 1),
        (errors.CorruptionError, 1),
        (errors.BrokenInvariantError, 1),
    ],
)
def test_the_exit_code_is_that_of_the_errors_branch(
    kind: type[errors.CassqError], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for error in all_errors(kind):
        code_first = (Code.FAILED,) if issubclass(error, RefusedError) else ()
        broke = error(*code_first, "it broke", hint="mend it")
        assert report(broke, as_json=False) == code, error
        err = capsys.readouterr().err
        assert err.endswith("error: it broke\nhint: mend it\n")


def test_an_outage_that_no_second_try_ends_is_a_failure() -> None:
    """As with a missing right: a supervisor that tries again after 75 would do so for ever."""
    for error in all_errors(errors.BackendError):
        if not issubclass(error, RefusedError):
            assert report(error("it broke", retryable=False), as_json=False) == 1, error


def test_every_error_is_on_a_branch_with_a_known_exit_code() -> None:
    branches = {
        *(errors.UsageError, errors.BackendError, errors.OwnershipError),
        *(errors.AbandonedTasksError, errors.TaskFailedError, errors.StepMismatchError),
        *(errors.CorruptionError, errors.BrokenInvariantError),
    }
    assert set(errors.CassqError.__subclasses__()) == branches
    assert len(list(all_errors(errors.CassqError))) > 20


def test_other_errors_end_with_1_and_wrong_calls_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(OSError(28, "No space left on device", "out.txt"), as_json=False) == 1
    assert capsys.readouterr().err == "error: No space left on device: out.txt\n"
    assert report(click.UsageError("no such thing"), as_json=False) == 2
    assert capsys.readouterr().err == "error: no such thing\nhint: see `cassq --help`\n"


def test_the_list_of_commands_says_what_their_own_help_says() -> None:
    with click.Context(main, info_name=NAME) as ctx:
        for name, (_, told_of_it) in COMMANDS.items():
            command = main.get_command(ctx, name)
            assert command is not None
            assert command.name == name
            assert command.get_short_help_str(200) == told_of_it


def test_all_commands_together_load_nothing_that_is_slow_to_load() -> None:
    code = (
        "import sys, click; from cassq.cli.main import main; ctx = click.Context(main);"
        "[main.get_command(ctx, name) for name in main.list_commands(ctx)]; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    loaded = set(done.stdout.decode().split())
    assert "cassq.cli.ops.stats" in loaded
    slow = {
        *("asyncio", "cassandra", "email", "hazelcast", "http", "kazoo", "multiprocessing"),
        *("numpy", "pandas", "pyspark", "rocksdict", "socketserver", "ssl", "urllib.request"),
    }
    assert not loaded & slow
