"""The schema of a keyspace: creates, upgrades and checks it.

Any number of processes may apply it at once. Two concurrent CREATE TABLE statements for one name on
two nodes would create two conflicting tables, so only one process works at a time, under a lease in
`meta`; `meta` itself is created with a fixed id. Every statement is repeatable, so that after a
crash the next client continues, and the version is recorded, by LWT, when a step is done.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cassq.base.clock import Clock, Stopwatch
from cassq.base.ids import Ids
from cassq.cassandra.errors import MissingTableError
from cassq.cassandra.session import Cql, settled
from cassq.catalog import schema_files
from cassq.catalog.cassandra.replication import (
    as_text,
    create_keyspace,
    obstacle,
    refuse_impossible,
    replicas_of,
    spread,
)
from cassq.errors import BackendError, BackendTimeoutError, BrokenInvariantError, ConfigError

LEASE_SECONDS = 120
WAIT_SECONDS = 180.0
LOOK_SECONDS = 0.25
KEEP_SECONDS = 20.0  # between two extensions of the lease
_IDS = uuid.UUID("5d0c2a52-6d6b-4a7e-9f43-63617373710a")

VERSION = "SELECT value FROM meta WHERE key = 'schema_version'"
FIRST_VERSION = "INSERT INTO meta (key, value) VALUES ('schema_version', ?) IF NOT EXISTS"
NEXT_VERSION = "UPDATE meta SET value = ? WHERE key = 'schema_version' IF value = ?"
LEASE = "SELECT value FROM meta WHERE key = 'schema_lease'"
TAKE_LEASE = (
    "INSERT INTO meta (key, value) VALUES ('schema_lease', ?) IF NOT EXISTS"
    f" USING TTL {LEASE_SECONDS}"
)
KEEP_LEASE = (
    f"UPDATE meta USING TTL {LEASE_SECONDS} SET value = ? WHERE key = 'schema_lease' IF value = ?"
)
DROP_LEASE = "DELETE FROM meta WHERE key = 'schema_lease' IF value = ?"

# The tables of a keyspace, even ones just created.
TABLES = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?"

_TABLE = re.compile(r"CREATE TABLE (IF NOT EXISTS )?(\w+)")


# --- at connect -------------------------------------------------------------------------------


def check(cql: Cql, *, directory: Path | None = None) -> None:
    """Raise ConfigError unless the session's keyspace has this cassq's schema. Cost: two reads.
    directory: of the schema files, if not the usual one."""
    keyspace = cql.contact.keyspace
    known = schema_files.latest_version("cassandra", directory=directory)
    version = read_version(cql)
    if version is None:
        _refuse_foreign(cql, directory)
        raise ConfigError(
            f"keyspace {keyspace!r} lacks tables of cassq",
            hint="create them: `cassq schema apply --url URL`",
        )
    _refuse_newer(keyspace, version, known)
    if version < known:
        raise ConfigError(
            f"keyspace {keyspace!r} has schema version {version}; this cassq needs {known}",
            hint="upgrade it: `cassq schema apply --url URL`",
        )


def _refuse_foreign(cql: Cql, directory: Path | None) -> None:
    if tables_of(cql) - {_table_of(each) for each in create_statements(directory)}:
        raise ConfigError(
            f"keyspace {cql.contact.keyspace!r} holds another program's tables",
            hint="give cassq a keyspace of its own",
        )


def _refuse_newer(keyspace: str, version: int, known: int) -> None:
    if version > known:
        raise ConfigError(
            f"keyspace {keyspace!r} has schema version {version}; this cassq supports {known}",
            hint="use the newer cassq that wrote it",
        )


def read_version(cql: Cql) -> int | None:
    """The version recorded in the session's keyspace, if any. Cost: one read."""
    try:
        rows = cql.read(VERSION)
    except MissingTableError:
        return None
    return int(rows[0][0]) if rows else None


# --- applying ---------------------------------------------------------------------------------


def apply(
    cql: Cql,
    clock: Clock,
    replication: Mapping[str, int] | None = None,
    *,
    done: Callable[[str], None] = lambda line: None,
    directory: Path | None = None,
) -> int:
    """Create the keyspace and its tables if they are missing, or upgrade them; return their
    version. The session uses the keyspace from then on.

    replication: replicas by data centre, or `{"": 3}` for all of them; required to create a
    keyspace. done: called with each step. Raises ConfigError for a keyspace of another program or a
    newer cassq, with other replication, or with replication that the servers cannot keep; then
    nothing is left behind. Cost: some 30 schema changes for a new one; a few reads if it is up to
    date.
    """
    keyspace = cql.contact.keyspace
    _make_keyspace(cql, replication, done)
    cql.use(keyspace)
    known = schema_files.latest_version("cassandra", directory=directory)
    version = read_version(cql)
    if version == known:
        return known
    if version is None:
        _refuse_foreign(cql, directory)
    else:
        _refuse_newer(keyspace, version, known)
    statements = create_statements(directory)
    meta = next(each for each in statements if _table_of(each) == "meta")
    cql.execute(_with_id(meta, uuid.uuid5(_IDS, f"{keyspace}.meta")))
    with _lease(cql, clock) as keep:
        cql.await_agreement()  # a process that was killed may not have waited
        version = read_version(cql)  # another process may have changed it while we waited
        if version is None:
            _make_tables(cql, statements, done, keep)
            _record(cql, None, known)
            done(f"recorded schema version {known}")
            return known
        _refuse_newer(keyspace, version, known)
        for step in schema_files.migrations("cassandra", directory=directory):
            if step.version > version:
                for statement in split(schema_files.read(step.name, directory=directory)):
                    cql.execute(repeatable(statement), agree=False)
                    keep()
                cql.await_agreement()
                _record(cql, step.version - 1, step.version)
                done(f"recorded schema version {step.version}, by {step.name}")
    return known


def _make_tables(
    cql: Cql, statements: Sequence[str], done: Callable[[str], None], keep: Callable[[], None]
) -> None:
    """Create missing tables, all at one node: the others get them in the same order. Waits for the
    others once, at the end."""
    there = tables_of(cql)
    for statement in statements:
        table = _table_of(statement)
        if table not in there:
            cql.execute(statement, agree=False)
            done(f"created table {table}")
            keep()
    cql.await_agreement()


def create_statements(directory: Path | None = None) -> list[str]:
    """The statements of the whole schema; each does nothing if its table exists."""
    script = schema_files.read("cassandra.cql", directory=directory)
    return [repeatable(statement) for statement in split(script)]


def split(script: str) -> list[str]:
    """The statements of a schema file, without comments. No `--` or `;` may be in a string."""
    lines = (line.partition("--")[0].rstrip() for line in script.splitlines())
    return [part.strip() for part in "\n".join(lines).split(";") if part.strip()]


def repeatable(statement: str) -> str:
    """Make a statement repeatable; BrokenInvariantError if that is not possible."""
    if statement.startswith("CREATE TABLE ") and " IF NOT EXISTS" not in statement:
        return statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1)
    if " IF EXISTS" not in statement and " IF NOT EXISTS" not in statement:
        raise BrokenInvariantError(f"a schema statement is not repeatable: {statement!r}")
    return statement


def _make_keyspace(
    cql: Cql, replication: Mapping[str, int] | None, done: Callable[[str], None]
) -> None:
    keyspace = cql.contact.keyspace
    there, nodes = replicas_of(cql), cql.nodes("cluster_name")
    if there is not None:
        if replication and spread(replication, nodes) != spread(there, nodes):
            raise ConfigError(
                f"keyspace {keyspace!r} has replication {as_text(there)}, not"
                f" {as_text(replication)}",
                hint=f"`cassq schema change --replication {as_text(replication)}` changes it",
            )
        found = obstacle(there, nodes)
        if found is not None:
            raise found
        return
    if not replication:
        raise ConfigError(
            f"there is no keyspace {keyspace!r}",
            hint="to create it, give --replication 3, or --replication dc1=3,dc2=3",
        )
    refuse_impossible(replication, nodes)
    create_keyspace(cql, replication)
    done(f"created keyspace {keyspace} with replication {as_text(replication)}")


def _record(cql: Cql, old: int | None, new: int) -> None:
    def act() -> bool:
        if old is None:
            return cql.apply(FIRST_VERSION, (str(new),))[0]
        return cql.apply(NEXT_VERSION, (str(new), str(old)))[0]

    def is_recorded() -> bool:
        return cql.read(VERSION, serial=True) == [(str(new),)]

    # If our lease expired, another process may have recorded it already.
    if not settled(act, is_recorded) and not is_recorded():
        raise BackendError("another process is changing the schema", hint="try again")


@contextmanager
def _lease(cql: Cql, clock: Clock) -> Iterator[Callable[[], None]]:
    """Hold the lease on the schema; yields a function that extends it to `LEASE_SECONDS` if that
    has not been done for a while."""
    owner = Ids().client

    def is_ours() -> bool:
        return cql.read(LEASE, serial=True) == [(owner,)]

    waited = Stopwatch()
    while not cql.apply_settled(TAKE_LEASE, (owner,), is_ours):
        if waited.seconds() > WAIT_SECONDS:
            raise BackendTimeoutError("another process is changing the schema", hint="try again")
        clock.sleep(LOOK_SECONDS)

    extended = Stopwatch()

    def keep() -> None:
        nonlocal extended
        if extended.seconds() < KEEP_SECONDS:
            return
        extended = Stopwatch()
        if not cql.apply_settled(KEEP_LEASE, (owner, owner), is_ours):
            raise BackendTimeoutError("the lease on the schema ended", hint="try again")

    try:
        yield keep
    finally:
        cql.apply(DROP_LEASE, (owner,))


def _with_id(statement: str, table_id: uuid.UUID) -> str:
    joint = " AND" if re.search(r"\)\s*WITH\b", statement) else " WITH"
    return f"{statement}{joint} ID = {table_id}"


def _table_of(statement: str) -> str:
    match = _TABLE.match(statement)
    if match is None:
        raise BrokenInvariantError(f"{statement!r} creates no table")
    return match[2]


def tables_of(cql: Cql) -> set[str]:
    """The names of the keyspace's tables, as the node that answers knows them."""
    return {name for (name,) in cql.read(TABLES, (cql.contact.keyspace,))}
