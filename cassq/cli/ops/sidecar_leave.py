"""`cassq sidecar drain` and `forget`: how a sidecar is taken out of service."""

from __future__ import annotations

import sys
from functools import partial

import click

from cassq.base.clock import Stopwatch
from cassq.cli.ops.sidecars import URL, row_of, upkeep_of
from cassq.cli.stopping import StopSignal
from cassq.cli.ui import output
from cassq.cli.verb import Invocation, Verb
from cassq.client.client import Client
from cassq.errors import UsageError
from cassq.extents.replicas.fleet import Fleet, ReplicaStanding
from cassq.inspect.inspection import left_on
from cassq.model.sidecar_rows import Placement, ReplicaAt, SidecarState
from cassq.plurals import counted
from cassq.reaper.actions import FAILED, Scope

UP, DRAINING, GONE = SidecarState.UP, SidecarState.DRAINING, SidecarState.GONE

PATIENCE_SECONDS = 0.8
PAUSE_SECONDS = 0.1
LOOK_SECONDS = 2.0
# After counting what is left, rest this many times as long as the count took.
LOOK_REST = 10


@click.command(
    cls=Verb,
    short_help="Copy everything from a sidecar to others, to take it out of service.",
    examples=[
        f"cassq sidecar drain box-1:7077 --url {URL}",
        f"cassq sidecar drain box-1:7077 --wait --url {URL}",
        f"cassq sidecar drain box-1:7077 --undo --url {URL}",
    ],
)
@click.argument("name", metavar="NAME")
@click.option("--undo", is_flag=True, help="Let it accept extents again.")
@click.option("--wait", is_flag=True, help="Help to copy, and return when the sidecar is empty.")
@click.pass_context
def drain(ctx: click.Context, name: str, undo: bool, wait: bool) -> None:
    """Take a sidecar out of service: have all its extents copied to other sidecars.

    The sidecar accepts no new extents from now on, and pushers continue elsewhere. Clients and
    `cassq reap` copy its extents, and only then remove them from it; it serves readers until then.
    When it is empty, stop it, and run `cassq sidecar forget`.

    With --wait this command copies too, and may be stopped at any time. The exit code is 1 if it
    was stopped, or if something could not be copied for a minute.
    """
    call = ctx.ensure_object(Invocation)
    if undo and wait:
        raise UsageError("--undo has nothing to wait for")
    with StopSignal() as stop, call.connect() as client:
        fleet = upkeep_of(client).fleet()
        row = row_of(fleet, name)
        if row.state is GONE:
            raise UsageError(
                f"sidecar {name!r} was given up: its replicas count as lost",
                hint="start it with a new data directory to use it again",
            )
        client.ports.catalog.sidecars.set_state(name, UP if undo else DRAINING)
        left = [] if undo else left_on(client.ports.catalog, name)
        if left and not call.as_json:
            _warn(fleet, name, left)
        stuck = ""
        if wait and left:
            left, stuck = _copied(client, name, left, stop)
    if call.as_json:
        output.document({"sidecar": name, "state": "up" if undo else "draining", "left": len(left)})
    elif undo:
        output.say(f"{name} accepts extents again")
    elif left:
        output.say(f"{name} drains: {counted(len(left), 'extent')} left to be copied elsewhere")
    else:
        output.say(f"{name} is empty: stop it, then `cassq sidecar forget {name}`")
    if stop.wanted:
        ctx.exit(stop.exit_code or 1)
    if stuck:
        output.note(f"note: {stuck}")
        ctx.exit(1)


def _warn(fleet: Fleet, name: str, left: list[Placement]) -> None:
    others = [other for other in fleet.takers() if other != name]
    wanted = max(placement.wanted for placement in left)
    if len(others) < wanted:
        output.note(
            f"note: extents have up to {wanted} replicas, and only {len(others)} other sidecars"
            " take any: an extent with a replica on each of them stays here until you add one"
        )


def _copied(
    client: Client, name: str, left: list[Placement], stop: StopSignal
) -> tuple[list[Placement], str]:
    """Repair until nothing is left, or nothing was copied for a minute; returns what is left, and
    why."""
    reaper, scope = client.reaper, Scope(client.ports)
    reaper.patience = PATIENCE_SECONDS
    total, moved, looked, rest, why = len(left), Stopwatch(), Stopwatch(), LOOK_SECONDS, ""
    with output.passing_line() as show:
        while left and not stop.wanted:
            actions = [*(reaper.run("seal", scope) or []), *(reaper.run("repair", scope) or [])]
            why = next((each.detail for each in actions if each.outcome == FAILED), why)
            if any(each.outcome != FAILED for each in actions):
                moved = Stopwatch()
            if looked.seconds() >= rest:
                began = looked.seconds()
                now = left_on(client.ports.catalog, name)
                rest = max(LOOK_SECONDS, LOOK_REST * (looked.seconds() - began))
                looked = Stopwatch()
                if len(now) != len(left):
                    moved = Stopwatch()
                left = now
            show(partial(_progress, len(left), total))
            if moved.seconds() > 60:
                return left, why or "nothing could be copied for a minute"
            stop.wait(PAUSE_SECONDS)
    return left, ""


def _progress(left: int, total: int, seconds: float) -> str:
    return f"{max(0, total - left):,} of {counted(total, 'extent')} copied, {seconds:.0f} s"


@click.command(
    cls=Verb,
    short_help="Remove a sidecar that no longer exists.",
    examples=[
        f"cassq sidecar forget box-1:7077 --url {URL}",
        f"cassq sidecar forget box-1:7077 --force --url {URL}",
    ],
)
@click.argument("name", metavar="NAME")
@click.option(
    "--force",
    is_flag=True,
    help="Give it up with everything on it: its replicas count as lost from now on.",
)
@click.pass_obj
def forget(call: Invocation, name: str, force: bool) -> None:
    """Remove a sidecar that was stopped and has no extents any more.

    A sidecar that still has extents must be drained first. If it will never come back, --force
    gives it up: its replicas count as lost at once, even if it runs, and are copied from others
    without waiting. If it has the only good replica of an extent, that extent is lost unless the
    sidecar comes back. Once everything is copied, forget it a second time.
    """
    with call.connect() as client:
        fleet = upkeep_of(client).fleet()
        row = row_of(fleet, name)
        catalog = client.ports.catalog
        left = left_on(catalog, name)
        if not force:
            _refuse(fleet, name, left)
        if left:
            catalog.sidecars.set_state(name, GONE)
        elif row.alive(fleet.now_ms):
            raise _running(name)
        else:
            catalog.sidecars.forget(name)
    only = [each for each in left if not _good_elsewhere(fleet, each, name)]
    if call.as_json:
        fields = {"sidecar": name, "forgotten": not left, "left": len(left)}
        output.document({**fields, "only_there": [each.pipe_id for each in only]})
    elif not left:
        output.say(f"forgot {name}")
    else:
        output.say(f"{name} is given up: {counted(len(left), 'extent')} count as lost there")
        if only:
            output.note(
                f"note: {counted(len(only), 'extent')} have no known good replica elsewhere,"
                f" {only[0].pipe_id} among them: start it again if you can, to copy them from it"
            )
    if left and sys.stderr.isatty() and not call.as_json:
        output.note("`cassq sidecar check` shows when they are copied; then forget it again")


def _refuse(fleet: Fleet, name: str, left: list[Placement]) -> None:
    """Raise UsageError unless the sidecar can be forgotten."""
    row = fleet.sidecars[name]
    if left:
        raise UsageError(
            f"{counted(len(left), 'extent')} have a replica on sidecar {name!r}",
            hint="drain it first, or give up its replicas with --force",
            left=len(left),
        )
    if row.alive(fleet.now_ms):
        raise _running(name)


def _running(name: str) -> UsageError:
    return UsageError(f"sidecar {name!r} is running", hint="stop it first: it would register again")


def _good_elsewhere(fleet: Fleet, placement: Placement, name: str) -> bool:
    def fine(at: ReplicaAt) -> bool:
        standing = fleet.standing(at)
        return standing in (ReplicaStanding.GOOD, ReplicaStanding.AWAY, ReplicaStanding.LEAVING)

    return any(at.sidecar != name and fine(at) for at in placement.replicas)
