"""`cassq reap` and `cassq rollback`: the reaper's passes, once or repeatedly."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from cassq.alerts.targets import AlertTarget, load_targets
from cassq.base.clock import Stopwatch, SystemClock
from cassq.cli.ops.reap_health import ReapHealth
from cassq.cli.stopping import StopSignal
from cassq.cli.ui import output
from cassq.cli.ui.daemon_log import log_as_daemon
from cassq.cli.verb import Invocation, Verb, complete_queue, options, seconds
from cassq.client.client import Client
from cassq.errors import BackendError, UsageError
from cassq.model.rows import QueueRow
from cassq.plurals import counted
from cassq.reaper import FAILED, LEASE_MS, PLANNED, Action, Reaper
from cassq.reaper.actions import Scope

LOOK_SECONDS = 0.25
EVERY_SECONDS_MIN = 0.1
# How long rollup and alert, which look at every queue, may take: a pass takes 2 seconds at most.
PATIENCE_SECONDS = 0.8

# How long repairs continue after one pass, and how long they rest in between.
REPAIR_SECONDS = 10.0
REPAIR_PAUSE_SECONDS = 0.05

# The passes that watch leases, and groups without poppers.
WATCHING = ("seal", "unstage", "disband")

# Runs the passes over these queues; None: over all.
Pass = Callable[[Reaper, list[QueueRow] | None], list[Action]]

_with_options = options(
    click.option(
        "--queue",
        "queues",
        multiple=True,
        metavar="QUEUE",
        shell_complete=complete_queue,
        help="Only this queue; may be given several times.  [default: all queues]",
    ),
    click.option(
        "--every", type=seconds, help="Run a pass at this interval, until SIGTERM or Ctrl-C."
    ),
    click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing."),
)


@click.command(
    cls=Verb,
    short_help="Clean up after stopped clients, once or as a daemon.",
    examples=[
        "cassq reap",
        "cassq reap --dry-run",
        "cassq reap --every 10s",
        "cassq reap --queue mail --queue /shop/orders --json",
        "cassq reap --every 10s --metrics-port 9464",
        "cassq reap --every 30s --alerts alerts.toml",
    ],
)
@_with_options
@click.option(
    "--alerts",
    type=click.Path(path_type=Path),
    envvar="CASSQ_ALERTS",
    show_envvar=True,
    metavar="FILE",
    help="Send alerts to the targets in this TOML file.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="With --every: serve metrics for Prometheus, and /health; needs the extra cassq[metrics].",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="The address that serves metrics and /health.",
)
@click.pass_context
def reap(
    ctx: click.Context,
    queues: tuple[str, ...],
    every: float | None,
    dry_run: bool,
    alerts: Path | None,
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Clean up after pushers and poppers that finished, stopped or crashed.

    \b
    seal      seal pipes whose pusher is gone, or showed no sign of life for a whole lease
    schedule  push the ticks of schedules that are due
    mend      repair claims that have gaps or overlap, and redeliver messages that none covers
    rollback  give back messages that a popper has kept for too long
    disband   remove groups that had no popper for the time of their setting group_expires
    retire    remove pipes that every group has committed
    expire    remove messages that are too old, or too many
    scale     open more or fewer pipes side by side, as the load requires
    rollup    record the totals and depths of each minute, hour and day
    unstage   remove messages that a dead Spark job wrote but did not commit
    sweep     finish removals that a crash interrupted
    repair    copy replicas that storage sidecars lost or must give up
    alert     with --alerts, send alerts

    Running clients do this themselves, so the command is needed only where no client runs: as one
    pass from cron, or as a daemon with --every. Any number may run side by side.

    If a pass does not know whether the pushers of some pipes are alive, it watches these pipes
    until it does: for at most a lease, which is 10 seconds by default, and for a minute while a
    Spark job writes. If a group may have no popper, it watches the group for 15 seconds. Alerts
    that could not be sent are sent by a later pass. Repairs continue for ten seconds after a single
    pass, and all the time with --every. The records of `rollup` are not shown. The exit code is 1
    if something could not be done.
    """
    metrics = None if metrics_port is None else (metrics_port, metrics_host)
    targets = load_targets(alerts) if alerts is not None else []
    _run(
        ctx,
        queues,
        every,
        dry_run,
        once=_reap_once,
        again=_reap,
        metrics=metrics,
        targets=targets,
    )


@click.command(
    cls=Verb,
    short_help="Give back messages that poppers have kept for too long.",
    examples=["cassq rollback", "cassq rollback --queue mail", "cassq rollback --every 5s"],
)
@_with_options
@click.pass_context
def rollback(
    ctx: click.Context, queues: tuple[str, ...], every: float | None, dry_run: bool
) -> None:
    """Give back messages that a popper has kept for longer than the claim timeout.

    Messages that were delivered too often become dead letters. This is a pass of `cassq reap`.
    """
    _run(ctx, queues, every, dry_run, once=_roll_back_once, again=_roll_back)


def _run(
    ctx: click.Context,
    queues: tuple[str, ...],
    every: float | None,
    dry_run: bool,
    *,
    once: Callable[[StopSignal], Pass],
    again: Callable[[StopSignal], Pass],
    metrics: tuple[int, str] | None = None,
    targets: Sequence[AlertTarget] = (),
) -> None:
    call = ctx.ensure_object(Invocation)
    if metrics is not None and every is None:
        raise UsageError("--metrics-port needs --every: a single pass is too short")
    if every is not None and every < EVERY_SECONDS_MIN:
        raise UsageError(f"--every must be at least {EVERY_SECONDS_MIN} seconds, not {every:g}")
    with StopSignal() as stop, call.connect() as client:
        reaper = partial(_reaper, client, targets, stop, dry_run=dry_run)
        if every is not None:
            health = ReapHealth(every, SystemClock())
            if metrics is not None:
                port, host = metrics
                served = client.serve_metrics(port, host, health=health.facts)
                address = f"http://{host}:{served.port}"
                output.note(f"metrics at {address}/metrics, health at {address}/health")
            _go_on(call, client, reaper, queues, again(stop), every, stop, health)
            return
        actions = _notable(once(stop)(reaper(), _rows(client, queues)))
        if not dry_run:
            _repair_on(client, REPAIR_SECONDS, stop, tell=actions.extend)
            actions = _without_progress(actions)
    if call.as_json:
        output.document(_document(actions))
    else:
        output.say(*_lines(actions) or ["nothing to do"])
    if stop.wanted:
        ctx.exit(stop.exit_code)
    if any(action.outcome == FAILED for action in actions):
        ctx.exit(1)


def _reaper(
    client: Client, targets: Sequence[AlertTarget], stop: StopSignal, *, dry_run: bool
) -> Reaper:
    """The client's reaper, set up. Raises BackendUnavailableError until a server has answered."""
    reaper = client.reaper
    reaper.dry_run, reaper.patience, reaper.targets = dry_run, PATIENCE_SECONDS, targets
    reaper.stopping = lambda: stop.wanted
    return reaper


def _go_on(
    call: Invocation,
    client: Client,
    reaper: Callable[[], Reaper],
    queues: tuple[str, ...],
    work: Pass,
    pause: float,
    stop: StopSignal,
    health: ReapHealth,
) -> None:
    """The daemon: runs passes until the command must end; reports failures, and tries again."""
    log_as_daemon(as_json=call.as_json)
    output.note(f"a pass every {pause:g} s, until SIGTERM or Ctrl-C")
    while True:
        watch = Stopwatch()
        try:
            actions = work(reaper(), _rows(client, queues))
            health.succeeded(sum(action.outcome == FAILED for action in actions))
            _report(call, _ended(client, actions))
            watch = Stopwatch()
            if not client.reaper.dry_run:
                _repair_on(client, pause, stop, tell=partial(_tell_ended, call, client))
        except BackendError as exc:
            health.failed(exc)
            kind = type(exc).__name__
            output.error(exc.message, exc.hint, as_json=call.as_json, kind=kind, fields=exc.fields)
        if stop.wait(max(0.0, pause - watch.seconds())):
            return


def _tell_ended(call: Invocation, client: Client, actions: list[Action]) -> None:
    _report(call, _ended(client, actions))


def _report(call: Invocation, actions: list[Action]) -> None:
    """Write what a pass of the daemon did; nothing if it did nothing."""
    now = datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)
    if actions and call.as_json:
        at = now.isoformat(timespec="milliseconds")
        output.json_line({"at": at, **_document(actions)})
    elif actions:
        output.say(output.moment(now), *_lines(actions), "")


def _repair_on(
    client: Client, seconds: float, stop: StopSignal, *, tell: Callable[[list[Action]], object]
) -> None:
    """Continue repairs for `seconds`, while there is something to repair."""
    watch, reaper = Stopwatch(), client.reaper
    while reaper.repairs and watch.seconds() < seconds and not stop.wait(REPAIR_PAUSE_SECONDS):
        tell(reaper.run("repair", Scope(client.ports)) or [])


def _rows(client: Client, queues: tuple[str, ...]) -> list[QueueRow] | None:
    return [client.queue(name).row for name in queues] if queues else None


# --- the passes -----------------------------------------------------------------------------


def _reap(_stop: StopSignal) -> Pass:
    return Reaper.reap


def _roll_back(_stop: StopSignal) -> Pass:
    return lambda reaper, rows: reaper.reap(rows, only=("rollback",))


def _roll_back_once(stop: StopSignal) -> Pass:
    return lambda reaper, rows: _each(reaper, rows, ("rollback",), stop)


def _reap_once(stop: StopSignal) -> Pass:
    """All passes, after watching the pipes that cannot be decided on at one look."""

    def work(reaper: Reaper, rows: list[QueueRow] | None) -> list[Action]:
        actions = _seal_after_watching(reaper, rows, stop)
        others = [name for name in reaper.names if name not in WATCHING]
        return actions + _each(reaper, rows, others, stop)

    return work


def _each(
    reaper: Reaper, rows: list[QueueRow] | None, names: Sequence[str], stop: StopSignal
) -> list[Action]:
    """Run each of these passes once; wait for a pass that another reaper is running."""
    actions: list[Action] = []
    for name in names:
        if stop.wanted:
            break
        scope = Scope(reaper.ports, rows)
        watch = Stopwatch()
        while (done := reaper.run(name, scope)) is None:
            if watch.seconds() > 2 * LEASE_MS / 1000 or stop.wait(LOOK_SECONDS):
                break  # others keep running it
        actions += done or []
    return actions


def _seal_after_watching(
    reaper: Reaper, rows: list[QueueRow] | None, stop: StopSignal
) -> list[Action]:
    """Seal pipes, abort writes, and remove groups, until all that are left have shown life.

    The reaper notes each lease at every look, and ends those that were not renewed for their whole
    length; so this takes one lease length at most.
    """
    beats = {each.id: each.beat for each in reaper.candidates(rows)}
    announced = False
    actions: dict[tuple[str, str], Action] = {}
    while True:
        found = _each(reaper, rows, WATCHING, stop)
        actions |= {(action.queue, action.subject): action for action in found}
        decided = {action.subject for action in actions.values()}
        doubtful = [
            each
            for each in reaper.candidates(rows)
            if each.id not in decided and beats.get(each.id) == each.beat
        ]
        if not doubtful:
            break
        if not announced and sys.stderr.isatty():
            lease = max(each.lease_ms for each in doubtful) / 1000
            nouns = Counter(each.noun for each in doubtful)
            what = " and ".join(counted(count, noun) for noun, count in nouns.items())
            output.note(f"watching {what} for signs of life, {lease:g} s at most")
        announced = True
        if stop.wait(LOOK_SECONDS):
            break
    return list(actions.values())


# --- what was done --------------------------------------------------------------------------


def _notable(actions: list[Action]) -> list[Action]:
    """The actions, without those done every minute for every queue."""
    return [a for a in actions if a.verb != "rollup" or a.outcome == FAILED]


def _ended(client: Client, actions: list[Action]) -> list[Action]:
    """The actions of a daemon, without the progress of repairs that continue."""
    if client.reaper.dry_run:
        return _notable(actions)
    return [a for a in _notable(actions) if a.outcome != PLANNED]


def _without_progress(actions: list[Action]) -> list[Action]:
    """The actions; for each repair that continues only its last report."""
    last = {(a.verb, a.subject): a for a in actions}
    return [a for a in actions if a.outcome != PLANNED or last[a.verb, a.subject] is a]


def _document(actions: list[Action]) -> dict[str, Any]:
    return {"actions": [action.as_dict() for action in actions]}


def _lines(actions: list[Action]) -> list[str]:
    if not actions:
        return []
    return output.table_lines(
        ("PASS", "QUEUE", "SUBJECT", "OUTCOME", "DETAIL"),
        [(a.verb, a.queue, a.subject, a.outcome, a.detail) for a in actions],
    )
