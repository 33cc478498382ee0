"""`cassq schema status` of a directory; that of a keyspace is in the tests of Cassandra."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cassq.client.backends.embedded import CATALOG
from tests.shell import Shell

pytestmark = pytest.mark.embedded_only(reason="it is about the directory")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_the_status_of_a_directory_is_its_version(shell: Shell) -> None:
    shell.run("queue", "create", "mail")
    printed = shell.run("schema", "status", "--json").json()
    assert printed["directory"] == str(shell.data)
    assert printed["version"] == printed["needed"]
    assert printed["advice"] == []
    assert "needed: " in shell.run("schema", "status").out.decode()


def test_the_status_of_no_directory_says_so(shell: Shell) -> None:
    assert "there is no queue directory" in shell.run("schema", "status", code=2).err


def test_a_directory_of_a_newer_cassq_is_reported_and_ends_with_1(shell: Shell) -> None:
    shell.run("queue", "create", "mail")
    with closing(sqlite3.connect(shell.data / CATALOG)) as database:
        database.execute("PRAGMA user_version=999")
    done = shell.run("schema", "status", code=1)
    assert "999, needed: " in done.out.decode()
    assert "the newer cassq" in done.err
