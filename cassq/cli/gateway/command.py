"""`cassq gateway`: serve the queues to SQS clients in any language."""

from __future__ import annotations

import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from cassq import extras
from cassq.cli.options import A_FILE, grace_option, processes_option
from cassq.cli.ui import output
from cassq.cli.ui.daemon_log import log_as_daemon
from cassq.cli.verb import Invocation, Verb
from cassq.cli.worker.describing import run_until_stopped
from cassq.client.connecting import DEFAULT_URL
from cassq.worker.notify import Notices
from cassq.worker.supervisor import Plan, Supervisor

LISTEN = "127.0.0.1:9324"
REGION = "us-east-1"
PROCESSES_MAX = 256
CHILD = "cassq.cli.gateway.child"
_WILDCARDS = ("0.0.0.0", "::")
LARGE_EXAMPLE = (
    "cassq gateway --listen 0.0.0.0:443 --credentials /etc/cassq/keys.toml --processes 4"
    " --tls-cert /etc/cassq/gateway.pem --tls-key /etc/cassq/gateway.key"
)


@click.command(
    cls=Verb,
    short_help="Serve the queues to SQS clients in any language.",
    examples=[
        "cassq gateway",
        "cassq gateway --listen 127.0.0.1:9324 --processes 2",
        LARGE_EXAMPLE,
    ],
)
@click.option(
    "--listen",
    default=LISTEN,
    show_default=True,
    metavar="HOST:PORT",
    help="Where to listen. Without --credentials: a loopback address.",
)
@click.option(
    "--credentials",
    type=A_FILE,
    help="Access keys, their secrets and permissions, as TOML. Read again when it changes.",
)
@click.option("--tls-cert", type=A_FILE, help="The certificate, for TLS.")
@click.option("--tls-key", type=A_FILE, help="The key of the certificate.")
@processes_option(PROCESSES_MAX, "; one for each core is enough")
@grace_option("requests")
@click.option(
    "--expose-groups",
    is_flag=True,
    help="Also serve each group except `default` as a queue, QUEUE--GROUP, to receive from.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Listen without credentials in a network that you trust.",
)
@click.pass_context
def gateway(
    ctx: click.Context,
    listen: str,
    credentials: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    processes: int,
    grace: float,
    expose_groups: bool,
    insecure: bool,
) -> None:
    """Serve the queues by the protocol of Amazon SQS, until SIGTERM or Ctrl-C.

    Clients are the SDKs of AWS in any language: set AWS_ENDPOINT_URL_SQS as this command prints it.
    Without --credentials, every access key is accepted, and only this machine can connect.

    The same address serves /health, and /metrics for Prometheus. After SIGTERM or Ctrl-C, requests
    may finish within --grace; those that wait for messages are answered at once. A second Ctrl-C
    ends the command at once. The files of credentials and certificates are read again when they
    change, and after SIGHUP. A process that crashes is replaced.
    """
    with extras.wanted(*extras.GATEWAY):
        from cassq.gateway.serving import check_exposure, open_sockets, server_tls
        from cassq.gateway.wire.counts import counts_bytes
        from cassq.gateway.wire.credentials import read_keys
    call = ctx.ensure_object(Invocation)
    log_as_daemon(as_json=call.as_json)
    host, _ = check_exposure(listen, credentials=credentials is not None, insecure=insecure)
    encrypted = server_tls(tls_cert, tls_key) is not None
    if credentials is not None:
        read_keys(credentials)
    sockets = open_sockets(listen, processes)
    port = sockets[0][0].getsockname()[1]
    with tempfile.TemporaryFile(prefix="cassq-gateway-") as counts:
        counts.truncate(counts_bytes(processes))
        orders = [
            {
                "queue": "",
                "url": call.url or DEFAULT_URL,
                "json": call.as_json,
                "sockets": [each.fileno() for each in its],
                "counts": counts.fileno(),
                "inherits": [counts.fileno(), *(each.fileno() for each in its)],
                "slot": slot,
                "credentials": _shown(credentials),
                "cert": _shown(tls_cert),
                "key": _shown(tls_key),
                "grace": grace,
                "groups": expose_groups,
            }
            for slot, its in enumerate(sockets)
        ]
        endpoint = _endpoint(host, port, "https" if encrypted else "http")
        facts = {"endpoint": endpoint, "region": REGION, "processes": processes}
        code = _run(_plan(orders, grace), lambda: _show(call, facts, any_key=credentials is None))
    ctx.exit(code)


def _plan(orders: Sequence[Mapping[str, Any]], grace: float) -> Plan:
    return Plan(
        [sys.executable, "-m", CHILD],
        orders,
        grace,
        crash_costs="its clients have lost their connections",
        passed_on=[signal.SIGHUP],
    )


def _shown(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _endpoint(host: str, port: int, scheme: str) -> str:
    """The URL for clients."""
    if host in _WILDCARDS:
        host = socket.gethostname()
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class _ReadyNotices(Notices):
    """Notices that also call `ready` when all processes serve."""

    def __init__(self, ready: Callable[[], None]) -> None:
        super().__init__()
        self._ready = ready

    def ready(self) -> None:
        """See `Notices`."""
        self._ready()
        super().ready()


def _run(plan: Plan, ready: Callable[[], None]) -> int:
    """Run processes until they are stopped. Returns the exit code."""
    supervisor = Supervisor(plan, lambda _orders, _popper: None, _ReadyNotices(ready))
    return run_until_stopped(supervisor)


def _show(call: Invocation, facts: Mapping[str, Any], *, any_key: bool) -> None:
    if call.as_json:
        output.json_line(facts)
        return
    region = facts["region"]
    output.say(f"export AWS_ENDPOINT_URL_SQS={facts['endpoint']}")
    output.say(f"export AWS_REGION={region} AWS_DEFAULT_REGION={region}")
    if any_key:
        output.say("export AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any")
        output.note("any access key is accepted, from any program that can connect")
    output.note(f"health at {facts['endpoint']}/health, until SIGTERM or Ctrl-C")
