"""`cassq schema`: make and inspect the tables of a Cassandra keyspace, and change its settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cassq import extras
from cassq.base.clock import SystemClock
from cassq.base.ids import Ids
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb
from cassq.client.backends.embedded import schema_of_directory
from cassq.client.connecting import local_directory
from cassq.errors import UsageError

if TYPE_CHECKING:
    from cassq.cassandra.session import Cql
    from cassq.catalog.cassandra.schema_status import Status

URL = "cassandra://db1,db2/cassq"


@click.group()
def schema() -> None:
    """Create, inspect and change a Cassandra keyspace.

    A directory does not need this: its tables are created when it is opened.
    """


@contextmanager
def _session(call: Invocation) -> Iterator[Cql]:
    """A session with the cluster of the URL, which needs the driver."""
    with extras.wanted(*extras.CASSANDRA):
        from cassq.client.backends.cluster import open_session
    cql = open_session(call.url, SystemClock())
    try:
        yield cql
    finally:
        cql.close()


@schema.command(
    "apply",
    cls=Verb,
    short_help="Create the tables of a Cassandra keyspace, or bring them up to date.",
    examples=[
        f"cassq schema apply --url {URL} --replication 3",
        "cassq schema apply --url cassandra://db1/cassq?dc=east --replication east=3,west=3",
        f"cassq schema apply --url {URL}",
    ],
)
@click.option(
    "--replication",
    metavar="COUNT|DC=COUNT,...",
    help="How many replicas a new keyspace has, in every data centre or in the named ones.",
)
@click.pass_obj
def apply(call: Invocation, replication: str | None) -> None:
    """Create the tables of the URL's keyspace, or bring them up to date. With --replication also
    create the keyspace if it does not exist. If there are too few servers for this replication,
    nothing is created.

    Tables that are up to date are not changed, and any number of processes may run this at the same
    time. Clients with an older cassq continue to work, but cannot connect again. With three
    replicas, one server may fail.
    """
    steps: list[str] = []

    def done(step: str) -> None:
        steps.append(step)
        if not call.as_json:
            output.say(step)

    with _session(call) as cql:
        from cassq.catalog.cassandra import replication as factors
        from cassq.catalog.cassandra import schema as schemas

        replicas = None if replication is None else factors.parse_replication(replication)
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
    """Show a Cassandra keyspace: its schema version and the version that this cassq needs, its
    replication, whether all servers agree on its tables, how they sync to disk and run conditional
    writes, and the locks and the store of all clients. Notes say what should be changed.

    For a directory only the versions are shown: an older directory is brought up to date when it is
    opened. The exit code is 1 unless this cassq can work with the keyspace or directory as it is.
    """
    call = ctx.ensure_object(Invocation)
    directory = local_directory(call.url)
    if directory is not None:
        _directory_status(ctx, call, directory)
        return
    with _session(call) as cql:
        from cassq.catalog.cassandra import schema_status
        from cassq.catalog.cassandra.replication import as_text

        found: Status = schema_status.status(cql)
        replication = as_text(found.replicas)
        advice = schema_status.advice(found)
    if call.as_json:
        output.document({**described(found), "advice": advice})
    else:
        _show(found, replication, advice)
    if not found.usable:
        ctx.exit(1)


@schema.command(
    "change",
    cls=Verb,
    short_help="Change the replication, locker or store of a Cassandra keyspace.",
    examples=[
        f"cassq schema change --url {URL} --replication 2",
        f"cassq schema change --url {URL} --replication 3 --repaired",
        f"cassq schema change --url {URL} --locks zookeeper://zk1:2181/cassq",
        f"cassq schema change --url {URL} --locks leases",
        f"cassq schema change --url {URL} --store sidecar",
    ],
)
@click.option(
    "--replication",
    metavar="COUNT|DC=COUNT,...",
    help="How many replicas there should be, in every data centre or in the named ones.",
)
@click.option(
    "--repaired",
    is_flag=True,
    help="With --replication: all servers were repaired since its last change.",
)
@click.option("--locks", metavar="URL|leases", help="The service that grants locks to all clients.")
@click.option("--store", metavar="STORE", help="Where messages are stored: cassandra or sidecar.")
@click.pass_obj
def change(
    call: Invocation,
    replication: str | None,
    repaired: bool,
    locks: str | None,
    store: str | None,
) -> None:
    """Change one setting of a keyspace, for all its clients.

    --replication adds or removes one replica at a time, while clients work; a keyspace without
    tables may be given any number. Afterwards each server must be repaired, and the next change
    needs --repaired. If the replication is the same as before, --repaired only records the repair.

    --locks needs all poppers to be stopped. Clients read this setting when they connect. A user and
    a password are not recorded: clients give them in their URLs.

    --store is possible while there are no queues.
    """
    given = [value for value in (replication, locks, store) if value is not None]
    if len(given) != 1 or (repaired and replication is None):
        raise UsageError("give one of --replication, --locks and --store")
    if replication is not None:
        lines = _change_replication(call, replication, repaired=repaired)
    else:
        lines = _change_agreement(call, locks, store)
    if call.as_json:
        output.document({"done": lines[:1], "due": lines[1:]})
        return
    output.say(lines[0])
    for line in lines[1:]:
        output.note(f"note: {line}")


def _change_replication(call: Invocation, desired: str, *, repaired: bool) -> list[str]:
    """Change the replication; returns lines about what was done, and what must be done next."""
    with _session(call) as cql:
        from cassq.catalog.cassandra import replication
        from cassq.catalog.cassandra.schema import tables_of

        replicas = replication.parse_replication(desired)
        keyspace, tables = cql.contact.keyspace, bool(tables_of(cql))
        if tables:
            cql.use(keyspace)
        due = replication.set_replication(cql, replicas, repaired=repaired, tables=tables)
        done = f"keyspace {keyspace} has replication {replication.as_text(replicas)}"
    return [done] if due is None else [done, due]


def _change_agreement(call: Invocation, locks: str | None, store: str | None) -> list[str]:
    """Change the locks or the store; returns lines about what was done, and what is left to do."""
    with extras.wanted(*extras.CASSANDRA):
        from cassq.client.backends.cluster import opened_agreement
    clock = SystemClock()
    with opened_agreement(call.url, clock) as agreement:
        if store is not None:
            agreement.change_store(store)
            return [f"all clients keep messages with store={store}"]
        late = agreement.change_locks(locks or "leases", clock, Ids())
        lines = [f"all clients use the locks {agreement.locks}"]
    restart = "may use the old locks: restart the poppers of group {}"
    return lines + [restart.format(name) for name in late]


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
    """A status, for JSON; if all data centres have equally many replicas, under `*`."""
    return {
        "keyspace": found.keyspace,
        "exists": found.exists,
        "version": found.version,
        "needed": found.known_version,
        "replication": {name or "*": count for name, count in found.replicas.items()},
        "repair_due": found.repair_due,
        "locks": found.locks,
        "store": found.store,
        "agreed": found.agreed,
        "nodes": len(found.nodes),
        "nodes_up": sum(node.up for node in found.nodes),
        "servers": [
            {"address": node.address, "data_centre": node.data_centre, "up": node.up}
            | node.settings
            for node in found.nodes
        ],
        **{name: _by_address(found, name) for name in ("commitlog_sync", "paxos_variant")},
    }


def _by_address(found: Status, name: str) -> dict[str, str]:
    return {node.address: node.settings[name] for node in found.nodes if name in node.settings}


def _show(found: Status, replication: str, advice: list[str]) -> None:
    version = "none" if found.version is None else str(found.version)
    rows = [
        ("schema version", f"{version}, needed: {found.known_version}"),
        ("replication", replication or "none"),
        ("servers", f"{sum(node.up for node in found.nodes)} of {len(found.nodes)} up"),
        ("agree on the schema", "yes" if found.agreed else "no"),
        ("commitlog_sync", _values(found, "commitlog_sync")),
        ("paxos_variant", _values(found, "paxos_variant")),
        ("locks", found.locks or "the first client chooses them"),
        ("store", found.store or "the first client chooses it"),
    ]
    output.table(("keyspace", found.keyspace), rows)
    for line in advice:
        output.note(f"note: {line}")


def _values(found: Status, name: str) -> str:
    """The values of a server setting, with how many servers have each, if they differ."""
    values = found.setting(name)
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{value} on {len(those)}" for value, those in values.items()) or "not known"
