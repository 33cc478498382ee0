"""`cassq dead`: what it does, what it writes, how it fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

import cassq
from tests.integration.cli.test_verbs import Cli, cli
from tests.integration.dead_letters.test_merging import ODD, letters_of_jobs
from tests.integration.stage import Connect
from tests.shell import Done

__all__ = ["cli"]


@pytest.fixture
def dead(cli: Cli, connect: Connect) -> Cli:
    """Run `cassq dead`; the queue `jobs` has 20 dead letters."""
    client: cassq.Client = connect()
    client.create_queue("jobs")
    letters_of_jobs(client, 20)

    def run(*words: object, **how: Any) -> Done:
        return cli("dead", *words, **how)

    return run


def count(dead: Cli) -> int:
    (row,) = dead("list", "jobs", "--json").json()
    letters: int = row["letters"]
    return letters


def test_groups_with_dead_letters_are_listed(dead: Cli) -> None:
    (row,) = dead("list", "--json").json()
    assert (row["queue"], row["group"], row["letters"], row["pending"]) == (
        "jobs",
        "default",
        20,
        0,
    )
    assert dead("list", "mail", "--json").json() == []
    assert dead("list").out.split()[-6:-2] == [b"jobs", b"default", b"20", b"0"]
    dead("list", "absent", code=2)


def test_a_peek_shows_what_they_died_of(dead: Cli) -> None:
    shown = dead("peek", "jobs", "--limit", 2).out.decode().splitlines()
    assert len(shown) == 3
    assert "rejected" in shown[1]
    assert "no customer 0" in shown[1]
    found = dead("peek", "jobs", "--header", "odd=1", "--text", "9", "--json").json_lines()
    assert [letter["payload"] for letter in found] == ["9", "19"]
    assert found[0]["death"]["error"] == "no customer 9"


def test_a_merge_brings_back_what_the_filter_names(dead: Cli, cli: Cli) -> None:
    dry = dead("merge", "jobs", "--header", "odd=1", "--dry-run")
    assert dry.out == b"10 dead letters would be merged\n"
    assert dead("merge", "jobs", "--header", "odd=1", "--rate", "1000/s").out == (
        b"10 dead letters merged\n"
    )
    printed = dead("merge", "jobs", "--limit", 4, "--json").json()
    assert (printed["merged"], printed["held"], printed["complete"]) == (4, 0, False)
    assert len(cli("pop", "jobs", "--all").out.split()) == 14
    assert count(dead) == 6


def test_a_merge_counts_what_other_consumers_hold(dead: Cli, connect: Connect) -> None:
    popper = connect().queue("jobs~default~dead").popper()
    assert len(popper.pop(5)) == 5
    done = dead("merge", "jobs")
    assert done.out == b"15 dead letters merged\n"
    assert done.err == "5 dead letters left: another consumer or merge has claimed them\n"


def test_a_purge_asks_and_without_a_terminal_needs_yes(dead: Cli) -> None:
    for words in (("purge", "jobs"), ("purge", "jobs", "--json"), ("purge", "jobs", "--text", "1")):
        assert "--yes" in dead(*words, code=2).err
    assert count(dead) == 20
    assert dead("purge", "jobs", "--header", "odd=1", "--yes").out == b"10 dead letters purged\n"
    assert dead("purge", "jobs", "--dry-run").out == b"10 dead letters would be purged\n"
    assert dead("purge", "jobs", "--yes", "--json").json()["purged"] == 10
    assert count(dead) == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--header", "odd"),
        ("--older-than", "soon"),
        ("--reason", ""),
        ("--id", ""),
        ("--text", ""),
        ("--rate", "fast"),
        ("--rate", "0"),
        ("--limit", "0"),
        ("--reasons", "rejected"),
        ("--group", "a b"),
    ],
)
def test_a_wrong_filter_purges_nothing(dead: Cli, words: tuple[str, str]) -> None:
    dead("purge", "jobs", *words, "--yes", code=2)
    assert count(dead) == 20


def test_a_filter_that_names_none_purges_none(dead: Cli) -> None:
    words = ("--reason", "maxlen", "--yes", "--json")
    assert dead("purge", "jobs", *words).json()["purged"] == 0
    mistaken = dead("purge", "jobs", "--reason", "rejectd", "--yes", code=2)
    assert "is not one of 'delivery_limit', 'rejected'" in mistaken.err
    assert dead("purge", "jobs", "--id", "absent", "--yes", "--json").json()["purged"] == 0
    assert count(dead) == 20


def test_letters_go_out_as_lines_and_in_again(dead: Cli, cli: Cli) -> None:
    lines = dead("export", "jobs", "--header", "odd=1").out
    assert [json.loads(line)["headers"] for line in lines.splitlines()] == [ODD] * 10
    dead("purge", "jobs", "--yes")
    assert dead("import", "jobs", stdin=lines).out == b"imported 10 dead letters\n"
    again = dead("import", "jobs", "-", stdin=lines)
    assert again.err == "10 dead letters skipped: they are there already\n"
    printed = dead("import", "mail", "--to-queue", "--json", stdin=lines).json()
    assert printed == {"imported": 10, "skipped": 0}
    assert len(cli("pop", "mail", "--all").out.split()) == 10
    assert count(dead) == 10


def test_a_file_with_a_wrong_line_imports_nothing(dead: Cli) -> None:
    lines = dead("export", "jobs").out
    failed = dead("import", "mail", "--to-queue", stdin=lines + b"nonsense\n", code=2)
    assert "line 21" in failed.err
    dead("import", "absent", stdin=lines, code=2)
