"""`cassq sidecar list`, `show` and `check`: which sidecars exist, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb
from cassq.client.client import Client
from cassq.errors import BackendError, ConfigError, UsageError
from cassq.extents.replicas.fleet import Fleet
from cassq.extents.replicas.shortages import note_shortage
from cassq.extents.replicas.upkeep import Upkeep
from cassq.inspect.inspection import KINDS, MISSING, ExtentFinding, Inspection, inspect
from cassq.inspect.placements.rounds import last_round
from cassq.model.sidecar_rows import SidecarRow
from cassq.plurals import counted

if TYPE_CHECKING:
    from cassq.extents.protocol.messages import ListedExtent

URL = "'cassandra://db1,db2/cassq?store=sidecar'"
SHOWN_MAX = 100
LIST_SECONDS = 2.0  # for all sidecars to answer
_UNITS = ("B", "kB", "MB", "GB", "TB")


def upkeep_of(client: Client) -> Upkeep:
    """The client's upkeep of replicas. Raises ConfigError if sidecars do not keep its messages."""
    upkeep = client.ports.upkeep
    if upkeep is None:
        raise ConfigError(
            "the messages under this URL are not kept by sidecars",
            hint="the URL of sidecars has ?store=sidecar",
        )
    return upkeep


def row_of(fleet: Fleet, name: str) -> SidecarRow:
    """A sidecar by its name. Raises UsageError if it does not exist."""
    row = fleet.sidecars.get(name)
    if row is None:
        known = ", ".join(fleet.sidecars) or "none"
        raise UsageError(f"there is no sidecar {name!r}", hint=f"the existing ones: {known}")
    return row


def size(count: float) -> str:
    """A number of bytes, for people."""
    unit = 0
    while count >= 1000 and unit < len(_UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {_UNITS[unit]}"


def alive(fleet: Fleet, row: SidecarRow, error: str) -> str:
    """Whether a sidecar is alive, or how long it has not been, for people. error: as in
    `described`."""
    if row.alive(fleet.now_ms):
        return "no answer" if error else "yes"
    if row.lease_ms == 0 and not fleet.is_lost(row):
        return f"stopped {output.age((fleet.now_ms - row.seen_ms) / 1000)} ago"
    lost = ", lost" if fleet.is_lost(row) else ""
    return f"not for {output.age((fleet.now_ms - row.seen_ms) / 1000)}{lost}"


def described(fleet: Fleet, row: SidecarRow, left: Mapping[str, int], error: str) -> dict[str, Any]:
    """A sidecar, for JSON. error: why it did not answer although its lease is valid; "" if it
    did."""
    return {
        **asdict(row),
        "state": row.state.name.lower(),
        "alive": row.alive(fleet.now_ms) and not error,
        "error": error,
        "lost": fleet.is_lost(row),
        "silent_seconds": round(max(0, fleet.now_ms - row.seen_ms) / 1000, 3),
        "left": left.get(row.name),
    }


@click.command(
    "list",
    cls=Verb,
    short_help="List the sidecars and their last reports.",
    examples=[f"cassq sidecar list --url {URL}", f"cassq sidecar list --json --url {URL}"],
)
@click.pass_obj
def list_(call: Invocation) -> None:
    """List the sidecars and their last reports.

    STATE is up, draining or gone. ALIVE says whether it answers within two seconds, or how long ago
    it last renewed its lease in the catalog. LOAD is the rate of writes to the sidecar. LEFT counts
    the extents of a draining or lost sidecar that still had to be copied elsewhere at the last full
    check.
    """
    with call.connect() as client:
        upkeep = upkeep_of(client)
        fleet = upkeep.fleet()
        leased = [row for row in fleet.sidecars.values() if row.alive(fleet.now_ms)]
        silent = upkeep.silent(leased, LIST_SECONDS)
        found = last_round(client.ports.catalog)
    left = found.left if found is not None else {}
    if call.as_json:
        rows = fleet.sidecars.values()
        output.document([described(fleet, row, left, silent.get(row.name, "")) for row in rows])
        return
    lines = [
        (
            *(row.name, row.address, row.zone, row.state.name.lower()),
            alive(fleet, row, silent.get(row.name, "")),
            *(size(row.free_bytes), row.extents, f"{size(row.load)}/s"),
            *(row.read_only, row.damaged, left.get(row.name)),
        )
        for row in fleet.sidecars.values()
    ]
    headers = ("NAME", "ADDRESS", "ZONE", "STATE", "ALIVE")
    more = ("FREE", "EXTENTS", "LOAD", "READ-ONLY", "DAMAGED", "LEFT")
    output.table(headers + more, lines)
    for name, error in silent.items():
        output.note(f"sidecar {name} does not answer: {error}")


@click.command(
    "show",
    cls=Verb,
    short_help="Show a sidecar's record in the catalog and its own report.",
    examples=[f"cassq sidecar show box-1:7077 --url {URL}"],
)
@click.argument("name", metavar="NAME")
@click.pass_context
def show(ctx: click.Context, name: str) -> None:
    """Show a sidecar's record in the catalog, its own report, and its extents that are damaged or
    not sealed.

    The exit code is 1 if it does not answer.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        upkeep = upkeep_of(client)
        fleet = upkeep.fleet()
        row = row_of(fleet, name)
        found = last_round(client.ports.catalog)
        info: dict[str, Any] = {}
        extents: dict[str, list[ListedExtent]] = {"damaged": [], "unsealed": []}
        error = ""
        try:
            info = dict(upkeep.info(row))
            for only in extents:
                extents[only] = list(islice(upkeep.extents(row, only), 10 * SHOWN_MAX))
        except BackendError as exc:
            error = str(exc)
    fields = described(fleet, row, found.left if found is not None else {}, error)
    if call.as_json:
        from msgspec import structs  # of an extra, like all that comes from sidecars

        lists = {only: list(map(structs.asdict, those)) for only, those in extents.items()}
        output.document({"sidecar": fields, "info": info, "error": error, **lists})
    else:
        output.table((row.name, ""), [(key, _cell(value)) for key, value in fields.items()])
        if info:
            output.say("")
            output.table(("it reports", ""), [(key, _cell(value)) for key, value in info.items()])
        for only, those in extents.items():
            _show_extents(only, those)
        if error:
            output.note(f"it does not answer: {error}")
    if error:
        ctx.exit(1)


def _cell(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _show_extents(only: str, those: list[ListedExtent]) -> None:
    if those:
        output.say("")
        rows = [(e.pipe_id, e.queue_name, e.end, size(e.size_bytes), e.damage) for e in those]
        headers = (only.upper(), "QUEUE", "MESSAGES", "SIZE", "DAMAGE")
        output.table(headers, rows[:SHOWN_MAX])
        _more(len(rows))


def _more(count: int) -> None:
    if count > SHOWN_MAX:
        output.say(f"and {count - SHOWN_MAX:,} more")


@click.command(
    "check",
    cls=Verb,
    short_help="Compare the catalog with what sidecars have.",
    examples=[
        f"cassq sidecar check --url {URL}",
        f"cassq sidecar check --json --url {URL} | jq .counts",
    ],
)
@click.pass_context
def check(ctx: click.Context) -> None:
    """Compare all extents in the catalog with those that the sidecars have.

    \b
    unreadable        no good replica is known: the messages cannot be read now
    under-replicated  there are fewer good replicas than there should be
    damaged           a replica is damaged; another one is copied over it
    behind            a replica lacks the last messages; another one is copied over it
    missing           a sidecar is alive but lacks its replica, which is copied there or elsewhere
    begun             an empty pipe has too few replicas, because its pusher died while making it;
                      the pipe is removed after an hour
    orphaned          the catalog does not list a replica; its sidecar removes it after an hour

    The exit code is 1 if anything but the last two is found, or if a sidecar that should answer
    does not. `cassq reap` repairs what it can. It looks for missing replicas once an hour, and at
    once after this command has found one.
    """
    call = ctx.ensure_object(Invocation)
    with call.connect() as client:
        found = inspect(client.ports.catalog, upkeep_of(client))
        if found.of(MISSING):
            note_shortage(client.ports.catalog)
    if call.as_json:
        output.document(found.as_dict())
    else:
        _show_inspection(found)
    if not found.is_well:
        ctx.exit(1)


def _show_inspection(found: Inspection) -> None:
    if found.found:
        rows = [_line(each) for each in found.found[:SHOWN_MAX]]
        output.table(("WHAT", "EXTENT", "QUEUE", "SIDECAR", "DETAIL"), rows)
        _more(len(found.found))
        output.say("")
    for name, count in found.lost.items():
        left = f"{counted(count, 'extent')} to be copied from others"
        nothing = f"nothing is left there: `cassq sidecar forget {name}`"
        output.say(f"sidecar {name} is lost; {left if count else nothing}")
    for name, why in found.silent.items():
        output.say(f"sidecar {name} did not answer: {why}")
    counts = [f"{len(found.of(kind)):,} {kind}" for kind in KINDS if found.of(kind)]
    rest = "all is well" if found.is_well else "nothing else is known to be wrong"
    output.say(f"{counted(found.extents, 'extent')}: {', '.join(counts) or rest}")


def _line(each: ExtentFinding) -> tuple[str, ...]:
    return each.kind, each.pipe_id, each.queue, each.sidecar or "-", each.detail
