"""`cassq schema`: make and inspect the tables of a Cassandra keyspace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from cassq.base import extras
from cassq.base.clock import SystemClock
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb
from cassq.client.connecting import local_directory
from cassq.client.embedded import schema_of_directory

if TYPE_CHECKING:
    from cassq.cassandra.session import Cql
    from cassq.catalog.cassandra.schema import Status

URL = "cassandra://db1,db2/cassq"


@click.group()
def schema() -> None:
    """Make, upgrade and inspect the tables of a Cassandra keyspace.

    A directory does not need this: its tables are made when it is opened.
    """


@contextmanager
def _session(call: Invocation) -> Iterator[tuple[ModuleType, Cql]]:
    """The schema module, and a session with the cluster of the URL; both need the driver."""
    with extras.wanted(*extras.CASSANDRA):
        from cassq.catalog.cassandra import schema as schemas
        from cassq.client import cluster
    cql = cluster.open_session(call.url, SystemClock())
    try:
        yield schemas, cql
    finally:
        cql.close()


@schema.command(
    "apply",
    cls=Verb,
    short_help="Make the tables of a Cassandra keyspace, or bring them up to date.",
    examples=[
        f"cassq schema apply --url {URL} --replication 3",
        "cassq schema apply --url cassandra://db1/cassq?dc=east --replication east=3,west=3",
        f"cassq schema apply --url {URL}",
    ],
)
@click.option(
    "--replication",
    metavar="COUNT|DC=COUNT,...",
    help="How many replicas a new keyspace has, in every data centre or in those named.",
)
@click.pass_obj
def apply(call: Invocation, replication: str | None) -> None:
    """Make the tables of the URL's keyspace, or bring them up to date; with --replication also
    make the keyspace if it is missing.

    Tables that are up to date are left alone, and any number of processes may run this at once.
    Clients of an older cassq go on working, but cannot connect again. With three replicas, one
    server may fail.
    """
    steps: list[str] = []

    def done(step: str) -> None:
        steps.append(step)
        if not call.as_json:
            output.say(step)

    with _session(call) as (schemas, cql):
        replicas = None if replication is None else schemas.parse_replication(replication)
        version = schemas.apply(cql, SystemClock(), replicas, done=done)
        keyspace = cql.contact.keyspace
    if call.as_json:
        output.document({"keyspace": keyspace, "version": version, "done": steps})
    elif not steps:
        output.say(f"keyspace {keyspace} has schema version {version}: nothing to do")


@schema.command(
    "status",
    cls=Verb,
    short_help="Show the schema version of a keyspace, or directory.",
    examples=[
        f"cassq schema status --url {URL}",
        f"cassq schema status --url {URL} --json | jq .version",
        "cassq schema status --url file:///var/lib/cassq",
    ],
)
@click.pass_context
def status(ctx: click.Context) -> None:
    """Show a Cassandra keyspace: its schema version and the one that this cassq needs, how it is
    replicated, whether all servers agree on its tables, and how they sync to disk.

    For a directory only the versions are shown: an older one is brought up to date when it is
    opened. The exit code is 1 unless this cassq can work with it as it is.
    """
    call = ctx.ensure_object(Invocation)
    directory = local_directory(call.url)
    if directory is not None:
        _directory_status(ctx, call, directory)
        return
    with _session(call) as (schemas, cql):
        found: Status = schemas.status(cql)
        replication = schemas.told(found.replicas)
        advice = schemas.advice(found)
    if call.as_json:
        output.document({**described(found), "advice": advice})
    else:
        _show(found, replication, advice)
    if found.version != found.known_version:
        ctx.exit(1)


def _directory_status(ctx: click.Context, call: Invocation, directory: Path) -> None:
    version, needed = schema_of_directory(directory)
    advice = []
    if version < needed:
        advice.append("it is brought up to date when a client of this cassq opens it")
    if version > needed:
        advice.append("use the newer cassq that wrote it")
    if call.as_json:
        fields = {"directory": str(directory), "version": version, "needed": needed}
        output.document({**fields, "advice": advice})
    else:
        output.table(
            ("directory", str(directory)), [("schema version", f"{version}, needed: {needed}")]
        )
        for line in advice:
            output.note(f"note: {line}")
    if version > needed:
        ctx.exit(1)


def described(found: Status) -> dict[str, Any]:
    """A status as JSON shows it; replicas that all data centres share are under `*`."""
    return {
        "keyspace": found.keyspace,
        "exists": found.exists,
        "version": found.version,
        "needed": found.known_version,
        "replication": {name or "*": count for name, count in found.replicas.items()},
        "agreed": found.agreed,
        "nodes": found.nodes,
        "nodes_up": found.nodes_up,
        "commitlog_sync": dict(found.commitlog_sync),
    }


def _show(found: Status, replication: str, advice: list[str]) -> None:
    syncs = ", ".join(sorted(set(found.commitlog_sync.values()))) or "not known"
    version = "none" if found.version is None else str(found.version)
    rows = [
        ("schema version", f"{version}, needed: {found.known_version}"),
        ("replication", replication or "none"),
        ("servers", f"{found.nodes_up} of {found.nodes} up"),
        ("agree on the schema", "yes" if found.agreed else "no"),
        ("commitlog_sync", syncs),
    ]
    output.table(("keyspace", found.keyspace), rows)
    for line in advice:
        output.note(f"note: {line}")
