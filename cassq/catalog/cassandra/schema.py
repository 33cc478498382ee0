"""The schema of a keyspace: makes it, brings it up to date, checks it at connect, tells of it.

Any number of processes may apply it at once. Two CREATE TABLE statements for one name on two nodes
would make two tables that exclude each other, so that one process at a time works, under a lease in
`meta`; `meta` itself is made with a fixed id. Every statement may run again, so that the next
client goes on after a crash, and the version is recorded, by LWT, when a step is done.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cassq.base import schema_files
from cassq.base.clock import Clock, Stopwatch
from cassq.base.ids import Ids
from cassq.cassandra.session import KEYSPACE, Cql, settled
from cassq.errors import BackendError, BackendTimeoutError, BrokenInvariantError, ConfigError

REPLICAS_MIN = 3  # for a quorum without one of them
LEASE_SECONDS = 120
WAIT_SECONDS = 180.0
LOOK_SECONDS = 0.25
AGREE_SECONDS = 10.0
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

# The tables of a keyspace, however new they are.
TABLES = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?"

_TABLE = re.compile(r"CREATE TABLE (IF NOT EXISTS )?(\w+)")
_REPLICAS = re.compile(r"((?P<name>[A-Za-z0-9_.-]+)=)?(?P<count>[1-9][0-9]?)")


class Status(NamedTuple):
    """What a keyspace is. version: None without tables. replicas: by data centre; "" is for all.

    commitlog_sync: of each node that tells; a keyspace without `batch` or `group` loses the last
    seconds when all replicas lose power at once.
    """

    keyspace: str
    exists: bool
    version: int | None
    known_version: int
    replicas: Mapping[str, int]
    agreed: bool
    nodes: int
    nodes_up: int
    commitlog_sync: Mapping[str, str]


# --- at connect -------------------------------------------------------------------------------


def check(cql: Cql, *, directory: Path | None = None) -> None:
    """Raises ConfigError unless the session's keyspace has the schema this cassq knows. Cost: two
    reads. directory: of the schema files, where it is another than usual."""
    keyspace = cql.contact.keyspace
    known = schema_files.latest_version("cassandra", directory=directory)
    version = read_version(cql)
    if version is None:
        _refuse_foreign(cql, directory)
        raise ConfigError(
            f"keyspace {keyspace!r} has no tables of cassq, or not all",
            hint="make them: `cassq schema apply --url URL`",
        )
    _refuse_newer(keyspace, version, known)
    if version < known:
        raise ConfigError(
            f"keyspace {keyspace!r} has schema version {version}, this cassq needs {known}",
            hint="bring it up to date: `cassq schema apply --url URL`",
        )


def _refuse_foreign(cql: Cql, directory: Path | None) -> None:
    if _tables(cql) - {_table_of(each) for each in create_statements(directory)}:
        raise ConfigError(
            f"keyspace {cql.contact.keyspace!r} holds another program's tables",
            hint="give cassq a keyspace of its own",
        )


def _refuse_newer(keyspace: str, version: int, known: int) -> None:
    if version > known:
        raise ConfigError(
            f"keyspace {keyspace!r} has schema version {version}, this cassq knows {known}",
            hint="use the newer cassq that wrote it",
        )


def read_version(cql: Cql) -> int | None:
    """The version recorded in the session's keyspace; None when there is none."""
    if "meta" not in _tables(cql):
        return None
    try:
        rows = cql.read(VERSION)
    except BackendError as exc:
        if exc.retryable:
            raise
        return None  # it is being made this moment
    return int(rows[0][0]) if rows else None


# --- applying ---------------------------------------------------------------------------------


def apply(
    cql: Cql,
    clock: Clock,
    replication: Mapping[str, int] | None = None,
    *,
    done: Callable[[str], None] = lambda told: None,
    directory: Path | None = None,
) -> int:
    """Make the keyspace and its tables where they are missing, or bring them up to date; the
    version they have then. The session need not have a keyspace yet, and has it then.

    replication: replicas by data centre, or `{"": 3}` for as many in each; needed for a keyspace
    that is not there. done: takes each step. Raises ConfigError for a keyspace that is another
    program's, of a newer cassq, or replicated otherwise. Cost: some 30 schema changes for a new
    one, of up to a second each; a few reads for one that is up to date.
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
    if not cql.schema_agreed(AGREE_SECONDS):  # whoever made it may not have waited yet
        raise BackendTimeoutError("the nodes do not agree on the schema", hint="try again")
    with _lease(cql, clock) as keep:
        version = read_version(cql)  # somebody may have been at it while we waited
        if version is None:
            _make_tables(cql, statements, done, keep)
            _record(cql, None, known)
            done(f"recorded schema version {known}")
            return known
        _refuse_newer(keyspace, version, known)
        for step in schema_files.migrations("cassandra", directory=directory):
            if step.version > version:
                for statement in split(schema_files.read(step.name, directory=directory)):
                    cql.execute(repeatable(statement))
                    keep()
                _record(cql, step.version - 1, step.version)
                done(f"recorded schema version {step.version}, by {step.name}")
    return known


def _make_tables(
    cql: Cql, statements: Sequence[str], done: Callable[[str], None], keep: Callable[[], None]
) -> None:
    there = _tables(cql)
    for statement in statements:
        table = _table_of(statement)
        if table not in there:
            cql.execute(statement)
            done(f"made table {table}")
            keep()


def create_statements(directory: Path | None = None) -> list[str]:
    """The statements of the whole schema; each does nothing where its table is there."""
    script = schema_files.read("cassandra.cql", directory=directory)
    return [repeatable(statement) for statement in split(script)]


def split(script: str) -> list[str]:
    """The statements of a schema file, without comments. No `--` or `;` may be in a string."""
    lines = (line.partition("--")[0].rstrip() for line in script.splitlines())
    return [part.strip() for part in "\n".join(lines).split(";") if part.strip()]


def repeatable(statement: str) -> str:
    """A statement that may be run again; BrokenInvariantError for one that may not."""
    if statement.startswith("CREATE TABLE ") and " IF NOT EXISTS" not in statement:
        return statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1)
    if " IF EXISTS" not in statement and " IF NOT EXISTS" not in statement:
        raise BrokenInvariantError(f"a statement of the schema cannot be repeated: {statement!r}")
    return statement


def _make_keyspace(
    cql: Cql, replication: Mapping[str, int] | None, done: Callable[[str], None]
) -> None:
    keyspace = cql.contact.keyspace
    there = replicas_of(cql)
    if there is not None:
        wished = _spread(cql, replication or {})
        if replication and wished != _spread(cql, there):
            raise ConfigError(
                f"keyspace {keyspace!r} is replicated {told(there)}, not {told(replication)}",
                hint="ALTER KEYSPACE changes it; run `nodetool repair` after that",
            )
        return
    if not replication:
        raise ConfigError(
            f"there is no keyspace {keyspace!r}",
            hint="say how to replicate it: --replication 3, or --replication dc1=3,dc2=3",
        )
    unknown = set(replication) - {""} - data_centres(cql)
    if unknown:
        raise ConfigError(
            f"there is no data centre {min(unknown)!r}",
            hint=f"there is {', '.join(sorted(data_centres(cql)))}",
        )
    factors = ", ".join(
        f"'{name or 'replication_factor'}': {count}" for name, count in replication.items()
    )
    cql.execute(
        f'CREATE KEYSPACE IF NOT EXISTS "{keyspace}"'
        f" WITH replication = {{'class': 'NetworkTopologyStrategy', {factors}}}"
    )
    done(f"made keyspace {keyspace}, replicated {told(replication)}")


def _record(cql: Cql, old: int | None, new: int) -> None:
    def act() -> bool:
        if old is None:
            return cql.apply(FIRST_VERSION, (str(new),))[0]
        return cql.apply(NEXT_VERSION, (str(new), str(old)))[0]

    def is_recorded() -> bool:
        return cql.read(VERSION, serial=True) == [(str(new),)]

    # Whoever's lease had run out may find it recorded already.
    if not settled(act, is_recorded) and not is_recorded():
        raise BackendError("the schema is being changed by another process", hint="try again")


@contextmanager
def _lease(cql: Cql, clock: Clock) -> Iterator[Callable[[], None]]:
    """Alone at work on the schema; what is given keeps it so for the next `LEASE_SECONDS`."""
    owner = Ids().client

    def is_ours() -> bool:
        return cql.read(LEASE, serial=True) == [(owner,)]

    waited = Stopwatch()
    while not cql.apply_settled(TAKE_LEASE, (owner,), is_ours):
        if waited.seconds() > WAIT_SECONDS:
            raise BackendTimeoutError("another process is at work on the schema", hint="try again")
        clock.sleep(LOOK_SECONDS)

    def keep() -> None:
        if not cql.apply_settled(KEEP_LEASE, (owner, owner), is_ours):
            raise BackendTimeoutError("the lease for the schema ran out", hint="try again")

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
        raise BrokenInvariantError(f"{statement!r} makes no table")
    return match[2]


# --- what is there ----------------------------------------------------------------------------


def status(cql: Cql, *, directory: Path | None = None) -> Status:
    """What there is, on a session without or with the keyspace. Cost: some reads, one a node."""
    keyspace, replicas = cql.contact.keyspace, replicas_of(cql)
    version = None
    if replicas is not None:
        cql.use(keyspace)
        version = read_version(cql)
    hosts = cql.cluster.metadata.all_hosts()
    return Status(
        keyspace=keyspace,
        exists=replicas is not None,
        version=version,
        known_version=schema_files.latest_version("cassandra", directory=directory),
        replicas=replicas or {},
        agreed=cql.schema_agreed(LOOK_SECONDS),
        nodes=len(hosts),
        nodes_up=sum(1 for host in hosts if host.is_up),
        commitlog_sync=cql.settings_of_nodes("commitlog_sync"),
    )


def advice(found: Status) -> list[str]:
    """What to do about a keyspace, or to keep in mind."""
    lines: list[str] = []
    if not found.exists:
        lines.append("there is no such keyspace: `cassq schema apply --replication ...` makes it")
    elif found.version is None:
        lines.append("it has no tables of cassq: `cassq schema apply` makes them")
    elif found.version < found.known_version:
        lines.append("`cassq schema apply` brings it up to date")
    elif found.version > found.known_version:
        lines.append("a newer cassq wrote it: use that")
    if found.exists and min(found.replicas.values(), default=0) < REPLICAS_MIN:
        lines.append(f"with fewer than {REPLICAS_MIN} replicas no server may fail")
    if "periodic" in found.commitlog_sync.values():
        lines.append(
            "commitlog_sync is periodic: servers that lose power at the same time may lose the last"
            " seconds of what was acknowledged; with batch or group they do not"
        )
    return lines


def replicas_of(cql: Cql) -> dict[str, int] | None:
    """Replicas by data centre of the keyspace; "" is for all of them. None: no keyspace."""
    found = cql.read(KEYSPACE, (cql.contact.keyspace,))
    if not found:
        return None
    settings = dict(found[0][0])
    factors = {name: count for name, count in settings.items() if count.isdigit()}
    if settings["class"].endswith("SimpleStrategy"):
        return {"": int(factors["replication_factor"])}
    return {name: int(count) for name, count in factors.items()}


def data_centres(cql: Cql) -> set[str]:
    """The names of the cluster's data centres."""
    return {host.datacenter for host in cql.cluster.metadata.all_hosts()}


def least_replicas(cql: Cql) -> int:
    """How many replicas the data centre with the fewest has."""
    return min((replicas_of(cql) or {}).values(), default=1)


def told(replicas: Mapping[str, int]) -> str:
    """As `--replication` takes it: `dc1=3,dc2=3`, or `3`."""
    return ",".join(f"{name}={count}" if name else str(count) for name, count in replicas.items())


def parse_replication(text: str) -> dict[str, int]:
    """What `told` tells; ConfigError for anything else."""
    replicas: dict[str, int] = {}
    for part in text.split(","):
        match = _REPLICAS.fullmatch(part)
        name = (match["name"] or "") if match else ""
        if match is None or name in replicas or (not name and part != text):
            raise ConfigError(
                f"{text!r} does not say how to replicate",
                hint="write --replication 3, or --replication dc1=3,dc2=3",
            )
        replicas[name] = int(match["count"])
    return replicas


def _spread(cql: Cql, replicas: Mapping[str, int]) -> dict[str, int]:
    """Replicas by data centre, also where they are told for all."""
    if "" in replicas:
        return dict.fromkeys(data_centres(cql), replicas[""])
    return dict(replicas)


def _tables(cql: Cql) -> set[str]:
    return {name for (name,) in cql.read(TABLES, (cql.contact.keyspace,))}
