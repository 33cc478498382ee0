"""Kinds of statements: what they do, and to which table."""

from __future__ import annotations

import pytest

from cassq.cassandra.session import KEYSPACE, SERVER_TIME, kind_of


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("SELECT a FROM claims WHERE k = ?", ("read", "claims")),
        ("\nSELECT a\nFROM frames WHERE k = ?\n", ("read", "frames")),
        ("INSERT INTO frames (a) VALUES (?)", ("write", "frames")),
        ("UPDATE pipes SET a = ? WHERE k = ?", ("write", "pipes")),
        (
            "UPDATE claims USING TTL 3 SET a = ? WHERE k = ? IF a = ?",
            ("conditional write", "claims"),
        ),
        ("INSERT INTO meta (a) VALUES (?) IF NOT EXISTS", ("conditional write", "meta")),
        ("DELETE FROM meta WHERE k = ? IF EXISTS", ("conditional write", "meta")),
        ("\nUPDATE frames SET a = ?\nWHERE k = ?\nIF b = ?\n", ("conditional write", "frames")),
        (SERVER_TIME, ("read", "system.local")),
        (KEYSPACE, ("read", "system_schema.keyspaces")),
    ],
)
def test_a_statement_is_named_after_its_table(text: str, kind: tuple[str, str]) -> None:
    assert kind_of(text) == kind


def test_a_read_that_sees_conditional_writes_has_its_own_kind() -> None:
    assert kind_of("SELECT a FROM claims", serial=True) == ("serial read", "claims")
